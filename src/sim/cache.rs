//! The prefix cache of one engine: blocks of KV, found by the chained hash of the tokens they hold.
//!
//! It follows vLLM's `v1/core/block_pool.py`: a block that nobody holds stays findable until it is handed out again, the
//! least recently released first, and of one request the tail before the head. Two blocks never share a hash here; vLLM
//! keeps such duplicates, which arise only where the last block of a fully cached prompt is computed again.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use siphasher::sip::SipHasher13;

/// The hash of a block and of everything before it, so that equal hashes mean equal prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(u64);

impl BlockHash {
    /// Where a chain starts. Requests with different salts share no block.
    pub fn root(salt: &str) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(salt.as_bytes());
        Self(hasher.finish())
    }

    /// The hash of the block that holds `tokens` after this one.
    pub fn extend(self, tokens: &[u32]) -> Self {
        let mut hasher = SipHasher13::new_with_keys(self.0, tokens.len() as u64);
        for token in tokens {
            hasher.write_u32(*token);
        }
        Self(hasher.finish())
    }

    /// The hash as a number, for seeding what must depend on the whole prefix.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// One block's place in the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId(u32);

impl BlockId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A fixed pool of blocks with an index by hash.
#[derive(Debug)]
pub struct BlockCache {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, BlockId, BuildHasherDefault<SipHasher13>>,
    free: FreeQueue,
}

#[derive(Debug, Clone, Default)]
struct Block {
    hash: Option<BlockHash>,
    holders: u32,
    previous: Option<BlockId>,
    next: Option<BlockId>,
}

/// The blocks that nobody holds, the next one to be handed out at the front. The links live in the blocks, so that a hit
/// takes a block out of the middle in constant time.
#[derive(Debug, Default)]
struct FreeQueue {
    front: Option<BlockId>,
    back: Option<BlockId>,
    len: usize,
}

impl BlockCache {
    /// A pool of `capacity` empty blocks.
    pub fn new(capacity: u32) -> Self {
        let mut cache = Self {
            blocks: vec![Block::default(); capacity as usize],
            by_hash: HashMap::default(),
            free: FreeQueue::default(),
        };
        for block in 0..capacity {
            cache.push_back(BlockId(block));
        }
        cache
    }

    /// Blocks that nobody holds, cached or not.
    pub fn free_blocks(&self) -> usize {
        self.free.len
    }

    /// Blocks that live requests hold.
    pub fn held_blocks(&self) -> usize {
        self.blocks.len() - self.free.len
    }

    /// The blocks of the longest cached prefix of `chain`.
    pub fn lookup(&self, chain: &[BlockHash]) -> Vec<BlockId> {
        chain.iter().map_while(|hash| self.by_hash.get(hash).copied()).collect()
    }

    /// How many of `blocks` nobody holds: holding them takes that many out of `free_blocks`.
    pub fn idle_among(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.blocks[block.index()].holders == 0).count()
    }

    /// Adds a holder to each of `blocks`.
    pub fn hold(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            if self.blocks[block.index()].holders == 0 {
                self.unlink(block);
            }
            self.blocks[block.index()].holders += 1;
        }
    }

    /// Takes `count` blocks for one holder, forgetting what they cached. None, and nothing taken, if there are too few.
    pub fn allocate(&mut self, count: usize) -> Option<Vec<BlockId>> {
        if count > self.free.len {
            return None;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let block = self.free.front?;
            self.unlink(block);
            if let Some(hash) = self.blocks[block.index()].hash.take() {
                self.by_hash.remove(&hash);
            }
            self.blocks[block.index()].holders = 1;
            taken.push(block);
        }
        Some(taken)
    }

    /// Makes a full block findable. If its content is cached already, the older block stays the one that is found.
    pub fn publish(&mut self, block: BlockId, hash: BlockHash) {
        if self.by_hash.contains_key(&hash) {
            return;
        }
        self.by_hash.insert(hash, block);
        self.blocks[block.index()].hash = Some(hash);
    }

    /// Takes a holder from each of a request's `blocks`, given in prompt order. Blocks without a hash can never be hit, so
    /// they are handed out before any that can.
    pub fn release(&mut self, blocks: &[BlockId]) {
        for &block in blocks.iter().rev() {
            let entry = &mut self.blocks[block.index()];
            entry.holders -= 1;
            if entry.holders > 0 {
                continue;
            }
            match entry.hash {
                Some(_) => self.push_back(block),
                None => self.push_front(block),
            }
        }
    }

    fn push_back(&mut self, block: BlockId) {
        let back = self.free.back.replace(block);
        self.blocks[block.index()].previous = back;
        self.blocks[block.index()].next = None;
        match back {
            Some(back) => self.blocks[back.index()].next = Some(block),
            None => self.free.front = Some(block),
        }
        self.free.len += 1;
    }

    fn push_front(&mut self, block: BlockId) {
        let front = self.free.front.replace(block);
        self.blocks[block.index()].previous = None;
        self.blocks[block.index()].next = front;
        match front {
            Some(front) => self.blocks[front.index()].previous = Some(block),
            None => self.free.back = Some(block),
        }
        self.free.len += 1;
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { previous, next, .. } = self.blocks[block.index()];
        match previous {
            Some(previous) => self.blocks[previous.index()].next = next,
            None => self.free.front = next,
        }
        match next {
            Some(next) => self.blocks[next.index()].previous = previous,
            None => self.free.back = previous,
        }
        self.free.len -= 1;
    }
}

