//! Who is resident where in one model, and whether another one fits.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use hashlink::LinkedHashMap;

use crate::conversation::ConversationKey;

use super::super::affinity::KeyHasher;
use super::super::replica::ReplicaId;
use super::residents::{Resident, Room};

/// What a turn in flight has claimed of a replica's room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    #[default]
    Nothing,
    /// As a turn of a resident, since it was let in for the `entry`th time that anybody was.
    Resident {
        entry: u64,
        tokens: u64,
        /// Whether a turn of it has ended since it was let in.
        is_return: bool,
        /// Whether it is the first one since, and has no answer yet.
        is_cold: bool,
    },
    /// As a turn of none.
    Visitor { tokens: u64 },
}

/// The rooms of a model's replicas.
#[derive(Debug, Default)]
pub struct Rooms {
    residents: HashMap<ConversationKey, Resident, BuildHasherDefault<KeyHasher>>,
    /// Indexed by [`ReplicaId`].
    rooms: Vec<Room>,
    /// Those who gave their room up lately: since when they were silent, and whether they waited for a tool. The oldest first.
    gone: LinkedHashMap<ConversationKey, (Duration, bool), BuildHasherDefault<KeyHasher>>,
    /// Tokens that conversations have in common.
    shared: u64,
    entries: u64,
}

/// The most that are remembered of those who gave their room up.
const GONE_MAX: usize = 4096;

impl Rooms {
    pub fn resident(&self, conversation: ConversationKey) -> Option<&Resident> {
        self.residents.get(&conversation)
    }

    pub fn room(&self, replica: ReplicaId) -> Option<&Room> {
        self.rooms.get(replica.index())
    }

    pub fn room_mut(&mut self, replica: ReplicaId) -> &mut Room {
        let index = replica.index();
        while index >= self.rooms.len() {
            self.rooms.push(Room::new());
        }
        &mut self.rooms[index]
    }

    /// What is wanted of a replica's cache.
    pub fn working_set(&self, replica: ReplicaId) -> u64 {
        self.room(replica).map_or(0, |room| room.working_set(self.shared))
    }

    /// What is wanted of it with another resident, who needs so many tokens.
    pub fn with_another(&self, replica: ReplicaId, need: u64) -> u64 {
        let Some(room) = self.room(replica) else { return need };
        let own = if room.sharers == 0 { need } else { self.beside_others(need) };
        room.working_set(self.shared) + own
    }

    /// What somebody takes of the cache who has so many tokens, beside others who have what they share.
    pub fn beside_others(&self, tokens: u64) -> u64 {
        tokens.checked_sub(self.shared).unwrap_or(tokens)
    }

    /// What conversations have in common.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// So many tokens are what conversations have in common.
    pub fn share(&mut self, shared: u64) {
        if shared == self.shared {
            return;
        }
        self.shared = shared;
        self.rooms.iter_mut().for_each(|room| room.sharers = 0);
        for resident in self.residents.values() {
            self.rooms[resident.replica.index()].sharers += u32::from(resident.weight() >= shared);
        }
    }

    /// A conversation is let in, or found elsewhere than where it was let in before.
    pub fn enter(&mut self, conversation: ConversationKey, replica: ReplicaId, tokens: u64, now: Duration) {
        self.dismiss(conversation);
        self.entries += 1;
        let resident = Resident {
            entry: self.entries,
            replica,
            tokens,
            in_flight: 0,
            claimed: 0,
            since: now,
            silent_since: now,
            turns: 0,
            asks: true,
            is_leaving: false,
        };
        let shares = resident.weight() >= self.shared;
        let room = self.room_mut(replica);
        room.entered.insert(resident.entry, conversation);
        room.sharers += u32::from(shares);
        room.sum += resident.weight();
        room.silent.insert(conversation, now);
        self.residents.insert(conversation, resident);
    }

