//! The decision core: which replica serves a turn.
//!
//! Pure: it waits for nothing, reads no clock, draws no entropy, logs nothing and touches no registry. `now` comes in as
//! the time since an epoch of the caller's choice and never goes back; what was decided, and why, goes out as values. So
//! the code that serves production is the code that tests and the simulator drive in virtual time.
//!
//! The life of a turn: [`Balancer::arrive`] decides and takes the slot, [`Balancer::served`] marks the first byte of a
//! good response, [`Balancer::charge`] books what it cost, [`Balancer::finish`] gives the slot back. A [`Ticket`] carries the turn from one to the next.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod accounts;
mod admission;
mod admit;
mod affinity;
mod aliases;
mod choice;
mod claims;
mod cost;
mod distribution;
mod evidence;
mod export;
mod health;
mod histories;
mod ledger;
mod lists;
mod load;
mod membership;
mod memory;
mod observe;
mod pin;
mod placement;
mod policy;
mod recent;
mod records;
mod replica;
mod replicas;
mod restore;
mod silence;
mod snapshot;
#[cfg(test)]
mod tests;
mod ticket;
mod turn;
mod vitals;
mod walk;

use std::sync::Arc;
use std::time::Duration;

pub use admission::{Admission, AdmissionMode, DoorCounters, Place, Stay, Tuning};
pub use admit::Entry;
pub use affinity::{ACTIVE_WINDOW, Bounds, Held};
pub use aliases::ALIASES_MAX;
pub use cost::{Bill, Cold, ColdReason, Cost};
pub use distribution::Distribution;
pub use evidence::Evidence;
pub use export::Export;
pub use health::{DownReason, DrainReason, Health, News, Outage, RestartCause};
pub use ledger::{ColdLine, Ledger};
pub use load::{SCRAPE_AGE_MAX, Scrape, Signs};
pub use memory::FORK_TEXT_BYTES_MIN;
pub use observe::Ordered;
pub use pin::Tokens;
pub use policy::{ASSUMED_MAX_NUM_SEQS, HealthPolicy, MaxNumSeqsSource, Mode, Policy, SpillThreshold};
pub use records::{AliasRecord, HistoryRecord, PartRecord, PinRecord, RawKey, Records, ReplicaRecord};
pub use replica::{Counters, Membership, Order, ReplicaId, ReplicaSpec};
pub use restore::{Restore, Restored};
pub use snapshot::{ConversationSnapshot, DoorSnapshot, ReplicaSnapshot, RoomSnapshot, Snapshot};
pub use ticket::{Foreseen, Ticket};
pub use turn::{Decision, Outcome, Placement, Ranks, Recognised, Refusal, Turn, TurnKind, Unpinned};

use crate::conversation::ConversationKey;

use admission::Door;
use choice::Choice;
use ledger::BytesPerToken;
use memory::Memory;
use placement::Rotation;
use replica::Replica;
use replicas::Replicas;

/// News that nobody has taken. The shell takes them after every call, so that this bounds only what a caller without one holds.
const NEWS_MAX: usize = 1_024;

/// The replicas, pins and counters of one model.
#[derive(Debug)]
pub struct Balancer {
    policy: Policy,
    replicas: Replicas,
    memory: Memory,
    door: Door,
    bytes_per_token: BytesPerToken,
    first_bytes: Distribution,
    rotation: Rotation,
    refused: [u64; Refusal::ALL.len()],
    news: Vec<News>,
    /// Grows with whatever changes what an export has.
    changes: u64,
}

