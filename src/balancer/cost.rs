//! What a turn cost in tokens, and why it cost more than its conversation's history made one expect.

use super::turn::{Decision, Placement};

/// What is known of a turn when its response has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The length of its body.
    pub request_bytes: u64,
    /// Tokens of its whole prompt, by the engine's own count; `None` where the engine said nothing.
    pub prompt: Option<u64>,
    /// What of the prompt was found in the KV cache; `None` where the engine doesn't tell (vLLM without
    /// `--enable-prompt-tokens-details`).
    pub cached: Option<u64>,
    /// Tokens of its answer, by the engine's count or else as far as they could be seen.
    pub completion: u64,
    /// Whether the answer asks for a tool's result, so that a program goes on and no person.
    pub asks: bool,
}

/// A turn's cost as it stands in the books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bill {
    /// Prompt tokens found in the cache, as far as the engine tells.
    pub cached: u64,
    /// Prompt tokens that had to be computed. All of them where the engine doesn't tell of its cache.
    pub computed: u64,
    pub completion: u64,
    pub is_measured: bool,
    /// The share of the history that had to be computed again though it was computed before.
    pub cold: Option<Cold>,
}

/// A turn that found less in the cache than its conversation had left there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    pub reason: ColdReason,
    /// Prompt tokens of earlier turns that were computed again.
    pub tokens: u64,
    /// Prompt tokens that were found.
    pub survived: u64,
}

/// Why a history was not in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdReason {
    /// So much was computed on the replica since the conversation's last turn that its cache can't have held both.
    Evicted,
    /// It would have had room: the client sent another beginning than the last time.
    PrefixChanged,
    /// The engine doesn't tell how large its cache is, so it may be either.
    Unexplained,
    /// The turn, or the one before it, was served away from home.
    Spilled,
    /// The replica was restarted since.
    Restarted,
    /// The replica that had it is down, draining, asleep or gone.
    Moved,
}

/// What a conversation left behind with the last turn that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Tokens of its prompt.
    pub prompt: u64,
    /// Whether the last turn was served away from home.
    pub was_spilled: bool,
    /// Tokens computed on the replica since, whoever they were for; and what its cache holds, 0 where it doesn't say.
    pub computed_since: u64,
    pub capacity: u64,
}

/// Less than this is no loss: whole blocks are cached, and a chat template writes an answer otherwise than it was generated.
const SLACK_TOKENS: u64 = 128;
/// And neither is less than this share of the history.
const SLACK_SHARE: u64 = 10;

impl ColdReason {
    pub const ALL: [ColdReason; 6] = [
        ColdReason::Evicted,
        ColdReason::PrefixChanged,
        ColdReason::Unexplained,
        ColdReason::Spilled,
        ColdReason::Restarted,
        ColdReason::Moved,
    ];

    /// The word used in logs, metric labels and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            ColdReason::Evicted => "evicted",
            ColdReason::PrefixChanged => "prefix_changed",
            ColdReason::Unexplained => "unexplained",
            ColdReason::Spilled => "spilled",
            ColdReason::Restarted => "restarted",
            ColdReason::Moved => "moved",
        }
    }
}

impl Cold {
    /// What of a turn's history had to be computed again, if that is worth a word.
    pub(super) fn of(decision: Decision, prompt: u64, cached: u64, left: &Left) -> Option<Cold> {
        let expected = left.prompt.min(prompt);
        let tokens = expected.saturating_sub(cached);
        if tokens <= SLACK_TOKENS.max(expected / SLACK_SHARE) {
            return None;
        }
        let reason = match decision {
            Decision::Spilled { .. } => ColdReason::Spilled,
            Decision::Placed { reason } => match reason {
                Placement::New | Placement::Forked => return None,
                Placement::HomeRestarted => ColdReason::Restarted,
                Placement::HomeDown
                | Placement::HomeRemoved
                | Placement::HomeFailed
                | Placement::HomeDraining
                | Placement::HomeSleeping
                | Placement::HomeFull => ColdReason::Moved,
            },
            Decision::Sticky if left.was_spilled => ColdReason::Spilled,
            Decision::Sticky if left.capacity == 0 => ColdReason::Unexplained,
            Decision::Sticky if left.computed_since + left.prompt > left.capacity => ColdReason::Evicted,
            Decision::Sticky => ColdReason::PrefixChanged,
            Decision::ClientPinned | Decision::Unpinned { .. } | Decision::Side => return None,
        };
        Some(Cold { reason, tokens, survived: cached })
    }
}

#[cfg(test)]
mod tests {
    use super::super::replica::ReplicaId;
    use super::*;

    const LEFT: Left = Left { prompt: 10_000, was_spilled: false, computed_since: 5_000, capacity: 100_000 };

    fn reason(decision: Decision, cached: u64, left: Left) -> Option<ColdReason> {
        Cold::of(decision, 11_000, cached, &left).map(|cold| cold.reason)
    }

    #[test]
    fn a_turn_that_finds_its_history_is_not_cold_though_the_last_blocks_are_missing() {
        for cached in [9_000, 9_984, 10_000, 11_000] {
            assert_eq!(reason(Decision::Sticky, cached, LEFT), None, "{cached}");
        }
        let short = Left { prompt: 200, ..LEFT };
        assert_eq!(reason(Decision::Sticky, 80, short), None);
    }

    #[test]
    fn a_history_is_evicted_only_where_the_cache_can_not_have_held_it_and_what_was_computed_since() {
        assert_eq!(reason(Decision::Sticky, 3_000, LEFT), Some(ColdReason::PrefixChanged));
        let full = Left { computed_since: 95_000, ..LEFT };
        assert_eq!(reason(Decision::Sticky, 3_000, full), Some(ColdReason::Evicted));
        let silent = Left { capacity: 0, ..full };
        assert_eq!(reason(Decision::Sticky, 3_000, silent), Some(ColdReason::Unexplained));
    }

    #[test]
    fn what_kvpin_itself_did_is_the_reason_where_it_moved_the_turn() {
        let from = ReplicaId::from_index(0).expect("an id");
        assert_eq!(reason(Decision::Spilled { from }, 0, LEFT), Some(ColdReason::Spilled));
        assert_eq!(reason(Decision::Sticky, 0, Left { was_spilled: true, ..LEFT }), Some(ColdReason::Spilled));
        for (placement, expected) in [
            (Placement::New, None),
            (Placement::Forked, None),
            (Placement::HomeRestarted, Some(ColdReason::Restarted)),
            (Placement::HomeDown, Some(ColdReason::Moved)),
            (Placement::HomeSleeping, Some(ColdReason::Moved)),
        ] {
            assert_eq!(reason(Decision::Placed { reason: placement }, 0, LEFT), expected, "{placement:?}");
        }
    }

    #[test]
    fn a_history_that_its_client_has_shortened_is_expected_in_its_new_length_only() {
        let cold = Cold::of(Decision::Sticky, 4_000, 1_000, &LEFT).expect("cold");
        assert_eq!(cold, Cold { reason: ColdReason::PrefixChanged, tokens: 3_000, survived: 1_000 });
    }
}
