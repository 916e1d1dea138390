//! The conversations that are resident on one replica, and the room that they take.

use std::collections::BTreeMap;
use std::hash::BuildHasherDefault;
use std::time::Duration;

use hashlink::LinkedHashMap;

use crate::conversation::ConversationKey;

use super::super::affinity::KeyHasher;
use super::super::replica::ReplicaId;

/// A conversation that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The how manyth it was of all that were let in: another stay has another one.
    pub entry: u64,
    pub replica: ReplicaId,
    /// What it has in the cache, prompt and answer of its last turn, and what it is given to grow by; until a turn was measured,
    /// what it is taken for.
    pub tokens: u64,
    /// Turns in flight, and what they are taken for together.
    pub in_flight: u32,
    pub claimed: u64,
    pub since: Duration,
    /// When its last turn ended, or it was let in.
    pub silent_since: Duration,
    /// Turns that have ended since it was let in.
    pub turns: u32,
    /// Whether its last answer asks for a tool's result.
    pub asks: bool,
    /// Whether it has to go when its turns have ended.
    pub is_leaving: bool,
}

/// The room of one replica.
#[derive(Debug)]
pub struct Room {
    /// Residents without a turn in flight and since when, the one that is silent for longest first.
    pub silent: LinkedHashMap<ConversationKey, Duration, BuildHasherDefault<KeyHasher>>,
    /// How many of those have an answer behind them that ended what the client asked for.
    pub silent_ending: u32,
    /// All residents by their entries, so the one first that was let in first.
    pub entered: BTreeMap<u64, ConversationKey>,
    /// Those who have to go.
    pub leaving: u32,
    /// What all residents take, each by itself.
    pub sum: u64,
    /// Residents as long as what conversations have in common. A shorter one is none of those that begin with it.
    pub sharers: u32,
    /// What turns in flight take that belong to no resident.
    pub visiting: u64,
    /// Residents that were let in and whose first turn has no answer yet.
    pub cold: u32,
    /// Since when the cache has the beginning of a conversation in it.
    pub used_since: Option<Duration>,
    pub trim: Trim,
}

/// The share of the capacity that is counted on, by what residents find.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    percent: u32,
    /// The share of their histories that residents did not find, lately.
    missed: f64,
    at: Duration,
}

const TRIM_EVERY: Duration = Duration::from_secs(10);
/// Less than half of what an engine says that it has is not believed.
const TRIM_PERCENT_MIN: u32 = 50;
/// Residents that miss more than this share of their histories are too many, for this engine.
const MISSED_MAX: f64 = 0.15;
const MISSED_FEW: f64 = 0.05;
/// What a turn leaves of the weight of those before it.
const MISSED_KEPT: f64 = 0.9;

impl Resident {
    /// The tokens that it takes. Turns that run side by side have each a history of their own, at worst.
    pub fn weight(&self) -> u64 {
        self.tokens.max(self.claimed)
    }

    /// Whether nobody is expected to go on soon.
    pub fn has_ended(&self) -> bool {
        self.in_flight == 0 && !self.asks
    }
}

impl Room {
    pub fn new() -> Self {
        Room {
            silent: LinkedHashMap::default(),
            silent_ending: 0,
            entered: BTreeMap::new(),
            leaving: 0,
            sum: 0,
            sharers: 0,
            visiting: 0,
            cold: 0,
            used_since: None,
            trim: Trim { percent: 100, missed: 0.0, at: Duration::ZERO },
        }
    }

    pub fn residents(&self) -> u32 {
        self.entered.len() as u32
    }

    /// What is wanted of the cache, where `shared` tokens of those who share are the same ones.
    pub fn working_set(&self, shared: u64) -> u64 {
        let again = shared * u64::from(self.sharers.saturating_sub(1));
        self.visiting + self.sum.saturating_sub(again)
    }
}

impl Trim {
    pub fn percent(&self) -> u32 {
        self.percent
    }

    /// A resident's turn has found all but a share of its history.
    pub fn found(&mut self, missed: f64, now: Duration) {
        self.missed = self.missed * MISSED_KEPT + missed * (1.0 - MISSED_KEPT);
        if now.saturating_sub(self.at) < TRIM_EVERY {
            return;
        }
        if self.missed > MISSED_MAX {
            self.percent = (self.percent * 95 / 100).max(TRIM_PERCENT_MIN);
            // What is missed from here on speaks of the smaller share.
            self.missed /= 2.0;
        } else if self.missed < MISSED_FEW {
            self.percent = (self.percent + 1).min(100);
        }
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_trimmed_while_residents_miss_their_histories_and_comes_back_slowly() {
        let mut trim = Room::new().trim;
        let mut now = Duration::from_secs(100);
        let mut turns = |trim: &mut Trim, missed: f64, count: u32| {
            for _ in 0..count {
                now += Duration::from_secs(1);
                trim.found(missed, now);
            }
        };
        turns(&mut trim, 0.0, 100);
        assert_eq!(trim.percent(), 100);
        turns(&mut trim, 0.8, 60);
        let trimmed = trim.percent();
        assert!((70..90).contains(&trimmed), "{trimmed}");
        turns(&mut trim, 0.9, 10_000);
        assert_eq!(trim.percent(), TRIM_PERCENT_MIN);
        turns(&mut trim, 0.0, 200);
        assert!((60..75).contains(&trim.percent()), "{}", trim.percent());
    }
}
