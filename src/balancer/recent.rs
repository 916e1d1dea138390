//! A table in the order of use, bounded in entries and in age.

use std::hash::Hash;
use std::time::Duration;

use super::affinity::Bounds;
use super::lists::{Lists, Slot};
use super::walk::{Place, Used, Walked, used_since};

/// How many entries one sweep of a table looks at, so that no decision waits for a long clean-up.
pub const SWEEP_MAX: usize = 32;

/// The only list of the table.
const LIST: usize = 0;

/// The one unused for longest goes first. Keys are the output of a keyed hash and are not hashed again.
#[derive(Debug)]
pub struct Recent<K, V> {
    bounds: Bounds,
    entries: Lists<K, Entry<V>, 1>,
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

impl<K: Copy + Eq + Hash, V: Copy> Recent<K, V> {
    pub fn new(bounds: Bounds) -> Self {
        Recent { bounds, entries: Lists::new() }
    }

    /// Changes the bounds; entries over the new ones go as the table is swept.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, key: K) -> Option<&Entry<V>> {
        self.entries.get(key)
    }

    /// The value of a key, to be changed without being used.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let slot = self.entries.find(key)?;
        Some(&mut self.entries.at_mut(slot).value)
    }

    /// Whether an entry is past its age. Whose it is may keep it nevertheless.
    pub fn is_old(&self, entry: &Entry<V>, now: Duration) -> bool {
        now.saturating_sub(entry.last_used) > self.bounds.idle_max
    }

    /// The value of a key, marked as used now.
    pub fn touch(&mut self, key: K, now: Duration) -> Option<&mut V> {
        let slot = self.entries.find(key)?;
        Some(&mut self.use_at(slot, now).value)
    }

    /// Sets a value, used now.
    pub fn put(&mut self, key: K, value: V, now: Duration) {
        let entry = Entry { value, last_used: now };
        match self.entries.find(key) {
            Some(slot) => {
                self.entries.move_to(slot, LIST);
                *self.entries.at_mut(slot) = entry;
            }
            None => {
                self.entries.push(key, entry, LIST);
            }
        }
        while self.entries.len() > self.bounds.entries_max {
            self.forget_oldest();
        }
    }

    pub fn remove(&mut self, key: K) {
        if let Some(slot) = self.entries.find(key) {
            self.entries.remove(slot);
        }
    }

    /// Drops a bounded number of entries that are over a bound. An old one that `is_kept` speaks for counts as used.
    pub fn sweep(&mut self, now: Duration, is_kept: impl Fn(&V) -> bool) {
        for _ in 0..SWEEP_MAX {
            let Some(slot) = self.entries.first(LIST) else { break };
            let entry = *self.entries.at(slot);
            if self.entries.len() > self.bounds.entries_max {
                self.entries.remove(slot);
            } else if !self.is_old(&entry, now) {
                break;
            } else if is_kept(&entry.value) {
                self.use_at(slot, now);
            } else {
                self.entries.remove(slot);
            }
        }
    }

    /// Shows `see` the next entries of a walk in the order of use, `max` at most.
    pub fn walk(&self, place: &mut Place<K>, max: usize, see: impl FnMut(K, &Entry<V>)) -> Walked {
        place.walk(&self.entries, LIST, max, see)
    }

    /// The entries that were used at or after `since`, `max` at most, the newest first.
    pub fn used_since(&self, since: Duration, max: usize) -> impl Iterator<Item = (K, &Entry<V>)> {
        used_since(&self.entries, LIST, since, max)
    }

    /// Sets a value that was used some time ago, unless a later use of its key is known. The table is ordered by use: an
    /// entry that comes late counts as used when the one before it was. Returns whether it was set.
    pub fn restore(&mut self, key: K, value: V, last_used: Duration) -> bool {
        if self.entries.get(key).is_some_and(|known| known.last_used > last_used) {
            return false;
        }
        let newest = self.entries.last(LIST).map_or(Duration::ZERO, |slot| self.entries.at(slot).last_used);
        self.put(key, value, last_used.max(newest));
        true
    }

    fn use_at(&mut self, slot: Slot, now: Duration) -> &mut Entry<V> {
        self.entries.move_to(slot, LIST);
        let entry = self.entries.at_mut(slot);
        entry.last_used = now;
        entry
    }

    fn forget_oldest(&mut self) {
        if let Some(slot) = self.entries.first(LIST) {
            self.entries.remove(slot);
        }
    }

    /// All entries, the one unused for longest first.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter(LIST).map(|(key, entry)| (key, &entry.value))
    }

    /// Panics unless the entries are ordered by use.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        self.entries.check_invariants();
        let mut newest = Duration::ZERO;
        for (_, entry) in self.entries.iter(LIST) {
            assert!(entry.last_used >= newest, "a table is out of order");
            newest = entry.last_used;
        }
    }
}
