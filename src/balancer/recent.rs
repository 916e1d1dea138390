//! A table in the order of use, bounded in entries and in age.

use std::hash::{BuildHasherDefault, Hash};
use std::time::Duration;

use hashlink::LinkedHashMap;

use super::affinity::{Bounds, KeyHasher};
use super::walk::{Place, Used, Walked, used_since};

/// How many entries one sweep of a table looks at, so that no decision waits for a long clean-up.
pub const SWEEP_MAX: usize = 32;

/// The one unused for longest goes first. Keys are the output of a keyed hash and are not hashed again.
#[derive(Debug)]
pub struct Recent<K, V> {
    bounds: Bounds,
    entries: LinkedHashMap<K, Entry<V>, BuildHasherDefault<KeyHasher>>,
}

/// A value and when it was used last.
#[derive(Clone, Copy, Debug)]
pub struct Entry<V> {
    pub value: V,
    pub last_used: Duration,
}

impl<V> Used for Entry<V> {
    fn last_used(&self) -> Duration {
        self.last_used
    }
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub fn new(bounds: Bounds) -> Self {
        Recent { bounds, entries: LinkedHashMap::default() }
    }

    /// Changes the bounds; entries over the new ones go as the table is swept.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, key: K) -> Option<&Entry<V>> {
        self.entries.get(&key)
    }

    /// The value of a key, to be changed without being used.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|entry| &mut entry.value)
    }

    /// Whether an entry is past its age. Whose it is may keep it nevertheless.
    pub fn is_old(&self, entry: &Entry<V>, now: Duration) -> bool {
        now.saturating_sub(entry.last_used) > self.bounds.idle_max
    }

    /// The value of a key, marked as used now.
    pub fn touch(&mut self, key: K, now: Duration) -> Option<&mut V> {
        let entry = self.entries.to_back(&key)?;
        entry.last_used = now;
        Some(&mut entry.value)
    }

    /// Sets a value, used now.
    pub fn put(&mut self, key: K, value: V, now: Duration) {
        self.entries.insert(key, Entry { value, last_used: now });
        while self.entries.len() > self.bounds.entries_max {
            self.entries.pop_front();
        }
    }

    pub fn remove(&mut self, key: K) {
        // Most tables that are asked to forget something have nothing.
        if !self.entries.is_empty() {
            self.entries.remove(&key);
        }
    }

    /// Drops a bounded number of entries that are over a bound. An old one that `is_kept` speaks for counts as used.
    pub fn sweep(&mut self, now: Duration, is_kept: impl Fn(&V) -> bool) {
        for _ in 0..SWEEP_MAX {
            let Some((&key, entry)) = self.entries.front() else { break };
            if self.entries.len() > self.bounds.entries_max {
                self.entries.pop_front();
            } else if !self.is_old(entry, now) {
                break;
            } else if is_kept(&entry.value) {
                self.touch(key, now);
            } else {
                self.entries.pop_front();
            }
        }
    }

    /// Shows `see` the next entries of a walk in the order of use, `max` at most.
    pub fn walk(&mut self, place: &mut Place<K>, max: usize, see: impl FnMut(K, &Entry<V>)) -> Walked {
        place.walk(&mut self.entries, max, see)
    }

    /// The entries that were used at or after `since`, `max` at most, the newest first.
    pub fn used_since(&self, since: Duration, max: usize) -> impl Iterator<Item = (&K, &Entry<V>)> {
        used_since(&self.entries, since, max)
    }

    /// Sets a value that was used some time ago, unless a later use of its key is known. The table is ordered by use: an
    /// entry that comes late counts as used when the one before it was. Returns whether it was set.
    pub fn restore(&mut self, key: K, value: V, last_used: Duration) -> bool {
        if self.entries.get(&key).is_some_and(|known| known.last_used > last_used) {
            return false;
        }
        let newest = self.entries.back().map_or(Duration::ZERO, |(_, newest)| newest.last_used);
        self.put(key, value, last_used.max(newest));
        true
    }

    /// All entries, the one unused for longest first.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(key, entry)| (*key, &entry.value))
    }

    /// Panics unless the entries are ordered by use.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        let mut newest = Duration::ZERO;
        for entry in self.entries.values() {
            assert!(entry.last_used >= newest, "a table is out of order");
            newest = entry.last_used;
        }
    }
}
