//! What the scanners should see, worked out the plain way: from a full parse, with the canonical form of a history made
//! as a tree and hashed at its end. Tests and the fuzzer hold the scanner against it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::digest::{self, NO_ITEMS, mix};
use super::history::{History, Step};
use super::{Fields, Model, RootKeys, SessionValue, Shape, path};

/// Longest value kept, in decoded bytes.
const LONGEST: usize = 1024;

/// How deep values are looked into.
const DEEPEST: usize = 24;

/// Longest text that is compared with the known ones.
const SHORT: usize = 255;

const PREAMBLES: [&str; 4] = ["system-reminder", "environment_context", "user_instructions", "environment_details"];

const TEXT_TYPES: [&str; 3] = ["text", "input_text", "output_text"];

const OPAQUE: [&str; 13] = [
    "role",
    "type",
    "id",
    "call_id",
    "tool_use_id",
    "tool_call_id",
    "media_type",
    "data",
    "url",
    "image_url",
    "file_data",
    "encrypted_content",
    "signature",
];

/// A value with the order and the repetitions of its keys, which serde_json's own `Value` does not keep, and the bytes it
/// was read from.
#[derive(Clone, Debug)]
struct Node<'a> {
    raw: &'a str,
    value: Value<'a>,
}

#[derive(Clone, Debug)]
enum Value<'a> {
    Text(String),
    Object(Vec<(String, Node<'a>)>),
    Array(Vec<Node<'a>>),
    Scalar,
    TooDeep,
}

/// The members of an object, each value as it is written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'a> Node<'a> {
    fn parse(raw: &'a str, depth: usize) -> serde_json::Result<Self> {
        let inner = |raw: &'a RawValue| Node::parse(raw.get(), depth + 1);
        let value = match raw.as_bytes().first() {
            Some(b'"') => Value::Text(serde_json::from_str(raw)?),
            // The root, and one more than is looked into.
            Some(b'{' | b'[') if depth > DEEPEST + 1 => Value::TooDeep,
            Some(b'{') => {
                let Members(members) = serde_json::from_str(raw)?;
                let member = |(key, value)| Ok((key, inner(value)?));
                Value::Object(members.into_iter().map(member).collect::<serde_json::Result<_>>()?)
            }
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(raw)?;
                Value::Array(items.into_iter().map(inner).collect::<serde_json::Result<_>>()?)
            }
            _ => Value::Scalar,
        };
        Ok(Self { raw, value })
    }

    fn members(&self) -> &[(String, Node<'a>)] {
        if let Value::Object(members) = &self.value { members } else { &[] }
    }

    fn entries<'b>(&'b self, key: &'b str) -> impl Iterator<Item = &'b Node<'a>> {
        self.members().iter().filter(move |(name, _)| name == key).map(|(_, node)| node)
    }

    fn texts<'b>(&'b self, key: &'b str) -> impl Iterator<Item = &'b str> {
        self.entries(key).filter_map(Node::text)
    }

    fn text(&self) -> Option<&str> {
        if let Value::Text(text) = &self.value { Some(text) } else { None }
    }

    fn is_array(&self) -> bool {
        matches!(self.value, Value::Array(_))
    }
}

/// What a scanner that looks for everything should say of a body. `None` where the body is no JSON object that this
/// reference can read.
pub fn read(body: &[u8]) -> Option<(Fields, Option<History>)> {
    let body = std::str::from_utf8(body).ok()?;
    let root: &RawValue = serde_json::from_str(body).ok()?;
    let root = Node::parse(root.get(), 0).ok()?;
    matches!(root.value, Value::Object(_)).then(|| (fields(body, &root), history(&root)))
}

