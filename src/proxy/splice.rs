//! Changing one value of a body on its way: the model's name, where an alias stands for another.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Puts other bytes in the place of a range of a body that passes in pieces. Everything else passes as it is.
#[derive(Debug)]
pub struct Splice {
    /// Offsets in the body as the client sent it. Never empty: a JSON string has its quotes.
    span: Range<usize>,
    with: Bytes,
    /// How much of the client's body has passed.
    passed: usize,
}

impl Splice {
    pub fn new(span: Range<usize>, with: impl Into<Bytes>) -> Self {
        Splice { span, with: with.into(), passed: 0 }
    }

    /// The body comes again from its first byte.
    pub fn begin(&mut self) {
        self.passed = 0;
    }

    /// The length of a body of `length` bytes with the change made.
    pub fn sent_length(&self, length: usize) -> usize {
        length - self.span.len() + self.with.len()
    }

    /// The next piece, changed where the range lies in it.
    pub fn pass(&mut self, piece: &Bytes) -> Bytes {
        let begin = self.passed;
        let end = begin + piece.len();
        self.passed = end;
        if end <= self.span.start || begin >= self.span.end {
            return piece.clone();
        }
        let after = piece.slice(self.span.end.min(end) - begin..);
        // The new value goes where the old one began.
        match self.span.start.checked_sub(begin) {
            Some(before) => joined(&[&piece[..before], &self.with, &after]),
            None => after,
        }
    }
}

/// Several pieces as one.
pub fn joined(pieces: &[&[u8]]) -> Bytes {
    let mut whole = BytesMut::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces {
        whole.extend_from_slice(piece);
    }
    whole.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"model":"alias","n":1}"#;

    fn spliced(pieces: &[&[u8]], with: &'static str) -> String {
        let mut splice = Splice::new(9..16, with);
        // A second attempt sends the same.
        let mut attempt = || {
            splice.begin();
            let passed = pieces.iter().map(|piece| splice.pass(&Bytes::copy_from_slice(piece)));
            String::from_utf8(passed.collect::<Vec<_>>().concat()).unwrap()
        };
        let first = attempt();
        assert_eq!(attempt(), first);
        assert_eq!(splice.sent_length(BODY.len()), first.len());
        first
    }

    #[test]
    fn the_value_changes_and_nothing_else_however_the_body_is_cut() {
        for with in [r#""m""#, r#""a-much-longer-name""#, r#""alias""#] {
            let expected = format!(r#"{{"model":{with},"n":1}}"#);
            for first in 0..=BODY.len() {
                for second in first..=BODY.len() {
                    let pieces = [&BODY[..first], &BODY[first..second], &BODY[second..]];
                    assert_eq!(spliced(&pieces, with), expected, "{first} {second}");
                }
            }
            let bytes: Vec<_> = BODY.chunks(1).collect();
            assert_eq!(spliced(&bytes, with), expected);
        }
    }
}
