//! Walking over a table in the order of use, in parts, while it goes on changing between them.
//!
//! An entry that is used meanwhile moves to the end, where the walk comes to it again, so nothing is passed over; it may be
//! seen twice.

use std::hash::Hash;
use std::time::Duration;

use super::lists::{Lists, Slot};

/// How many of the entries that were looked at last are remembered, to go on behind one of them. The walk loses its place
/// only if all of them were used or dropped since.
const FOOTPRINTS: usize = 32;

/// What can stand in a table that is walked over.
pub trait Used {
    /// When it was used last.
    fn last_used(&self) -> Duration;
}

/// How far a walk has come.
#[derive(Clone, Debug)]
pub struct Place<K> {
    /// The entries that were looked at last, the newest last, with their last use as it was then.
    footprints: Vec<(K, Duration)>,
    /// The last use of the newest entry that was seen.
    reached: Duration,
    /// How many more entries may be looked at, so that a table that changes faster than it is walked over has an end too.
    left: usize,
}

/// Whether there is more to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    More,
    Everything,
}

impl<K: Copy + Eq + Hash> Place<K> {
    /// At the start of a table with so many entries.
    pub fn at_start(entries: usize) -> Self {
        Place { footprints: Vec::new(), reached: Duration::ZERO, left: entries.saturating_mul(2).saturating_add(1024) }
    }

    /// Shows `see` the next entries of a list of `table`, `max` at most. After [`Walked::Everything`] it may be called again to
    /// see what was added or used since.
    pub fn walk<V: Copy + Used, const LISTS: usize>(
        &mut self,
        table: &Lists<K, V, LISTS>,
        list: usize,
        max: usize,
        mut see: impl FnMut(K, &V),
    ) -> Walked {
        let mut next = match self.footprint_in(table, list) {
            Some(slot) => table.behind(slot),
            None => table.first(list),
        };
        for _ in 0..max {
            let Some(slot) = next else { return Walked::Everything };
            if self.left == 0 {
                return Walked::Everything;
            }
            self.left -= 1;
            let (key, value) = (table.key_at(slot), table.at(slot));
            let used = value.last_used();
            // Less only where the place was lost and the walk has begun anew: it was seen before.
            if used >= self.reached {
                see(key, value);
                self.reached = used;
            }
            self.leave(key, used);
            next = table.behind(slot);
        }
        Walked::More
    }

    /// The newest footprint that still is where it was left.
    fn footprint_in<V: Copy + Used, const LISTS: usize>(
        &self,
        table: &Lists<K, V, LISTS>,
        list: usize,
    ) -> Option<Slot> {
        let in_place = |(key, used): &(K, Duration)| {
            let is_in_place = |slot: &Slot| table.list_at(*slot) == list && table.at(*slot).last_used() == *used;
            table.find(*key).filter(is_in_place)
        };
        self.footprints.iter().rev().find_map(in_place)
    }

    fn leave(&mut self, key: K, used: Duration) {
        if self.footprints.len() == FOOTPRINTS {
            self.footprints.remove(0);
        }
        self.footprints.push((key, used));
    }
}

/// The entries of a list that were used at or after `since`, `max` at most, the newest first.
pub fn used_since<K: Copy + Eq + Hash, V: Copy + Used, const LISTS: usize>(
    table: &Lists<K, V, LISTS>,
    list: usize,
    since: Duration,
    max: usize,
) -> impl Iterator<Item = (K, &V)> {
    table.newest(list).take_while(move |(_, value)| value.last_used() >= since).take(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Entry(u64);

    impl Used for Entry {
        fn last_used(&self) -> Duration {
            Duration::from_secs(self.0)
        }
    }

    type Table = Lists<u64, Entry, 1>;

    fn table(entries: u64) -> Table {
        let mut table = Table::new();
        for number in 0..entries {
            table.push(number, Entry(number), 0);
        }
        table
    }

    /// Walks in parts of `max`; `between` changes the table after each.
    fn walked(table: &mut Table, max: usize, mut between: impl FnMut(&mut Table, usize)) -> Vec<u64> {
        let mut place = Place::at_start(table.len());
        let mut seen = Vec::new();
        for part in 0.. {
            if place.walk(table, 0, max, |key, _| seen.push(key)) == Walked::Everything {
                return seen;
            }
            between(table, part);
        }
        unreachable!()
    }

    fn touch(table: &mut Table, key: u64, now: u64) {
        let slot = table.find(key).expect("it is there");
        table.move_to(slot, 0);
        *table.at_mut(slot) = Entry(now);
    }

    #[test]
    fn a_table_that_stands_still_is_seen_once_in_order() {
        for max in [1, 7, 100, 101] {
            assert_eq!(walked(&mut table(100), max, |_, _| {}), (0..100).collect::<Vec<_>>());
        }
        assert_eq!(walked(&mut table(0), 5, |_, _| {}), [0; 0]);
    }

    #[test]
    fn what_is_used_or_added_meanwhile_is_seen_at_the_end() {
        let seen = walked(&mut table(20), 10, |table, part| {
            if part == 0 {
                touch(table, 3, 100);
                touch(table, 15, 101);
                table.push(50, Entry(102), 0);
            }
        });
        let (first, last) = seen.split_at(seen.len() - 3);
        assert_eq!(last, [3, 15, 50]);
        assert_eq!(first, (0..20).filter(|key| *key != 15).collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_passed_over_even_if_the_place_is_lost() {
        let mut now = 1_000;
        let seen = walked(&mut table(500), 50, |table, part| {
            // Every entry that the walk has seen so far is used or dropped.
            for key in 0..(part as u64 + 1) * 50 {
                match key % 2 {
                    0 => {
                        if let Some(slot) = table.find(key) {
                            table.remove(slot);
                        }
                    }
                    _ if part < 3 => {
                        now += 1;
                        touch(table, key, now);
                    }
                    _ => {}
                }
            }
        });
        let mut distinct = seen.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let passed_over: Vec<_> = (0..500).filter(|key| distinct.binary_search(key).is_err()).collect();
        assert_eq!(passed_over, [0; 0]);
    }

    #[test]
    fn a_table_that_changes_faster_than_it_is_walked_over_has_an_end() {
        let mut next = 1_000;
        let seen = walked(&mut table(100), 10, |table, _| {
            for _ in 0..20 {
                table.push(next, Entry(next), 0);
                next += 1;
            }
        });
        assert!((100..=1_224).contains(&seen.len()), "{}", seen.len());
    }

    #[test]
    fn what_was_used_since_comes_newest_first_and_bounded() {
        let table = table(10);
        let keys = |since, max| {
            let since = Duration::from_secs(since);
            used_since(&table, 0, since, max).map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(keys(7, 100), [9, 8, 7]);
        assert_eq!(keys(0, 2), [9, 8]);
        assert_eq!(keys(11, 5), [0; 0]);
    }
}
