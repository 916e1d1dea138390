//! The line at the door of a model: conversations that wait to become resident, in the order in which they came.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use crate::conversation::ConversationKey;

use super::super::affinity::KeyHasher;
use super::super::replica::ReplicaId;

/// How long the place of somebody who left is kept, so that a client that asks again finds it where it was.
const KEPT_FREE: Duration = Duration::from_secs(30);
/// The most places that are kept so.
const KEPT_FREE_MAX: usize = 256;

/// A place in the line. One for each conversation: turns of it that come together enter together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(u64);

/// Who waits there.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub place: Place,
    pub conversation: ConversationKey,
    /// The replica that it wants to go back to; `None`: any.
    pub home: Option<ReplicaId>,
    /// What it needs of the cache, in tokens.
    pub need: u64,
    pub since: Duration,
    /// When it first found room and waited on, for a replica with less load.
    pub choosy_since: Option<Duration>,
    turns: u32,
    left: Option<Duration>,
}

#[derive(Debug, Default)]
pub struct Line {
    /// In the order of their places.
    waiting: VecDeque<Waiting>,
    places: HashMap<ConversationKey, Place, BuildHasherDefault<KeyHasher>>,
    next: u64,
    turns: u32,
    free: usize,
}

impl Waiting {
    /// Whether a turn waits; else the place is only kept.
    pub fn is_taken(&self) -> bool {
        self.turns > 0
    }

    /// The turns that wait there.
    pub fn turns(&self) -> u32 {
        self.turns
    }
}

impl Line {
    /// Turns that wait.
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Whether no turn waits.
    pub fn is_empty(&self) -> bool {
        self.turns == 0
    }

    /// How long the first has waited.
    pub fn longest(&self, now: Duration) -> Duration {
        self.waiting
            .iter()
            .find(|waiting| waiting.is_taken())
            .map_or(Duration::ZERO, |first| now.saturating_sub(first.since))
    }

    /// Tokens that those need who wait.
    pub fn needs(&self) -> u64 {
        self.waiting.iter().filter(|waiting| waiting.is_taken()).map(|waiting| waiting.need).sum()
    }

    /// How many turns wait at a place.
    pub fn turns_at(&self, place: Place) -> u32 {
        self.index_of(place).map_or(0, |index| self.waiting[index].turns)
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }

    pub fn get(&self, index: usize) -> Option<&Waiting> {
        self.waiting.get(index)
    }

    /// A turn of the conversation begins to wait: at the end, or where another turn of it is or was.
    pub fn join(&mut self, conversation: ConversationKey, home: Option<ReplicaId>, need: u64, now: Duration) -> Place {
        self.turns += 1;
        if let Some(known) = self.places.get(&conversation).and_then(|place| self.index_of(*place)) {
            let known = &mut self.waiting[known];
            self.free -= usize::from(known.left.take().is_some());
            known.turns += 1;
            known.need = known.need.max(need);
            known.home = home;
            return known.place;
        }
        let place = Place(self.next);
        self.next += 1;
        self.places.insert(conversation, place);
        let waiting = Waiting { place, conversation, home, need, since: now, choosy_since: None, turns: 1, left: None };
        self.waiting.push_back(waiting);
        place
    }

    /// A turn waits no longer, without having been let in. Its place is kept for a while. False for a place that is not in
    /// the line any more.
    pub fn leave(&mut self, place: Place, now: Duration) -> bool {
        let Some(index) = self.index_of(place).filter(|index| self.waiting[*index].is_taken()) else { return false };
        let waiting = &mut self.waiting[index];
        self.turns -= 1;
        waiting.turns -= 1;
        if waiting.turns == 0 {
            waiting.left = Some(now);
            self.free += 1;
            if self.free > KEPT_FREE_MAX {
                self.sweep(now);
            }
        }
        true
    }

    /// Somebody has found room and waits on for a better one.
    pub fn is_choosy(&mut self, place: Place, now: Duration) {
        if let Some(index) = self.index_of(place) {
            self.waiting[index].choosy_since.get_or_insert(now);
        }
    }

