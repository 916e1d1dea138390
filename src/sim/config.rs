//! What a modelled engine is made of: the sizes and speeds that an operator would know of a real one.

use std::time::Duration;

use thiserror::Error;

/// Sizes and speeds of one engine, that is of one data-parallel rank.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Tokens in a block of KV.
    pub block_size: u32,
    /// Tokens that the KV cache holds; rounded down to whole blocks.
    pub kv_tokens: u32,
    /// The longest prompt plus reply that is served, in tokens.
    pub max_model_len: u32,
    /// Requests in one batch.
    pub max_num_seqs: usize,
    /// Tokens computed in one step, prefill and decode together.
    pub max_num_batched_tokens: usize,
    /// Prompt tokens computed per second.
    pub prefill_tokens_per_s: f64,
    /// What a step costs before any work in it.
    pub step: Duration,
    /// What each decoding request adds to a step.
    pub decode: Duration,
    /// What each token of context adds to a step that its attention reads.
    pub context: Duration,
    /// The widest relative deviation of a step's duration, drawn evenly; 0 makes every step exact.
    pub step_jitter: f64,
    /// Chooses the generated text and the jitter. Replicas of one model share it, as they share their weights.
    pub seed: u64,
}

/// Why an engine can't be built as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EngineConfigError {
    /// A size that must be positive is zero.
    #[error("{0} must be greater than zero")]
    Zero(&'static str),
    /// A request of the greatest length could never be scheduled.
    #[error("max_model_len {max_model_len} is more than the KV cache holds ({kv_tokens} tokens)")]
    LongerThanCache {
        /// The length asked for, in tokens.
        max_model_len: u32,
        /// Tokens in whole blocks.
        kv_tokens: u32,
    },
    /// A rate or a share that isn't a usable number.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

impl Default for EngineConfig {
    /// About a 4B model on a card of 16 GiB: 33,280 tokens is what is left of it for KV.
    fn default() -> Self {
        Self {
            block_size: 16,
            kv_tokens: 33_280,
            max_model_len: 32_768,
            max_num_seqs: 32,
            max_num_batched_tokens: 2048,
            prefill_tokens_per_s: 8000.0,
            step: Duration::from_millis(20),
            decode: Duration::from_micros(100),
            context: Duration::ZERO,
            step_jitter: 0.0,
            seed: 0,
        }
    }
}

impl EngineConfig {
    /// Whole blocks in the cache.
    pub fn blocks(&self) -> u32 {
        self.kv_tokens / self.block_size
    }

    /// Whether an engine of these sizes can serve every request that it would accept.
    pub fn validate(&self) -> Result<(), EngineConfigError> {
        let sizes = [
            ("block_size", self.block_size as usize),
            ("max_model_len", self.max_model_len as usize),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(EngineConfigError::Zero(name));
        }
        let kv_tokens = self.blocks() * self.block_size;
        if self.max_model_len > kv_tokens {
            return Err(EngineConfigError::LongerThanCache { max_model_len: self.max_model_len, kv_tokens });
        }
        if !(self.prefill_tokens_per_s.is_finite() && self.prefill_tokens_per_s > 0.0) {
            return Err(EngineConfigError::OutOfRange("prefill_tokens_per_s"));
        }
        if !(0.0..1.0).contains(&self.step_jitter) {
            return Err(EngineConfigError::OutOfRange("step_jitter"));
        }
        Ok(())
    }
}
