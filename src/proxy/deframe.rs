//! A body out of the frame that HTTP/1.1 puts around it (RFC 9112, sections 6 and 7).
//!
//! `httparse` can read the line before a chunk, once all of it is there. Here it may be cut anywhere, and nothing of it is kept.

use std::mem::replace;

use bytes::{Bytes, BytesMut};
use pingora::{Error, ErrorType, Result};

/// What is between chunks and behind the last one is bounded: nobody needs it.
const ASIDE_MAX: usize = 8 * 1024;

/// Digits of a chunk's size: as many as a number has.
const DIGITS_MAX: u8 = 16;

/// Where in a framed body the next byte lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a body of which so much is still to come.
    Length(u64),
    /// In the line before a chunk.
    Size {
        size: u64,
        digits: u8,
        part: Line,
    },
    Chunk(u64),
    /// Behind a chunk.
    ChunkEnd,
    ChunkLf,
    /// In the lines behind the last chunk.
    Trailers {
        line_is_empty: bool,
        had_cr: bool,
    },
    UntilClose,
    Ended,
    /// At something that can't be there.
    Broken(&'static str),
}

/// Where in the line before a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Digits,
    /// In what may follow the size, which means nothing here.
    Aside,
    Lf,
}

/// Takes a body out of its frame, piece by piece. Keeps nothing of it.
#[derive(Debug)]
pub struct Deframer {
    at: At,
    /// Bytes that were neither body nor its necessary frame, since the last chunk began.
    aside: usize,
}

/// What was in a piece.
#[derive(Debug, PartialEq, Eq)]
pub struct Deframed {
    /// All of the body that was in it.
    pub data: Bytes,
    /// How much of the piece belongs to the body and its frame: all, unless the body has ended in it.
    pub used: usize,
}

/// The parts of a body that are in one piece: mostly one, which is copied once.
enum Parts<'a> {
    One(&'a [u8]),
    Many(BytesMut),
}

impl Deframer {
    pub fn of_length(length: u64) -> Self {
        Self::at(if length == 0 { At::Ended } else { At::Length(length) })
    }

    pub fn of_chunks() -> Self {
        Self::at(At::BEFORE_CHUNK)
    }

    pub fn until_close() -> Self {
        Self::at(At::UntilClose)
    }

    fn at(at: At) -> Self {
        Deframer { at, aside: 0 }
    }

    pub fn has_ended(&self) -> bool {
        self.at == At::Ended
    }

    /// Takes a piece in. What is before something that can't be there is still given.
    pub fn deframe(&mut self, piece: &[u8]) -> Deframed {
        let mut parts = Parts::One(&[]);
        let mut used = 0;
        while used < piece.len() {
            let rest = &piece[used..];
            let taken;
            (taken, self.at) = match self.at {
                At::Length(left) => some_of(rest, left, At::Length, At::Ended),
                At::Chunk(left) => some_of(rest, left, At::Chunk, At::ChunkEnd),
                At::UntilClose => (rest.len(), At::UntilClose),
                At::Size { .. } | At::ChunkEnd | At::ChunkLf | At::Trailers { .. } => {
                    self.at = self.frame_byte(rest[0]).unwrap_or_else(At::Broken);
                    used += 1;
                    continue;
                }
                At::Ended | At::Broken(_) => break,
            };
            parts.push(&rest[..taken]);
            used += taken;
        }
        Deframed { data: parts.into_bytes(), used }
    }

    /// # Errors
    /// If something has come that can't be there.
    pub fn check(&self) -> Result<()> {
        if let At::Broken(what) = self.at {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, what);
        }
        Ok(())
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// If the body has not.
    pub fn close(&mut self) -> Result<()> {
        if !matches!(self.at, At::UntilClose | At::Ended) {
            return Error::e_explain(ErrorType::ConnectionClosed, "in the middle of a body");
        }
        self.at = At::Ended;
        Ok(())
    }

    /// A byte of the frame in chunks.
    fn frame_byte(&mut self, byte: u8) -> std::result::Result<At, &'static str> {
        Ok(match (self.at, byte) {
            (At::Size { size, digits, part: Line::Digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == DIGITS_MAX {
                    return Err("a chunk larger than any number");
                }
                let digit = (byte as char).to_digit(16).unwrap_or_default();
                At::Size { size: size * 16 + u64::from(digit), digits: digits + 1, part: Line::Digits }
            }
            (At::Size { digits: 0, .. }, _) => return Err("a chunk without a size"),
            (At::Size { size, digits, part: Line::Digits | Line::Aside }, b'\r') => {
                At::Size { size, digits, part: Line::Lf }
            }
            (At::Size { size, digits, part: Line::Digits }, b';' | b' ' | b'\t') => {
                At::Size { size, digits, part: Line::Aside }
            }
            (At::Size { part: Line::Aside, .. }, byte) if byte != b'\n' => self.pass_over()?,
            (At::Size { size: 0, part: Line::Lf, .. }, b'\n') => At::Trailers { line_is_empty: true, had_cr: false },
            (At::Size { size, part: Line::Lf, .. }, b'\n') => {
                self.aside = 0;
                At::Chunk(size)
            }
            (At::ChunkEnd, b'\r') => At::ChunkLf,
            (At::ChunkLf, b'\n') => At::BEFORE_CHUNK,
            (At::Trailers { line_is_empty: true, had_cr: true }, b'\n') => At::Ended,
            (At::Trailers { had_cr: true, .. }, b'\n') => At::Trailers { line_is_empty: true, had_cr: false },
            (At::Trailers { line_is_empty, had_cr: false }, b'\r') => At::Trailers { line_is_empty, had_cr: true },
            (At::Trailers { had_cr: false, .. }, byte) if byte != b'\n' => {
                self.pass_over()?;
                At::Trailers { line_is_empty: false, had_cr: false }
            }
            (at, _) => return Err(at.expected()),
        })
    }

