//! One request inside the engine: how long it is, how much of it is computed, and the blocks it holds.

use std::sync::Arc;

use super::cache::{BlockHash, Holding};
use super::request::{FinishReason, Outline, Request, RequestId};
use super::tokens;

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: RequestId,
    prompt_tokens: usize,
    generate: usize,
    pub(super) finish: FinishReason,
    /// The whole reply, as far as anybody wants to read it. It is known from the start, since a modelled engine makes it up.
    reply: Vec<u32>,
    /// Tokens of prompt and reply so far.
    len: usize,
    block_size: usize,
    /// Every whole block of prompt and reply, those still to be generated too.
    chain: Arc<Vec<BlockHash>>,
    pub(super) holding: Holding,
    /// Leading tokens whose KV is there.
    pub(super) computed: usize,
    /// Tokens of it in the step under way.
    pub(super) scheduled: usize,
    /// The hit at the first scheduling; a hit after a preemption is the request's own work and isn't reported.
    pub(super) cached: Option<usize>,
}

impl Sequence {
    pub(super) fn new(id: RequestId, request: Request, block_size: usize, seed: u64) -> Self {
        let Request { prompt: mut text, generate, finish, salt, mut reply } = request;
        let prompt_tokens = text.len();
        let root = BlockHash::root(&salt);
        let mut chain = Vec::with_capacity((text.len() + generate as usize) / block_size);
        extend(&mut chain, root, &text, block_size);
        // Depends on the whole prompt, so that an engine with the same weights says the same again.
        let rest = &text[chain.len() * block_size..];
        let output_seed = chain.last().copied().unwrap_or(root).extend(rest).value() ^ seed;
        reply.truncate(generate as usize);
        reply.extend((reply.len() as u32..generate).map(|index| tokens::output_token(output_seed, index)));
        text.extend_from_slice(&reply);
        extend(&mut chain, root, &text, block_size);
        let outline = Outline { prompt_tokens, generate, chain: Arc::new(chain), finish };
        Self { reply, ..Self::outlined(id, outline, block_size) }
    }

    pub(super) fn outlined(id: RequestId, outline: Outline, block_size: usize) -> Self {
        let Outline { prompt_tokens, generate, chain, finish } = outline;
        Self {
            id,
            prompt_tokens,
            generate: generate as usize,
            finish,
            reply: Vec::new(),
            len: prompt_tokens,
            block_size,
            chain,
            holding: Holding::default(),
            computed: 0,
            scheduled: 0,
            cached: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    pub(super) fn generated(&self) -> usize {
        self.len - self.prompt_tokens
    }

    /// Tokens that it will still generate.
    pub(super) fn to_generate(&self) -> usize {
        self.generate - self.generated()
    }

    /// Tokens still to be computed before the next one can be sampled.
    pub(super) fn uncomputed(&self) -> usize {
        self.len - self.computed
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.generated() > 0 && self.uncomputed() == 1
    }

    pub(super) fn is_complete(&self) -> bool {
        self.to_generate() == 0
    }

    /// The blocks that a hit may cover. The last token is always computed, because sampling needs its output.
    pub(super) fn matchable(&self) -> &[BlockHash] {
        let blocks = (self.len - 1) / self.block_size;
        &self.chain[..blocks.min(self.chain.len())]
    }

    /// The hashes of the full blocks within the first `computed` tokens that are not findable yet.
    pub(super) fn publishable(&self, computed: usize) -> std::ops::Range<usize> {
        let findable = self.holding.findable();
        findable..(computed / self.block_size).min(self.chain.len()).max(findable)
    }

    pub(super) fn chain(&self) -> &[BlockHash] {
        &self.chain
    }

    /// Blocks that are lacking for the first `computed` tokens.
    pub(super) fn blocks_lacking(&self, computed: usize) -> usize {
        computed.div_ceil(self.block_size).saturating_sub(self.holding.blocks())
    }

    /// Adds so many tokens to the reply and returns the last one.
    pub(super) fn sample(&mut self, count: usize) -> u32 {
        self.len += count;
        self.reply.get(self.generated() - 1).copied().unwrap_or(0)
    }
}

/// Appends the hashes of the whole blocks of `text` that `chain` lacks.
fn extend(chain: &mut Vec<BlockHash>, root: BlockHash, text: &[u32], block_size: usize) {
    for block in text[chain.len() * block_size..].chunks_exact(block_size) {
        chain.push(chain.last().copied().unwrap_or(root).extend(block));
    }
}