fn fields(body: &str, root: &Node) -> Fields {
    let models: Vec<_> = root.entries("model").collect();
    let model = match models.first().map(|model| model.text()) {
        None => Model::Absent,
        Some(None) => Model::NotText,
        Some(Some(name)) if name.len() > LONGEST => Model::TooLong,
        Some(Some(name)) => Model::Named(name.to_owned()),
    };
    let span = |node: &&Node| {
        let start = node.raw.as_ptr() as usize - body.as_ptr() as usize;
        node.text().map(|_| start..start + node.raw.len())
    };
    let session = |node: &Node| SessionValue::parse(node.text()?);
    let user_id = |node: &Node| match node.text() {
        Some(text) if text.len() <= LONGEST => SessionValue::from_user_id(text),
        _ => node.entries("session_id").find_map(session),
    };
    let conversation = |node: &Node| session(node).or_else(|| node.entries("id").find_map(session));
    Fields {
        model,
        duplicate_model: models.len() > 1,
        duplicates: duplicates(root),
        metadata_session: root.entries("metadata").flat_map(|node| node.entries("user_id")).find_map(user_id),
        session_id: root.entries("session_id").find_map(session),
        conversation: root.entries("conversation").find_map(conversation),
        conversation_id: root.entries("conversation_id").find_map(session),
        prompt_cache_key: root.entries("prompt_cache_key").find_map(session),
        model_span: models.first().and_then(span),
        shape: shape(root),
    }
}

fn duplicates(root: &Node) -> RootKeys {
    let mut duplicates = RootKeys::default();
    for (at, (key, _)) in root.members().iter().enumerate() {
        let twin = match &**key {
            "messages" => "input",
            "input" => "messages",
            _ => key,
        };
        if root.members()[..at].iter().any(|(before, _)| before == key || before == twin) {
            match path::Scope::Root.target(key) {
                path::Target::Nothing => {}
                target => {
                    duplicates.insert(target);
                }
            }
        }
    }
    duplicates
}

fn shape(root: &Node) -> Shape {
    let decides = |node: &&str| node.len() <= LONGEST;
    let is_schema = |mut types: Box<dyn Iterator<Item = &str> + '_>| types.find(decides) == Some("json_schema");
    let format =
        |key| Box::new(root.entries(key).flat_map(|node| node.entries("format")).flat_map(|node| node.texts("type")));
    let tools = root.entries("tools").find(|node| node.is_array());
    let thinking = root.entries("thinking").find(|node| node.raw != "null");
    Shape {
        has_tools: tools.is_some_and(|node| !matches!(&node.value, Value::Array(items) if items.is_empty())),
        has_thinking: thinking.is_some_and(|node| node.texts("type").find(decides) != Some("disabled")),
        has_json_schema: is_schema(format("output_config"))
            || is_schema(format("text"))
            || is_schema(Box::new(root.entries("response_format").flat_map(|node| node.texts("type")))),
    }
}

/// A value in its canonical form.
#[derive(Clone, Debug)]
enum Canon {
    Text(String),
    Object(Vec<(String, Canon)>),
    Array(Vec<Canon>),
    Scalar(String),
    Raw(String),
}

impl Canon {
    /// Of a value within so many objects and arrays.
    fn of(node: &Node, depth: usize) -> Self {
        match &node.value {
            Value::Text(text) => Canon::Text(text.clone()),
            Value::Scalar => Canon::Scalar(node.raw.to_owned()),
            Value::Object(_) | Value::Array(_) | Value::TooDeep if depth == DEEPEST => Canon::Raw(node.raw.to_owned()),
            Value::TooDeep => unreachable!("the parse looks deeper"),
            Value::Array(items) => Canon::Array(items.iter().map(|item| Canon::of(item, depth + 1)).collect()),
            Value::Object(members) => {
                let counts = members.iter().filter(|(key, _)| key != "cache_control");
                Canon::Object(counts.map(|(key, value)| (key.clone(), Canon::member(key, value, depth + 1))).collect())
            }
        }
    }

