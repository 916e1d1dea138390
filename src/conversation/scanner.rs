//! Finds the model, the session and the history in a JSON body that arrives in chunks, without
//! parsing or keeping it.
//!
//! The scanner reads strictly where the wanted values are (the root object and the few objects in
//! [`super::path`]), hands the messages to the [`Walk`], and passes over everything else by counting
//! brackets and skipping strings. Where a document is JSON it sees what a parser sees; where it is
//! not, it may see something or nothing, and the engine will refuse it. It holds one string of at
//! most 1024 bytes, a depth, and what it found: of the history hashes only.

use crate::json::{Skipper, begins_scalar, is_space, scalar_length};

use super::fields::{Fields, Model, Progress, RootKeys};
use super::history::History;
use super::literal::Literal;
use super::path::{LONGEST_KEY, Scope, Target};
use super::shape::Parts;
use super::walk::Walk;

/// Longest value kept, in decoded bytes. Model names are file paths at worst; the JSON in Claude
/// Code's `metadata.user_id` has 176 bytes, and the ids in it are refused over 256.
const LONGEST_VALUE: usize = 1024;

/// Python's `json.loads`, with which vLLM reads a body, passes over this mark; some Windows clients
/// write it.
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// What the body is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The model only: the request belongs to no conversation, or none that is pinned. The search ends with the model's
    /// value.
    Model,
    /// Everything, but the search ends with the model's value: a header names the session.
    ModelFirst,
    /// The search ends early only with a usable session in `metadata.user_id`, which no other field
    /// outranks.
    ModelAndSession,
}

/// What the bytes up to here call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Within a byte order mark, of which so many bytes were read.
    Mark(usize),
    Expect(Expect),
    Key,
    Text,
    Skip,
    Walk,
    Scalar,
    Closed,
    Broken,
}

/// The next byte that is not white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Root,
    KeyOrClose,
    Key,
    Colon,
    Value,
    CommaOrClose,
    /// In `tools`.
    ItemOrClose,
}

/// The search through one JSON body.
#[derive(Clone, Debug)]
pub struct Scanner {
    wanted: Wanted,
    state: State,
    scope: Scope,
    target: Target,
    literal: Literal,
    skipper: Skipper,
    /// Only where the history is wanted and there is one.
    walk: Option<Box<Walk>>,
    /// Bytes of the body before the ones under way.
    at: usize,
    /// Where the opening quote of the last text stands.
    text_at: usize,
    root_keys: RootKeys,
    shape: Parts,
    fields: Fields,
}

