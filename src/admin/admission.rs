//! Admission as the status shows it: who waits for room in the caches, for how long, and who has it.

use serde::{Deserialize, Serialize};

use crate::balancer::{AdmissionMode, Distribution, DoorSnapshot, Mode, Refusal, Snapshot};

use super::status::seconds;

/// Turns that wait, or had to, until their conversations fit into a cache. Counted since the process began to serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// `auto`, `fair` or `off`, which it is without affinity too.
    pub mode: String,
    /// Turns that wait at this moment.
    pub held_turns: u32,
    /// For how long the first of them has; 0 where none waits.
    pub longest_hold_s: f64,
    /// Tokens of KV cache that the conversations of those turns need.
    pub needed_tokens: u64,
    /// Turns that had to wait.
    pub held_turns_total: u64,
    /// Those of them that were let in over the limit, because they had waited for `hold_max_s`.
    pub forced_turns_total: u64,
    /// Those whose client left while they waited.
    pub left_turns_total: u64,
    /// Turns that were refused, because `held_max` waited already.
    pub refused_turns_total: u64,
    /// Conversations that had to make room for others before they had gone silent for long enough to do so anyway.
    pub parked_conversations_total: u64,
    pub hold: Hold,
}

/// For how long turns were held that got in. To within a tenth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hold {
    pub p50_s: Option<f64>,
    pub p95_s: Option<f64>,
    pub count: u64,
}

impl Admission {
    pub fn of(snapshot: &Snapshot) -> Self {
        let DoorSnapshot { mode, held, longest, needed_tokens, counters, holds } = &snapshot.door;
        let line_full = snapshot.refused.iter().find(|(reason, _)| *reason == Refusal::LineFull);
        let refused = line_full.map_or(0, |(_, count)| *count);
        let mode = match snapshot.mode {
            Mode::Affinity => *mode,
            Mode::LeastLoaded => AdmissionMode::Off,
        };
        Admission {
            mode: mode.as_str().to_owned(),
            held_turns: *held,
            longest_hold_s: seconds(*longest),
            needed_tokens: *needed_tokens,
            held_turns_total: counters.held,
            forced_turns_total: counters.forced,
            left_turns_total: counters.left,
            refused_turns_total: refused,
            parked_conversations_total: counters.parked,
            hold: Hold::from(holds),
        }
    }
}

impl From<&Distribution> for Hold {
    fn from(holds: &Distribution) -> Self {
        let quantile = |share| holds.quantile(share).map(|seconds| (seconds * 1e4).round() / 1e4);
        Hold { p50_s: quantile(0.5), p95_s: quantile(0.95), count: holds.count() }
    }
}
