//! One model's rings, and what the last look at it found.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::balancer::{Distribution, Ledger, ReplicaId, Snapshot};

use super::Range;
use super::ring::{Look, Point, Ring};

/// A model that is looked at.
#[derive(Debug)]
pub(super) struct Track {
    hour: Ring,
    week: Ring,
    /// A replica's books, with its name: a reload may give the id of a removed replica to another one.
    ledgers: BTreeMap<(ReplicaId, String), Ledger>,
    first_bytes: Distribution,
}

impl Track {
    /// What was counted before the first look belongs to no step.
    pub fn new(snapshot: &Snapshot, now: SystemTime) -> Self {
        Track {
            hour: Ring::new(Range::Hour, now),
            week: Ring::new(Range::Week, now),
            ledgers: ledgers(snapshot),
            first_bytes: snapshot.first_bytes.clone(),
        }
    }

    pub fn look(&mut self, snapshot: &Snapshot, now: SystemTime) {
        let ledgers = ledgers(snapshot);
        let mut booked = Ledger::default();
        for (replica, ledger) in &ledgers {
            let before = self.ledgers.get(replica).copied().unwrap_or_default();
            booked.add(&ledger.since(&before));
        }
        let first_bytes = snapshot.first_bytes.since(&self.first_bytes);
        let look = Look {
            booked: &booked,
            first_bytes: &first_bytes,
            busy_replicas: snapshot.replicas.iter().filter(|replica| replica.in_flight > 0).count() as u32,
            in_flight: snapshot.replicas.iter().map(|replica| replica.in_flight).sum(),
        };
        self.hour.add(look, now);
        self.week.add(look, now);
        self.ledgers = ledgers;
        self.first_bytes = snapshot.first_bytes.clone();
    }

    pub fn points(&self, range: Range, now: SystemTime) -> Vec<Point> {
        match range {
            Range::Hour => self.hour.points(now),
            Range::Week => self.week.points(now),
        }
    }
}

fn ledgers(snapshot: &Snapshot) -> BTreeMap<(ReplicaId, String), Ledger> {
    snapshot.replicas.iter().map(|replica| ((replica.id, replica.spec.name.clone()), replica.ledger)).collect()
}
