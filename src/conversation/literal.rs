//! A JSON string, read in chunks cut anywhere, decoded into a bounded buffer.

use std::fmt;

use memchr::memchr2;

const HIGH_SURROGATES: std::ops::RangeInclusive<u16> = 0xD800..=0xDBFF;

/// Why a string was read to its end and has no value all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooLong,
    /// Half a surrogate pair, an unknown escape, or bytes that are not UTF-8.
    Undecodable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Unicode { digits: u8, unit: u16 },
}

/// The string under way. One value serves string after string, so that its buffer is allocated
/// once.
#[derive(Clone)]
pub(super) struct Literal {
    decoded: Vec<u8>,
    longest: usize,
    escape: Escape,
    high_surrogate: Option<u16>,
    fault: Option<Fault>,
}

impl Literal {
    pub(super) fn new() -> Self {
        Self { decoded: Vec::new(), longest: 0, escape: Escape::None, high_surrogate: None, fault: None }
    }

    /// Begins after an opening quote. Over `longest` decoded bytes the string has no value.
    pub(super) fn begin(&mut self, longest: usize) {
        self.decoded.clear();
        self.longest = longest;
        self.escape = Escape::None;
        self.high_surrogate = None;
        self.fault = None;
    }

    /// Reads on. `Some(n)`: the closing quote was the last of the first `n` bytes; `None`: all
    /// bytes belong to the string.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match self.escape {
                Escape::None => {
                    let rest = &bytes[at..];
                    let plain = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    self.push(&rest[..plain]);
                    at += plain + 1;
                    match rest.get(plain) {
                        Some(b'"') => return Some(at),
                        Some(_) => self.escape = Escape::Backslash,
                        None => return None,
                    }
                }
                Escape::Backslash => {
                    self.escape = self.escaped(bytes[at]);
                    at += 1;
                }
                Escape::Unicode { digits, unit } => match char::from(bytes[at]).to_digit(16) {
                    Some(digit) => {
                        self.escape = self.unicode(digits + 1, unit << 4 | digit as u16);
                        at += 1;
                    }
                    // The byte may be the closing quote, so it is looked at once more.
                    None => {
                        self.escape = Escape::None;
                        self.fail(Fault::Undecodable);
                    }
                },
            }
        }
        None
    }

    /// The value of the string that has ended.
    pub(super) fn text(&self) -> Result<&str, Fault> {
        match (self.fault, self.high_surrogate) {
            (Some(fault), _) => Err(fault),
            (None, Some(_)) => Err(Fault::Undecodable),
            (None, None) => std::str::from_utf8(&self.decoded).map_err(|_| Fault::Undecodable),
        }
    }

    fn escaped(&mut self, byte: u8) -> Escape {
        let plain = match byte {
            b'u' => return Escape::Unicode { digits: 0, unit: 0 },
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => {
                self.fail(Fault::Undecodable);
                return Escape::None;
            }
        };
        self.push(&[plain]);
        Escape::None
    }

    fn unicode(&mut self, digits: u8, unit: u16) -> Escape {
        if digits < 4 {
            return Escape::Unicode { digits, unit };
        }
        match (self.high_surrogate.take(), unit) {
            (None, unit) if HIGH_SURROGATES.contains(&unit) => self.high_surrogate = Some(unit),
            (None, unit) => self.push_utf16(&[unit]),
            (Some(high), low) => self.push_utf16(&[high, low]),
        }
        Escape::None
    }

    fn push_utf16(&mut self, units: &[u16]) {
        for decoded in char::decode_utf16(units.iter().copied()) {
            match decoded {
                Ok(decoded) => self.push(decoded.encode_utf8(&mut [0; 4]).as_bytes()),
                Err(_) => self.fail(Fault::Undecodable),
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.fault.is_some() {
            return;
        }
        if self.high_surrogate.is_some() {
            self.fail(Fault::Undecodable);
        } else if self.decoded.len() + bytes.len() > self.longest {
            self.fail(Fault::TooLong);
        } else {
            self.decoded.extend_from_slice(bytes);
        }
    }

    /// The first fault counts, so that the answer does not hang on what comes after it.
    fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}

impl fmt::Debug for Literal {
    /// Says nothing of the text, which may be a session id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Literal(..)")
    }
}
