//! A replica as the balancer sees it: what it is, whether it is up, its load, and what it was given to do.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use super::health::{DrainReason, Health};
use super::ledger::Ledger;
use super::load::{Load, Scrape};
use super::policy::HealthPolicy;
use super::records::ReplicaRecord;
use super::turn::{Decision, Outcome, Placement};
use super::vitals::Vitals;

/// The index of a replica within its model. It stays the same as long as the replica is configured, over reloads too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(
    /// One more than the index, so that an `Option` of it is no larger: pins have one.
    NonZeroU16,
);

/// What a replica is and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    /// The name that operators and clients use. Unique within the model.
    pub name: String,
    pub address: SocketAddr,
    /// `host:port` as configured, for the `Host` header.
    pub authority: String,
    /// Whether it is spoken to over TLS, and never otherwise.
    pub is_tls: bool,
    /// The data-parallel rank of the server behind `address`; `None` for a server with one engine.
    pub rank: Option<u16>,
    /// Whether the configuration wants it to take nothing new.
    pub drain: bool,
}

/// What an operator tells a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To take no new conversations, and to let go of those it has when their turns have ended.
    Drain,
    Undrain,
}

/// Whether a replica stands in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    Configured,
    /// Taken out by a reload; kept while leases or pins still refer to it.
    Retired,
}

/// What a replica was given to do, and how it ended. Counted since the process started or the replica was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub sticky: u64,
    pub placed: u64,
    /// Those of `placed` whose conversation had to leave another replica for good.
    pub replaced: u64,
    /// Those of `placed` that began here because the conversation they were forked from is here.
    pub forked: u64,
    pub spilled_in: u64,
    pub client_pinned: u64,
    pub unpinned: u64,
    pub side: u64,
    pub completed: u64,
    pub rejected: u64,
    pub failed: u64,
    pub abandoned: u64,
    /// Turns that it failed before answering and that went on elsewhere.
    pub moved_on: u64,
    /// Restarts of its engine that were seen.
    pub restarts: u64,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub spec: Arc<ReplicaSpec>,
    pub membership: Membership,
    pub vitals: Vitals,
    /// Whether an operator wants it to take nothing new.
    is_ordered_to_drain: bool,
    drain_since: Option<Duration>,
    pub load: Load,
    /// What stands in for a scrape until there is one: what its engine was known by before this process.
    pub baseline: Option<Scrape>,
    pub counters: Counters,
    pub ledger: Ledger,
    /// Tokens that were computed on it for kvpin's turns, modulo 2^32: what has come into its cache.
    pub computed: u32,
    /// The engine's own `max_num_seqs`, where it tells.
    pub reported_max_num_seqs: Option<u32>,
}

impl ReplicaId {
    /// The id at a place in the model's list. The configuration bounds a model to 1,024 replicas.
    pub fn from_index(index: usize) -> Option<ReplicaId> {
        let number = u16::try_from(index).ok()?.checked_add(1)?;
        NonZeroU16::new(number).map(ReplicaId)
    }

    pub fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }
}

impl ReplicaSpec {
    /// Whether both reach the same engine. A new name makes no new engine.
    pub fn same_engine(&self, other: &ReplicaSpec) -> bool {
        self.address == other.address && self.rank == other.rank
    }
}

impl Replica {
    pub fn new(spec: Arc<ReplicaSpec>, now: Duration) -> Self {
        Replica {
            drain_since: spec.drain.then_some(now),
            is_ordered_to_drain: false,
            spec,
            membership: Membership::Configured,
            vitals: Vitals::new(now),
            load: Load::default(),
            baseline: None,
            counters: Counters::default(),
            ledger: Ledger::default(),
            computed: 0,
            reported_max_num_seqs: None,
        }
    }

    /// Takes over what the configuration says of the engine. What an operator has ordered meanwhile stands.
    pub fn configure(&mut self, spec: Arc<ReplicaSpec>, now: Duration) {
        self.spec = spec;
        self.membership = Membership::Configured;
        self.note_drain(now);
    }

    /// Whether it may be given a turn.
    pub fn serves(&self) -> bool {
        self.membership == Membership::Configured && self.health().serves()
    }

    /// Its engine's health or, where that would let it take turns, that it is to take nothing new.
    pub fn health(&self) -> Health {
        match self.drain_reason() {
            Some(reason) if self.vitals.health().serves() => Health::Draining(reason),
            Some(_) | None => self.vitals.health(),
        }
    }

    /// Since when it has the health that it has.
    pub fn health_since(&self) -> Duration {
        let since = self.vitals.since();
        match self.drain_since {
            Some(drained) if self.vitals.health().serves() => drained,
            Some(_) | None => since,
        }
    }

    /// Why it is to take nothing new, whether its engine is well or not.
    pub fn drain_reason(&self) -> Option<DrainReason> {
        if self.spec.drain {
            Some(DrainReason::Configured)
        } else if self.is_ordered_to_drain {
            Some(DrainReason::Ordered)
        } else {
            None
        }
    }

    pub fn order_drain(&mut self, order: Order, now: Duration) {
        self.is_ordered_to_drain = order == Order::Drain;
        self.note_drain(now);
    }

    fn note_drain(&mut self, now: Duration) {
        self.drain_since = self.drain_reason().map(|_| self.drain_since.unwrap_or(now));
    }

    pub fn begin(&mut self, now: Duration) {
        self.load.begin();
        self.note_occupied(now);
    }

    pub fn end(&mut self, now: Duration) {
        self.load.end();
        self.note_occupied(now);
    }

    pub fn scraped(&mut self, scrape: Scrape, policy: &HealthPolicy) {
        let baseline = self.baseline.take();
        self.vitals.scraped(&scrape, self.load.scrape().or(baseline.as_ref()), policy);
        self.load.scraped(scrape);
        self.note_occupied(scrape.at);
    }

    /// What of it is to outlive the process.
    pub fn record(&self) -> ReplicaRecord {
        let ReplicaSpec { name, address, authority: _, rank, drain: _, is_tls: _ } = &*self.spec;
        ReplicaRecord {
            name: name.clone(),
            address: *address,
            rank: *rank,
            is_ordered_to_drain: self.is_ordered_to_drain,
            computed: self.computed,
            signs: self.load.scrape().or(self.baseline.as_ref()).map(|scrape| scrape.signs),
        }
    }

    fn note_occupied(&mut self, now: Duration) {
        self.vitals.set_occupied(self.load.is_occupied(), now);
    }
}

impl Counters {
    pub fn count_decision(&mut self, decision: Decision) {
        *match decision {
            Decision::Sticky => &mut self.sticky,
            Decision::Placed { .. } => &mut self.placed,
            Decision::Spilled { .. } => &mut self.spilled_in,
            Decision::ClientPinned => &mut self.client_pinned,
            Decision::Unpinned { .. } => &mut self.unpinned,
            Decision::Side => &mut self.side,
        } += 1;
        if let Decision::Placed { reason } = decision {
            match reason {
                Placement::New => {}
                Placement::Forked => self.forked += 1,
                Placement::HomeDown
                | Placement::HomeRemoved
                | Placement::HomeFailed
                | Placement::HomeRestarted
                | Placement::HomeDraining
                | Placement::HomeSleeping
                | Placement::HomeFull => self.replaced += 1,
            }
        }
    }

    pub fn count_outcome(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Rejected => &mut self.rejected,
            Outcome::Failed => &mut self.failed,
            Outcome::Abandoned => &mut self.abandoned,
            Outcome::MovedOn => &mut self.moved_on,
        } += 1;
    }
}
