//! Reads one JSON document that comes in chunks cut anywhere, and keeps what stands in the places of [`super::place`].
//!
//! Strict where it reads, so that a key counts only where it is one, and at its own depth: what a model writes may look
//! like anything, in a text or in a tool's input. Everything else is passed over by counting brackets. What is held is one
//! word, a path of at most [`DEEPEST`] scopes, and the facts.

use crate::json::{Decoder, Skipper, begins_scalar, is_space, plain_length, scalar_length};

use super::facts::Facts;
use super::place::{DEEPEST, Scope, Target};
use super::word::{LONGEST, Word};

/// What ends the streams of OpenAI's older APIs, in the place of a document.
const DONE: &[u8] = b"[DONE]";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// So many bytes of [`DONE`] were read.
    Done(usize),
    // What the next byte that is not white space may be.
    KeyOrClose,
    Key,
    Colon,
    Value,
    ItemOrClose,
    CommaOrClose,
    /// The first tool call, or the end of their list.
    ToolCallOrClose,
    // Within something.
    InKey,
    InWord,
    /// Right after the quote that opens a text of which only matters whether there is any.
    InText,
    InCount,
    InScalar,
    Skipping,
    // Behind everything.
    Closed,
    /// It is no document, or none that can be read.
    Lost,
}

