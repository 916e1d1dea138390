//! The fingerprint of a conversation without an id: a chain of hashes over its messages.

use std::fmt;

/// What a whole body says of its conversation's past, as hashes only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Over the canonical text of the system prompt.
    pub(super) system: u64,
    /// One for each message from the first of the user on, each over all messages up to it.
    pub(super) steps: Vec<Step>,
    /// Whether a message of the assistant is among them: the conversation did not begin with this turn.
    pub(super) is_continued: bool,
}

/// The messages up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) hash: u64,
    /// Bytes of canonical text so far, without the system prompt.
    pub(super) text_bytes: u32,
}

/// Names the messages up to one of them, under one API key and one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainKey(pub u64);

/// One step of a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub key: ChainKey,
    /// Bytes of canonical text up to here, without the system prompt.
    pub text_bytes: u32,
}

/// The history of a turn, keyed: the last link stands for the whole, those before it for what earlier turns of the
/// same conversation sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// From the first message of the user on.
    pub links: Vec<Link>,
    /// Whether the conversation did not begin with this turn.
    pub is_continued: bool,
}

impl fmt::Display for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