    fn member(key: &str, value: &Node, depth: usize) -> Self {
        match (key, value.text()) {
            ("content", Some(text)) => Canon::Array(vec![Canon::block(text)]),
            ("type", Some(text)) if TEXT_TYPES.contains(&text) => Canon::Text("text".to_owned()),
            _ => Canon::of(value, depth),
        }
    }

    fn block(text: &str) -> Self {
        let member = |key: &str, text: &str| (key.to_owned(), Canon::Text(text.to_owned()));
        Canon::Object(vec![member("type", "text"), member("text", text)])
    }

    fn hash(&self) -> u64 {
        match self {
            Canon::Text(text) => digest::text(text.as_bytes()),
            Canon::Scalar(token) => digest::scalar(digest::text(token.as_bytes())),
            Canon::Raw(bytes) => digest::raw(digest::text(bytes.as_bytes())),
            Canon::Array(items) => digest::array(items.iter().fold(NO_ITEMS, |items, item| mix(items, item.hash()))),
            Canon::Object(members) => {
                let member =
                    |(key, value): &(String, Canon)| digest::member(digest::text(key.as_bytes()), value.hash());
                digest::object(members.iter().map(member).fold(0, u64::wrapping_add))
            }
        }
    }
}

fn history(root: &Node) -> Option<History> {
    let lists: Vec<_> = root.members().iter().filter(|(key, _)| key == "messages" || key == "input").collect();
    let [(key, list)] = lists[..] else { return None };
    let text = |text: &str| Node { raw: "", value: Value::Text(text.to_owned()) };
    let messages = match &list.value {
        Value::Array(messages) => messages.clone(),
        Value::Text(words) if key == "input" => {
            let members = vec![("role".to_owned(), text("user")), ("content".to_owned(), text(words))];
            vec![Node { raw: "", value: Value::Object(members) }]
        }
        _ => return None,
    };
    let mut history = History { system: system(root).hash(), ..History::default() };
    let mut chain = digest::text(b"messages");
    let mut text_bytes = 0;
    for message in &messages {
        let role = message.texts("role").next();
        let is_first = role == Some("user") && history.steps.is_empty();
        let (hash, left_out) = if is_first { first_of_user(message) } else { (Canon::of(message, 1).hash(), 0) };
        chain = mix(chain, hash);
        text_bytes += if matches!(message.value, Value::Object(_)) { bytes(message, 1) - left_out } else { 0 };
        let is_answer = role == Some("assistant") || message.texts("type").any(is_of_assistant);
        history.is_continued |= is_answer || message.texts("type").any(is_result);
        if is_first || !history.steps.is_empty() {
            if is_answer {
                history.last_answer = Some(history.steps.len());
            }
            history.steps.push(Step { hash: chain, text_bytes: u32::try_from(text_bytes).unwrap_or(u32::MAX) });
        }
    }
    let surplus = history.steps.len().saturating_sub(4096);
    history.steps.drain(..surplus);
    history.last_answer = history.last_answer.and_then(|index| index.checked_sub(surplus));
    (!history.steps.is_empty()).then_some(history)
}

fn is_of_assistant(item: &str) -> bool {
    item == "reasoning" || item.ends_with("_call") && item.len() <= SHORT
}

fn is_result(item: &str) -> bool {
    item.ends_with("_call_output") && item.len() <= SHORT
}

fn system(root: &Node) -> Canon {
    let mut prompts = root.members().iter().filter(|(key, _)| key == "system" || key == "instructions");
    let is_billing = |text: &str| text.starts_with("x-anthropic-billing-header");
    let Some((_, prompt)) = prompts.find(|(_, node)| node.text().is_some() || node.is_array()) else {
        return Canon::Array(Vec::new());
    };
    match &prompt.value {
        Value::Text(text) if is_billing(text) => Canon::Array(Vec::new()),
        Value::Text(text) => Canon::Array(vec![Canon::block(text)]),
        Value::Array(items) => {
            let counts = |item: &&Node| !(is_text_block(item) && item.texts("text").any(is_billing));
            Canon::Array(items.iter().filter(counts).map(|item| Canon::of(item, 1)).collect())
        }
        Value::Object(_) | Value::Scalar | Value::TooDeep => Canon::of(prompt, 0),
    }
}

