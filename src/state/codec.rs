//! Frames: what they hold, how they are written, and how they are read back.

use std::io::{self, ErrorKind, Read, Write};

use serde::{Deserialize, Serialize};

use crate::balancer::{Records, ReplicaRecord};

const MAGIC: [u8; 8] = *b"kvpin st";

/// Grows with every change after which an older or newer kvpin would misread a frame. Another version's state is not
/// converted: what it costs to forget is that every conversation is read once more.
pub const VERSION: u32 = 1;

/// Room for a thousand replicas, and for more records than are ever written at once.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// A part of a state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Frame {
    /// The first one.
    Head(Head),
    /// A model begins. The records behind it are of that model, and refer to these replicas.
    Model {
        name: String,
        replicas: Vec<ReplicaRecord>,
    },
    Records(Records),
    /// The last one: the state is whole if it has so many frames before it.
    End {
        frames: u64,
    },
}

/// What the whole state has in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The moment that ages are counted to, in milliseconds since the Unix epoch.
    pub saved_at_ms: u64,
    /// Makes the same keys of the same ids.
    pub key_secret: [u8; 16],
    /// The version of the kvpin that wrote it.
    pub kvpin: String,
}

/// Why bytes are no state, or not this kvpin's.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("it can't be read: {0}")]
    Unreadable(#[source] io::Error),
    #[error("it is no state of kvpin")]
    Foreign,
    #[error("it has version {0}, and this kvpin reads version {VERSION}")]
    OtherVersion(u32),
    #[error("it ends in the middle")]
    CutShort,
    #[error("its part {frame} is damaged: {what}")]
    Part { frame: u64, what: &'static str },
}

/// Writes a state, frame by frame.
pub struct Writer<W> {
    to: W,
    frames: u64,
    buffer: Vec<u8>,
}

/// Reads a state, frame by frame.
pub struct Reader<R> {
    from: R,
    frames: u64,
    has_ended: bool,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub fn begin(mut to: W, head: Head) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let mut writer = Writer { to, frames: 0, buffer: Vec::new() };
        writer.frame(&Frame::Head(head))?;
        Ok(writer)
    }

    pub fn model(&mut self, name: &str, replicas: Vec<ReplicaRecord>) -> io::Result<()> {
        self.frame(&Frame::Model { name: name.to_owned(), replicas })
    }

    pub fn records(&mut self, records: Records) -> io::Result<()> {
        if records.is_empty() { Ok(()) } else { self.frame(&Frame::Records(records)) }
    }

    /// Says that this was all.
    pub fn end(mut self) -> io::Result<W> {
        self.frame(&Frame::End { frames: self.frames })?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.buffer.clear();
        let buffer = std::mem::take(&mut self.buffer);
        self.buffer = postcard::to_extend(frame, buffer).map_err(io::Error::other)?;
        self.frames += 1;
        write_frame(&mut self.to, &self.buffer)
    }
}

impl<R: Read> Reader<R> {
    /// # Errors
    /// When what is there doesn't begin as a state of this version does.
    pub fn begin(mut from: R) -> Result<(Self, Head), Damage> {
        let mut start = [0; MAGIC.len() + 4];
        read_exact(&mut from, &mut start)?;
        let (magic, version) = start.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Damage::Foreign);
        }
        let version = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
        if version != VERSION {
            return Err(Damage::OtherVersion(version));
        }
        let mut reader = Reader { from, frames: 0, has_ended: false, buffer: Vec::new() };
        match reader.frame()? {
            Some(Frame::Head(head)) => Ok((reader, head)),
            Some(Frame::Model { .. } | Frame::Records(_) | Frame::End { .. }) | None => {
                Err(reader.damaged("it stands where the head belongs"))
            }
        }
    }

    /// The next model or records; `None` behind the last.
    pub fn frame(&mut self) -> Result<Option<Frame>, Damage> {
        if self.has_ended {
            return Ok(None);
        }
        read_frame(&mut self.from, &mut self.buffer).map_err(|unread| unread.in_frame(self.frames))?;
        let frame = decode(&self.buffer).ok_or_else(|| self.damaged("it can't be decoded"))?;
        if let Frame::End { frames } = frame {
            self.has_ended = true;
            return if frames == self.frames { Ok(None) } else { Err(self.damaged("parts before it are missing")) };
        }
        if self.frames > 0 && matches!(frame, Frame::Head(_)) {
            return Err(self.damaged("it is a second head"));
        }
        self.frames += 1;
        Ok(Some(frame))
    }

    fn damaged(&self, what: &'static str) -> Damage {
        Damage::Part { frame: self.frames, what }
    }
}