#[cfg(test)]
impl BlockCache {
    /// Panics unless the queue holds exactly the blocks without a holder and the index points at blocks that agree.
    pub(super) fn assert_sound(&self) {
        let mut queued = vec![false; self.blocks.len()];
        let mut at = self.free.front;
        while let Some(block) = at {
            assert!(!std::mem::replace(&mut queued[block.index()], true), "block {block:?} is queued twice");
            at = self.blocks[block.index()].next;
        }
        assert_eq!(queued.iter().filter(|queued| **queued).count(), self.free.len);
        for (block, queued) in self.blocks.iter().zip(queued) {
            assert_eq!(block.holders == 0, queued, "a block is free exactly when nobody holds it");
        }
        for (hash, block) in &self.by_hash {
            assert_eq!(self.blocks[block.index()].hash, Some(*hash));
        }
        let hashed = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        assert_eq!(hashed, self.by_hash.len(), "two blocks share a hash");
    }

    /// The sum of all reference counts.
    pub(super) fn holds(&self) -> usize {
        self.blocks.iter().map(|block| block.holders as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(length: u32) -> Vec<BlockHash> {
        let mut at = BlockHash::root("");
        (0..length)
            .map(|token| {
                at = at.extend(&[token]);
                at
            })
            .collect()
    }

    fn filled(cache: &mut BlockCache, chain: &[BlockHash]) -> Vec<BlockId> {
        let blocks = cache.allocate(chain.len()).expect("room");
        for (block, hash) in blocks.iter().zip(chain) {
            cache.publish(*block, *hash);
        }
        blocks
    }

    #[test]
    fn an_idle_prefix_is_lost_from_its_end() {
        let mut cache = BlockCache::new(4);
        let prefix = chain(4);
        let blocks = filled(&mut cache, &prefix);
        cache.release(&blocks);
        let taken = cache.allocate(2).expect("room");
        assert_eq!(taken, [blocks[3], blocks[2]]);
        assert_eq!(cache.lookup(&prefix), blocks[..2]);
        cache.assert_sound();
    }

    #[test]
    fn a_hit_makes_a_prefix_the_newest() {
        let mut cache = BlockCache::new(2);
        let (old, new) = (chain(1), vec![BlockHash::root("other")]);
        let first = filled(&mut cache, &old);
        let second = filled(&mut cache, &new);
        cache.release(&first);
        cache.release(&second);
        cache.hold(&first);
        cache.release(&first);
        assert_eq!(cache.allocate(1).expect("room"), second);
        assert_eq!(cache.lookup(&old), first);
    }

    #[test]
    fn a_held_block_is_never_handed_out() {
        let mut cache = BlockCache::new(2);
        let held = cache.allocate(1).expect("room");
        assert!(cache.allocate(2).is_none());
        assert_eq!(cache.free_blocks(), 1);
        assert_ne!(cache.allocate(1).expect("room"), held);
    }

    #[test]
    fn blocks_that_cannot_be_hit_go_first() {
        let mut cache = BlockCache::new(2);
        let cached = filled(&mut cache, &chain(1));
        let partial = cache.allocate(1).expect("room");
        cache.release(&cached);
        cache.release(&partial);
        assert_eq!(cache.allocate(1).expect("room"), partial);
    }

    #[test]
    fn another_salt_shares_no_block() {
        assert_ne!(BlockHash::root("a").extend(&[1]), BlockHash::root("b").extend(&[1]));
    }
}