    /// A byte that means nothing. Where it stands does not change.
    fn pass_over(&mut self) -> std::result::Result<At, &'static str> {
        self.aside += 1;
        if self.aside > ASIDE_MAX { Err("more beside the chunks than anybody needs") } else { Ok(self.at) }
    }
}

impl At {
    const BEFORE_CHUNK: At = At::Size { size: 0, digits: 0, part: Line::Digits };

    /// What was wrong where the next byte is not what it has to be.
    fn expected(self) -> &'static str {
        match self {
            At::Size { .. } => "a chunk's size that is none",
            At::ChunkEnd | At::ChunkLf => "a chunk that is longer than its size",
            At::Trailers { .. } => "lines behind the chunks that are none",
            At::Length(_) | At::Chunk(_) | At::UntilClose | At::Ended | At::Broken(_) => "a body that is none",
        }
    }
}

/// How much of these bytes belongs to a part of which so much is left, and where it goes on behind them.
fn some_of(bytes: &[u8], left: u64, more: fn(u64) -> At, then: At) -> (usize, At) {
    let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    let left = left - taken as u64;
    (taken, if left == 0 { then } else { more(left) })
}

impl<'a> Parts<'a> {
    fn push(&mut self, part: &'a [u8]) {
        match self {
            Parts::One(one) if one.is_empty() => *one = part,
            Parts::One(_) | Parts::Many(_) if part.is_empty() => {}
            Parts::One(_) => {
                if let Parts::One(one) = replace(self, Parts::Many(BytesMut::new()))
                    && let Parts::Many(many) = self
                {
                    many.reserve(one.len() + part.len());
                    many.extend_from_slice(one);
                    many.extend_from_slice(part);
                }
            }
            Parts::Many(many) => many.extend_from_slice(part),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Parts::One(one) => Bytes::copy_from_slice(one),
            Parts::Many(many) => many.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deframed(frame: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool)> {
        let mut deframer = Deframer::of_chunks();
        let (mut body, mut used) = (Vec::new(), 0);
        for piece in frame.chunks(piece) {
            let deframed = deframer.deframe(piece);
            deframer.check()?;
            body.extend_from_slice(&deframed.data);
            used += deframed.used;
        }
        Ok((body, used, deframer.has_ended()))
    }

    #[test]
    fn chunks_give_the_same_body_however_they_are_cut_and_what_comes_behind_is_left() {
        let frame =
            b"5\r\nhello\r\n0A ;q=\"x\"\r\n, chunked \r\n1\r\n\n\r\n000\r\nTrailer: 1\r\nOther: 2\r\n\r\nHTTP/1.1";
        for piece in 1..=frame.len() {
            let (body, used, has_ended) = deframed(frame, piece).unwrap();
            assert_eq!((body.as_slice(), has_ended), (&b"hello, chunked \n"[..], true), "{piece}");
            assert_eq!(used, frame.len() - b"HTTP/1.1".len());
        }
    }

    #[test]
    fn a_frame_that_is_none_is_an_error_wherever_it_is_wrong() {
        let aside = format!("1;{}", "x".repeat(ASIDE_MAX + 1));
        let trailers = format!("0\r\n{}", "A: b\r\n".repeat(ASIDE_MAX / 4 + 1));
        for frame in [
            "\r\n",
            "x",
            ";\r\n",
            "-1\r\n",
            "+1\r\n",
            " 1\r\n",
            "0x1\r\n",
            "1\n",
            "1\rx",
            "1 2\n",
            "1\r\nab",
            "1\r\na\n",
            "1\r\na\rb",
            "00000000000000001\r\n",
            "0\r\n\n",
            "0\r\nA: b\n",
            "0\r\n\rx",
            &aside,
            &trailers,
        ] {
            for piece in [1, 1_000_000] {
                assert!(deframed(frame.as_bytes(), piece).is_err(), "{frame:?}");
            }
        }
    }

    #[test]
    fn only_a_body_without_a_length_may_end_with_its_connection() {
        let mut open = Deframer::until_close();
        assert_eq!(open.deframe(b"abc"), Deframed { data: "abc".into(), used: 3 });
        assert!(!open.has_ended() && open.close().is_ok() && open.has_ended());
        let mut short = Deframer::of_length(4);
        short.deframe(b"abc");
        assert!(short.close().is_err());
        assert_eq!(short.deframe(b"def"), Deframed { data: "d".into(), used: 1 });
        assert!(short.has_ended() && short.close().is_ok() && Deframer::of_length(0).has_ended());
        let mut chunks = Deframer::of_chunks();
        for frame in ["1", "\r", "\n", "a", "\r", "\n", "0", "\r\n"] {
            chunks.deframe(frame.as_bytes());
            assert!(chunks.close().is_err(), "{frame}");
        }
    }

    #[test]
    fn what_is_before_something_wrong_is_given() {
        let mut deframer = Deframer::of_chunks();
        let frame = b"2\r\nab\r\n1\r\nc\r\nzz\r\n";
        assert_eq!(deframer.deframe(frame).data, "abc");
        assert!(deframer.check().is_err() && !deframer.has_ended());
        assert_eq!(deframer.deframe(b"1\r\na\r\n").data, "");
    }
}
