//! The door of a model: its rooms, its line, and what it has learnt.

use std::cell::Cell;
use std::time::Duration;

use crate::conversation::ConversationKey;

use super::super::distribution::Distribution;
use super::super::replica::ReplicaId;
use super::budget::Budget;
use super::gaps::Gaps;
use super::learnt::Learnt;
use super::line::{Line, Place, Waiting};
use super::policy::{Admission, Stay};
use super::residents::{Resident, Room};
use super::rooms::Rooms;

/// Silent residents that are looked at for one who waits, so that no decision waits for a long search.
const LOOKED_AT_MAX: usize = 64;

/// One look at the line, at one moment.
pub struct Look {
    pub policy: Admission,
    pub now: Duration,
    /// What was worked out for the capacity of a cache. Replicas mostly have the same one.
    stays: Cell<Option<(u64, Stays)>>,
    /// The least need for which there was no room anywhere. While the line is looked at, rooms only become fuller.
    misfit: Cell<u64>,
}

/// How long residents may be silent who fit into the cache.
#[derive(Clone, Copy)]
struct Stays {
    asking: Duration,
    ending: Duration,
}

/// What the door has done. Counted since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorCounters {
    /// Turns that had to wait.
    pub held: u64,
    /// Those that were let in over the line: they had waited for long enough, or too many were held already.
    pub forced: u64,
    /// Those whose client left while they waited.
    pub left: u64,
    /// Residents that had to make room.
    pub parked: u64,
}

#[derive(Debug)]
pub struct Door {
    pub rooms: Rooms,
    pub line: Line,
    pub budget: Budget,
    pub gaps: Gaps,
    pub learnt: Learnt,
    pub counters: DoorCounters,
    /// How long those were held who were let in.
    pub holds: Distribution,
    /// Places whose turns may enter, until the shell takes them.
    pub let_in: Vec<Place>,
}

impl Stays {
    /// The shortest stay of the silent residents of a room. One that does not fit into the cache stays no shorter.
    fn shortest_in(&self, room: &Room) -> Duration {
        let ending = room.silent_ending as usize;
        match (room.silent.len() - ending, ending) {
            (_, 0) => self.asking,
            (0, _) => self.ending,
            (_, _) => self.asking.min(self.ending),
        }
    }
}

impl Look {
    pub fn new(policy: Admission, now: Duration) -> Self {
        Look { policy, now, stays: Cell::new(None), misfit: Cell::new(u64::MAX) }
    }

    /// Whether it is known that somebody who needs so many tokens finds no room anywhere.
    pub fn is_misfit(&self, need: u64) -> bool {
        need >= self.misfit.get()
    }

    /// Nobody had room for so many tokens. That says nothing of longer conversations where it is less than what conversations
    /// have in common: those take what they have beyond that, and this one takes all.
    pub fn note_misfit(&self, need: u64, shared: u64) {
        if need >= shared {
            self.misfit.set(need.min(self.misfit.get()));
        }
    }
}

impl Door {
    pub fn new() -> Self {
        Door {
            rooms: Rooms::default(),
            line: Line::default(),
            budget: Budget::new(),
            gaps: Gaps::default(),
            learnt: Learnt::new(),
            counters: DoorCounters::default(),
            holds: Distribution::new(),
            let_in: Vec::new(),
        }
    }

    /// The replica in whose cache a conversation has its room.
    pub fn room_of(&self, conversation: ConversationKey) -> Option<ReplicaId> {
        self.rooms.resident(conversation).map(|resident| resident.replica)
    }

    /// Up to how many tokens conversations are let in on a replica.
    pub fn limit(&self, replica: ReplicaId, capacity: u64, policy: &Admission) -> u64 {
        let trimmed = match policy.tuning.trims {
            true => self.rooms.room(replica).map_or(100, |room| u64::from(room.trim.percent())),
            false => 100,
        };
        capacity * u64::from(policy.tuning.fill_percent) / 100 * trimmed / 100
    }

