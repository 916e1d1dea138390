//! A replica as the balancer sees it: what it is, whether it is up, its load, and what it was given to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::load::{Load, Scrape};
use super::turn::{Decision, Outcome, Placement};

/// The index of a replica within its model. It stays the same as long as the replica is configured, over reloads too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(u16);

/// What a replica is and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaSpec {
    /// The name that operators and clients use. Unique within the model.
    pub name: String,
    pub address: SocketAddr,
    /// `host:port` as configured, for the `Host` header.
    pub authority: String,
    /// The data-parallel rank of the server behind `address`; `None` for a server with one engine.
    pub rank: Option<u16>,
}

/// Whether a replica can be given turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not looked at yet. It is given turns: a failure to connect says soon enough if it is down.
    Unknown,
    Up,
    Down(DownReason),
}

/// What showed that a replica is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    ConnectRefused,
    ConnectTimedOut,
    /// It accepted a connection but did not answer a probe.
    ProbeFailed,
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
}

#[derive(Debug)]
pub(super) struct Replica {
    pub spec: Arc<ReplicaSpec>,
    pub membership: Membership,
    pub health: Health,
    pub health_since: Duration,
    pub load: Load,
    pub counters: Counters,
    /// The engine's own `max_num_seqs`, where it tells.
    pub reported_max_num_seqs: Option<u32>,
}

impl ReplicaId {
    /// The id at a place in the model's list. The configuration bounds a model to 1,024 replicas.
    pub fn from_index(index: usize) -> Option<ReplicaId> {
        u16::try_from(index).ok().map(ReplicaId)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ReplicaSpec {
    /// Whether both reach the same engine. A new name makes no new engine.
    pub fn same_engine(&self, other: &ReplicaSpec) -> bool {
        self.address == other.address && self.rank == other.rank
    }
}

impl DownReason {
    /// The word used in logs and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            DownReason::ConnectRefused => "connect_refused",
            DownReason::ConnectTimedOut => "connect_timed_out",
            DownReason::ProbeFailed => "probe_failed",
        }
    }
}

impl Health {
    /// The word used in logs and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Down(_) => "down",
        }
    }
}

impl Replica {
    pub fn new(spec: Arc<ReplicaSpec>, now: Duration) -> Self {
        Replica {
            spec,
            membership: Membership::Configured,
            health: Health::Unknown,
            health_since: now,
            load: Load::default(),
            counters: Counters::default(),
            reported_max_num_seqs: None,
        }
    }

    /// Whether it may be given a turn.
    pub fn serves(&self) -> bool {
        self.membership == Membership::Configured && !matches!(self.health, Health::Down(_))
    }

    pub fn set_health(&mut self, health: Health, now: Duration) -> bool {
        if self.health == health {
            return false;
        }
        self.health = health;
        self.health_since = now;
        true
    }

    pub fn scraped(&mut self, scrape: Scrape) {
        self.load.scraped(scrape);
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
                Placement::HomeDown | Placement::HomeRemoved | Placement::HomeFailed => self.replaced += 1,
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