    /// Takes out who has got in.
    pub fn remove(&mut self, index: usize) -> Option<Waiting> {
        let gone = self.waiting.remove(index)?;
        self.places.remove(&gone.conversation);
        self.turns -= gone.turns;
        self.free -= usize::from(gone.left.is_some());
        Some(gone)
    }

    /// Gives up places that were kept for long enough, or too many.
    pub fn sweep(&mut self, now: Duration) {
        if self.free == 0 {
            return;
        }
        let mut over = self.free.saturating_sub(KEPT_FREE_MAX);
        let (waiting, places) = (&mut self.waiting, &mut self.places);
        waiting.retain(|waiting| match waiting.left {
            Some(left) if over > 0 || now.saturating_sub(left) > KEPT_FREE => {
                over = over.saturating_sub(1);
                places.remove(&waiting.conversation);
                false
            }
            Some(_) | None => true,
        });
        self.free = self.waiting.iter().filter(|waiting| waiting.left.is_some()).count();
    }

    fn index_of(&self, place: Place) -> Option<usize> {
        self.waiting.binary_search_by_key(&place, |waiting| waiting.place).ok()
    }

    /// Panics unless the sums agree with who waits.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        assert!(self.waiting.iter().is_sorted_by_key(|waiting| waiting.place), "the line is out of order");
        assert_eq!(self.places.len(), self.waiting.len(), "places and who is there");
        assert_eq!(self.turns, self.waiting.iter().map(|waiting| waiting.turns).sum::<u32>(), "turns that wait");
        for waiting in &self.waiting {
            assert_eq!(waiting.left.is_some(), waiting.turns == 0, "a place is kept for nobody or for somebody there");
        }
        assert_eq!(self.free, self.waiting.iter().filter(|waiting| waiting.left.is_some()).count(), "kept places");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(number: u64) -> ConversationKey {
        ConversationKey(number)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn order(line: &Line) -> Vec<u64> {
        line.iter().map(|waiting| waiting.conversation.0).collect()
    }

    #[test]
    fn turns_of_one_conversation_wait_in_one_place() {
        let mut line = Line::default();
        let first = line.join(key(1), None, 10, at(1));
        line.join(key(2), None, 10, at(2));
        assert_eq!(line.join(key(1), None, 30, at(3)), first);
        assert_eq!((order(&line), line.turns()), (vec![1, 2], 3));
        assert_eq!(line.get(0).map(|waiting| (waiting.need, waiting.since)), Some((30, at(1))));
        assert!(line.leave(first, at(4)));
        assert!(line.get(0).is_some_and(Waiting::is_taken), "the other turn still waits");
        line.check_invariants();
    }

    #[test]
    fn who_asks_again_soon_has_kept_the_place() {
        let mut line = Line::default();
        let first = line.join(key(1), None, 10, at(1));
        line.join(key(2), None, 10, at(2));
        assert!(line.leave(first, at(3)));
        assert!(!line.leave(first, at(3)), "twice is not left");
        assert_eq!(line.join(key(1), None, 10, at(20)), first);
        assert_eq!(order(&line), [1, 2]);
        assert_eq!(line.longest(at(21)), at(20));
        assert!(line.leave(first, at(30)));
        line.sweep(at(61));
        assert_eq!(order(&line), [2]);
        assert_ne!(line.join(key(1), None, 10, at(62)), first);
        assert_eq!(order(&line), [2, 1]);
        line.check_invariants();
    }

    #[test]
    fn places_that_are_kept_free_are_bounded() {
        let mut line = Line::default();
        let stays = line.join(key(0), None, 1, at(0));
        for number in 1..2_000 {
            let place = line.join(key(number), None, 1, at(1));
            line.leave(place, at(1));
            assert!(line.iter().count() <= KEPT_FREE_MAX + 1);
        }
        line.check_invariants();
        assert!(line.leave(stays, at(1)));
    }
}
