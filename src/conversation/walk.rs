//! Reading of the values that enter a history, as they arrive in chunks cut anywhere: a value's parts go to the
//! [`Tree`], and nothing of it is kept.
//!
//! A value ends where the [`Skipper`] would have ended it, whatever it holds: what is no JSON is passed over like a value
//! of no interest, and there is no history then.

use crate::json::{Decoder, Skipper, begins_scalar, is_space, plain_length, scalar_length};

use super::digest::{self, Found, Text};
use super::history::History;
use super::preamble::{Head, SystemText};
use super::tree::{Kind, Manner, Subject, Tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Expect(Expect),
    /// In a key.
    Name,
    Text(Manner),
    Scalar,
    /// In a value that is not looked into.
    Deep,
    /// In a value that counts for nothing.
    Skip,
    SkipScalar,
    /// Behind what is no JSON.
    Lost,
    End,
}

/// The next byte that is not white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    ItemOrClose,
    KeyOrClose,
    Key,
    Colon,
    CommaOrClose,
}

/// The values of one body that enter its history, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    place: Place,
    /// The value after the key under way counts.
    counts: bool,
    has_system: bool,
    is_lost: bool,
    decoder: Decoder,
    skipper: Skipper,
    text: Text,
    head: Head,
    system: SystemText,
    tree: Tree,
}

impl Walk {
    pub(super) fn new() -> Self {
        Self {
            place: Place::End,
            counts: true,
            has_system: false,
            is_lost: false,
            decoder: Decoder::new(),
            skipper: Skipper::text(),
            text: Text::new(),
            head: Head::new(),
            system: SystemText::new(),
            tree: Tree::new(),
        }
    }

    /// Begins with the first byte of a value: a quote or the bracket of an array. False: the value is not wanted, because
    /// a system prompt was read before.
    pub(super) fn begin(&mut self, subject: Subject, byte: u8) -> bool {
        if subject == Subject::System && self.has_system {
            return false;
        }
        self.has_system |= subject == Subject::System;
        self.tree.begin(subject);
        self.begin_value(&[byte]);
        true
    }

    /// The history, if everything read so far was JSON.
    pub(super) fn history(&self) -> Option<&History> {
        let history = self.tree.history();
        (!self.is_lost && history.has_steps()).then_some(history)
    }