impl Balancer {
    pub fn new(policy: Policy, specs: Vec<ReplicaSpec>, now: Duration) -> Self {
        let mut balancer = Balancer {
            policy,
            replicas: Replicas::default(),
            memory: Memory::new(policy.bounds),
            door: Door::new(),
            bytes_per_token: BytesPerToken::new(),
            first_bytes: Distribution::new(),
            rotation: Rotation::default(),
            refused: [0; Refusal::ALL.len()],
            news: Vec::new(),
            changes: 0,
        };
        balancer.reconfigure(policy, specs, now);
        balancer
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What [`Balancer::arrive`] would do with a turn at this moment. Nothing is taken, counted or marked as used.
    pub fn foresee(&self, turn: &Turn<'_>, now: Duration) -> Result<Foreseen, Refusal> {
        self.choose(turn, now).map(Foreseen::from)
    }

    /// Decides where a turn goes and takes its slot there.
    pub fn arrive(&mut self, turn: &Turn<'_>, now: Duration) -> Result<Ticket, Refusal> {
        let chosen = self.choose(turn, now);
        self.settle(chosen, turn, now)
    }

    /// Takes up what was chosen for a turn.
    fn settle(&mut self, chosen: Result<Choice, Refusal>, turn: &Turn<'_>, now: Duration) -> Result<Ticket, Refusal> {
        let ticket = chosen.map(|choice| self.take(&choice, turn, now)).inspect_err(|refusal| {
            self.refused[*refusal as usize] += 1;
        });
        // Behind the choice, which so needs nothing changed and can be foreseen.
        self.memory.sweep(now);
        ticket
    }

    /// More is heard of a turn whose body was not whole when it was decided: `turn` has the ids and the history that were
    /// found since. The decision stands; once the turn is served they are remembered in place of what came with it. A turn
    /// that was served already, or has no say in where its conversation is pinned, teaches no more.
    pub fn learn_more(&mut self, ticket: &mut Ticket, turn: &Turn<'_>, now: Duration) {
        if !ticket.counted {
            self.memory.learn_more(ticket, turn, now);
        }
    }

    /// The first byte of a good response has come: the turn counts as served, its pin holds from here on, and what it
    /// says of its conversation is remembered.
    pub fn served(&mut self, ticket: &mut Ticket, now: Duration) {
        self.count(ticket);
        ticket.first.get_or_insert(now);
        self.door.rooms.warmed(ticket.replica, &mut ticket.claim);
        self.let_in(now);
        self.changes += 1;
        self.memory.learn(ticket, now);
        self.observe(ticket.replica, Evidence::Served, now);
    }

    /// The first byte of a turn's answer took so long, from the request's arrival. Side calls, which generate little or nothing,
    /// would only blur it.
    pub fn note_first_byte(&mut self, ticket: &Ticket, took: Duration) {
        if ticket.decision != Decision::Side {
            self.first_bytes.add(took);
        }
    }

    /// The turn has ended: its slot is free again.
    pub fn finish(&mut self, mut ticket: Ticket, outcome: Outcome, now: Duration) {
        if outcome != Outcome::MovedOn {
            self.count(&mut ticket);
        }
        self.replicas.change(ticket.replica, &self.policy, |replica| {
            replica.counters.count_outcome(outcome);
            replica.end(now);
        });
        self.note_drained(ticket.replica);
        self.memory.release(&ticket, now);
        self.unclaim(&ticket, now);
        self.let_in(now);
    }

    /// The engine told its `max_num_seqs`. It is used where the configuration has none.
    pub fn set_max_num_seqs(&mut self, id: ReplicaId, max_num_seqs: u32) {
        self.replicas.change(id, &self.policy, |replica| replica.reported_max_num_seqs = Some(max_num_seqs));
    }

    /// The configured replica of that name.
    pub fn replica_named(&self, name: &str) -> Option<ReplicaId> {
        self.configured().find(|(_, replica)| replica.spec.name == name).map(|(id, _)| id)
    }

    /// The configured replicas with their ids, in the order of their ids.
    pub fn specs(&self) -> impl Iterator<Item = (ReplicaId, &Arc<ReplicaSpec>)> {
        self.configured().map(|(id, replica)| (id, &replica.spec))
    }

    /// Whether `id` is still the engine that `spec` reaches. A reload may give the id of a retired replica to another.
    pub fn is_engine_of(&self, id: ReplicaId, spec: &ReplicaSpec) -> bool {
        self.replicas.get(id.index()).is_some_and(|replica| replica.spec.same_engine(spec))
    }

    /// The replica that a turn was given: what it is and how it is reached.
    pub fn spec(&self, ticket: &Ticket) -> &Arc<ReplicaSpec> {
        &self.replicas[ticket.replica.index()].spec
    }

    /// Whether any replica can be given a turn and has been seen up.
    pub fn is_ready(&self) -> bool {
        let seen_up = |replica: &Replica| matches!(replica.health(), Health::Up | Health::Suspect(_));
        self.replicas.iter().any(|replica| replica.serves() && seen_up(replica))
    }

    /// Whether an id leads to a pinned conversation.
    pub fn knows(&self, id: ConversationKey, now: Duration) -> bool {
        self.memory.knows(id, now)
    }

    /// The conversations that were used last, the newest first. Costs a step for each.
    pub fn conversations(&self, limit: usize, now: Duration) -> Vec<ConversationSnapshot> {
        snapshot::newest(self, limit, now)
    }

    /// A number that is another one if anything has changed that an export has, ages left aside.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Everything a reader may want to see. Costs a pass over the replicas, not over the pins.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        snapshot::take(self, now)
    }

    /// Takes a choice up: the slot, and what it means for the conversation.
    fn take(&mut self, choice: &Choice, turn: &Turn<'_>, now: Duration) -> Ticket {
        self.replicas.change(choice.replica, &self.policy, |replica| replica.begin(now));
        if choice.by_load {
            self.rotation.turn_past(choice.replica);
        }
        if let Some(speaker) = &choice.speaker {
            self.changes += 1;
            self.memory.hold(speaker, choice.replica, choice.decision, now);
        }
        let claim = self.claim(choice, turn, now);
        Ticket { claim, seated: now, ..Ticket::new(choice, turn) }
    }

    fn count(&mut self, ticket: &mut Ticket) {
        if !std::mem::replace(&mut ticket.counted, true) {
            self.replicas.books(ticket.replica).counters.count_decision(ticket.decision);
        }
    }

    fn configured(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas
            .iter()
            .enumerate()
            .filter_map(|(index, replica)| Some((ReplicaId::from_index(index)?, replica)))
            .filter(|(_, replica)| replica.membership == Membership::Configured)
    }

    /// Panics unless the parts agree with each other. For tests, after every step.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        self.memory.check_invariants();
        self.replicas.check_invariants(&self.policy);
        self.door.rooms.check_invariants();
        self.door.line.check_invariants();
        for replica in self.replicas.iter() {
            assert!(replica.membership == Membership::Configured || !replica.serves(), "a retired replica serves");
            assert!(
                replica.health().serves() || !replica.serves(),
                "a replica serves that is down, draining or asleep"
            );
        }
    }

    /// Puts a replica in a state, however it would come to it.
    #[cfg(test)]
    pub fn set_health(&mut self, id: ReplicaId, health: Health, now: Duration) {
        self.replicas.change(id, &self.policy, |replica| replica.vitals.set(health, now));
    }
}
