//! A table whose entries stand in lists, each in the order of use.
//!
//! All entries are in one map, whatever list they stand in, and keep their place in memory as long as they are there: to use
//! one, or to move it to another list, is to change its neighbours. Among a million entries every step into memory is a miss of the
//! processor's caches, and these are what a turn of a conversation costs: see `bench/README.md`.

use std::hash::{BuildHasher as _, BuildHasherDefault, Hash};

use hashbrown::HashTable;

use super::affinity::KeyHasher;

/// Entries that are allocated together, so that a table which grows copies none of them.
const CHUNK: usize = 4_096;

/// Keys are the output of a keyed hash and are not hashed again.
#[derive(Debug)]
pub struct Lists<K, V, const LISTS: usize> {
    /// By the keys of their entries.
    slots: HashTable<Slot>,
    chunks: Vec<Vec<Node<K, V>>>,
    /// Nodes that were left.
    free: Vec<Slot>,
    ends: [Ends; LISTS],
}

/// Where an entry is, as long as it is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

#[derive(Clone, Copy, Debug)]
struct Node<K, V> {
    key: K,
    value: V,
    before: Slot,
    behind: Slot,
    list: u8,
}

/// The entries at the ends of a list, and how many it has.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: Slot,
    last: Slot,
    len: u32,
}

impl Slot {
    const NONE: Slot = Slot(u32::MAX);

    fn some(self) -> Option<Slot> {
        (self != Slot::NONE).then_some(self)
    }
}

impl<K: Copy + Eq + Hash, V: Copy, const LISTS: usize> Lists<K, V, LISTS> {
    pub fn new() -> Self {
        let ends = [Ends { first: Slot::NONE, last: Slot::NONE, len: 0 }; LISTS];
        Lists { slots: HashTable::new(), chunks: Vec::new(), free: Vec::new(), ends }
    }

    /// Entries in all lists.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn len_of(&self, list: usize) -> usize {
        self.ends[list].len as usize
    }

    pub fn find(&self, key: K) -> Option<Slot> {
        self.slots.find(hash(key), |slot| self.node(*slot).key == key).copied()
    }

    pub fn get(&self, key: K) -> Option<&V> {
        self.find(key).map(|slot| self.at(slot))
    }

    pub fn at(&self, slot: Slot) -> &V {
        &self.node(slot).value
    }

    pub fn at_mut(&mut self, slot: Slot) -> &mut V {
        &mut self.node_mut(slot).value
    }

    pub fn key_at(&self, slot: Slot) -> K {
        self.node(slot).key
    }

    /// The list that an entry stands in.
    pub fn list_at(&self, slot: Slot) -> usize {
        usize::from(self.node(slot).list)
    }

    /// The entry of a list that was unused for longest.
    pub fn first(&self, list: usize) -> Option<Slot> {
        self.ends[list].first.some()
    }

    /// The entry of a list that was used last.
    pub fn last(&self, list: usize) -> Option<Slot> {
        self.ends[list].last.some()
    }

    /// The next one of the same list.
    pub fn behind(&self, slot: Slot) -> Option<Slot> {
        self.node(slot).behind.some()
    }

    /// The entries of a list, the one unused for longest first.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = (K, &V)> {
        let slots = std::iter::successors(self.first(list), |slot| self.behind(*slot));
        slots.map(|slot| (self.key_at(slot), self.at(slot)))
    }

    /// The entries of a list, the one used last first.
    pub fn newest(&self, list: usize) -> impl Iterator<Item = (K, &V)> {
        let slots = std::iter::successors(self.last(list), |slot| self.node(*slot).before.some());
        slots.map(|slot| (self.key_at(slot), self.at(slot)))
    }

    /// Puts an entry at the end of a list. Its key has to be a new one.
    pub fn push(&mut self, key: K, value: V, list: usize) -> Slot {
        debug_assert!(self.find(key).is_none(), "a key stands in a table twice");
        let node = Node { key, value, before: Slot::NONE, behind: Slot::NONE, list: list as u8 };
        let slot = match self.free.pop() {
            Some(slot) => {
                *self.node_mut(slot) = node;
                slot
            }
            None => self.grow(node),
        };
        let chunks = &self.chunks;
        self.slots.insert_unique(hash(key), slot, |slot| hash(node_of(chunks, *slot).key));
        self.attach(slot, list);
        slot
    }

    /// Moves an entry to the end of a list.
    pub fn move_to(&mut self, slot: Slot, list: usize) {
        if self.ends[list].last != slot {
            self.detach(slot);
            self.attach(slot, list);
        }
    }

    pub fn remove(&mut self, slot: Slot) -> V {
        self.detach(slot);
        let Node { key, value, .. } = *self.node(slot);
        if let Ok(entry) = self.slots.find_entry(hash(key), |found| *found == slot) {
            entry.remove();
        }
        self.free.push(slot);
        value
    }

    fn grow(&mut self, node: Node<K, V>) -> Slot {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::new());
        }
        let chunk = self.chunks.len() - 1;
        self.chunks[chunk].push(node);
        // The configuration bounds a table to far fewer entries than a slot can number.
        Slot((chunk * CHUNK + self.chunks[chunk].len() - 1) as u32)
    }

    fn attach(&mut self, slot: Slot, list: usize) {
        let last = self.ends[list].last;
        let node = self.node_mut(slot);
        (node.before, node.behind, node.list) = (last, Slot::NONE, list as u8);
        match last.some() {
            Some(last) => self.node_mut(last).behind = slot,
            None => self.ends[list].first = slot,
        }
        self.ends[list].last = slot;
        self.ends[list].len += 1;
    }

    fn detach(&mut self, slot: Slot) {
        let Node { before, behind, list, .. } = *self.node(slot);
        let list = usize::from(list);
        match before.some() {
            Some(before) => self.node_mut(before).behind = behind,
            None => self.ends[list].first = behind,
        }
        match behind.some() {
            Some(behind) => self.node_mut(behind).before = before,
            None => self.ends[list].last = before,
        }
        self.ends[list].len -= 1;
    }

    fn node(&self, slot: Slot) -> &Node<K, V> {
        node_of(&self.chunks, slot)
    }

    fn node_mut(&mut self, slot: Slot) -> &mut Node<K, V> {
        let index = slot.0 as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    /// Panics unless the lists have what the map has, both ways round.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        let mut found = 0;
        for list in 0..LISTS {
            let forwards: Vec<_> = std::iter::successors(self.first(list), |slot| self.behind(*slot)).collect();
            let backwards = std::iter::successors(self.last(list), |slot| self.node(*slot).before.some());
            assert!(forwards.iter().rev().copied().eq(backwards), "a list is another one from its other end");
            assert_eq!(forwards.len(), self.len_of(list), "entries of a list");
            for slot in &forwards {
                assert_eq!(self.list_at(*slot), list, "an entry stands in another list");
                assert_eq!(self.find(self.key_at(*slot)), Some(*slot), "an entry is not found");
            }
            found += forwards.len();
        }
        assert_eq!(found, self.len(), "an entry stands in no list");
    }
}

