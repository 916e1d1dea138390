//! What an engine tells of itself: gauges and counters with the meaning of vLLM's series.

/// What the engine reports of its load.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: usize,
    /// Requests that wait for the batch.
    pub waiting: usize,
    /// Share of the blocks that live requests hold, 0 to 1. Blocks that are only cached count as free.
    pub kv_usage: f64,
}

/// What the engine has counted since it started. Everything in tokens unless the name says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    /// Prompt tokens looked up in the cache.
    pub prefix_queries: u64,
    /// Of those, the ones found.
    pub prefix_hits: u64,
    /// Prompt tokens of requests whose prefill has ended.
    pub prompt_tokens: u64,
    /// Of those, the ones that came from the cache.
    pub prompt_tokens_cached: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Requests thrown out of the batch for want of blocks.
    pub preemptions: u64,
    /// Requests that ended with `FinishReason::Stop`.
    pub finished_stop: u64,
    /// Requests that ended with `FinishReason::Length`.
    pub finished_length: u64,
    /// Steps, by the number of tokens computed in them: one count for each of `ITERATION_BOUNDS` and one above.
    pub iterations: [u64; ITERATION_BOUNDS.len() + 1],
    /// Tokens computed in all steps.
    pub iteration_tokens: u64,
}

/// Upper bounds of vLLM's `iteration_tokens_total` buckets.
pub const ITERATION_BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

impl Counters {
    /// Steps that the engine has made.
    pub fn iteration_count(&self) -> u64 {
        self.iterations.iter().sum()
    }

    pub(super) fn count_iteration(&mut self, tokens: u64) {
        self.iterations[ITERATION_BOUNDS.partition_point(|bound| *bound < tokens)] += 1;
        self.iteration_tokens += tokens;
    }
}
