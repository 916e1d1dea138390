//! Choosing a replica by load: placement of conversations, of turns without one, and the target of a spill.

use std::time::Duration;

use super::affinity::Affinity;
use super::health::Health;
use super::policy::Policy;
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

/// Whether a replica is one to give new work to, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Good,
    /// It came back not long ago, and has as much as it is to have so soon.
    Ramping,
    Suspect,
}

/// Rotates among equals, so that replicas with the same load take turns.
#[derive(Debug, Default)]
pub struct Rotation(usize);

/// The replicas of a model, as a choice sees them.
pub struct Field<'a> {
    pub policy: &'a Policy,
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
    /// The least loaded replica that may serve, or `None` when there is none. A replica that came back not long ago, or is
    /// suspect, is chosen only where there is no other. Costs one pass over the replicas.
    pub fn least_loaded(&self, weigh: Weigh, rotation: &Rotation) -> Option<ReplicaId> {
        self.open().min_by_key(|(id, replica)| self.rank(*id, replica, weigh, rotation)).map(|(id, _)| id)
    }

    /// The less, the better.
    fn rank(&self, id: ReplicaId, replica: &Replica, weigh: Weigh, rotation: &Rotation) -> (Standing, u64, usize) {
        let (start, count) = (rotation.0, self.replicas.len());
        let distance = (id.index() + count - start % count) % count;
        (self.standing(replica), self.weight(id, replica, weigh), distance)
    }

    /// The replicas that may serve, the least loaded first.
    pub fn by_load(&self, weigh: Weigh, rotation: &Rotation) -> impl Iterator<Item = ReplicaId> {
        let mut open: Vec<_> = self.open().map(|(id, replica)| (self.rank(id, replica, weigh, rotation), id)).collect();
        open.sort_unstable();
        open.into_iter().map(|(_, id)| id)
    }

    /// Where a turn may go whose home is over its threshold: the least loaded replica in good standing that is under its own
    /// threshold with this turn and clearly less loaded than home.
    pub fn spill_target(&self, home: ReplicaId, takes_visitors: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let home_pressure = self.replicas.get(home.index())?.load.pressure(self.now);
        self.open()
            .filter(|(id, _)| *id != home)
            .filter(|(_, replica)| self.standing(replica) == Standing::Good)
            .filter(|(_, replica)| {
                replica.load.in_flight() < self.policy.spill_threshold(replica.reported_max_num_seqs)
            })
            .filter(|(_, replica)| replica.load.pressure(self.now) * CLEARLY_LESS <= home_pressure)
            .filter(|(id, _)| takes_visitors(*id))
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

    /// A replica whose cache is cold computes every history that it is given from the start. So it has a share of its spill
    /// threshold that grows, but always one turn.
    fn standing(&self, replica: &Replica) -> Standing {
        let percent = u64::from(replica.vitals.ramp_percent(&self.policy.health, self.now));
        let threshold = u64::from(self.policy.spill_threshold(replica.reported_max_num_seqs));
        match replica.health() {
            Health::Suspect(_) => Standing::Suspect,
            _ if percent < 100 && u64::from(replica.load.in_flight()) >= (threshold * percent).div_ceil(100) => {
                Standing::Ramping
            }
            Health::Unknown | Health::Up | Health::Down(_) | Health::Draining(_) | Health::Sleeping => Standing::Good,
        }
    }

    /// Requests first, then KV use: ten tenths of it weigh as much as one request. What a replica has weighs the more, the
    /// smaller the share is that it is to have so far; one request more is counted, so that this holds for an empty one too.
    fn weight(&self, id: ReplicaId, replica: &Replica, weigh: Weigh) -> u64 {
        let residents = match weigh {
            Weigh::Residents => self.affinity.active(id, self.now),
            Weigh::Requests => 0,
        };
        let requests = u64::from(replica.load.pressure(self.now)) + u64::from(residents) + 1;
        let percent = u64::from(replica.vitals.ramp_percent(&self.policy.health, self.now));
        (requests * 10 + u64::from(replica.load.kv_use_tenths(self.now))) * 100 / percent
    }
}
