//! What is remembered of one conversation.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::conversation::ConversationKey;

use super::replica::ReplicaId;

/// Where a conversation is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub replica: ReplicaId,
    /// The replica it was pinned to before, while the new one has not yet served it.
    pub previous: Option<ReplicaId>,
    /// Whether `replica` has served a turn of it. A pin that was never proven is given up when its turn fails.
    pub proven: bool,
    /// Whether a second id came to lead to the conversation while it was known by another.
    pub joined: bool,
    /// The epochs of `replica` and of `previous` when it was pinned there.
    pub(super) epoch: u16,
    pub(super) previous_epoch: u16,
    /// Turns of the conversation that hold a lease.
    pub in_flight: u16,
    /// The parent, if `has_parent`: an `Option` of it would make every pin 8 bytes larger.
    pub(super) parent: ConversationKey,
    pub(super) has_parent: bool,
    /// Of its last measured turn: see [`Tokens`], which would take more room here as a whole.
    pub(super) prompt_tokens: u32,
    pub(super) mark: u32,
    pub(super) completion_tokens: u16,
    pub(super) was_spilled: bool,
    /// On the balancer's clock. A `Duration` would be 8 bytes larger.
    pub(super) last_used_ms: u64,
}

/// How long a conversation is, as its last measured turn had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// 0 until a turn was measured.
    pub prompt: u32,
    /// At most 65,535.
    pub completion: u16,
    /// What its replica had computed until then, modulo 2^32.
    pub mark: u32,
    /// Whether that turn was served elsewhere.
    pub was_spilled: bool,
}

// A million of them: every 8 bytes more are 8 MB.
const _: () = assert!(size_of::<Pin>() <= 40);

impl Pin {
    /// A pin that no turn has been served at yet.
    pub fn new(replica: ReplicaId, parent: Option<ConversationKey>) -> Self {
        Pin {
            replica,
            previous: None,
            proven: false,
            joined: false,
            epoch: 0,
            previous_epoch: 0,
            in_flight: 0,
            parent: parent.unwrap_or(ConversationKey(0)),
            has_parent: parent.is_some(),
            prompt_tokens: 0,
            mark: 0,
            completion_tokens: 0,
            was_spilled: false,
            last_used_ms: 0,
        }
    }

    /// The conversation that this one is a subagent, a child session or a fork of.
    pub fn parent(&self) -> Option<ConversationKey> {
        self.has_parent.then_some(self.parent)
    }

    /// How long it is; `None` until a turn was measured.
    pub fn tokens(&self) -> Option<Tokens> {
        let tokens = Tokens {
            prompt: self.prompt_tokens,
            completion: self.completion_tokens,
            mark: self.mark,
            was_spilled: self.was_spilled,
        };
        (tokens.prompt > 0).then_some(tokens)
    }

    /// Tokens of KV cache that its next turn wants to find; 0 until a turn was measured.
    pub fn footprint(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.completion_tokens)
    }

    pub fn measure(&mut self, tokens: Tokens) {
        let Tokens { prompt, completion, mark, was_spilled } = tokens;
        (self.prompt_tokens, self.completion_tokens) = (prompt, completion);
        (self.mark, self.was_spilled) = (mark, was_spilled);
    }

    /// How long ago a turn of the conversation began, was served or ended.
    pub fn idle(&self, now: Duration) -> Duration {
        Duration::from_millis(millis(now).saturating_sub(self.last_used_ms))
    }
}

/// The balancer's clock as pins keep it.
pub(super) fn millis(now: Duration) -> u64 {
    now.as_millis() as u64
}
