//! What clients put before the words of a user without being asked: reminders and descriptions of the surroundings,
//! which differ between turns of one conversation and are equal in different ones.

use memchr::memchr;

use crate::json::{Sink, Stray};

use super::digest::{Found, Text};

/// The tags that such a preamble stands in. A tag's only `<` is its first byte, which the search rests on.
const PREAMBLES: [Preamble; 4] = [
    // Claude Code
    Preamble { opening: b"<system-reminder>", closing: b"</system-reminder>" },
    // Codex
    Preamble { opening: b"<environment_context>", closing: b"</environment_context>" },
    Preamble { opening: b"<user_instructions>", closing: b"</user_instructions>" },
    // Cline and its relatives
    Preamble { opening: b"<environment_details>", closing: b"</environment_details>" },
];

/// Stands first in the block of Claude Code's system prompt that tells Anthropic whom to bill. It differs between
/// conversations with one prompt, and vLLM takes the block out as well.
const BILLING: &[u8] = b"x-anthropic-billing-header";

struct Preamble {
    opening: &'static [u8],
    closing: &'static [u8],
}

/// What a text of a first user message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// White space at most.
    Blank,
    /// Preambles only.
    Preamble,
    /// Words, after so many bytes of preambles and the white space behind them.
    Words { hash: u64, left_out: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// White space, or so many bytes that a preamble may open with.
    Opening(usize),
    /// In a preamble of this kind, with so many bytes of its closing tag matched.
    Inside {
        preamble: usize,
        matched: usize,
    },
    Words,
}

/// A text that may begin with preambles.
#[derive(Clone, Debug)]
pub(super) struct Head {
    place: Place,
    /// The preambles that may be opening, a bit for each.
    possible: u8,
    whole: Text,
    /// What follows the last preamble that was closed.
    rest: Text,
    /// Bytes before `rest`; 0 where no preamble was closed, and `rest` is not in use.
    left_out: u64,
}

impl Head {
    pub(super) fn new() -> Self {
        Self { place: Place::Opening(0), possible: !0, whole: Text::new(), rest: Text::new(), left_out: 0 }
    }

    /// Begins the next text.
    pub(super) fn begin(&mut self) {
        self.place = Place::Opening(0);
        self.possible = !0;
        self.whole.begin();
        self.left_out = 0;
    }

    /// The whole text, preambles and all.
    pub(super) fn whole(&self) -> Found<'_> {
        self.whole.found()
    }

    /// What the text that has ended is. A preamble that was not closed is words.
    pub(super) fn lead(&self) -> Lead {
        match self.place {
            Place::Opening(0) if self.left_out == 0 => Lead::Blank,
            Place::Opening(0) => Lead::Preamble,
            Place::Opening(_) | Place::Inside { .. } | Place::Words => {
                let words = if self.left_out == 0 { &self.whole } else { &self.rest };
                Lead::Words { hash: words.hash(), left_out: self.left_out }
            }
        }
    }

    /// Consumes some bytes.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.place {
            Place::Opening(matched) => self.open(matched, bytes[0]),
            Place::Inside { preamble, matched } => self.pass(preamble, matched, bytes),
            Place::Words => {
                self.keep(bytes);
                bytes.len()
            }
        }
    }

    fn open(&mut self, matched: usize, byte: u8) -> usize {
        if matched == 0 && byte.is_ascii_whitespace() {
            self.whole.push_byte(byte);
            self.left_out += u64::from(self.left_out > 0);
            return 1;
        }
        if matched == 0 {
            self.possible = !0;
        }
        self.place = Place::Words;
        for (at, preamble) in PREAMBLES.iter().enumerate() {
            let bit = 1 << at;
            if preamble.opening.get(matched) != Some(&byte) {
                self.possible &= !bit;
            } else if self.possible & bit != 0 {
                let open = matched + 1 == preamble.opening.len();
                self.place =
                    if open { Place::Inside { preamble: at, matched: 0 } } else { Place::Opening(matched + 1) };
            }
        }
        self.keep(&[byte]);
        1
    }

    fn pass(&mut self, preamble: usize, matched: usize, bytes: &[u8]) -> usize {
        let closing = PREAMBLES[preamble].closing;
        if matched == 0 {
            let used = memchr(closing[0], bytes).map_or(bytes.len(), |at| at + 1);
            self.keep(&bytes[..used]);
            self.place = Place::Inside { preamble, matched: usize::from(bytes[used - 1] == closing[0]) };
            return used;
        }
        self.keep(&bytes[..1]);
        let matched = match bytes[0] {
            byte if byte == closing[matched] => matched + 1,
            byte => usize::from(byte == closing[0]),
        };
        self.place = Place::Inside { preamble, matched };
        if matched == closing.len() {
            self.place = Place::Opening(0);
            self.left_out = self.whole.bytes();
            self.rest.begin();
        }
        1
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.whole.push(bytes);
        if self.left_out > 0 {
            self.rest.push(bytes);
        }
    }
}