fn is_text_block(node: &Node) -> bool {
    node.texts("type").any(|kind| TEXT_TYPES.contains(&kind))
}

/// Bytes of the texts in a value within so many objects and arrays.
fn bytes(node: &Node, depth: usize) -> usize {
    match &node.value {
        Value::Text(text) => text.len(),
        Value::Scalar | Value::TooDeep => 0,
        Value::Object(_) | Value::Array(_) if depth == DEEPEST => 0,
        Value::Array(items) => items.iter().map(|item| bytes(item, depth + 1)).sum(),
        Value::Object(members) => {
            let value = |(key, value): &(String, Node)| match value.text() {
                _ if key == "cache_control" => 0,
                Some(_) if OPAQUE.contains(&&**key) => 0,
                _ => bytes(value, depth + 1),
            };
            members.iter().map(value).sum()
        }
    }
}

/// What is left of a text after the preambles in front. `None`: nothing is, and there were some.
fn words(text: &str) -> Option<&str> {
    let space = |character: char| character.is_ascii_whitespace();
    let mut rest = text;
    'preambles: loop {
        for tag in PREAMBLES {
            let opened = rest.trim_start_matches(space).strip_prefix(&format!("<{tag}>"));
            if let Some((_, after)) = opened.and_then(|inside| inside.split_once(&format!("</{tag}>"))) {
                rest = after;
                continue 'preambles;
            }
        }
        break;
    }
    if rest.len() == text.len() {
        return Some(text);
    }
    let rest = rest.trim_start_matches(space);
    (!rest.is_empty()).then_some(rest)
}

/// The hash of the user's first message without its preambles, and the bytes of those.
fn first_of_user(message: &Node) -> (u64, usize) {
    let mut canon = Vec::new();
    let mut left_out = 0;
    for (key, value) in message.members().iter().filter(|(key, _)| key != "cache_control") {
        let (value, bytes) = match &value.value {
            Value::Text(text) if key == "content" => {
                let words = words(text).unwrap_or(text);
                (Canon::Array(vec![Canon::block(words)]), text.len() - words.len())
            }
            Value::Array(items) if key == "content" => without_preambles(items),
            _ => (Canon::member(key, value, 2), 0),
        };
        canon.push((key.clone(), value));
        left_out += bytes;
    }
    (Canon::Object(canon).hash(), left_out)
}

fn without_preambles(items: &[Node]) -> (Canon, usize) {
    let last_text = |item: &Node| item.texts("text").last().map(str::to_owned).filter(|_| is_text_block(item));
    let has_words = |item: &Node| {
        last_text(item).is_some_and(|text| words(&text).is_some_and(|words| !words.trim_ascii_start().is_empty()))
    };
    let is_preamble = |item: &Node| last_text(item).is_some_and(|text| words(&text).is_none());
    let last_words = items.iter().rposition(has_words).unwrap_or(0);
    let mut left_out = 0;
    let mut canon = Vec::new();
    for (at, item) in items.iter().enumerate() {
        if is_preamble(item) && at < last_words {
            left_out += bytes(item, 3);
            continue;
        }
        let Canon::Object(mut members) = Canon::of(item, 3) else {
            canon.push(Canon::of(item, 3));
            continue;
        };
        if has_words(item) {
            left_out += last_text(item).map_or(0, |text| text.len() - words(&text).unwrap_or(&text).len());
            for (_, value) in members.iter_mut().filter(|(key, _)| key == "text") {
                if let Canon::Text(text) = value {
                    *text = words(text).unwrap_or(text).to_owned();
                }
            }
        }
        canon.push(Canon::Object(members));
    }
    (Canon::Array(canon), left_out)
}
