//! The prefix cache of one engine: runs of KV blocks in a tree, found by the chained hashes of the tokens they hold.
//!
//! It follows vLLM's `v1/core/block_pool.py`: a block that nobody holds stays findable until it is handed out again, the
//! least recently released first, and of one request the tail before the head. vLLM keeps a record for each block; here a
//! run of blocks that only ever differ in their place is one record, so that what a prompt costs goes by the places where
//! prompts part and not by their length. The outcome is the same, because whoever holds a block holds all before it: of two
//! blocks of one chain the later one is never released after the earlier one, and is handed out before it.
//!
//! Two blocks never share a hash here. vLLM keeps the duplicates that arise where two requests compute the same prefix at
//! the same time, or the last block of a fully cached prompt again; here a copy is given up for the block that is there.

use std::collections::BTreeMap;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// The hash of a block and of everything before it, so that equal hashes mean equal prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// The hash of the block at a place of a text that has a name in place of tokens. Texts of other names share none.
    pub fn named(text: u64, index: u64) -> Self {
        let mut hasher = SipHasher13::new_with_keys(text, index);
        hasher.write_u8(0);
        Self(hasher.finish())
    }

    /// The hash as a number, for seeding what must depend on the whole prefix.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// How much of a chain is cached, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Leading blocks that are there.
    pub blocks: usize,
    /// Those of them that nobody holds: holding them takes that many out of `free_blocks`.
    pub idle: usize,
    /// Where the search ended, if at the end of a run.
    end: Option<RunId>,
}

impl Hit {
    /// Whether what `holding` publishes next might make the hit longer.
    pub fn may_grow_by(&self, holding: &Holding) -> bool {
        self.end == holding.last
    }
}

/// What one request holds: the path to a run in the tree, and blocks that nobody can find.
#[derive(Debug, Default)]
pub struct Holding {
    /// The last run of the path; None for a path of no blocks.
    last: Option<RunId>,
    /// Blocks on the path.
    findable: usize,
    /// Blocks beside it: not full yet.
    hidden: usize,
}

impl Holding {
    /// Blocks held.
    pub fn blocks(&self) -> usize {
        self.findable + self.hidden
    }

    /// Leading blocks that others can find.
    pub fn findable(&self) -> usize {
        self.findable
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunId(u32);

/// Blocks that follow each other, with the same holders.
#[derive(Debug, Default)]
struct Run {
    hashes: Vec<BlockHash>,
    parent: Option<RunId>,
    /// Runs that follow this one, by their first block.
    children: BTreeMap<BlockHash, RunId>,
    holders: u32,
    previous: Option<RunId>,
    next: Option<RunId>,
}

/// A fixed pool of blocks with an index by hash.
#[derive(Debug)]
pub struct BlockCache {
    capacity: usize,
    /// Free blocks in which nothing can be found. They are handed out before any others.
    blank: usize,
    /// Free blocks that are cached.
    idle: usize,
    runs: Vec<Run>,
    vacant: Vec<RunId>,
    roots: BTreeMap<BlockHash, RunId>,
    /// The runs that nobody holds, the one that loses its tail next at the front.
    front: Option<RunId>,
    back: Option<RunId>,
}

impl BlockCache {
    /// A pool of `capacity` empty blocks.
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity: capacity as usize,
            blank: capacity as usize,
            idle: 0,
            runs: Vec::new(),
            vacant: Vec::new(),
            roots: BTreeMap::new(),
            front: None,
            back: None,
        }
    }

    /// Blocks that nobody holds, cached or not.
    pub fn free_blocks(&self) -> usize {
        self.blank + self.idle
    }

    /// Blocks that live requests hold.
    pub fn held_blocks(&self) -> usize {
        self.capacity - self.free_blocks()
    }

