//! What is remembered of a model, as plain values that can outlive the process: its replicas and orders, where its
//! conversations are pinned, their other names, and their histories.
//!
//! An age is the time between the last use and the moment of the export, in milliseconds, so that the values mean the same
//! on another clock. Records of a kind come in the order of use, the one unused for longest first, and some come twice: the
//! later one counts.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::conversation::{ChainKey, ConversationKey};

use super::load::Signs;
use super::pin::Tokens;

/// A replica, and what an operator has ordered for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRecord {
    pub name: String,
    pub address: SocketAddr,
    pub rank: Option<u16>,
    pub is_ordered_to_drain: bool,
    /// Tokens that were computed on it, modulo 2^32, which [`Tokens::mark`] refers to.
    pub computed: u32,
    /// What its engine was known by, so that a restart shows that nobody has watched.
    pub signs: Option<Signs>,
}

/// Records of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Records {
    Pins(Vec<PinRecord>),
    Aliases(Vec<AliasRecord>),
    Histories(Vec<HistoryRecord>),
}

/// Where a conversation is pinned. A pin that a turn in flight has still to prove is exported as if it had: its history is
/// being read there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinRecord {
    pub key: RawKey,
    /// The place among the [`ReplicaRecord`]s that it was exported with.
    pub replica: u16,
    pub parent: Option<RawKey>,
    /// As in `super::pin::Pin`.
    pub joined: bool,
    /// Whether the replica had kept its cache since.
    pub has_claim: bool,
    pub tokens: Option<Tokens>,
    pub age_ms: u64,
}

/// Another name of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasRecord {
    pub name: RawKey,
    pub conversation: RawKey,
    pub age_ms: u64,
}

/// A known part of a conversation's history. The fields mean what they mean in `super::histories::Registered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRecord {
    pub link: RawKey,
    pub conversation: RawKey,
    pub extended_by: Option<RawKey>,
    pub text_bytes: u32,
    pub is_named: bool,
    pub part: PartRecord,
    pub behind_answer: u8,
    pub age_ms: u64,
}

/// What part of its turn a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartRecord {
    Beginning,
    End,
    Answer,
}

/// A key as eight bytes: it looks random, so that a number of variable length would take ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawKey([u8; 8]);

impl Records {
    pub fn len(&self) -> usize {
        match self {
            Records::Pins(pins) => pins.len(),
            Records::Aliases(aliases) => aliases.len(),
            Records::Histories(histories) => histories.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<ConversationKey> for RawKey {
    fn from(key: ConversationKey) -> Self {
        RawKey(key.0.to_le_bytes())
    }
}

impl From<RawKey> for ConversationKey {
    fn from(key: RawKey) -> Self {
        ConversationKey(u64::from_le_bytes(key.0))
    }
}

impl From<ChainKey> for RawKey {
    fn from(key: ChainKey) -> Self {
        RawKey(key.0.to_le_bytes())
    }
}

impl From<RawKey> for ChainKey {
    fn from(key: RawKey) -> Self {
        ChainKey(u64::from_le_bytes(key.0))
    }
}