    /// A conversation gives its room up. Turns of it that are in flight go on.
    pub fn dismiss(&mut self, conversation: ConversationKey) -> Option<Resident> {
        let resident = self.residents.remove(&conversation)?;
        let shared = resident.weight() >= self.shared;
        let room = self.room_mut(resident.replica);
        room.entered.remove(&resident.entry);
        room.leaving -= u32::from(resident.is_leaving);
        room.silent_ending -= u32::from(resident.has_ended());
        room.sharers -= u32::from(shared);
        room.sum -= resident.weight();
        room.silent.remove(&conversation);
        // What is in flight goes on taking room until it has ended.
        room.visiting += resident.claimed;
        if resident.in_flight == 0 && resident.turns > 0 {
            self.gone.insert(conversation, (resident.silent_since, resident.asks));
            if self.gone.len() > GONE_MAX {
                self.gone.pop_front();
            }
        }
        Some(resident)
    }

    /// A turn of the conversation is there. How long it was silent, with room or without, and whether it had been asked for a
    /// tool's result; `None` if that was told already.
    pub fn came_back(&mut self, conversation: ConversationKey, now: Duration) -> Option<(Duration, bool)> {
        let (since, asks) = match self.residents.get(&conversation) {
            Some(resident) if resident.in_flight == 0 && resident.turns > 0 => (resident.silent_since, resident.asks),
            Some(_) => return None,
            None => self.gone.remove(&conversation)?,
        };
        Some((now.saturating_sub(since), asks))
    }

    /// A turn of a resident begins.
    pub fn begin(&mut self, conversation: ConversationKey, tokens: u64) -> Claim {
        let Some(resident) = self.residents.get(&conversation) else { return Claim::Nothing };
        let (entry, replica, is_cold) = (resident.entry, resident.replica, resident.turns == 0);
        self.change(conversation, |resident| {
            resident.in_flight += 1;
            resident.claimed += tokens;
        });
        let room = self.room_mut(replica);
        room.silent.remove(&conversation);
        room.cold += u32::from(is_cold);
        Claim::Resident { entry, tokens, is_return: !is_cold, is_cold }
    }

    /// A turn begins that belongs to no resident.
    pub fn visit(&mut self, replica: ReplicaId, tokens: u64) -> Claim {
        self.room_mut(replica).visiting += tokens;
        Claim::Visitor { tokens }
    }

    /// The first byte of the answer to a cold turn has come.
    pub fn warmed(&mut self, replica: ReplicaId, claim: &mut Claim) {
        if let Claim::Resident { is_cold: is_cold @ true, .. } = claim {
            *is_cold = false;
            let room = self.room_mut(replica);
            room.cold = room.cold.saturating_sub(1);
        }
    }

    /// A turn has ended on a replica; `conversation` is whose it was.
    pub fn end(&mut self, conversation: Option<ConversationKey>, replica: ReplicaId, mut claim: Claim, now: Duration) {
        self.warmed(replica, &mut claim);
        match claim {
            Claim::Nothing => {}
            Claim::Visitor { tokens } => self.leave(replica, tokens),
            Claim::Resident { entry, tokens, .. } => {
                let is_same = |key: &ConversationKey| self.residents.get(key).is_some_and(|known| known.entry == entry);
                match conversation.filter(is_same) {
                    Some(conversation) => self.end_of_resident(conversation, tokens, now),
                    // It was dismissed meanwhile, and its turns were visitors since.
                    None => self.leave(replica, tokens),
                }
            }
        }
    }

    /// So long is a conversation after its last turn, and so it ended.
    pub fn measured(&mut self, conversation: ConversationKey, tokens: u64, asks: bool) {
        self.change(conversation, |resident| {
            resident.tokens = tokens;
            resident.asks = asks;
        });
    }

    /// A child of the conversation is at work: it is silent because it waits.
    pub fn refresh(&mut self, conversation: ConversationKey, now: Duration) {
        let Some(resident) = self.residents.get_mut(&conversation) else { return };
        resident.silent_since = now;
        let room = &mut self.rooms[resident.replica.index()];
        if let Some(silent_since) = room.silent.to_back(&conversation) {
            *silent_since = now;
        }
    }

