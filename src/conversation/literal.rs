//! A JSON string, read in chunks cut anywhere, decoded into a bounded buffer.

use std::fmt;

use crate::json::{Decoder, Sink, Stray};

/// Bytes that the longest value of most bodies has, the JSON in Claude Code's `metadata.user_id`.
const USUAL: usize = 176;

/// Why a string was read to its end and has no value all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TooLong,
    /// Half a surrogate pair, an unknown escape, or bytes that are not UTF-8.
    Undecodable,
}

/// The string under way. One value serves string after string, so that its buffer is allocated
/// once.
#[derive(Clone)]
pub(super) struct Literal {
    decoder: Decoder,
    decoded: Decoded,
}

/// What was decoded so far, up to a limit.
#[derive(Clone)]
struct Decoded {
    bytes: Vec<u8>,
    longest: usize,
    /// The first fault counts, so that the answer does not hang on what comes after it.
    fault: Option<Fault>,
}

impl Literal {
    pub(super) fn new() -> Self {
        Self { decoder: Decoder::new(), decoded: Decoded { bytes: Vec::with_capacity(USUAL), longest: 0, fault: None } }
    }

    /// Begins after an opening quote. Over `longest` decoded bytes the string has no value.
    pub(super) fn begin(&mut self, longest: usize) {
        self.decoder = Decoder::new();
        self.decoded.bytes.clear();
        self.decoded.longest = longest;
        self.decoded.fault = None;
    }

    /// Reads on. `Some(n)`: the closing quote was the last of the first `n` bytes; `None`: all
    /// bytes belong to the string.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        self.decoder.feed(bytes, &mut self.decoded)
    }

    /// The value of the string that has ended.
    pub(super) fn text(&self) -> Result<&str, Fault> {
        match self.decoded.fault {
            Some(fault) => Err(fault),
            None => std::str::from_utf8(&self.decoded.bytes).map_err(|_| Fault::Undecodable),
        }
    }
}

impl Sink for Decoded {
    fn push(&mut self, bytes: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        if self.bytes.len() + bytes.len() > self.longest {
            self.fault = Some(Fault::TooLong);
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn stray(&mut self, _: Stray) {
        self.fault.get_or_insert(Fault::Undecodable);
    }
}

impl fmt::Debug for Literal {
    /// Says nothing of the text, which may be a session id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Literal(..)")
    }
}