fn node_of<K, V>(chunks: &[Vec<Node<K, V>>], slot: Slot) -> &Node<K, V> {
    let index = slot.0 as usize;
    &chunks[index / CHUNK][index % CHUNK]
}

fn hash(key: impl Hash) -> u64 {
    BuildHasherDefault::<KeyHasher>::default().hash_one(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What can be done with an entry.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64, usize),
        Move(u64, usize),
        Remove(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (key, list) = (0..20_u64, 0..2_usize);
        prop_oneof![
            (key.clone(), list.clone()).prop_map(|(key, list)| Step::Push(key, list)),
            (key.clone(), list).prop_map(|(key, list)| Step::Move(key, list)),
            key.prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn lists_are_what_plain_vectors_are(steps in prop::collection::vec(step(), 0..200)) {
            let mut lists = Lists::<u64, u64, 2>::new();
            let mut plain = [Vec::new(), Vec::new()];
            for (number, step) in steps.into_iter().enumerate() {
                let value = number as u64;
                match step {
                    Step::Push(key, list) if lists.find(key).is_none() => {
                        let slot = lists.push(key, value, list);
                        prop_assert_eq!((lists.key_at(slot), *lists.at(slot), lists.list_at(slot)), (key, value, list));
                        plain[list].push((key, value));
                    }
                    Step::Move(key, list) => if let Some(slot) = lists.find(key) {
                        lists.move_to(slot, list);
                        *lists.at_mut(slot) = value;
                        plain.iter_mut().for_each(|plain| plain.retain(|entry| entry.0 != key));
                        plain[list].push((key, value));
                    }
                    Step::Remove(key) => if let Some(slot) = lists.find(key) {
                        let value = lists.remove(slot);
                        prop_assert!(plain.iter().flatten().any(|entry| *entry == (key, value)));
                        plain.iter_mut().for_each(|plain| plain.retain(|entry| entry.0 != key));
                    }
                    Step::Push(..) => {}
                }
                lists.check_invariants();
                for (list, plain) in plain.iter().enumerate() {
                    let owned = |(key, value): (u64, &u64)| (key, *value);
                    prop_assert!(lists.iter(list).map(owned).eq(plain.iter().copied()));
                    prop_assert!(lists.newest(list).map(owned).eq(plain.iter().rev().copied()));
                }
            }
        }
    }

    #[test]
    fn a_table_takes_more_than_one_chunk_and_uses_again_what_was_left() {
        let mut lists = Lists::<u64, u64, 1>::new();
        let count = 3 * CHUNK as u64;
        for key in 0..count {
            lists.push(key, key, 0);
        }
        for key in (0..count).step_by(2) {
            let slot = lists.find(key).expect("it is there");
            lists.remove(slot);
        }
        for key in count..count + count / 2 {
            lists.push(key, key, 0);
        }
        assert_eq!((lists.len(), lists.chunks.len()), (count as usize, 3));
        assert!((1..count).step_by(2).all(|key| lists.get(key) == Some(&key)));
        lists.check_invariants();
    }
}