/// What a document was, once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document<'a> {
    Object(&'a Facts),
    Done,
    Unreadable,
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    state: State,
    /// The innermost object or array that is open, and so many around it, the root first.
    scope: Scope,
    around: [Scope; DEEPEST],
    depth: usize,
    /// What the value under way is good for.
    target: Target,
    word: Word,
    decoder: Decoder,
    skipper: Skipper,
    count: Count,
    facts: Facts,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self {
            state: State::Start,
            scope: Scope::Root,
            around: [Scope::Root; DEEPEST],
            depth: 0,
            target: Target::Nothing,
            word: Word::new(),
            decoder: Decoder::new(),
            skipper: Skipper::text(),
            count: Count::default(),
            facts: Facts::default(),
        }
    }

    /// Makes ready for the next document.
    pub(super) fn begin(&mut self) {
        self.state = State::Start;
        self.depth = 0;
        self.facts = Facts::default();
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += self.step(&bytes[at..]);
        }
    }

    /// What was fed since the last [`Reader::begin`].
    pub(super) fn document(&self) -> Document<'_> {
        match self.state {
            State::Closed => Document::Object(&self.facts),
            State::Done(read) if read == DONE.len() => Document::Done,
            State::Start
            | State::Done(_)
            | State::KeyOrClose
            | State::Key
            | State::Colon
            | State::Value
            | State::ItemOrClose
            | State::CommaOrClose
            | State::ToolCallOrClose
            | State::InKey
            | State::InWord
            | State::InText
            | State::InCount
            | State::InScalar
            | State::Skipping
            | State::Lost => Document::Unreadable,
        }
    }

    /// Consumes some bytes, or none where only the state changed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::InKey => self.read_key(bytes),
            State::InWord => self.read_word(bytes),
            State::InText => self.see_text(bytes[0]),
            State::InCount => self.read_count(bytes),
            State::InScalar => self.pass_scalar(bytes),
            State::Skipping => self.skip(bytes),
            State::Done(read) => self.pass_done(read, bytes),
            // What follows the document is of no interest to anybody.
            State::Closed | State::Lost => bytes.len(),
            _ if is_space(bytes[0]) => 1,
            State::Start => self.begin_root(bytes[0]),
            State::KeyOrClose | State::Key if bytes[0] == b'"' => self.begin_key(bytes),
            State::KeyOrClose if bytes[0] == b'}' => self.close(),
            State::Colon if bytes[0] == b':' => self.expect(State::Value),
            State::ItemOrClose if bytes[0] == b']' => self.close(),
            State::Value | State::ItemOrClose => self.begin_value(bytes),
            State::CommaOrClose => self.end_member(bytes),
            State::ToolCallOrClose => self.see_tool_calls(bytes[0]),
            State::KeyOrClose | State::Key | State::Colon => self.lose(),
        }
    }

    fn expect(&mut self, state: State) -> usize {
        self.state = state;
        1
    }

    fn begin_root(&mut self, byte: u8) -> usize {
        match byte {
            b'{' => self.open(Scope::Root),
            b'[' => self.expect(State::Done(1)),
            _ => self.lose(),
        }
    }

    fn pass_done(&mut self, read: usize, bytes: &[u8]) -> usize {
        let Some(expected) = DONE.get(read) else { return bytes.len() };
        if bytes[0] != *expected {
            return self.lose();
        }
        self.state = State::Done(read + 1);
        1
    }

    fn lose(&mut self) -> usize {
        self.state = State::Lost;
        0
    }

    /// Goes into an object or an array.
    fn open(&mut self, scope: Scope) -> usize {
        self.around[self.depth] = self.scope;
        self.depth += 1;
        self.scope = scope;
        self.target = scope.item();
        self.expect(if scope.is_array() { State::ItemOrClose } else { State::KeyOrClose })
    }

    fn close(&mut self) -> usize {
        self.depth -= 1;
        self.scope = self.around[self.depth];
        self.end_value();
        1
    }

    fn end_value(&mut self) {
        self.state = if self.depth == 0 { State::Closed } else { State::CommaOrClose };
    }

    /// Behind a value. The next member begins in the same step where it can: most are written without white space.
    fn end_member(&mut self, bytes: &[u8]) -> usize {
        let scope = self.scope;
        match bytes[0] {
            b',' if scope.is_array() => {
                self.target = scope.item();
                self.expect(State::Value)
            }
            b',' if bytes.get(1) == Some(&b'"') => 1 + self.begin_key(&bytes[1..]),
            b',' => self.expect(State::Key),
            b']' if scope.is_array() => self.close(),
            b'}' if !scope.is_array() => self.close(),
            _ => self.lose(),
        }
    }

    /// Begins with the quote of a key.
    fn begin_key(&mut self, bytes: &[u8]) -> usize {
        let Some(key) = short_text(bytes) else {
            self.begin_word();
            return self.expect(State::InKey);
        };
        self.target = self.scope.target(key);
        let used = key.len() + 2;
        match bytes.get(used..) {
            Some([b':', value @ ..]) if value.first().is_some_and(|byte| !is_space(*byte)) => {
                used + 1 + self.begin_value(value)
            }
            _ => {
                self.state = State::Colon;
                used
            }
        }
    }

    fn begin_word(&mut self) {
        self.word.begin();
        self.decoder = Decoder::new();
    }

    fn read_key(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.decoder.feed(bytes, &mut self.word) else { return bytes.len() };
        self.target = self.scope.target(self.word.bytes());
        self.state = State::Colon;
        used
    }

    fn begin_value(&mut self, bytes: &[u8]) -> usize {
        let target = self.target;
        if target != Target::Nothing {
            self.facts.forget(target);
            if let Some(used) = self.begin_wanted(target, bytes) {
                return used;
            }
            self.facts.see(target, bytes[0]);
        }
        self.pass_value(bytes)
    }

    /// Begins a value of which more is read than its first byte. `None`: it has another form than that has.
    fn begin_wanted(&mut self, target: Target, bytes: &[u8]) -> Option<usize> {
        match bytes[0] {
            b'"' if target.is_word() => Some(self.begin_word_value(bytes)),
            b'"' if matches!(target, Target::Generated | Target::Delta) => Some(self.expect(State::InText)),
            b'[' if target == Target::ToolCalls => Some(self.expect(State::ToolCallOrClose)),
            b'0'..=b'9' if matches!(target, Target::Figure(_)) => {
                self.count = Count::default();
                self.state = State::InCount;
                Some(0)
            }
            bracket @ (b'{' | b'[') => Some(self.open(target.inside(bracket)?)),
            _ => None,
        }
    }

    /// Begins with the quote of a text that is a word.
    fn begin_word_value(&mut self, bytes: &[u8]) -> usize {
        if let Some(word) = short_text(bytes) {
            self.facts.word(self.target, word);
            self.end_value();
            return word.len() + 2;
        }
        self.begin_word();
        self.expect(State::InWord)
    }

    fn read_word(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.decoder.feed(bytes, &mut self.word) else { return bytes.len() };
        self.facts.word(self.target, self.word.bytes());
        self.end_value();
        used
    }

    fn see_text(&mut self, byte: u8) -> usize {
        if byte == b'"' {
            self.end_value();
            return 1;
        }
        self.facts.is_content = true;
        self.skipper = Skipper::text();
        self.state = State::Skipping;
        0
    }

    fn see_tool_calls(&mut self, byte: u8) -> usize {
        if byte == b']' {
            self.end_value();
            return 1;
        }
        self.facts.is_content = true;
        self.facts.has_tool_call = true;
        self.skipper = Skipper::nested();
        self.state = State::Skipping;
        0
    }

    fn read_count(&mut self, bytes: &[u8]) -> usize {
        let used = scalar_length(bytes);
        bytes[..used].iter().for_each(|byte| self.count.push(*byte));
        if used < bytes.len() {
            if let Target::Figure(figure) = self.target {
                self.facts.figures.set(figure, self.count.value());
            }
            self.end_value();
        }
        used
    }

    /// Begins with the first byte of a value of which no more is read.
    fn pass_value(&mut self, bytes: &[u8]) -> usize {
        match bytes[0] {
            b'"' => self.skipper = Skipper::text(),
            b'{' | b'[' => self.skipper = Skipper::nested(),
            byte if begins_scalar(byte) => {
                self.state = State::InScalar;
                return self.pass_scalar(bytes);
            }
            _ => return self.lose(),
        }
        self.state = State::Skipping;
        1 + self.skip(&bytes[1..])
    }

    fn skip(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.skipper.feed(bytes) else { return bytes.len() };
        self.end_value();
        used
    }

    /// A number, `true`, `false` or `null`: ends before the byte that cannot belong to it.
    fn pass_scalar(&mut self, bytes: &[u8]) -> usize {
        let used = scalar_length(bytes);
        if used < bytes.len() {
            self.end_value();
        }
        used
    }
}

/// The text that begins with this quote, if it lies whole in the bytes, is as it is written, and may be a known word.
fn short_text(bytes: &[u8]) -> Option<&[u8]> {
    let rest = &bytes[1..];
    let text = &rest[..plain_length(&rest[..rest.len().min(LONGEST + 1)])?];
    (rest[text.len()] == b'"').then_some(text)
}

/// A count under way, digit by digit.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    value: u64,
    is_other: bool,
}

impl Count {
    fn push(&mut self, byte: u8) {
        if byte.is_ascii_digit() && u32::try_from(self.value).is_ok() {
            self.value = self.value * 10 + u64::from(byte - b'0');
        } else {
            self.is_other = true;
        }
    }

    /// `None` for what is no whole number, and for more than any turn can have.
    fn value(self) -> Option<u32> {
        u32::try_from(self.value).ok().filter(|_| !self.is_other)
    }
}
