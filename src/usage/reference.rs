//! What an observer should report, worked out the plain way: from whole events and a full parse. Tests and the fuzzer hold
//! the observer against it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::json::is_space;

use super::word::{Kind, LONGEST, StopReason, calls_tool};
use super::{Report, Usage};

/// A value with the order and the repetitions of its keys, which serde_json's own `Value` does not keep.
#[derive(Debug)]
enum Node {
    Text(String),
    Count(u64),
    Object(Vec<(String, Node)>),
    Array(Vec<Node>),
    Other,
}

/// The keys that lead to a value; `None` for an item of an array.
type Path<'a> = Vec<Option<&'a str>>;

/// The counts of a `usage`.
#[derive(Clone, Debug, Default)]
struct Counts {
    prompt: Option<u64>,
    input: Option<u64>,
    cache_read: Option<u64>,
    cache_creation: Option<u64>,
    cached: Option<u64>,
    completion: Option<u64>,
}

/// What one document says.
#[derive(Debug, Default)]
struct Said {
    kind: Kind,
    counts: Counts,
    stop_reason: Option<StopReason>,
    status: Option<StopReason>,
    is_content: bool,
    has_tool_call: bool,
    has_error: bool,
}

/// What all of them say.
#[derive(Debug, Default)]
struct Told {
    counts: Counts,
    report: Report,
}

/// The report on an answer that is one document. `None` where it is no JSON object that this reference can read.
pub fn of_document(body: &[u8]) -> Option<Report> {
    let root = serde_json::from_slice(without_mark(body)).ok()?;
    let said = Said::of(&root)?;
    let mut told = Told::default();
    told.report.has_error = said.kind == Kind::Error;
    told.report.has_ended = true;
    told.take(&said);
    Some(told.report())
}

/// The report on a stream. `None` where the data of an event that matters can't be read.
pub fn of_stream(body: &[u8]) -> Option<Report> {
    let mut told = Told::default();
    for (name, data) in events(without_mark(body)) {
        let named = kind(&name);
        let Some(data) = data.filter(|_| named != Kind::Idle) else { continue };
        let space = data.iter().take_while(|byte| is_space(**byte)).count();
        let data = &data[space..];
        if data.starts_with(b"[DONE]") {
            told.report.has_ended = true;
            continue;
        }
        let said = if data.is_empty() { None } else { Said::of(&serde_json::from_slice(data).ok()?) };
        let of_data = said.as_ref().map_or(Kind::Telling, |said| said.kind);
        let kind = if named == Kind::Telling { of_data } else { named };
        told.report.has_ended |= matches!(kind, Kind::Last | Kind::Failed);
        told.report.has_error |= matches!(kind, Kind::Error | Kind::Failed);
        if let Some(said) = said.filter(|_| kind != Kind::Idle) {
            told.take(&said);
            told.report.content_events += u64::from(said.is_content);
        }
    }
    Some(told.report())
}

fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body)
}

fn kind(name: &[u8]) -> Kind {
    if name.len() > LONGEST { Kind::Telling } else { Kind::of(name) }
}

/// The complete events, each with its name, and its data if there is any.
fn events(body: &[u8]) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut events = Vec::new();
    let (mut name, mut data): (Vec<u8>, Option<Vec<u8>>) = Default::default();
    for line in lines(body) {
        if line.is_empty() {
            events.push((std::mem::take(&mut name), data.take()));
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"event" => name = value.to_vec(),
            b"data" => {
                let data = data.get_or_insert_default();
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            _ => {}
        }
    }
    events
}

/// The lines that have an end, without it.
fn lines(body: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = vec![Vec::new()];
    let mut rest = body;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'\r' => {
                rest = after.strip_prefix(b"\n").unwrap_or(after);
                lines.push(Vec::new());
            }
            b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().expect("there is one at least").push(*byte),
        }
    }
    lines.pop();
    lines
}

impl Said {
    /// `None` for what is no object.
    fn of(root: &Node) -> Option<Self> {
        let mut said = Self::default();
        matches!(root, Node::Object(_)).then(|| said.visit(root, &mut Vec::new()))?;
        Some(said)
    }

