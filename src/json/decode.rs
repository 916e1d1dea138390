//! Decoding of a JSON string that comes in chunks cut anywhere.

use super::skip::plain_length;

const HIGH_SURROGATES: std::ops::RangeInclusive<u16> = 0xD800..=0xDBFF;

/// What a byte after a backslash stands for; 0 where it is not one byte.
const ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes[b'/' as usize] = b'/';
    escapes[b'b' as usize] = 0x08;
    escapes[b'f' as usize] = 0x0C;
    escapes[b'n' as usize] = b'\n';
    escapes[b'r' as usize] = b'\r';
    escapes[b't' as usize] = b'\t';
    escapes
};

/// What the text of a string is given to, piece by piece.
pub(crate) trait Sink {
    fn push(&mut self, bytes: &[u8]);

    /// Pushes the first so many of the bytes, and one that was escaped. More bytes than those are given because a sink
    /// may be quicker to copy some in vain than to copy a few.
    fn push_escaped(&mut self, count: usize, bytes: &[u8], escaped: u8) {
        self.push(&bytes[..count]);
        self.push(&[escaped]);
    }

    fn stray(&mut self, stray: Stray);
}

/// What stands in a string and is no text. Bytes that are not UTF-8 are passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stray {
    /// Half a surrogate pair.
    Surrogate(u16),
    /// A backslash before this byte.
    Escape(u8),
    /// `\u` without its four digits.
    Digits,
}

impl Stray {
    /// Gives bytes for it, none of which a text without it would have.
    pub(crate) fn spell(self, mut push: impl FnMut(&[u8])) {
        match self {
            // As UTF-8 would, if it encoded surrogates.
            Stray::Surrogate(unit) => {
                let [high, low] = unit.to_be_bytes();
                push(&[0xE0 | high >> 4, 0x80 | (high & 0xF) << 2 | low >> 6, 0x80 | low & 0x3F]);
            }
            Stray::Escape(byte) => push(&[0xFE, byte]),
            Stray::Digits => push(&[0xFF]),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Unicode { digits: u8, unit: u16 },
}

/// The place in the string under way.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    escape: Escape,
    /// The first half of a surrogate pair, until it is known what follows.
    high_surrogate: Option<u16>,
}

impl Decoder {
    /// Begins after an opening quote.
    pub(crate) fn new() -> Self {
        Self { escape: Escape::None, high_surrogate: None }
    }

    /// Reads on. `Some(n)`: the closing quote was the last of the first `n` bytes; `None`: all
    /// bytes belong to the string.
    #[inline]
    pub(crate) fn feed<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match self.escape {
                Escape::None => {
                    let (used, is_over) = self.plain(&bytes[at..], sink);
                    at += used;
                    if is_over {
                        return Some(at);
                    }
                }
                Escape::Backslash => {
                    self.escaped(bytes[at], sink);
                    at += 1;
                }
                Escape::Unicode { digits, unit } => match char::from(bytes[at]).to_digit(16) {
                    Some(digit) => {
                        self.unicode(digits + 1, unit << 4 | digit as u16, sink);
                        at += 1;
                    }
                    // The byte may be the closing quote, so it is looked at once more.
                    None => {
                        self.escape = Escape::None;
                        self.end_pair(sink);
                        sink.stray(Stray::Digits);
                    }
                },
            }
        }
        None
    }

    /// Reads to the closing quote, to an escape that is more than one byte, or to the end. Says how many bytes that was,
    /// and whether the quote is the last of them.
    #[inline]
    fn plain<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> (usize, bool) {
        if self.high_surrogate.is_some() {
            if bytes[0] == b'\\' {
                self.escape = Escape::Backslash;
                return (1, false);
            }
            self.end_pair(sink);
        }
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let plain = plain_length(rest);
            let count = plain.unwrap_or(rest.len());
            let escaped = rest.get(count + 1).map_or(0, |byte| ESCAPES[usize::from(*byte)]);
            if escaped != 0 && rest[count] == b'\\' {
                sink.push_escaped(count, rest, escaped);
                at += count + 2;
                continue;
            }
            sink.push(&rest[..count]);
            at += count;
            let Some(mark) = plain.map(|plain| rest[plain]) else { break };
            if mark == b'\\' {
                self.escape = Escape::Backslash;
            }
            return (at + 1, mark == b'"');
        }
        (at, false)
    }

    fn escaped(&mut self, byte: u8, sink: &mut impl Sink) {
        self.escape = Escape::None;
        match (byte, ESCAPES[usize::from(byte)]) {
            (b'u', _) => self.escape = Escape::Unicode { digits: 0, unit: 0 },
            (_, 0) => {
                self.end_pair(sink);
                sink.stray(Stray::Escape(byte));
            }
            (_, escaped) => {
                self.end_pair(sink);
                sink.push(&[escaped]);
            }
        }
    }

    fn unicode(&mut self, digits: u8, unit: u16, sink: &mut impl Sink) {
        if digits < 4 {
            self.escape = Escape::Unicode { digits, unit };
            return;
        }
        self.escape = Escape::None;
        if let Some(high) = self.high_surrogate.take() {
            if let Some(Ok(pair)) = char::decode_utf16([high, unit]).next() {
                sink.push(pair.encode_utf8(&mut [0; 4]).as_bytes());
                return;
            }
            sink.stray(Stray::Surrogate(high));
        }
        match char::from_u32(u32::from(unit)) {
            Some(plain) => sink.push(plain.encode_utf8(&mut [0; 4]).as_bytes()),
            None if HIGH_SURROGATES.contains(&unit) => self.high_surrogate = Some(unit),
            None => sink.stray(Stray::Surrogate(unit)),
        }
    }

    /// Something other than its second half follows the first half of a pair.
    #[inline]
    fn end_pair(&mut self, sink: &mut impl Sink) {
        if let Some(high) = self.high_surrogate.take() {
            sink.stray(Stray::Surrogate(high));
        }
    }
}
