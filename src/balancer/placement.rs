//! Choosing a replica by load: placement of conversations, of turns without one, and the target of a spill.

use std::time::Duration;

use super::affinity::Affinity;
use super::replica::{Replica, ReplicaId};

/// What counts as load for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weigh {
    /// Requests on the replica and the active conversations pinned to it: they will be back, and their history is in its
    /// KV cache. Right for a conversation that is going to stay.
    Residents,
    /// Requests on the replica only. Right for a turn that leaves nothing behind.
    Requests,
}

/// A replica is clearly less loaded than another when it has at most half of its requests. Leaving a warm cache costs the
/// whole history, so a small difference is no reason to.
const CLEARLY_LESS: u32 = 2;

/// Rotates among equals, so that replicas with the same load take turns.
#[derive(Debug, Default)]
pub struct Rotation(usize);

/// The replicas of a model, as a choice sees them.
pub struct Field<'a> {
    pub replicas: &'a [Replica],
    pub affinity: &'a Affinity,
    pub now: Duration,
    /// Replicas that the turn has already failed on.
    pub tried: &'a [ReplicaId],
}

impl Rotation {
    /// Begins behind the replica that was chosen.
    pub fn turn_past(&mut self, chosen: ReplicaId) {
        self.0 = chosen.index() + 1;
    }
}

impl Field<'_> {
    /// The least loaded replica that may serve, or `None` when there is none. Costs one pass over the replicas.
    pub fn least_loaded(&self, weigh: Weigh, rotation: &Rotation) -> Option<ReplicaId> {
        let start = rotation.0;
        let count = self.replicas.len();
        self.open()
            .min_by_key(|(id, replica)| {
                let distance = (id.index() + count - start % count) % count;
                (self.weight(*id, replica, weigh), distance)
            })
            .map(|(id, _)| id)
    }

    /// Where a turn may go whose home is over its threshold: the least loaded replica that is under its own threshold
    /// with this turn and clearly less loaded than home. `threshold` gives each replica's.
    pub fn spill_target(&self, home: ReplicaId, threshold: impl Fn(&Replica) -> u32) -> Option<ReplicaId> {
        let home_pressure = self.replicas.get(home.index())?.load.pressure(self.now);
        self.open()
            .filter(|(id, _)| *id != home)
            .filter(|(_, replica)| replica.load.in_flight() < threshold(replica))
            .filter(|(_, replica)| replica.load.pressure(self.now) * CLEARLY_LESS <= home_pressure)
            .min_by_key(|(id, replica)| (self.weight(*id, replica, Weigh::Requests), *id))
            .map(|(id, _)| id)
    }

    /// Whether the turn may go to `id`.
    pub fn is_open(&self, id: ReplicaId) -> bool {
        self.replicas.get(id.index()).is_some_and(Replica::serves) && !self.tried.contains(&id)
    }

    /// Whether any replica may serve at all, tried or not.
    pub fn any_serves(&self) -> bool {
        self.replicas.iter().any(Replica::serves)
    }

    fn open(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas
            .iter()
            .enumerate()
            .filter_map(|(index, replica)| Some((ReplicaId::from_index(index)?, replica)))
            .filter(|(id, replica)| replica.serves() && !self.tried.contains(id))
    }

    /// Requests first, then KV use: ten tenths of it weigh as much as one request.
    fn weight(&self, id: ReplicaId, replica: &Replica, weigh: Weigh) -> u32 {
        let residents = match weigh {
            Weigh::Residents => self.affinity.active(id, self.now),
            Weigh::Requests => 0,
        };
        (replica.load.pressure(self.now) + residents) * 10 + replica.load.kv_use_tenths(self.now)
    }
}
