//! The replicas of a model, and beside them what a choice by load looks at: one short row each, in one piece of memory. A choice
//! passes over all of them, and a replica as a whole has a dozen lines of the processor's caches.

use std::ops::Deref;
use std::time::Duration;

use super::health::Health;
use super::ledger::Ledger;
use super::policy::Policy;
use super::replica::{Counters, Replica, ReplicaId};

/// Read as the slice that it is. Whatever changes a replica goes through here, so that its row is never behind.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    all: Vec<Replica>,
    rows: Vec<Row>,
}

/// What a choice by load looks at, as far as time alone does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// kvpin's own leases.
    pub in_flight: u32,
    /// Where sticky turns may leave it.
    pub spill_threshold: u32,
    pub serves: bool,
    pub is_suspect: bool,
    /// What the newest scrape adds, which counts for a while only.
    foreign: u32,
    kv_use_tenths: u8,
    fresh_until_ns: u64,
    /// Until then it is given less than all.
    ramps_until_ns: u64,
}

/// What is booked of a replica, which no choice looks at.
pub(super) struct Books<'a> {
    pub counters: &'a mut Counters,
    pub ledger: &'a mut Ledger,
    pub computed: &'a mut u32,
}

// Two to a line of the caches.
const _: () = assert!(size_of::<Row>() <= 32);

impl Replicas {
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether a replica may be given a turn.
    pub fn serves(&self, id: ReplicaId) -> bool {
        self.rows.get(id.index()).is_some_and(|row| row.serves)
    }

    /// Changes a replica; `None` where there is none of that id.
    pub fn change<R>(&mut self, id: ReplicaId, policy: &Policy, change: impl FnOnce(&mut Replica) -> R) -> Option<R> {
        let replica = self.all.get_mut(id.index())?;
        let result = change(replica);
        self.rows[id.index()] = Row::of(replica, policy);
        Some(result)
    }

    /// Changes all, with what the policy makes of them.
    pub fn change_all(&mut self, policy: &Policy, change: impl FnMut(&mut Replica)) {
        self.all.iter_mut().for_each(change);
        self.rows = self.all.iter().map(|replica| Row::of(replica, policy)).collect();
    }

    pub fn books(&mut self, id: ReplicaId) -> Books<'_> {
        let Replica { counters, ledger, computed, .. } = &mut self.all[id.index()];
        Books { counters, ledger, computed }
    }

    pub fn push(&mut self, replica: Replica, policy: &Policy) {
        self.rows.push(Row::of(&replica, policy));
        self.all.push(replica);
    }

    pub fn pop(&mut self) {
        self.all.pop();
        self.rows.pop();
    }

    /// Panics unless every row is that of its replica.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self, policy: &Policy) {
        let rows = self.all.iter().map(|replica| Row::of(replica, policy));
        assert!(rows.eq(self.rows.iter().copied()), "a row is behind its replica");
    }
}

impl Deref for Replicas {
    type Target = [Replica];

    fn deref(&self) -> &[Replica] {
        &self.all
    }
}

impl Row {
    fn of(replica: &Replica, policy: &Policy) -> Row {
        let load = &replica.load;
        Row {
            in_flight: load.in_flight(),
            spill_threshold: policy.spill_threshold(replica.reported_max_num_seqs),
            serves: replica.serves(),
            is_suspect: matches!(replica.health(), Health::Suspect(_)),
            foreign: load.foreign(),
            kv_use_tenths: load.kv_use_tenths(),
            fresh_until_ns: nanos(load.fresh_until()),
            ramps_until_ns: nanos(replica.vitals.ramps_until(&policy.health)),
        }
    }

    /// Requests on the replica: kvpin's own, and those of others if a scrape that still counts saw any.
    pub fn pressure(&self, now_ns: u64) -> u32 {
        self.in_flight + if now_ns <= self.fresh_until_ns { self.foreign } else { 0 }
    }

    /// KV use in tenths, 0 to 10, 0 when not known.
    pub fn kv_use_tenths(&self, now_ns: u64) -> u32 {
        if now_ns <= self.fresh_until_ns { u32::from(self.kv_use_tenths) } else { 0 }
    }

    /// Whether the replica came back not long ago.
    pub fn ramps(&self, now_ns: u64) -> bool {
        now_ns < self.ramps_until_ns
    }
}

/// The balancer's clock in one number, which is good for 584 years.
pub fn nanos(now: Duration) -> u64 {
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
