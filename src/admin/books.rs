//! The books as the status shows them: what turns cost, in tokens, of a replica or of all of a model's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::balancer::{Distribution, Ledger, ReplicaSnapshot, Snapshot};

use super::status::percent;

/// What turns cost. Counted since the replica was first configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Books {
    pub tokens: Tokens,
    /// Turns whose prompt the engine has counted.
    pub turns_measured: u64,
    /// Turns of which the engine said nothing: a stream on `/v1/chat/completions` without `stream_options`, for one.
    pub turns_unmeasured: u64,
    /// Of the measured ones, those whose engine didn't say what it found in its cache (vLLM without
    /// `--enable-prompt-tokens-details`). All of their prompt counts as computed.
    pub turns_untold: u64,
    /// Of the measured prompt tokens: the share that was found in the cache.
    pub cached_percent: Option<f64>,
    /// Turns that found less in the cache than their conversation had left there, by reason: `evicted`, `prefix_changed`,
    /// `unexplained`, `spilled`, `restarted` or `moved`.
    pub cold: BTreeMap<String, Cold>,
}

/// Tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tokens {
    /// Of prompts: found in the cache, by the engine's count.
    pub cached: u64,
    /// Of prompts: computed, by the engine's count.
    pub computed: u64,
    /// Of prompts that the engine didn't count: estimated from their bytes, and taken for computed.
    pub estimated: u64,
    /// Generated.
    pub completion: u64,
}

/// Turns that were cold for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cold {
    pub turns: u64,
    /// Prompt tokens that were computed again.
    pub tokens: u64,
    /// Prompt tokens that were found all the same.
    pub survived: u64,
}

/// From a turn's arrival to the first byte of its answer, since the process began to serve. To within a tenth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstByte {
    pub p50_s: Option<f64>,
    pub p95_s: Option<f64>,
    /// Turns; side calls are left out.
    pub count: u64,
}

/// What the active conversations want to find in the caches, against what these hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// Conversations with a turn in the last minute.
    pub conversations: u64,
    /// Their tokens, as far as turns of them were measured. A beginning that several have in common counts with each.
    pub tokens: u64,
    /// What the KV caches of the replicas hold; `null` where one doesn't say.
    pub capacity_tokens: Option<u64>,
}

impl Books {
    /// Of all replicas together.
    pub fn of_model(snapshot: &Snapshot) -> Self {
        let mut sum = Ledger::default();
        snapshot.replicas.iter().for_each(|replica| sum.add(&replica.ledger));
        Books::from(&sum)
    }
}

impl From<&Ledger> for Books {
    fn from(ledger: &Ledger) -> Self {
        let cold = ledger.cold().map(|(reason, line)| {
            (reason.as_str().to_owned(), Cold { turns: line.turns, tokens: line.tokens, survived: line.survived })
        });
        Books {
            tokens: Tokens {
                cached: ledger.cached,
                computed: ledger.computed,
                estimated: ledger.estimated,
                completion: ledger.completion,
            },
            turns_measured: ledger.measured_turns,
            turns_unmeasured: ledger.unmeasured_turns,
            turns_untold: ledger.untold_turns,
            cached_percent: percent(ledger.cached, ledger.cached + ledger.computed),
            cold: cold.collect(),
        }
    }
}

impl From<&Distribution> for FirstByte {
    fn from(distribution: &Distribution) -> Self {
        let quantile = |share| distribution.quantile(share).map(|seconds| (seconds * 1e4).round() / 1e4);
        FirstByte { p50_s: quantile(0.5), p95_s: quantile(0.95), count: distribution.count() }
    }
}

impl WorkingSet {
    pub fn of(replicas: &[ReplicaSnapshot]) -> Self {
        let capacities = replicas.iter().map(|replica| {
            let tokens = replica.scrape.as_ref().map_or(0, |(scrape, _)| scrape.kv_capacity_tokens);
            (tokens > 0).then_some(tokens)
        });
        WorkingSet {
            conversations: replicas.iter().map(|replica| u64::from(replica.held.active)).sum(),
            tokens: replicas.iter().map(|replica| replica.held.active_tokens).sum(),
            capacity_tokens: capacities.sum::<Option<u64>>().filter(|tokens| *tokens > 0),
        }
    }
}
