//! What goes into an engine and what comes out of it.

use std::sync::Arc;

use thiserror::Error;

use super::cache::BlockHash;

/// A request as an engine sees it: tokens in, a number of tokens out.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The prompt's tokens; at least one.
    pub prompt: Vec<u32>,
    /// How many tokens are generated; at least one.
    pub generate: u32,
    /// Why generation ends there.
    pub finish: FinishReason,
    /// Requests with different salts share no cached block.
    pub salt: String,
    /// What is generated, as far as it goes; the rest is made up.
    pub reply: Vec<u32>,
}

/// A request whose tokens are known by their blocks only: all that an engine's time and cache depend on.
#[derive(Debug, Clone, Default)]
pub struct Outline {
    /// Tokens of the prompt; at least one.
    pub prompt_tokens: usize,
    /// How many tokens are generated; at least one.
    pub generate: u32,
    /// The hashes of all whole blocks of prompt and reply together. Shared, so that a long history is not copied every turn.
    pub chain: Arc<Vec<BlockHash>>,
    /// Why generation ends there.
    pub finish: FinishReason,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinishReason {
    /// The model ended its reply.
    Stop,
    /// The reply reached the length that the request allowed.
    #[default]
    Length,
}

/// Names a request within its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    pub(super) fn new(number: u64) -> Self {
        Self(number)
    }
}

/// Why a request is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// There is nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No token was asked for.
    #[error("no token was asked for")]
    NothingToGenerate,
    /// Prompt and reply together are longer than the model's context.
    #[error("prompt and reply need {0} tokens")]
    TooLong(u64),
}

/// A generated token: the newest of its request, where several steps have ended at once. `index` 0 is the first of the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEvent {
    /// Whose token it is.
    pub request: RequestId,
    /// The token itself; 0 in a request that came as an outline.
    pub token: u32,
    /// Its place in the reply.
    pub index: u32,
    /// Prompt tokens that were found in the cache when the request was first scheduled.
    pub cached_tokens: u32,
    /// Set on the last token of the reply.
    pub finished: Option<Completion>,
}

/// What a finished request used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, the ones that came from the cache.
    pub cached_tokens: u32,
    /// Tokens of the reply.
    pub completion_tokens: u32,
    /// Why the reply ended.
    pub reason: FinishReason,
}