impl Scanner {
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            state: State::Start,
            scope: Scope::Root,
            target: Target::Nothing,
            literal: Literal::new(),
            skipper: Skipper::text(),
            walk: None,
            at: 0,
            text_at: 0,
            root_keys: RootKeys::default(),
            shape: Parts::default(),
            fields: Fields::default(),
        }
    }

    /// Takes the next bytes of the body, all of them: after an answer it goes on to look for repeated
    /// models and for the end.
    pub fn feed(&mut self, chunk: &[u8]) -> Progress {
        let mut rest = chunk;
        while !rest.is_empty() && !matches!(self.state, State::Closed | State::Broken) {
            rest = self.advance(rest);
        }
        self.progress()
    }

    /// Takes bytes only up to the one that ends the search, and returns how many. Spares a body with
    /// the model in front the rest of its first chunk, which is most of what the scanner can cost;
    /// `feed` may go on from there.
    pub fn search(&mut self, chunk: &[u8]) -> usize {
        let mut rest = chunk;
        while !rest.is_empty() && self.progress() == Progress::More {
            rest = self.advance(rest);
        }
        chunk.len() - rest.len()
    }

    /// Where the search stands. [`Progress::Closed`] is said at the brace that closes the root,
    /// answered or not.
    pub fn progress(&self) -> Progress {
        if self.state == State::Closed {
            Progress::Closed
        } else if self.state == State::Broken {
            Progress::Unreadable
        } else if self.answered() {
            Progress::Answered
        } else {
            Progress::More
        }
    }

    /// What was found so far.
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// The conversation's past. `None` unless the whole body was fed, was readable, and held messages with one of the
    /// user among them. Of several lists of messages nobody knows which one an engine takes, so there is none then.
    pub fn history(&self) -> Option<&History> {
        let duplicates = self.fields.duplicates;
        if self.state != State::Closed || duplicates.contains(Target::Messages) || duplicates.contains(Target::Input) {
            return None;
        }
        self.walk.as_ref()?.history()
    }

    fn answered(&self) -> bool {
        let model = self.fields.model != Model::Absent;
        match self.wanted {
            Wanted::Model | Wanted::ModelFirst => model,
            Wanted::ModelAndSession => model && self.fields.metadata_session.is_some(),
        }
    }

    fn advance<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let used = self.step(bytes);
        self.at += used;
        &bytes[used..]
    }

    /// Consumes some bytes, or none where only the state changed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Start | State::Mark(_) => self.pass_mark(bytes[0]),
            State::Expect(_) if is_space(bytes[0]) => 1,
            State::Expect(expected) => {
                self.state = self.punctuation(expected, bytes[0]);
                1
            }
            State::Key => self.read_key(bytes),
            State::Text => self.read_text(bytes),
            State::Skip => self.skip(bytes),
            State::Walk => self.walk(bytes),
            State::Scalar => self.pass_scalar(bytes),
            State::Closed | State::Broken => bytes.len(),
        }
    }

    fn pass_mark(&mut self, byte: u8) -> usize {
        let read = if let State::Mark(read) = self.state { read } else { 0 };
        let part_of_mark = byte == BYTE_ORDER_MARK[read];
        self.state = match (part_of_mark, read + 1) {
            (true, length) if length == BYTE_ORDER_MARK.len() => State::Expect(Expect::Root),
            (true, length) => State::Mark(length),
            (false, _) if self.state == State::Start => State::Expect(Expect::Root),
            (false, _) => State::Broken,
        };
        usize::from(part_of_mark)
    }

    fn punctuation(&mut self, expected: Expect, byte: u8) -> State {
        match (expected, byte) {
            (Expect::Root, b'{') => State::Expect(Expect::KeyOrClose),
            (Expect::KeyOrClose | Expect::Key, b'"') => {
                self.literal.begin(LONGEST_KEY);
                State::Key
            }
            (Expect::KeyOrClose | Expect::CommaOrClose, b'}') => self.close_object(),
            (Expect::Colon, b':') => State::Expect(Expect::Value),
            (Expect::Value, byte) => self.begin_value(byte),
            (Expect::CommaOrClose, b',') => State::Expect(Expect::Key),
            (Expect::ItemOrClose, byte) => self.begin_tools(byte),
            (Expect::Root | Expect::KeyOrClose | Expect::Key | Expect::Colon | Expect::CommaOrClose, _) => {
                State::Broken
            }
        }
    }

    fn close_object(&mut self) -> State {
        match self.scope.parent() {
            Some(parent) => {
                self.scope = parent;
                State::Expect(Expect::CommaOrClose)
            }
            None => State::Closed,
        }
    }

    fn begin_value(&mut self, byte: u8) -> State {
        self.shape.note_value(self.target, byte);
        self.fields.shape = self.shape.shape();
        if let Some(subject) = self.target.history(byte) {
            let walk = self.walk.get_or_insert_with(|| Box::new(Walk::new()));
            if walk.begin(subject, byte) {
                return State::Walk;
            }
        }
        if byte == b'"' {
            return self.begin_text();
        }
        if byte == b'{'
            && let Some(scope) = self.target.object()
        {
            self.scope = scope;
            return State::Expect(Expect::KeyOrClose);
        }
        self.fields.note_not_text(self.target);
        match byte {
            b'[' if self.target == Target::Tools => State::Expect(Expect::ItemOrClose),
            b'{' | b'[' => {
                self.skipper = Skipper::nested();
                State::Skip
            }
            byte if begins_scalar(byte) => State::Scalar,
            _ => State::Broken,
        }
    }

    /// The first byte in the list of tools.
    fn begin_tools(&mut self, byte: u8) -> State {
        self.shape.note_tools(byte);
        self.fields.shape = self.shape.shape();
        self.skipper = Skipper::nested();
        match self.skipper.feed(&[byte]) {
            Some(_) => State::Expect(Expect::CommaOrClose),
            None => State::Skip,
        }
    }

    fn begin_text(&mut self) -> State {
        if self.target.takes_text() {
            self.text_at = self.at;
            self.literal.begin(LONGEST_VALUE);
            State::Text
        } else {
            self.skipper = Skipper::text();
            State::Skip
        }
    }

    fn read_key(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.literal.feed(bytes) else {
            return bytes.len();
        };
        let target = self.literal.text().map_or(Target::Nothing, |key| self.scope.target(key));
        self.target = self.wish(target);
        self.state = State::Expect(Expect::Colon);
        used
    }

    /// The target, if its value is still wanted.
    fn wish(&mut self, target: Target) -> Target {
        let wanted = if target == Target::Model {
            self.fields.note_model_said()
        } else {
            self.wanted != Wanted::Model && self.note_key(target) && !self.shape.is_decided(target)
        };
        if wanted { target } else { Target::Nothing }
    }

    /// Notes a key of the root that came before. True where its value is worth a look: every one of a session field, the
    /// first one of the messages.
    fn note_key(&mut self, target: Target) -> bool {
        if self.scope != Scope::Root || target == Target::Nothing {
            return true;
        }
        let is_messages = target == Target::Messages || target == Target::Input;
        let is_new = self.root_keys.insert(target);
        let is_twin =
            is_messages && self.root_keys.contains(Target::Messages) && self.root_keys.contains(Target::Input);
        let is_first = is_new && !is_twin;
        if !is_first {
            self.fields.duplicates.insert(target);
        }
        is_first || !is_messages
    }

    fn read_text(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.literal.feed(bytes) else {
            return bytes.len();
        };
        let text = self.literal.text();
        self.fields.note_text(self.target, text);
        self.shape.note_text(self.target, text);
        self.fields.shape = self.shape.shape();
        if self.target == Target::Model {
            self.fields.model_span = Some(self.text_at..self.at + used);
        }
        self.state = State::Expect(Expect::CommaOrClose);
        used
    }

    fn skip(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.skipper.feed(bytes) else {
            return bytes.len();
        };
        self.state = State::Expect(Expect::CommaOrClose);
        used
    }

    fn walk(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.walk.as_mut().and_then(|walk| walk.feed(bytes)) else {
            return bytes.len();
        };
        self.state = State::Expect(Expect::CommaOrClose);
        used
    }

    /// A number, `true`, `false` or `null`: ends before the byte that cannot belong to it.
    fn pass_scalar(&mut self, bytes: &[u8]) -> usize {
        let used = scalar_length(bytes);
        if used < bytes.len() {
            self.state = State::Expect(Expect::CommaOrClose);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Shape;
    use crate::conversation::path::ROOT;

    fn scan(wanted: Wanted, body: &[u8]) -> (Progress, Fields) {
        let mut scanner = Scanner::new(wanted);
        let progress = scanner.feed(body);
        (progress, scanner.fields().clone())
    }

    fn fields(body: &str) -> Fields {
        let (progress, fields) = scan(Wanted::ModelAndSession, body.as_bytes());
        assert_eq!(progress, Progress::Closed, "{body}");
        fields
    }

    fn model(body: &str) -> Model {
        fields(body).model
    }

    fn named(name: &str) -> Model {
        Model::Named(name.to_owned())
    }

    /// The progress after each byte, fed one by one; equal neighbours merged: (bytes fed when it
    /// began, progress).
    fn course(wanted: Wanted, body: &str) -> Vec<(usize, Progress)> {
        let mut scanner = Scanner::new(wanted);
        let mut course = vec![(0, scanner.progress())];
        for (at, byte) in body.bytes().enumerate() {
            let progress = scanner.feed(&[byte]);
            if course.last().is_some_and(|(_, last)| *last != progress) {
                course.push((at + 1, progress));
            }
        }
        course
    }

    #[test]
    fn the_model_is_found_wherever_and_however_it_is_written() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"mod\u0065l":"\u006d"}"#,
            r#"{"messages":[{"role":"user","content":"\"model\":\"x\""}],"model":"m"}"#,
            r#"{"a":{"model":"x"},"b":[{"model":"y"}],"model":"m","metadata":{"model":"z"}}"#,
            "\r\n\t {\n \"model\" \t:\r \"m\" , \"stream\" : true\n}\n",
            r#"{"n":-1.5e+3,"t":true,"f":false,"z":null,"nan":NaN,"i":-Infinity,"e":{},"l":[],"s":"","model":"m"}"#,
            r#"{"":"model","a_key_longer_than_any_known":"\\","model":"m"}"#,
            r#"{"\ud83d":"\ud83d","session_id":"\ud83d","model":"m"}"#,
            "\u{feff}{\"model\":\"m\"}",
        ] {
            assert_eq!(model(body), named("m"), "{body}");
        }
    }

    #[test]
    fn escapes_are_decoded() {
        for (literal, name) in [
            (r#"a\/b\\c\"d"#, "a/b\\c\"d"),
            (r"\b\f\n\r\t", "\u{8}\u{c}\n\r\t"),
            (r"\u00e9\u00E9é", "ééé"),
            (r"\ud83d\ude00😀", "😀😀"),
            (r"\u0022\u005c", "\"\\"),
        ] {
            assert_eq!(model(&format!(r#"{{"model":"{literal}"}}"#)), named(name), "{literal}");
        }
    }

    #[test]
    fn a_model_that_cannot_be_a_name_is_remembered() {
        for (value, expected) in [
            ("5", Model::NotText),
            ("null", Model::NotText),
            ("[\"m\"]", Model::NotText),
            ("{\"id\":\"m\"}", Model::NotText),
            (r#""\ud83d""#, Model::Undecodable),
            (r#""\ude00""#, Model::Undecodable),
            (r#""\ud83dx""#, Model::Undecodable),
            (r#""\ud83d\n""#, Model::Undecodable),
            (r#""\ud83d\ud83d\ude00""#, Model::Undecodable),
            (r#""\x""#, Model::Undecodable),
            (r#""\u12""#, Model::Undecodable),
        ] {
            assert_eq!(model(&format!(r#"{{"model":{value}}}"#)), expected, "{value}");
        }
        let (_, fields) = scan(Wanted::Model, b"{\"model\":\"a\xff\"}");
        assert_eq!(fields.model, Model::Undecodable);
    }

    #[test]
    fn a_value_is_kept_up_to_1024_decoded_bytes() {
        let escaped = "\\u0061".repeat(1024);
        assert_eq!(model(&format!(r#"{{"model":"{escaped}"}}"#)), named(&"a".repeat(1024)));
        assert_eq!(model(&format!(r#"{{"model":"{escaped}a"}}"#)), Model::TooLong);
    }

    #[test]
    fn the_first_model_wins_and_a_second_is_told() {
        let mut scanner = Scanner::new(Wanted::Model);
        assert_eq!(scanner.feed(br#"{"model":"a","#), Progress::Answered);
        assert!(!scanner.fields().duplicate_model);
        assert_eq!(scanner.feed(br#""model":"b"}"#), Progress::Closed);
        assert_eq!(scanner.fields().model, named("a"));
        assert!(scanner.fields().duplicate_model);

        let after_a_number = fields(r#"{"model":1,"mode\u006c":"b"}"#);
        assert_eq!((after_a_number.model, after_a_number.duplicate_model), (Model::NotText, true));
    }

    #[test]
    fn the_place_of_the_first_model_is_told_with_its_quotes() {
        for body in [
            r#"{"model":"m"}"#,
            r#" { "a" : [1] , "model" : "m\u0065\"" , "model" : "b" }"#,
            r#"{"model":"","stream":true}"#,
            r#"{"mod\u0065l":"\ud83d"}"#,
            "\u{feff}{\"x\":\"é\",\"model\":\"é\"}",
        ] {
            let end = body.find("l\"").unwrap() + 2;
            let start = end + body[end..].find('"').unwrap();
            let span = fields(body).model_span.unwrap();
            assert_eq!(span.start, start, "{body}");
            assert!(body[span.end..].trim_start().starts_with([',', '}']), "{body}");
        }
        for body in [r#"{"model":5,"model":"b"}"#, r#"{"model":null}"#, "{}"] {
            assert_eq!(fields(body).model_span, None, "{body}");
        }
        assert_eq!(scan(Wanted::Model, br#"{"model":"half"#).1.model_span, None);
        assert_eq!(scan(Wanted::Model, br#"{"model":"m""#).1.model_span, Some(9..12));
    }

    #[test]
    fn the_shape_tells_an_agents_turn_from_an_auxiliary_one() {
        let shape =
            |tools, thinking, schema| Shape { has_tools: tools, has_thinking: thinking, has_json_schema: schema };
        let none = Shape::default();
        for (body, expected) in [
            (r#"{"tools":[{"name":"f"}],"thinking":{"type":"adaptive"}}"#, shape(true, true, false)),
            (
                r#"{"tools":[],"output_config":{"effort":"low","format":{"type":"json_schema"}}}"#,
                shape(false, false, true),
            ),
            (r#"{"tools":[ ]}"#, none),
            (r#"{"tools":[1]}"#, shape(true, false, false)),
            (r#"{"tools":{"a":1}}"#, none),
            (r#"{"tools":null,"tools":[],"tools":[1]}"#, none),
            (r#"{"a":{"tools":[1],"thinking":{}},"messages":[{"tools":[1],"thinking":{}}]}"#, none),
            (r#"{"thinking":{"budget_tokens":1,"type":"disabled"}}"#, none),
            (r#"{"thinking":null}"#, none),
            (r#"{"thinking":{}}"#, shape(false, true, false)),
            (
                r#"{"thinking":null,"thinking":{"type":5,"type":"enabled","type":"disabled"}}"#,
                shape(false, true, false),
            ),
            (r#"{"thinking":{"type":"disabled"},"thinking":{"type":"enabled"}}"#, none),
            (r#"{"response_format":{"json_schema":{"type":"x"},"type":"json_schema"}}"#, shape(false, false, true)),
            (r#"{"response_format":{"type":"json_object"}}"#, none),
            (r#"{"text":{"verbosity":"low","format":{"type":"json_schema"}}}"#, shape(false, false, true)),
            (r#"{"text":"json_schema","format":{"type":"json_schema"},"type":"json_schema"}"#, none),
            (r#"{"text":{"format":{"type":"text","type":"json_schema"}}}"#, none),
        ] {
            assert_eq!(fields(body).shape, expected, "{body}");
            let (_, model_only) = scan(Wanted::Model, body.as_bytes());
            assert_eq!(model_only.shape, none, "{body}");
        }
    }

    #[test]
    fn known_keys_that_come_twice_are_told() {
        let names = |body: &str| fields(body).duplicates.names().collect::<Vec<_>>();
        assert_eq!(
            names(r#"{"model":"a","tools":[],"user":1,"user":2,"metadata":{"user_id":1,"user_id":2}}"#),
            [""; 0]
        );
        assert_eq!(names(r#"{"tools":[],"model":"a","tools":1,"tools":2,"model":"a"}"#), ["model", "tools"]);
        let (_, model_only) = scan(Wanted::Model, br#"{"tools":[],"model":"a","tools":1,"model":"a"}"#);
        assert_eq!(model_only.duplicates.names().collect::<Vec<_>>(), ["model"]);
        for (key, _) in ROOT {
            assert_eq!(names(&format!(r#"{{"{key}":"a","b":"{key}","{key}":[1]}}"#)), [key]);
        }
    }

    #[test]
    fn session_fields_are_found_in_all_their_forms() {
        let uuid = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";
        let metadata = |fields: Fields| fields.metadata_session;
        type Field = fn(Fields) -> Option<crate::conversation::SessionValue>;
        let table: [(String, Field); 9] = [
            (format!(r#"{{"metadata":{{"user_id":"{{\"device_id\":\"d\",\"session_id\":\"{uuid}\"}}"}}}}"#), metadata),
            (format!(r#"{{"metadata":{{"a":[],"user_id":"user_1_account__session_{uuid}"}}}}"#), metadata),
            (format!(r#"{{"metadata":{{"user_id":{{"device_id":"d","session_id":"{uuid}"}},"b":1}}}}"#), metadata),
            (
                format!(r#"{{"metadata":{{"user_id":"bob"}},"metadata":{{"user_id":{{"session_id":"{uuid}"}}}}}}"#),
                metadata,
            ),
            (format!(r#"{{"session_id":5,"session_id":"{uuid}","session_id":"late"}}"#), |fields| fields.session_id),
            (format!(r#"{{"conversation":"{uuid}"}}"#), |fields| fields.conversation),
            (format!(r#"{{"conversation":{{"x":{{"id":"no"}},"id":"{uuid}"}}}}"#), |fields| fields.conversation),
            (format!(r#"{{"conversation_id":" {uuid}"}}"#), |fields| fields.conversation_id),
            (format!(r#"{{"prompt_cache_key":"{uuid}"}}"#), |fields| fields.prompt_cache_key),
        ];
        for (body, field) in table {
            assert_eq!(field(fields(&body)).unwrap().as_str(), uuid, "{body}");
        }
    }

    #[test]
    fn a_session_elsewhere_or_of_another_type_is_none() {
        for body in [
            r#"{"metadata":{"session_id":"a"}}"#,
            r#"{"metadata":"a","conversation":["a"],"session_id":null,"prompt_cache_key":{"id":"a"}}"#,
            r#"{"metadata":{"user_id":{"session_id":{"session_id":"a"}}}}"#,
            r#"{"metadata":{"user_id":["a"]},"user_id":"a","user":"a","id":"a"}"#,
            r#"{"conversation":{"id":{"id":"a"},"session_id":"a"}}"#,
            r#"{"messages":[{"metadata":{"user_id":{"session_id":"a"}},"session_id":"a"}]}"#,
            r#"{"session_id":"none","conversation":"","conversation_id":"a\nb"}"#,
        ] {
            assert_eq!(fields(body), Fields::default(), "{body}");
        }
    }

    #[test]
    fn a_search_for_the_model_ends_with_its_value() {
        let body = r#"{"model":"m","session_id":"s"} "#;
        let expected = vec![(0, Progress::More), (12, Progress::Answered), (30, Progress::Closed)];
        assert_eq!(course(Wanted::Model, body), expected);
        let mut scanner = Scanner::new(Wanted::Model);
        assert_eq!(scanner.search(body.as_bytes()), 12);
        assert_eq!(scanner.progress(), Progress::Answered);
        assert_eq!(scanner.search(&body.as_bytes()[12..]), 0);
        assert_eq!(scanner.feed(&body.as_bytes()[12..]), Progress::Closed);
        assert_eq!(scan(Wanted::Model, body.as_bytes()).1.session_id, None);
    }

    #[test]
    fn a_search_for_the_session_ends_with_the_one_that_nothing_outranks() {
        let usable = r#"{"model":"m","session_id":"s","metadata":{"user_id":{"session_id":"x"}},"stream":true}"#;
        let answered = usable.find("}").unwrap();
        let expected = vec![(0, Progress::More), (answered, Progress::Answered), (usable.len(), Progress::Closed)];
        assert_eq!(course(Wanted::ModelAndSession, usable), expected);

        let unusable = r#"{"model":"m","session_id":"s","metadata":{"user_id":{"session_id":" "}},"stream":true}"#;
        let expected = vec![(0, Progress::More), (unusable.len(), Progress::Closed)];
        assert_eq!(course(Wanted::ModelAndSession, unusable), expected);
    }

    #[test]
    fn the_end_is_told_at_the_brace_that_closes_the_root() {
        for body in [
            r#"{}"#,
            r#"{"a":"}","b":[{"c":{}}],"d":"\"}"}"#,
            r#"{"metadata":{"user_id":{}},"conversation":{}}"#,
            r#"{"a":1}"#,
        ] {
            let expected = vec![(0, Progress::More), (body.len(), Progress::Closed)];
            assert_eq!(course(Wanted::ModelAndSession, &format!("{body}\r\n  ")), expected, "{body}");
        }
    }

    #[test]
    fn what_is_no_json_object_is_unreadable() {
        for body in [
            "[]",
            "\"model\"",
            "5",
            "null",
            "model=m",
            "\u{0}",
            "--x\r\n",
            "{]",
            "{,}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\" 1}",
            "{\"a\":1,}",
            "{\"a\":1 2}",
            "{\"a\":1:2}",
            "{\"a\":x}",
            "{a:1}",
            "{\"a\":1]",
            "{\"a\":\"b\"\"c\"}",
            "{'a':1}",
        ] {
            assert_eq!(scan(Wanted::Model, body.as_bytes()).0, Progress::Unreadable, "{body}");
        }
        assert_eq!(scan(Wanted::Model, b"\x28\xb5\x2f\xfd").0, Progress::Unreadable, "zstd");
        assert_eq!(scan(Wanted::Model, b"\xef\xbb{").0, Progress::Unreadable, "half a byte order mark");
        assert_eq!(scan(Wanted::Model, b"{\0\"\0m\0").0, Progress::Unreadable, "UTF-16");
    }

    #[test]
    fn what_was_found_before_a_body_broke_stays() {
        let (progress, fields) = scan(Wanted::ModelAndSession, br#"{"model":"m","session_id":"s",!"#);
        assert_eq!(progress, Progress::Unreadable);
        assert_eq!((fields.model, fields.session_id.is_some()), (named("m"), true));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_passed_over_where_they_do_not_matter() {
        let body = b"{\"\xff\xfe\":\"\xc3\x28\",\"a\":[\"\x80\"],\"model\":\"m\"}";
        assert_eq!(scan(Wanted::Model, body).1.model, named("m"));
    }

    #[test]
    fn nesting_of_any_depth_is_passed_over() {
        let depth = 1_000_000;
        let body = format!(r#"{{"a":{}{},"model":"m"}}"#, "[".repeat(depth), "]".repeat(depth));
        assert_eq!(model(&body), named("m"));
    }
}