    /// Reads on. `Some(n)`: the value ended with the last of the first `n` bytes; `None`: all
    /// bytes belong to it.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            at += self.step(&bytes[at..]);
            if self.place == Place::End {
                return Some(at);
            }
        }
        None
    }

    /// Consumes some bytes, or none where only the place changed.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.place {
            Place::Expect(_) if is_space(bytes[0]) => 1,
            Place::Expect(expected) => self.punctuation(expected, bytes),
            Place::Name => self.read_name(bytes),
            Place::Text(manner) => self.read_text(manner, bytes),
            Place::Scalar => self.read_scalar(bytes),
            Place::Deep => self.read_deep(bytes),
            Place::Skip => self.skip(bytes),
            Place::SkipScalar => self.skip_scalar(bytes),
            Place::Lost => self.pass_lost(bytes),
            Place::End => bytes.len(),
        }
    }

    fn punctuation(&mut self, expected: Expect, bytes: &[u8]) -> usize {
        match (expected, bytes[0]) {
            (Expect::ItemOrClose, b']') | (Expect::KeyOrClose, b'}') => self.close(),
            (Expect::CommaOrClose, b']') if self.tree.kind() == Some(Kind::Array) => self.close(),
            (Expect::CommaOrClose, b'}') if self.tree.kind() == Some(Kind::Object) => self.close(),
            (Expect::CommaOrClose, b',') => self.place = self.after_comma(),
            (Expect::Value | Expect::ItemOrClose, _) => return self.begin_value(bytes),
            (Expect::KeyOrClose | Expect::Key, b'"') => return self.read_members(bytes),
            (Expect::Colon, b':') => self.place = Place::Expect(Expect::Value),
            (Expect::KeyOrClose | Expect::Key | Expect::Colon | Expect::CommaOrClose, _) => return self.lose(),
        }
        1
    }

    fn after_comma(&self) -> Place {
        let in_object = self.tree.kind() == Some(Kind::Object);
        Place::Expect(if in_object { Expect::Key } else { Expect::Value })
    }

    fn close(&mut self) {
        self.tree.close();
        self.end_value();
    }

    fn end_value(&mut self) {
        self.counts = true;
        self.place = if self.tree.depth() == 0 { Place::End } else { Place::Expect(Expect::CommaOrClose) };
    }

    /// What comes is no JSON.
    fn lose(&mut self) -> usize {
        self.is_lost = true;
        self.skipper = Skipper::within(self.tree.depth());
        self.place = Place::Lost;
        0
    }

    /// Begins with the quote of a key. Members that lie in one chunk without white space, as most do, are read one after the
    /// other in this loop: deciding anew at each byte what it may be would take longer than all else.
    fn read_members(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            at += self.begin_name(&bytes[at..]);
            if self.place != Place::Expect(Expect::Colon) || bytes.get(at) != Some(&b':') {
                return at;
            }
            at += 1;
            self.place = Place::Expect(Expect::Value);
            let Some(rest) = bytes.get(at..).filter(|rest| rest.first().is_some_and(|byte| !is_space(*byte))) else {
                return at;
            };
            at += self.begin_value(rest);
            at += self.reach_key(&bytes[at..]);
            let expects_key = [Expect::KeyOrClose, Expect::Key].map(Place::Expect).contains(&self.place);
            if !expects_key || bytes.get(at) != Some(&b'"') {
                return at;
            }
        }
    }

    /// Passes over the brackets and commas between a value and the key that follows.
    #[inline]
    fn reach_key(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while self.place == Place::Expect(Expect::CommaOrClose) {
            match (bytes.get(at), self.tree.kind()) {
                (Some(b','), _) => self.place = self.after_comma(),
                (Some(b'}'), Some(Kind::Object)) | (Some(b']'), Some(Kind::Array)) => self.close(),
                (Some(_) | None, _) => return at,
            }
            at += 1;
        }
        let expects_item = [Expect::Value, Expect::ItemOrClose].map(Place::Expect).contains(&self.place);
        if expects_item && bytes.get(at) == Some(&b'{') {
            self.open(Kind::Object, Expect::KeyOrClose);
            at += 1;
        }
        at
    }

    /// Begins with the quote of a key. Most keys lie in one chunk and have no escapes: those are hashed where they are.
    fn begin_name(&mut self, bytes: &[u8]) -> usize {
        let rest = &bytes[1..];
        if let Some(end) = plain_length(rest)
            && rest[end] == b'"'
        {
            self.counts = self.tree.key(Found::whole(&rest[..end]));
            self.place = Place::Expect(Expect::Colon);
            return end + 2;
        }
        self.decoder = Decoder::new();
        self.text.begin();
        self.place = Place::Name;
        1
    }

    fn read_name(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.decoder.feed(bytes, &mut self.text) else {
            return bytes.len();
        };
        self.counts = self.tree.key(self.text.found());
        self.place = Place::Expect(Expect::Colon);
        used
    }

    fn begin_value(&mut self, bytes: &[u8]) -> usize {
        match bytes[0] {
            b'"' if self.counts => return self.begin_text(bytes),
            b'{' if self.counts => self.open(Kind::Object, Expect::KeyOrClose),
            b'[' if self.counts => self.open(Kind::Array, Expect::ItemOrClose),
            b'"' => {
                self.skipper = Skipper::text();
                self.place = Place::Skip;
            }
            b'{' | b'[' => {
                self.skipper = Skipper::nested();
                self.place = Place::Skip;
            }
            byte if begins_scalar(byte) => {
                self.text.begin();
                self.place = if self.counts { Place::Scalar } else { Place::SkipScalar };
                return 0;
            }
            _ => return self.lose(),
        }
        1
    }

    fn open(&mut self, kind: Kind, inside: Expect) {
        if self.tree.open(kind) {
            self.place = Place::Expect(inside);
        } else {
            self.text.begin();
            self.text.push_byte(if kind == Kind::Object { b'{' } else { b'[' });
            self.skipper = Skipper::nested();
            self.place = Place::Deep;
        }
    }

    /// Begins with the quote of a string.
    fn begin_text(&mut self, bytes: &[u8]) -> usize {
        let manner = self.tree.manner();
        let rest = &bytes[1..];
        if manner == Manner::Plain
            && let Some(end) = plain_length(rest)
            && rest[end] == b'"'
        {
            self.tree.text(Found::whole(&rest[..end]));
            self.end_value();
            return end + 2;
        }
        self.decoder = Decoder::new();
        match manner {
            Manner::Plain => self.text.begin(),
            Manner::Headed => self.head.begin(),
            Manner::System => self.system.begin(),
        }
        self.place = Place::Text(manner);
        1
    }

    fn read_text(&mut self, manner: Manner, bytes: &[u8]) -> usize {
        let end = match manner {
            Manner::Plain => self.decoder.feed(bytes, &mut self.text),
            Manner::Headed => self.decoder.feed(bytes, &mut self.head),
            Manner::System => self.decoder.feed(bytes, &mut self.system),
        };
        let Some(used) = end else { return bytes.len() };
        match manner {
            Manner::Plain => self.tree.text(self.text.found()),
            Manner::Headed => self.tree.headed_text(self.head.whole(), self.head.lead()),
            Manner::System if self.system.is_billing() => self.tree.billing_text(self.system.whole()),
            Manner::System => self.tree.system_text(self.system.whole()),
        }
        self.end_value();
        used
    }

    fn read_scalar(&mut self, bytes: &[u8]) -> usize {
        let used = scalar_length(bytes);
        self.text.push(&bytes[..used]);
        if used < bytes.len() {
            self.tree.value(digest::scalar(self.text.hash()));
            self.end_value();
        }
        used
    }

    fn read_deep(&mut self, bytes: &[u8]) -> usize {
        let end = self.skipper.feed(bytes);
        let used = end.unwrap_or(bytes.len());
        self.text.push(&bytes[..used]);
        if end.is_some() {
            self.tree.value(digest::raw(self.text.hash()));
            self.end_value();
        }
        used
    }

    fn skip(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.skipper.feed(bytes) else {
            return bytes.len();
        };
        self.end_value();
        used
    }

    fn skip_scalar(&mut self, bytes: &[u8]) -> usize {
        let used = scalar_length(bytes);
        if used < bytes.len() {
            self.end_value();
        }
        used
    }

    fn pass_lost(&mut self, bytes: &[u8]) -> usize {
        let Some(used) = self.skipper.feed(bytes) else {
            return bytes.len();
        };
        self.place = Place::End;
        used
    }
}