    fn visit<'a>(&mut self, node: &'a Node, path: &mut Path<'a>) {
        self.take(path, node);
        let children: Vec<_> = match node {
            Node::Object(members) => members.iter().map(|(key, node)| (Some(&**key), node)).collect(),
            Node::Array(items) => items.iter().map(|node| (None, node)).collect(),
            Node::Text(_) | Node::Count(_) | Node::Other => return,
        };
        for (step, child) in children {
            path.push(step);
            self.visit(child, path);
            path.pop();
        }
    }

    fn take(&mut self, path: &[Option<&str>], node: &Node) {
        let text = if let Node::Text(text) = node { Some(&**text) } else { None };
        let word = text.filter(|text| text.len() <= LONGEST).unwrap_or_default().as_bytes();
        let has_text = text.is_some_and(|text| !text.is_empty());
        match path {
            [Some("type")] if text.is_some() => self.kind = Kind::of(word),
            [Some("object")] => self.has_error |= text == Some("error"),
            [Some("delta")] | [Some("delta"), Some("text" | "thinking" | "partial_json")] => {
                self.is_content |= has_text
            }
            [Some("delta"), Some("stop_reason")] | [Some("choices"), None, Some("finish_reason")] => self.stop(word),
            [Some("item" | "content_block"), Some("type")] => self.has_tool_call |= calls_tool(word),
            [Some("choices"), None, Some("text")] => self.is_content |= has_text,
            [Some("choices"), None, Some("delta" | "message"), Some(key)] => self.message(key, node, has_text),
            [Some("message" | "response"), inside @ ..] => self.answer(inside, node, word),
            path => self.answer(path, node, word),
        }
    }

    fn message(&mut self, key: &str, node: &Node, has_text: bool) {
        let calls_tool = match key {
            "tool_calls" => matches!(node, Node::Array(calls) if !calls.is_empty()),
            "function_call" => matches!(node, Node::Object(_)),
            _ => false,
        };
        let is_generated = matches!(key, "content" | "reasoning" | "reasoning_content" | "refusal");
        self.is_content |= calls_tool || is_generated && has_text;
        self.has_tool_call |= calls_tool;
    }

    fn answer(&mut self, path: &[Option<&str>], node: &Node, word: &[u8]) {
        match path {
            [Some("usage")] => self.counts = Counts::default(),
            [Some("usage"), inside @ ..] => self.usage(inside, node),
            [Some("stop_reason")] | [Some("incomplete_details"), Some("reason")] => self.stop(word),
            [Some("status")] => self.status = StopReason::of_status(word).or(self.status),
            [Some("content" | "output"), None, Some("type")] => self.has_tool_call |= calls_tool(word),
            [Some("error")] => self.has_error |= matches!(node, Node::Object(_) | Node::Text(_)),
            _ => {}
        }
    }

    fn usage(&mut self, path: &[Option<&str>], node: &Node) {
        let count = if let Node::Count(count) = node { Some(*count) } else { None };
        let slot = match path {
            [Some("prompt_tokens")] => &mut self.counts.prompt,
            [Some("input_tokens")] => &mut self.counts.input,
            [Some("completion_tokens" | "output_tokens")] => &mut self.counts.completion,
            [Some("cache_read_input_tokens")] => &mut self.counts.cache_read,
            [Some("cache_creation_input_tokens")] => &mut self.counts.cache_creation,
            [Some("prompt_tokens_details" | "input_tokens_details"), Some("cached_tokens")] => &mut self.counts.cached,
            [Some("prompt_tokens_details" | "input_tokens_details")] => return self.counts.cached = None,
            _ => return,
        };
        *slot = count.filter(|count| *count <= u64::from(u32::MAX));
    }

    fn stop(&mut self, word: &[u8]) {
        self.stop_reason = StopReason::of(word).or(self.stop_reason);
    }
}

impl Told {
    fn take(&mut self, said: &Said) {
        let (counts, later) = (&mut self.counts, &said.counts);
        for (count, later) in [
            (&mut counts.prompt, later.prompt),
            (&mut counts.input, later.input),
            (&mut counts.cache_read, later.cache_read),
            (&mut counts.cache_creation, later.cache_creation),
            (&mut counts.cached, later.cached),
            (&mut counts.completion, later.completion),
        ] {
            *count = later.or(*count);
        }
        self.report.stop_reason = said.stop_reason.or(said.status).or(self.report.stop_reason);
        self.report.has_tool_call |= said.has_tool_call;
        self.report.has_error |= said.has_error;
    }

    fn report(&self) -> Report {
        let counts = &self.counts;
        let parts = [counts.input, counts.cache_read, counts.cache_creation];
        let prompt = counts.prompt.or(counts.input.map(|_| parts.iter().flatten().sum()));
        let usage = prompt.map(|prompt| Usage {
            prompt,
            cached: counts.cached.or(counts.cache_read).filter(|cached| *cached <= prompt),
            completion: counts.completion.unwrap_or_default(),
        });
        Report { usage, ..self.report }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;
        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Node::Object(members))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut array = Vec::new();
                while let Some(item) = items.next_element()? {
                    array.push(item);
                }
                Ok(Node::Array(array))
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }

            fn visit_u64<E>(self, count: u64) -> Result<Node, E> {
                Ok(Node::Count(count))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
                Ok(Node::Other)
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Other)
            }
        }
        deserializer.deserialize_any(NodeVisitor)
    }
}