    /// How much of `chain` is cached.
    pub fn lookup(&self, chain: &[BlockHash]) -> Hit {
        let mut hit = Hit { blocks: 0, idle: 0, end: None };
        while let Some(run) = self.child(hit.end, chain.get(hit.blocks)) {
            let shared = common(&self.run(run).hashes, &chain[hit.blocks..]);
            hit.blocks += shared;
            hit.idle += if self.run(run).holders == 0 { shared } else { 0 };
            hit.end = Some(run);
            if shared < self.run(run).hashes.len() {
                return Hit { end: None, ..hit };
            }
        }
        hit
    }

    /// Holds the leading blocks of `chain` that are cached, as `lookup` has found them.
    pub fn hold(&mut self, chain: &[BlockHash]) -> Holding {
        let mut holding = Holding::default();
        while let Some(run) = self.child(holding.last, chain.get(holding.findable)) {
            self.step_into(run, &chain[holding.findable..], &mut holding);
        }
        holding
    }

    /// Takes `count` more blocks for `holding`, forgetting what they cached. False, and nothing taken, if there are too few.
    pub fn allocate(&mut self, holding: &mut Holding, count: usize) -> bool {
        if count > self.free_blocks() {
            return false;
        }
        let from_blank = count.min(self.blank);
        self.blank -= from_blank;
        self.evict(count - from_blank);
        holding.hidden += count;
        true
    }

    /// Makes the next blocks of `holding`, which are full, findable as `hashes`.
    pub fn publish(&mut self, holding: &mut Holding, hashes: &[BlockHash]) {
        let mut rest = hashes;
        while let Some(first) = rest.first() {
            let done = match self.child(holding.last, Some(first)) {
                Some(run) => {
                    let done = self.step_into(run, rest, holding);
                    self.blank += done;
                    done
                }
                None => {
                    self.append(holding, rest);
                    rest.len()
                }
            };
            holding.hidden -= done;
            rest = &rest[done..];
        }
    }

    /// Gives back everything that a request holds, the tail first. Blocks in which nothing can be found are handed out before
    /// any others.
    pub fn release(&mut self, holding: &mut Holding) {
        let Holding { last, findable: _, hidden } = std::mem::take(holding);
        self.blank += hidden;
        let mut at = last;
        while let Some(run) = at {
            let entry = self.run_mut(run);
            entry.holders -= 1;
            at = entry.parent;
            if entry.holders == 0 {
                self.idle += self.run(run).hashes.len();
                self.link(run, None);
            }
        }
    }

    /// Goes on along `chain` into a run that begins as it does, splitting the run where they part, and holds what is shared.
    fn step_into(&mut self, run: RunId, chain: &[BlockHash], holding: &mut Holding) -> usize {
        let shared = common(&self.run(run).hashes, chain);
        let run = if shared < self.run(run).hashes.len() { self.split(run, shared) } else { run };
        if self.run(run).holders == 0 {
            self.unlink(run);
            self.idle -= shared;
        }
        self.run_mut(run).holders += 1;
        holding.last = Some(run);
        holding.findable += shared;
        shared
    }

    /// Cuts a run in two and returns the front part. The rear part keeps the id, because whoever holds a run by its id holds
    /// it to its end.
    fn split(&mut self, run: RunId, at: usize) -> RunId {
        let rear = self.run_mut(run);
        let tail = rear.hashes.split_off(at);
        let hashes = std::mem::replace(&mut rear.hashes, tail);
        let (rear_first, parent, holders) = (rear.hashes[0], rear.parent, rear.holders);
        let first = hashes[0];
        let children = BTreeMap::from([(rear_first, run)]);
        let front = self.insert(Run { hashes, parent, children, holders, previous: None, next: None });
        self.run_mut(run).parent = Some(front);
        self.children_mut(parent).insert(first, front);
        if holders == 0 {
            self.link(front, self.run(run).next);
        }
        front
    }

    /// Puts `hashes` behind the path of `holding`, where nothing follows yet that begins so.
    fn append(&mut self, holding: &mut Holding, hashes: &[BlockHash]) {
        let last = holding.last;
        holding.findable += hashes.len();
        if let Some(last) = last {
            let run = self.run_mut(last);
            if run.holders == 1 && run.children.is_empty() {
                run.hashes.extend_from_slice(hashes);
                return;
            }
        }
        let run = Run { hashes: hashes.to_vec(), parent: last, holders: 1, ..Run::default() };
        let id = self.insert(run);
        self.children_mut(last).insert(hashes[0], id);
        holding.last = Some(id);
    }