    /// A resident has to go when its turns have ended.
    pub fn give_notice(&mut self, conversation: ConversationKey) {
        match self.residents.get_mut(&conversation) {
            Some(resident) if resident.in_flight > 0 => {
                let was_leaving = std::mem::replace(&mut resident.is_leaving, true);
                self.rooms[resident.replica.index()].leaving += u32::from(!was_leaving);
            }
            Some(_) => drop(self.dismiss(conversation)),
            None => {}
        }
    }

    /// Whether a resident of a replica has to go.
    pub fn has_notice(&self, replica: ReplicaId) -> bool {
        self.room(replica).is_some_and(|room| room.leaving > 0)
    }

    /// The cache of a replica is gone: who is silent there has nothing left to keep.
    pub fn empty(&mut self, replica: ReplicaId) {
        let room = self.room_mut(replica);
        room.used_since = None;
        let silent: Vec<_> = room.silent.keys().copied().collect();
        for conversation in silent {
            self.dismiss(conversation);
        }
    }

    /// The residents of a replica that are silent, the longest silent first.
    pub fn silent(&self, replica: ReplicaId) -> impl Iterator<Item = (ConversationKey, &Resident)> {
        let keys = self.room(replica).into_iter().flat_map(|room| room.silent.keys().copied());
        keys.filter_map(|key| Some((key, self.residents.get(&key)?)))
    }

    /// The resident of a replica that was let in first, of those that are to stay.
    pub fn longest_in(&self, replica: ReplicaId) -> Option<(ConversationKey, &Resident)> {
        let keys = self.room(replica)?.entered.values();
        keys.filter_map(|key| Some((*key, self.residents.get(key)?))).find(|(_, resident)| !resident.is_leaving)
    }

    fn end_of_resident(&mut self, conversation: ConversationKey, tokens: u64, now: Duration) {
        self.change(conversation, |resident| {
            resident.in_flight -= 1;
            resident.claimed = resident.claimed.saturating_sub(tokens);
            resident.turns = resident.turns.saturating_add(1);
            resident.silent_since = now;
        });
        let Some(resident) = self.residents.get(&conversation) else { return };
        let (replica, is_silent, is_leaving) = (resident.replica, resident.in_flight == 0, resident.is_leaving);
        if is_silent && is_leaving {
            self.dismiss(conversation);
        } else if is_silent {
            self.room_mut(replica).silent.insert(conversation, now);
        }
    }

    fn leave(&mut self, replica: ReplicaId, tokens: u64) {
        let room = self.room_mut(replica);
        room.visiting = room.visiting.saturating_sub(tokens);
    }

    /// Changes a resident, and with it the sum of its room.
    fn change(&mut self, conversation: ConversationKey, change: impl FnOnce(&mut Resident)) {
        let Some(resident) = self.residents.get_mut(&conversation) else { return };
        let (before, had_ended) = (resident.weight(), resident.has_ended());
        change(resident);
        let (after, has_ended, replica) = (resident.weight(), resident.has_ended(), resident.replica);
        let [shared, shares] = [before, after].map(|weight| u32::from(weight >= self.shared));
        let room = self.room_mut(replica);
        room.sum = room.sum - before + after;
        room.sharers = room.sharers - shared + shares;
        room.silent_ending = room.silent_ending - u32::from(had_ended) + u32::from(has_ended);
    }

    /// Tokens that turns in flight claim on a replica.
    #[cfg(test)]
    pub fn claimed(&self, replica: ReplicaId) -> u64 {
        let residents = self.residents.values().filter(|resident| resident.replica == replica);
        let visiting = self.room(replica).map_or(0, |room| room.visiting);
        visiting + residents.map(|resident| resident.claimed).sum::<u64>()
    }