/// Why a frame could not be read.
#[derive(Debug)]
pub enum Unread {
    Io(io::Error),
    TooLarge,
    Altered,
}

impl Unread {
    fn in_frame(self, frame: u64) -> Damage {
        match self {
            Unread::Io(error) => error.into(),
            Unread::TooLarge => Damage::Part { frame, what: "it is too large" },
            Unread::Altered => Damage::Part { frame, what: "its checksum is another one" },
        }
    }
}

/// What a payload holds, if it is that and nothing more.
pub fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Some(value),
        Ok(_) | Err(_) => None,
    }
}

/// Writes length, checksum and payload.
pub fn write_frame(to: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    if payload.len() > FRAME_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "a part of the state is too large"));
    }
    to.write_all(&(payload.len() as u32).to_le_bytes())?;
    to.write_all(&crc32fast::hash(payload).to_le_bytes())?;
    to.write_all(payload)
}

/// Reads the payload of the next frame into `buffer`.
pub fn read_frame(from: &mut impl Read, buffer: &mut Vec<u8>) -> Result<(), Unread> {
    let mut start = [0; 8];
    from.read_exact(&mut start).map_err(Unread::Io)?;
    let [l0, l1, l2, l3, c0, c1, c2, c3] = start;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Unread::TooLarge);
    }
    buffer.resize(length, 0);
    from.read_exact(buffer).map_err(Unread::Io)?;
    if crc32fast::hash(buffer) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return Err(Unread::Altered);
    }
    Ok(())
}

