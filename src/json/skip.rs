//! Passing over a JSON value of no interest: the greater part of every body, so the fast path of
//! its readers.

use memchr::memchr2;

/// Bytes of a text that are searched word by word.
const SHORT_RUN: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    Quote,
    Open,
    Close,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Plain; 256];
    classes[b'"' as usize] = Class::Quote;
    classes[b'{' as usize] = Class::Open;
    classes[b'[' as usize] = Class::Open;
    classes[b'}' as usize] = Class::Close;
    classes[b']' as usize] = Class::Close;
    classes
};

/// Bytes of numbers and words. Most literals are short, so a lookup a byte is as fast as anything.
const IN_SCALAR: [bool; 256] = {
    let mut in_scalar = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        in_scalar[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        byte += 1;
    }
    in_scalar
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Structure,
    Text,
    /// Right after a backslash in a text.
    Escaped,
}

/// The value under way. A counter stands for the nesting, so that depth costs neither stack nor
/// memory; that a `[` is closed by a `]` is left to the engine, which refuses a body where it is
/// not.
#[derive(Clone, Debug)]
pub(crate) struct Skipper {
    place: Place,
    depth: usize,
}

impl Skipper {
    /// Begins after the quote that opens a string.
    pub(crate) fn text() -> Self {
        Self { place: Place::Text, depth: 0 }
    }

    /// Begins after the bracket that opens an object or an array.
    pub(crate) fn nested() -> Self {
        Self { place: Place::Structure, depth: 1 }
    }

    /// Begins within so many objects and arrays, which is one at least.
    pub(crate) fn within(depth: usize) -> Self {
        Self { place: Place::Structure, depth }
    }

    /// Passes on. `Some(n)`: the value ended with the last of the first `n` bytes; `None`: all
    /// bytes belong to it.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            at += match self.place {
                Place::Structure => self.pass_structure(&bytes[at..]),
                Place::Text => self.pass_text(&bytes[at..]),
                Place::Escaped => {
                    self.place = Place::Text;
                    1
                }
            };
            if self.depth == 0 && self.place == Place::Structure {
                return Some(at);
            }
        }
        None
    }

    fn pass_structure(&mut self, bytes: &[u8]) -> usize {
        for (at, byte) in bytes.iter().enumerate() {
            match CLASSES[usize::from(*byte)] {
                Class::Plain => {}
                Class::Open => self.depth += 1,
                Class::Quote => {
                    self.place = Place::Text;
                    return at + 1;
                }
                Class::Close => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return at + 1;
                    }
                }
            }
        }
        bytes.len()
    }

    /// Texts are passed by vector instructions from one quote or backslash to the next. Escapes stay
    /// in this loop: code in a prompt has one in every line, and more.
    fn pass_text(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..) {
            let Some(plain) = plain_length(rest) else {
                return bytes.len();
            };
            if rest[plain] == b'"' {
                self.place = Place::Structure;
                return at + plain + 1;
            }
            at += plain + 2;
        }
        // The byte that the last backslash escapes is still to come.
        self.place = Place::Escaped;
        bytes.len()
    }
}

/// Where the first quote or backslash is. Code in a prompt has one every few bytes, where a call that prepares for
/// vectors costs more than the search itself; prose and pictures have long runs, where vectors are ten times as fast.
#[inline]
pub(crate) fn plain_length(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 0xFF;
    let marks = |word: u64, byte: u8| {
        let difference = word ^ (ONES * u64::from(byte));
        difference.wrapping_sub(ONES) & !difference & ONES << 7
    };
    let (words, _) = bytes[..bytes.len().min(SHORT_RUN)].as_chunks::<8>();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = marks(word, b'"') | marks(word, b'\\');
        if found != 0 {
            // What a borrow marks in error is above the lowest mark.
            return Some(8 * at + found.trailing_zeros() as usize / 8);
        }
    }
    let searched = 8 * words.len();
    memchr2(b'"', b'\\', &bytes[searched..]).map(|at| searched + at)
}

pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Whether a number, `true`, `false` or `null` begins with the byte. Besides JSON's own literals Python takes NaN and
/// Infinity.
pub(crate) fn begins_scalar(byte: u8) -> bool {
    matches!(byte, b'-' | b'0'..=b'9' | b't' | b'f' | b'n' | b'N' | b'I')
}

/// Bytes in front that can belong to a scalar.
pub(crate) fn scalar_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !IN_SCALAR[usize::from(*byte)]).unwrap_or(bytes.len())
}