    /// Forgets `count` cached blocks, from the tails of the runs that were released first.
    fn evict(&mut self, mut count: usize) {
        self.idle -= count;
        while count > 0 {
            let Some(run) = self.front else { return };
            let entry = self.run_mut(run);
            debug_assert!(entry.children.is_empty(), "what follows a run is released before it");
            let kept = entry.hashes.len().saturating_sub(count);
            count -= entry.hashes.len() - kept;
            if kept > 0 {
                entry.hashes.truncate(kept);
                return;
            }
            let (first, parent) = (entry.hashes[0], entry.parent);
            self.unlink(run);
            self.children_mut(parent).remove(&first);
            *self.run_mut(run) = Run::default();
            self.vacant.push(run);
        }
    }

    fn child(&self, parent: Option<RunId>, first: Option<&BlockHash>) -> Option<RunId> {
        let children = match parent {
            Some(parent) => &self.run(parent).children,
            None => &self.roots,
        };
        children.get(first?).copied()
    }

    fn children_mut(&mut self, parent: Option<RunId>) -> &mut BTreeMap<BlockHash, RunId> {
        match parent {
            Some(parent) => &mut self.runs[parent.0 as usize].children,
            None => &mut self.roots,
        }
    }

    fn insert(&mut self, run: Run) -> RunId {
        match self.vacant.pop() {
            Some(id) => {
                *self.run_mut(id) = run;
                id
            }
            None => {
                self.runs.push(run);
                RunId(self.runs.len() as u32 - 1)
            }
        }
    }

    fn run(&self, id: RunId) -> &Run {
        &self.runs[id.0 as usize]
    }

    fn run_mut(&mut self, id: RunId) -> &mut Run {
        &mut self.runs[id.0 as usize]
    }

    /// Queues a run before another one, or as the last.
    fn link(&mut self, run: RunId, before: Option<RunId>) {
        let previous = match before {
            Some(before) => self.run_mut(before).previous.replace(run),
            None => self.back.replace(run),
        };
        self.run_mut(run).next = before;
        self.run_mut(run).previous = previous;
        match previous {
            Some(previous) => self.run_mut(previous).next = Some(run),
            None => self.front = Some(run),
        }
    }

    fn unlink(&mut self, run: RunId) {
        let entry = self.run_mut(run);
        let (previous, next) = (entry.previous.take(), entry.next.take());
        match previous {
            Some(previous) => self.run_mut(previous).next = next,
            None => self.front = next,
        }
        match next {
            Some(next) => self.run_mut(next).previous = previous,
            None => self.back = previous,
        }
    }
}