    /// Panics unless the sums agree with the residents.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        let mut found: Vec<_> = self.rooms.iter().map(|_| (0, 0, 0, 0, 0, 0)).collect();
        for (key, resident) in &self.residents {
            let (residents, sharers, sum, silent, ended, leaving) = &mut found[resident.replica.index()];
            *leaving += u32::from(resident.is_leaving);
            *ended += u32::from(resident.has_ended());
            *residents += 1;
            *sharers += u32::from(resident.weight() >= self.shared);
            *sum += resident.weight();
            *silent += usize::from(resident.in_flight == 0);
            let stands = self.rooms[resident.replica.index()].silent.get(key).copied();
            let silent_since = (resident.in_flight == 0).then_some(resident.silent_since);
            assert_eq!(stands, silent_since, "a resident is silent exactly when it has no turn in flight");
            let entered = self.rooms[resident.replica.index()].entered.get(&resident.entry);
            assert_eq!(entered, Some(key), "a resident has no entry");
        }
        for (room, found) in self.rooms.iter().zip(found) {
            assert_eq!(
                (room.residents(), room.sharers, room.sum, room.silent.len(), room.silent_ending, room.leaving),
                found,
                "a room does not agree with its residents"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_back_tells_once_how_long_it_was_silent_with_room_or_without() {
        let (home, key) = (ReplicaId::from_index(0).expect("a small index"), ConversationKey(7));
        let at = Duration::from_secs;
        let mut rooms = Rooms::default();
        rooms.enter(key, home, 1_000, at(0));
        assert_eq!(rooms.came_back(key, at(1)), None, "its first turn comes back from nowhere");
        let claim = rooms.begin(key, 1_000);
        assert_eq!(rooms.came_back(key, at(2)), None, "it has not gone");
        rooms.end(Some(key), home, claim, at(3));
        assert_eq!(rooms.came_back(key, at(8)), Some((at(5), true)));
        rooms.dismiss(key);
        assert_eq!(rooms.came_back(key, at(10)), Some((at(7), true)));
        assert_eq!(rooms.came_back(key, at(11)), None);
    }

    #[test]
    fn what_conversations_share_counts_once_and_only_for_those_that_are_so_long() {
        let home = ReplicaId::from_index(0).expect("a small index");
        let mut rooms = Rooms::default();
        let at = Duration::ZERO;
        for number in 0..2 {
            rooms.enter(ConversationKey(number), home, 10_000, at);
        }
        rooms.share(3_000);
        assert_eq!((rooms.working_set(home), rooms.with_another(home, 10_000)), (17_000, 24_000));
        // Many that are too short to begin with it would else make all the others look small.
        for number in 2..102 {
            rooms.enter(ConversationKey(number), home, 100, at);
        }
        assert_eq!((rooms.working_set(home), rooms.with_another(home, 100)), (27_000, 27_100));
        // One of them grows, and then what they share is longer.
        rooms.measured(ConversationKey(2), 5_000, true);
        assert_eq!(rooms.working_set(home), 26_900 + 2_000);
        rooms.check_invariants();
        rooms.share(6_000);
        assert_eq!(rooms.working_set(home), 20_000 - 6_000 + 5_000 + 9_900);
        for number in 0..3 {
            rooms.dismiss(ConversationKey(number));
        }
        assert_eq!((rooms.working_set(home), rooms.with_another(home, 10_000)), (9_900, 19_900));
        rooms.check_invariants();
    }

    #[test]
    fn the_one_that_was_let_in_first_is_the_first_to_make_room_and_is_asked_once() {
        let home = ReplicaId::from_index(0).expect("a small index");
        let mut rooms = Rooms::default();
        let claims = [5, 3, 4].map(|number| {
            rooms.enter(ConversationKey(number), home, 1_000, Duration::from_secs(number));
            rooms.begin(ConversationKey(number), 1_000)
        });
        let first = |rooms: &Rooms| rooms.longest_in(home).map(|(key, _)| key.0);
        assert_eq!((first(&rooms), rooms.has_notice(home)), (Some(5), false));
        rooms.give_notice(ConversationKey(5));
        rooms.give_notice(ConversationKey(5));
        rooms.check_invariants();
        assert_eq!((first(&rooms), rooms.has_notice(home)), (Some(3), true));
        rooms.end(Some(ConversationKey(5)), home, claims[0], Duration::from_secs(9));
        rooms.check_invariants();
        assert_eq!((first(&rooms), rooms.has_notice(home)), (Some(3), false));
    }
}
