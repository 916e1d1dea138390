//! What was taken out of a balancer, given to another one: after a restart, with what has changed since, or while the
//! process that it comes from still finishes its turns.
//!
//! Records may be damaged or forged, so nothing is taken for granted of them: whatever they say, the tables stay within
//! their bounds and agree with each other.

use std::time::Duration;

use super::Balancer;
use super::load::Scrape;
use super::records::{AliasRecord, HistoryRecord, PinRecord, Records, ReplicaRecord};
use super::replica::{Order, ReplicaId, ReplicaSpec};

/// What the replicas of the records are today.
#[derive(Debug)]
pub struct Restore {
    targets: Vec<Option<Target>>,
    /// What has passed since the records were taken.
    downtime: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    id: ReplicaId,
    /// Whether its engine may still be the one that it was.
    has_claim: bool,
}

/// What became of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub kept: usize,
    /// Too old, without a replica, or known better.
    pub dropped: usize,
}

impl Balancer {
    /// Gives the replicas that are still there what was ordered for them, and what their engines were known by.
    pub fn begin_restore(&mut self, replicas: &[ReplicaRecord], downtime: Duration, now: Duration) -> Restore {
        let targets = replicas.iter().map(|record| self.target(record)).collect::<Vec<_>>();
        for (record, target) in replicas.iter().zip(&targets) {
            let Some(target) = target else { continue };
            if record.is_ordered_to_drain {
                self.order(target.id, Order::Drain, now);
            }
            self.replicas.change(target.id, &self.policy, |replica| {
                // What the pins' marks refer to.
                if replica.computed == 0 {
                    replica.computed = record.computed;
                }
                if let Some(signs) = record.signs {
                    replica.baseline = Some(Scrape { signs, ..Scrape::default() });
                }
            });
        }
        Restore { targets, downtime }
    }

    /// Takes records in. They come in the order in which they were taken out; what is known from a later use stays.
    pub fn restore(&mut self, restore: &Restore, records: &Records, now: Duration) -> Restored {
        self.changes += 1;
        let mut restored = Restored::default();
        let mut count = |is_kept: bool| match is_kept {
            true => restored.kept += 1,
            false => restored.dropped += 1,
        };
        match records {
            Records::Pins(pins) => pins.iter().for_each(|pin| count(self.restore_pin(restore, pin, now))),
            Records::Aliases(aliases) => {
                aliases.iter().for_each(|alias| count(self.restore_alias(restore, alias, now)));
            }
            Records::Histories(histories) => {
                histories.iter().for_each(|history| count(self.restore_history(restore, history, now)));
            }
        }
        restored
    }

    fn restore_pin(&mut self, restore: &Restore, record: &PinRecord, now: Duration) -> bool {
        let Some(Some(target)) = restore.targets.get(usize::from(record.replica)) else { return false };
        let record = PinRecord { has_claim: record.has_claim && target.has_claim, ..*record };
        let Some(last_used) = restore.last_used(record.age_ms, now) else { return false };
        let key = record.key.into();
        let is_kept = self.memory.pins.restore(&record, target.id, last_used, now);
        if is_kept {
            // A key that has a pin is no alias.
            self.memory.aliases.remove(key);
        }
        is_kept
    }

    fn restore_alias(&mut self, restore: &Restore, record: &AliasRecord, now: Duration) -> bool {
        let (name, conversation) = (record.name.into(), record.conversation.into());
        let pins = &self.memory.pins;
        let leads_somewhere = name != conversation && pins.contains(conversation) && !pins.contains(name);
        let last_used = restore.last_used(record.age_ms, now).filter(|_| leads_somewhere);
        last_used.is_some_and(|last_used| self.memory.aliases.restore(name, conversation, last_used))
    }

    fn restore_history(&mut self, restore: &Restore, record: &HistoryRecord, now: Duration) -> bool {
        let last_used = restore.last_used(record.age_ms, now);
        last_used.is_some_and(|last_used| self.memory.histories.restore(record, last_used))
    }

    /// The replica that a record is of: the one that reaches the same engine, as with a reload, or else the one of the same
    /// name, whose address may have been looked up anew. What is at another address has a claim only if its engine says that
    /// it is the same.
    fn target(&self, record: &ReplicaRecord) -> Option<Target> {
        let is_engine = |spec: &ReplicaSpec| spec.address == record.address && spec.rank == record.rank;
        let is_namesake = |spec: &ReplicaSpec| spec.name == record.name && spec.rank == record.rank;
        let find = |matches: &dyn Fn(&ReplicaSpec) -> bool| {
            self.configured()
                .find(|(_, replica)| matches(&replica.spec))
                .map(|(id, replica)| (id, replica.load.scrape()))
        };
        let (is_same, (id, scrape)) = match find(&is_engine) {
            Some(found) => (true, found),
            None => (false, find(&is_namesake)?),
        };
        let known = record.signs.unwrap_or_default();
        let has_claim = match scrape {
            // It was looked at already.
            Some(scrape) if scrape.signs.is_same_process(&known) => true,
            Some(scrape) => is_same && scrape.restart_since(&Scrape { signs: known, ..Scrape::default() }).is_none(),
            None => is_same || known.start_s.is_some(),
        };
        Some(Target { id, has_claim })
    }
}

impl Restore {
    /// When something was used last, on this balancer's clock; `None` if that was before the clock began.
    fn last_used(&self, age_ms: u64, now: Duration) -> Option<Duration> {
        now.checked_sub(Duration::from_millis(age_ms).checked_add(self.downtime)?)
    }
}