    /// The silent residents that would have to go for another one to fit who needs so many tokens; `None` if that is not
    /// enough. Those go first who are silent for longest, and only whose stay is over.
    pub fn room_for(&self, replica: ReplicaId, need: u64, capacity: u64, look: &Look) -> Option<Vec<ConversationKey>> {
        let limit = self.limit(replica, capacity, &look.policy);
        let mut over = self.rooms.with_another(replica, need).saturating_sub(limit);
        if over == 0 {
            return Some(Vec::new());
        }
        let room = self.rooms.room(replica)?;
        let stays = self.stays(capacity, look);
        let shortest = stays.shortest_in(room);
        let silent_for = |since: Duration| look.now.saturating_sub(since);
        let longest = room.silent.front().map(|(_, since)| silent_for(*since));
        if room.residents() > 0 && longest.is_none_or(|longest| longest < shortest) {
            return None;
        }
        let (mut going, mut staying) = (Vec::new(), room.residents());
        let overdue = room.silent.iter().take_while(|(_, since)| silent_for(**since) >= shortest);
        for (&conversation, since) in overdue.take(LOOKED_AT_MAX) {
            let Some(resident) = self.rooms.resident(conversation) else { continue };
            if silent_for(*since) >= self.stay(resident, capacity, look, &stays) {
                going.push(conversation);
                staying -= 1;
                over = over.saturating_sub(self.rooms.beside_others(resident.weight()));
                if over == 0 {
                    return Some(going);
                }
            }
        }
        // Nobody else is there: more room than all of it there is not.
        (staying == 0 && room.visiting == 0).then_some(going)
    }

    /// How long a resident may be silent.
    fn stay(&self, resident: &Resident, capacity: u64, look: &Look, stays: &Stays) -> Duration {
        match look.policy.tuning.stay {
            // It has no larger share than all of the cache, but takes longer to be read again.
            Stay::Learnt if resident.weight() > capacity => {
                self.gaps.stay(resident.asks, self.learnt.reread(resident.tokens), 1.0)
            }
            Stay::Learnt if resident.asks => stays.asking,
            Stay::Learnt => stays.ending,
            Stay::Fixed(stay) => stay,
        }
    }

    /// What a resident costs by its silence and what it saves both grow with its length, so that the best stay is the same for
    /// all who fit into the cache. It is worked out for one that fills it.
    fn stays(&self, capacity: u64, look: &Look) -> Stays {
        if let Some((_, stays)) = look.stays.get().filter(|(known, _)| *known == capacity) {
            return stays;
        }
        let stay = |asks| match look.policy.tuning.stay {
            Stay::Learnt => self.gaps.stay(asks, self.learnt.reread(capacity), 1.0),
            Stay::Fixed(stay) => stay,
        };
        let stays = Stays { asking: stay(true), ending: stay(false) };
        look.stays.set(Some((capacity, stays)));
        stays
    }

    /// Books how long the turns were held that wait at a place and get in. False where that is no time: they were not held.
    pub fn note_held(&mut self, waiting: &Waiting, now: Duration) -> bool {
        let held = now.saturating_sub(waiting.since);
        if held.is_zero() {
            return false;
        }
        (0..waiting.turns()).for_each(|_| self.holds.add(held));
        true
    }

    /// Residents who are silent make room until the others are under `limit`, those first who were let in first.
    pub fn relieve(&mut self, replica: ReplicaId, limit: u64, spared: ConversationKey) {
        while self.rooms.working_set(replica) > limit {
            let silent = self.rooms.silent(replica).filter(|(key, _)| *key != spared).take(LOOKED_AT_MAX);
            let Some((conversation, _)) = silent.min_by_key(|(key, resident)| (resident.since, *key)) else { return };
            self.rooms.dismiss(conversation);
            self.counters.parked += 1;
        }
    }
}
