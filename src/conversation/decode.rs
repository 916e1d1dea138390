//! Decoding of a JSON string that comes in chunks cut anywhere.

use memchr::memchr2;

const HIGH_SURROGATES: std::ops::RangeInclusive<u16> = 0xD800..=0xDBFF;

/// What the text of a string is given to, piece by piece.
pub(super) trait Sink {
    fn push(&mut self, bytes: &[u8]);

    fn push_byte(&mut self, byte: u8) {
        self.push(&[byte]);
    }

    fn stray(&mut self, stray: Stray);
}

/// What stands in a string and is no text. Bytes that are not UTF-8 are passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stray {
    /// Half a surrogate pair.
    Surrogate(u16),
    /// A backslash before this byte.
    Escape(u8),
    /// `\u` without its four digits.
    Digits,
}

impl Stray {
    /// Gives bytes for it, none of which a text without it would have.
    pub(super) fn spell(self, mut push: impl FnMut(&[u8])) {
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
pub(super) struct Decoder {
    escape: Escape,
    /// The first half of a surrogate pair, until it is known what follows.
    high_surrogate: Option<u16>,
}

impl Decoder {
    /// Begins after an opening quote.
    pub(super) fn new() -> Self {
        Self { escape: Escape::None, high_surrogate: None }
    }

    /// Reads on. `Some(n)`: the closing quote was the last of the first `n` bytes; `None`: all
    /// bytes belong to the string.
    #[inline]
    pub(super) fn feed<S: Sink>(&mut self, bytes: &[u8], sink: &mut S) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match self.escape {
                Escape::None => {
                    let rest = &bytes[at..];
                    let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    if plain > 0 {
                        self.end_pair(sink);
                        sink.push(&rest[..plain]);
                    }
                    at += plain + 1;
                    match rest.get(plain) {
                        Some(b'"') => {
                            self.end_pair(sink);
                            return Some(at);
                        }
                        Some(_) => self.escape = Escape::Backslash,
                        None => return None,
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

    #[inline]
    fn escaped(&mut self, byte: u8, sink: &mut impl Sink) {
        let plain = match byte {
            b'n' => b'\n',
            b'"' | b'\\' | b'/' => byte,
            b't' => b'\t',
            b'u' => {
                self.escape = Escape::Unicode { digits: 0, unit: 0 };
                return;
            }
            b'b' => 0x08,
            b'f' => 0x0C,
            b'r' => b'\r',
            _ => {
                self.escape = Escape::None;
                self.end_pair(sink);
                sink.stray(Stray::Escape(byte));
                return;
            }
        };
        self.escape = Escape::None;
        self.end_pair(sink);
        sink.push_byte(plain);
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
