//! One request inside the engine: its tokens, how many of them are computed, and the blocks it holds.

use super::cache::{BlockHash, BlockId};
use super::request::{FinishReason, Request};
use super::tokens;

#[derive(Debug)]
pub(super) struct Sequence {
    tokens: Vec<u32>,
    prompt_tokens: usize,
    max_tokens: usize,
    pub(super) finish: FinishReason,
    reply: Vec<u32>,
    output_seed: u64,
    block_size: usize,
    root: BlockHash,
    hashes: Vec<BlockHash>,
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks that are findable by others.
    pub(super) published: usize,
    /// Leading tokens whose KV is there.
    pub(super) computed: usize,
    /// The hit at the first scheduling; a hit after a preemption is the request's own work and isn't reported.
    pub(super) cached: Option<usize>,
}

impl Sequence {
    pub(super) fn new(request: Request, block_size: usize, seed: u64) -> Self {
        let root = BlockHash::root(&request.salt);
        let mut sequence = Self {
            prompt_tokens: request.prompt.len(),
            max_tokens: request.generate as usize,
            finish: request.finish,
            reply: request.reply,
            output_seed: 0,
            block_size,
            root,
            hashes: Vec::with_capacity(request.prompt.len() / block_size + 1),
            blocks: Vec::new(),
            published: 0,
            computed: 0,
            cached: None,
            tokens: request.prompt,
        };
        sequence.extend_hashes();
        let rest = &sequence.tokens[sequence.hashes.len() * block_size..];
        sequence.output_seed = sequence.last_hash().extend(rest).value() ^ seed;
        sequence
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    pub(super) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Tokens still to be computed before the next one can be sampled.
    pub(super) fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.generated() > 0 && self.uncomputed() == 1
    }

    pub(super) fn is_complete(&self) -> bool {
        self.generated() >= self.max_tokens
    }

    /// The blocks that a hit may cover. The last token is always computed, because sampling needs its output.
    pub(super) fn matchable(&self) -> &[BlockHash] {
        &self.hashes[..(self.tokens.len() - 1) / self.block_size]
    }

    /// The full blocks within the first `computed` tokens that are not findable yet.
    pub(super) fn publishable(&self, computed: usize) -> impl Iterator<Item = (BlockId, BlockHash)> + '_ {
        let range = self.published..(computed / self.block_size).max(self.published);
        self.blocks[range.clone()].iter().copied().zip(self.hashes[range].iter().copied())
    }

    /// Blocks that are lacking for the first `computed` tokens.
    pub(super) fn blocks_lacking(&self, computed: usize) -> usize {
        computed.div_ceil(self.block_size).saturating_sub(self.blocks.len())
    }

    pub(super) fn sample(&mut self) -> u32 {
        let index = self.generated();
        let made_up = || tokens::output_token(self.output_seed, index as u32);
        let token = self.reply.get(index).copied().unwrap_or_else(made_up);
        self.tokens.push(token);
        self.extend_hashes();
        token
    }

    fn extend_hashes(&mut self) {
        while (self.hashes.len() + 1) * self.block_size <= self.tokens.len() {
            let start = self.hashes.len() * self.block_size;
            let hash = self.last_hash().extend(&self.tokens[start..start + self.block_size]);
            self.hashes.push(hash);
        }
    }

    fn last_hash(&self) -> BlockHash {
        self.hashes.last().copied().unwrap_or(self.root)
    }
}
