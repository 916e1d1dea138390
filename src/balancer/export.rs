//! What a balancer remembers, taken out in parts: a million pins at once would hold every decision up.

use std::time::Duration;

use super::Balancer;
use super::records::{Records, ReplicaRecord};
use super::replica::Replica;
use super::walk::{Place, Walked};
use crate::conversation::{ChainKey, ConversationKey};

/// How far an export has come.
#[derive(Debug)]
pub struct Export {
    /// The moment that ages are counted to.
    at: Duration,
    stage: Stage,
}

/// What comes next. Pins change from one list to the other while they are walked over: one that is used goes to the end of
/// the active ones, and one that was silent for long to the end of the idle ones. So both are walked over by turns, idle
/// ones first, and each walk is taken up again once: in less than [`super::ACTIVE_WINDOW`] no pin can escape that.
#[derive(Debug)]
enum Stage {
    Pins { idle: Place<ConversationKey>, active: Place<ConversationKey>, pass: u8 },
    Aliases(Place<ConversationKey>),
    Histories(Place<ChainKey>),
    Done,
}

const PASSES: u8 = 4;

impl Balancer {
    /// The replicas that the records of an export from here on refer to.
    pub fn replica_records(&self) -> Vec<ReplicaRecord> {
        self.replicas.iter().map(Replica::record).collect()
    }

    /// Begins to take out everything that is remembered.
    pub fn begin_export(&self, now: Duration) -> Export {
        let place = Place::at_start(self.memory.pins.len());
        Export { at: now, stage: Stage::Pins { idle: place.clone(), active: place, pass: 0 } }
    }

    /// The next records, `max` at most and maybe none; `None` when everything was taken out. Costs a step for each.
    pub fn export(&mut self, export: &mut Export, max: usize) -> Option<Records> {
        let (memory, at) = (&mut self.memory, export.at);
        let (records, stage) = match std::mem::replace(&mut export.stage, Stage::Done) {
            Stage::Pins { mut idle, mut active, pass } => {
                let (walked, records) = if pass % 2 == 0 {
                    memory.pins.export_idle(&mut idle, max, at)
                } else {
                    memory.pins.export_active(&mut active, max, at)
                };
                let pass = if walked == Walked::More { pass } else { pass + 1 };
                let stage = if pass < PASSES {
                    Stage::Pins { idle, active, pass }
                } else {
                    Stage::Aliases(Place::at_start(memory.aliases.len()))
                };
                (Records::Pins(records), stage)
            }
            Stage::Aliases(mut place) => {
                let (walked, records) = memory.aliases.export(&mut place, max, at);
                let stage = match walked {
                    Walked::More => Stage::Aliases(place),
                    Walked::Everything => Stage::Histories(Place::at_start(memory.histories.len())),
                };
                (Records::Aliases(records), stage)
            }
            Stage::Histories(mut place) => {
                let (walked, records) = memory.histories.export(&mut place, max, at);
                let stage = match walked {
                    Walked::More => Stage::Histories(place),
                    Walked::Everything => Stage::Done,
                };
                (Records::Histories(records), stage)
            }
            Stage::Done => return None,
        };
        export.stage = stage;
        Some(records)
    }

    /// What was used at or after `since`, `max` records of each kind at most.
    pub fn export_since(&self, since: Duration, max: usize, now: Duration) -> [Records; 3] {
        let memory = &self.memory;
        [
            Records::Pins(memory.pins.export_since(since, max, now)),
            Records::Aliases(memory.aliases.export_since(since, max, now)),
            Records::Histories(memory.histories.export_since(since, max, now)),
        ]
    }
}

/// The time between a use and the moment of the export, or none if it was used since.
pub fn age_ms(last_used: Duration, at: Duration) -> u64 {
    u64::try_from(at.saturating_sub(last_used).as_millis()).unwrap_or(u64::MAX)
}