/// How many blocks two chains have in common from their first on.
fn common(one: &[BlockHash], other: &[BlockHash]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
impl BlockCache {
    /// Panics unless the queue holds exactly the runs without a holder, what follows a run is queued before it, and the counts
    /// agree.
    pub(super) fn assert_sound(&self, holdings: &[&Holding]) {
        let mut place = vec![None; self.runs.len()];
        let (mut at, mut queued, mut idle) = (self.front, 0, 0);
        while let Some(run) = at {
            assert_eq!(place[run.0 as usize].replace(queued), None, "{run:?} is queued twice");
            queued += 1;
            idle += self.run(run).hashes.len();
            at = self.run(run).next;
        }
        assert_eq!(idle, self.idle);
        let mut cached = 0;
        for (index, run) in self.runs.iter().enumerate() {
            let id = RunId(index as u32);
            if self.vacant.contains(&id) {
                assert!(run.hashes.is_empty() && place[index].is_none());
                continue;
            }
            cached += run.hashes.len();
            assert_eq!(run.holders == 0, place[index].is_some(), "a run is queued exactly when nobody holds it");
            assert_eq!(self.child(run.parent, run.hashes.first()), Some(id));
            for (first, child) in &run.children {
                assert_eq!((self.run(*child).hashes[0], self.run(*child).parent), (*first, Some(id)));
                assert!(self.run(*child).holders <= run.holders);
                if let Some(own) = place[index] {
                    assert!(place[child.0 as usize].expect("queued") < own);
                }
            }
        }
        let hidden: usize = holdings.iter().map(|holding| holding.hidden).sum();
        assert_eq!(cached + hidden + self.blank, self.capacity, "no block is lost and none is made up");
        let mut holders = vec![0; self.runs.len()];
        for holding in holdings {
            let (mut at, mut findable) = (holding.last, 0);
            while let Some(run) = at {
                holders[run.0 as usize] += 1;
                findable += self.run(run).hashes.len();
                at = self.run(run).parent;
            }
            assert_eq!(findable, holding.findable);
        }
        for (run, holders) in self.runs.iter().zip(holders) {
            assert_eq!(run.holders, holders, "every hold belongs to a live request");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn chain(text: u64, length: u64) -> Vec<BlockHash> {
        (0..length).map(|index| BlockHash::named(text, index)).collect()
    }

    /// Blocks that are found, and those of them that are idle.
    fn found(cache: &BlockCache, chain: &[BlockHash]) -> (usize, usize) {
        let hit = cache.lookup(chain);
        (hit.blocks, hit.idle)
    }

    fn filled(cache: &mut BlockCache, chain: &[BlockHash]) -> Holding {
        let mut holding = cache.hold(chain);
        let lacking = &chain[holding.findable()..];
        assert!(cache.allocate(&mut holding, lacking.len()), "room");
        cache.publish(&mut holding, lacking);
        holding
    }

    #[test]
    fn an_idle_prefix_is_lost_from_its_end() {
        let mut cache = BlockCache::new(4);
        let prefix = chain(0, 4);
        let mut holding = filled(&mut cache, &prefix);
        cache.release(&mut holding);
        let mut other = Holding::default();
        assert!(cache.allocate(&mut other, 2));
        assert_eq!(found(&cache, &prefix), (2, 2));
        cache.assert_sound(&[&other]);
    }

    #[test]
    fn a_hit_makes_a_prefix_the_newest() {
        let mut cache = BlockCache::new(2);
        let (old, new) = (chain(0, 1), chain(1, 1));
        let [mut first, mut second] = [filled(&mut cache, &old), filled(&mut cache, &new)];
        cache.release(&mut first);
        cache.release(&mut second);
        let mut hit = cache.hold(&old);
        cache.release(&mut hit);
        assert!(cache.allocate(&mut Holding::default(), 1));
        assert_eq!((cache.lookup(&old).blocks, cache.lookup(&new).blocks), (1, 0));
    }

    #[test]
    fn a_held_block_is_never_handed_out() {
        let mut cache = BlockCache::new(2);
        let mut held = Holding::default();
        assert!(cache.allocate(&mut held, 1));
        assert!(!cache.allocate(&mut Holding::default(), 2));
        assert_eq!(cache.free_blocks(), 1);
        assert!(cache.allocate(&mut Holding::default(), 1));
        assert_eq!(held.blocks(), 1);
    }

    #[test]
    fn blocks_that_cannot_be_hit_go_first() {
        let mut cache = BlockCache::new(2);
        let prefix = chain(0, 1);
        let mut cached = filled(&mut cache, &prefix);
        let mut partial = Holding::default();
        assert!(cache.allocate(&mut partial, 1));
        cache.release(&mut cached);
        cache.release(&mut partial);
        assert!(cache.allocate(&mut partial, 1));
        assert_eq!(cache.lookup(&prefix).blocks, 1);
    }

    #[test]
    fn who_holds_the_rear_of_a_run_holds_it_after_another_has_parted_from_it() {
        let mut cache = BlockCache::new(10);
        let long = chain(0, 6);
        let mut whole = filled(&mut cache, &long);
        let mut front = cache.hold(&long[..4]);
        cache.assert_sound(&[&whole, &front]);
        cache.release(&mut front);
        assert_eq!(found(&cache, &long), (6, 0));
        cache.release(&mut whole);
        assert_eq!(found(&cache, &long), (6, 6));
        cache.assert_sound(&[]);
    }

    #[test]
    fn of_two_that_compute_the_same_the_later_one_gives_up_its_copy() {
        let mut cache = BlockCache::new(8);
        let text = chain(0, 3);
        let [mut one, mut other] = [Holding::default(), Holding::default()];
        assert!(cache.allocate(&mut one, 3) && cache.allocate(&mut other, 3));
        cache.publish(&mut one, &text);
        cache.publish(&mut other, &text);
        assert_eq!(cache.free_blocks(), 5);
        cache.assert_sound(&[&one, &other]);
    }

    #[test]
    fn another_salt_shares_no_block() {
        assert_ne!(BlockHash::root("a").extend(&[1]), BlockHash::root("b").extend(&[1]));
    }

    /// The same pool with a record for each block, as vLLM has it.
    struct Plain {
        /// Hash and holders.
        blocks: Vec<(Option<BlockHash>, u32)>,
        free: VecDeque<usize>,
    }

    impl Plain {
        fn new(capacity: usize) -> Self {
            Plain { blocks: vec![(None, 0); capacity], free: (0..capacity).collect() }
        }

        fn lookup(&self, chain: &[BlockHash]) -> Vec<usize> {
            let find = |hash: &BlockHash| self.blocks.iter().position(|(own, _)| *own == Some(*hash));
            chain.iter().map_while(find).collect()
        }

        fn fill(&mut self, chain: &[BlockHash]) -> Option<Vec<usize>> {
            let mut held = self.lookup(chain);
            let idle = held.iter().filter(|block| self.blocks[**block].1 == 0).count();
            if chain.len() - held.len() + idle > self.free.len() {
                return None;
            }
            for block in &held {
                self.free.retain(|free| free != block);
                self.blocks[*block].1 += 1;
            }
            for hash in &chain[held.len()..] {
                let block = self.free.pop_front().expect("checked");
                self.blocks[block] = (Some(*hash), 1);
                held.push(block);
            }
            Some(held)
        }

        fn release(&mut self, held: &[usize]) {
            for block in held.iter().rev() {
                self.blocks[*block].1 -= 1;
                if self.blocks[*block].1 == 0 {
                    self.free.push_back(*block);
                }
            }
        }
    }

    proptest! {
        /// Chains share a beginning of one of two texts and go on in one of their own, so that runs part everywhere.
        #[test]
        fn runs_lose_and_keep_what_single_blocks_would(
            acts in proptest::collection::vec((0..2u64, 0..6u64, 0..4u64, 0..8u64, any::<bool>(), 0..8usize), 1..80),
        ) {
            let (mut cache, mut plain) = (BlockCache::new(20), Plain::new(20));
            let mut live: Vec<(Holding, Vec<usize>)> = Vec::new();
            for (text, shared, own, length, ends, nth) in acts {
                let mut wanted = chain(text, shared);
                wanted.extend(chain(100 + text * 100 + shared * 10 + own, length));
                let hit = cache.lookup(&wanted);
                prop_assert_eq!(hit.blocks, plain.lookup(&wanted).len());
                let fits = wanted.len() - hit.blocks + hit.idle <= cache.free_blocks();
                match plain.fill(&wanted) {
                    Some(held) => {
                        prop_assert!(fits);
                        live.push((filled(&mut cache, &wanted), held));
                    }
                    None => prop_assert!(!fits),
                }
                if ends && !live.is_empty() {
                    let (mut holding, held) = live.remove(nth % live.len());
                    cache.release(&mut holding);
                    plain.release(&held);
                }
                prop_assert_eq!(cache.free_blocks(), plain.free.len());
                cache.assert_sound(&live.iter().map(|(holding, _)| holding).collect::<Vec<_>>());
            }
        }
    }
}