impl Sink for Head {
    fn push(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            rest = &rest[self.step(rest)..];
        }
    }

    fn push_escaped(&mut self, count: usize, bytes: &[u8], escaped: u8) {
        if self.place == Place::Words && self.left_out == 0 {
            self.whole.push_escaped(count, bytes, escaped);
        } else {
            self.push(&bytes[..count]);
            self.push(&[escaped]);
        }
    }

    fn stray(&mut self, stray: Stray) {
        stray.spell(|bytes| self.push(bytes));
    }
}

/// A text of a system prompt, which may be the one about billing.
#[derive(Clone, Debug)]
pub(super) struct SystemText {
    text: Text,
    /// Bytes of [`BILLING`] that the text has begun with; `None` once it went on otherwise.
    matched: Option<usize>,
}

impl SystemText {
    pub(super) fn new() -> Self {
        Self { text: Text::new(), matched: Some(0) }
    }

    /// Begins the next text.
    pub(super) fn begin(&mut self) {
        self.text.begin();
        self.matched = Some(0);
    }

    pub(super) fn whole(&self) -> Found<'_> {
        self.text.found()
    }

    pub(super) fn is_billing(&self) -> bool {
        self.matched == Some(BILLING.len())
    }
}

impl Sink for SystemText {
    fn push(&mut self, bytes: &[u8]) {
        self.text.push(bytes);
        if let Some(matched) = self.matched {
            let wanted = &BILLING[matched..];
            let compared = wanted.len().min(bytes.len());
            self.matched = (wanted[..compared] == bytes[..compared]).then_some(matched + compared);
        }
    }

    fn stray(&mut self, stray: Stray) {
        stray.spell(|bytes| self.push(bytes));
    }
}

impl Sink for Text {
    fn push(&mut self, bytes: &[u8]) {
        Text::push(self, bytes);
    }

    fn push_escaped(&mut self, count: usize, bytes: &[u8], escaped: u8) {
        Text::push_escaped(self, count, bytes, escaped);
    }

    fn stray(&mut self, stray: Stray) {
        stray.spell(|bytes| self.push(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::digest;

    fn lead(text: &str) -> Lead {
        let read = |piece: usize| {
            let mut head = Head::new();
            head.push(b"<system-reminder>of another text</system-reminder> x");
            head.begin();
            text.as_bytes().chunks(piece).for_each(|piece| head.push(piece));
            assert_eq!(head.whole().hash, digest::text(text.as_bytes()), "{text}");
            head.lead()
        };
        let whole = read(usize::MAX);
        for piece in [1, 2, 3, 7] {
            assert_eq!(read(piece), whole, "{text} by {piece}");
        }
        whole
    }

    #[test]
    fn preambles_are_left_out_with_the_white_space_behind_them() {
        for (preambles, words) in [
            ("", "words"),
            ("", " words"),
            ("<system-reminder>a</system-reminder>", "words"),
            ("<system-reminder>a</system-reminder>\n\n", "words <system-reminder>b</system-reminder>"),
            ("  <system-reminder></system-reminder><system-reminder>\nb</system-reminder> ", "words"),
            ("<environment_context>a</environment_context><user_instructions>b</user_instructions>", "words"),
            ("<environment_details>a</environment_details>", "<environment_detail"),
            ("<user_instructions>a<<</</user</user_instructions>", "words"),
            ("<system-reminder>a</environment_context></system-reminder>", "<task>b</task>"),
            ("<system-reminder>a</system-reminder>", "<system-reminder>not closed"),
            ("", "<system-reminder>not closed </system-reminder"),
            ("", "<environment_>"),
            ("", "<"),
        ] {
            let expected = Lead::Words { hash: digest::text(words.as_bytes()), left_out: preambles.len() as u64 };
            assert_eq!(lead(&format!("{preambles}{words}")), expected, "{preambles}{words}");
        }
    }

    #[test]
    fn a_text_without_words_is_told() {
        assert_eq!(lead(""), Lead::Blank);
        assert_eq!(lead(" \n"), Lead::Blank);
        assert_eq!(lead("<system-reminder>a</system-reminder>"), Lead::Preamble);
        assert_eq!(
            lead(" <user_instructions>a</user_instructions>\n<system-reminder></system-reminder>\n"),
            Lead::Preamble
        );
    }

    #[test]
    fn the_billing_text_is_known_by_its_beginning() {
        for (text, expected) in [
            ("x-anthropic-billing-header: cc_version=2.1.332.bd3;", true),
            ("x-anthropic-billing-header", true),
            ("x-anthropic-billing-heade", false),
            (" x-anthropic-billing-header", false),
            ("", false),
        ] {
            for piece in [1, 5, 100] {
                let mut system = SystemText::new();
                text.as_bytes().chunks(piece).for_each(|piece| system.push(piece));
                assert_eq!(system.is_billing(), expected, "{text}");
            }
        }
    }
}