fn read_exact(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), Damage> {
    from.read_exact(buffer).map_err(Damage::from)
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        if error.kind() == ErrorKind::UnexpectedEof { Damage::CutShort } else { Damage::Unreadable(error) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::balancer::{AliasRecord, HistoryRecord, PartRecord, PinRecord, RawKey, Signs, Tokens};
    use crate::conversation::ConversationKey;

    fn key(number: u64) -> RawKey {
        ConversationKey(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into()
    }

    fn head() -> Head {
        Head { saved_at_ms: 1_800_000_000_000, key_secret: [7; 16], kvpin: "0.1.0".into() }
    }

    fn replicas() -> Vec<ReplicaRecord> {
        let address = SocketAddr::from(([127, 0, 0, 1], 8000));
        let signs = Some(Signs { start_s: Some(1.5), steps: Some(9), ..Signs::default() });
        let first =
            ReplicaRecord { name: "r".into(), address, rank: None, is_ordered_to_drain: true, computed: 77, signs };
        vec![first.clone(), ReplicaRecord { rank: Some(3), signs: None, is_ordered_to_drain: false, ..first }]
    }

    fn parts() -> [Records; 3] {
        let pin = |number| PinRecord {
            key: key(number),
            replica: 1,
            parent: Some(key(number + 1)).filter(|_| number % 2 == 0),
            joined: false,
            has_claim: true,
            tokens: Some(Tokens { prompt: 30_000, completion: 400, ..Tokens::default() }).filter(|_| number % 2 == 1),
            age_ms: number * 1_000,
        };
        let history = |number| HistoryRecord {
            link: key(number),
            conversation: key(number + 9),
            extended_by: None,
            text_bytes: 4_096,
            is_named: number % 3 == 0,
            part: PartRecord::Answer,
            behind_answer: 2,
            age_ms: number,
        };
        let alias = AliasRecord { name: key(500), conversation: key(1), age_ms: 3 };
        [
            Records::Pins((0..6).map(pin).collect()),
            Records::Aliases(vec![alias]),
            Records::Histories((0..6).map(history).collect()),
        ]
    }

    fn whole() -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new(), head()).unwrap();
        for name in ["a", "b"] {
            writer.model(name, replicas()).unwrap();
            parts().into_iter().for_each(|records| writer.records(records).unwrap());
        }
        writer.end().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Frame>, Damage> {
        let (mut reader, head) = Reader::begin(bytes)?;
        let mut frames = vec![Frame::Head(head)];
        while let Some(frame) = reader.frame()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn what_was_written_is_read() {
        let model = |name: &str| {
            let begins = Frame::Model { name: name.into(), replicas: replicas() };
            std::iter::once(begins).chain(parts().map(Frame::Records))
        };
        let expected: Vec<_> = std::iter::once(Frame::Head(head())).chain(model("a")).chain(model("b")).collect();
        assert_eq!(read(&whole()).unwrap(), expected);
    }

    #[test]
    fn the_form_is_the_same_in_every_build() {
        let whole = whole();
        let is = (whole.len(), crc32fast::hash(&whole));
        assert_eq!(is, (809, 1_317_677_852), "a change of the form needs another VERSION, and then new numbers here");
    }

    #[test]
    fn a_state_that_was_cut_at_any_place_is_no_state() {
        let whole = whole();
        for length in 0..whole.len() {
            assert!(matches!(read(&whole[..length]), Err(Damage::CutShort)), "cut at {length}");
        }
    }

    #[test]
    fn a_state_with_any_bit_turned_is_no_state() {
        let whole = whole();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_told_apart_from_another_file() {
        let mut newer = whole();
        newer[8] = 2;
        assert!(matches!(read(&newer), Err(Damage::OtherVersion(2))));
        assert!(matches!(read(b"#!/bin/sh\nexit 0\n"), Err(Damage::Foreign)));
        assert!(matches!(read(b""), Err(Damage::CutShort)));
    }

    #[test]
    fn a_frame_that_is_missing_twice_there_or_out_of_place_shows() {
        let frames = |order: &[usize]| {
            let whole = whole();
            let (start, mut rest) = whole.split_at(12);
            let mut parts = Vec::new();
            while !rest.is_empty() {
                let length = 8 + u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
                parts.push(&rest[..length]);
                rest = &rest[length..];
            }
            let chosen: Vec<_> = order.iter().flat_map(|at| parts[*at]).copied().collect();
            read(&[start, &chosen].concat()).map(|frames| frames.len())
        };
        assert_eq!(frames(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap(), 9);
        for order in [&[1, 2, 9][..], &[0, 1, 3, 4, 5, 6, 7, 8, 9], &[0, 0, 1, 2, 3, 4, 5, 6, 7, 9], &[9]] {
            assert!(frames(order).is_err(), "{order:?}");
        }
    }

    /// A payload with a good checksum in a state of its own.
    fn framed(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Writer::begin(Vec::new(), head()).unwrap().to;
        write_frame(&mut bytes, payload).unwrap();
        bytes
    }

    #[test]
    fn a_huge_count_allocates_no_more_than_the_frame_has() {
        // Records, pins, 2^62 of them.
        let payload = [2, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40];
        assert!(matches!(read(&framed(&payload)), Err(Damage::Part { frame: 1, .. })));
        let mut too_long = whole()[..12].to_vec();
        too_long.extend(u32::MAX.to_le_bytes());
        too_long.extend([0; 64]);
        assert!(matches!(read(&too_long), Err(Damage::Part { frame: 0, what: "it is too large" })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_state_or_an_error(payload in prop::collection::vec(any::<u8>(), 0..300)) {
            // Whatever is in a frame whose checksum is right, reading it comes to an end.
            prop_assert!(read(&framed(&payload)).is_err());
            prop_assert!(read(&payload).is_err());
        }
    }
}
