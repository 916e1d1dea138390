//! Choosing a replica by load: placement of conversations, of turns without one, and the target of a spill.

use std::time::Duration;

use super::affinity::{Active, Affinity};
use super::policy::Policy;
use super::replica::ReplicaId;
use super::replicas::{Replicas, Row, nanos};

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
pub(super) struct Field<'a> {
    pub policy: &'a Policy,
    pub replicas: &'a Replicas,
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
    /// suspect, is chosen only where there is no other. Costs one pass over the rows of the replicas.
    pub fn least_loaded(&self, weigh: Weigh, rotation: &Rotation) -> Option<ReplicaId> {
        self.ranked(weigh, rotation).min().map(|(_, id)| id)
    }

    /// The least loaded replica of those that may serve and of which `suits` is true.
    pub fn least_loaded_of(
        &self,
        weigh: Weigh,
        rotation: &Rotation,
        suits: impl Fn(ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        self.ranked(weigh, rotation).filter(|(_, id)| suits(*id)).min().map(|(_, id)| id)
    }

    /// The replicas that may serve, each with its rank: the less, the better.
    fn ranked(&self, weigh: Weigh, rotation: &Rotation) -> impl Iterator<Item = ((Standing, u64, usize), ReplicaId)> {
        let (now_ns, active) = (nanos(self.now), self.active(weigh));
        let count = self.replicas.len();
        let start = rotation.0 % count.max(1);
        self.open().map(move |(id, row)| {
            let index = id.index();
            let distance = if index < start { index + count - start } else { index - start };
            let active = active.as_ref().map_or(0, |active| active.on(id));
            ((self.standing(id, row, now_ns), self.weight(id, row, active, now_ns), distance), id)
        })
    }

    /// Where a turn may go whose home is over its threshold: the least loaded replica in good standing that is under its own
    /// threshold with this turn and clearly less loaded than home.
    pub fn spill_target(&self, home: ReplicaId, takes_visitors: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let now_ns = nanos(self.now);
        let home_pressure = self.replicas.rows().get(home.index())?.pressure(now_ns);
        self.open()
            .filter(|(id, _)| *id != home)
            .filter(|(_, row)| row.in_flight < row.spill_threshold)
            .filter(|(_, row)| row.pressure(now_ns) * CLEARLY_LESS <= home_pressure)
            .filter(|(id, row)| self.standing(*id, row, now_ns) == Standing::Good)
            .filter(|(id, _)| takes_visitors(*id))
            .min_by_key(|(id, row)| (self.weight(*id, row, 0, now_ns), *id))
            .map(|(id, _)| id)
    }

    /// Whether the turn may go to `id`.
    pub fn is_open(&self, id: ReplicaId) -> bool {
        self.replicas.serves(id) && !self.tried.contains(&id)
    }

    /// Whether any replica may serve at all, tried or not.
    pub fn any_serves(&self) -> bool {
        self.replicas.rows().iter().any(|row| row.serves)
    }

    fn open(&self) -> impl Iterator<Item = (ReplicaId, &Row)> {
        let rows = self.replicas.rows().iter().enumerate().filter(|(_, row)| row.serves);
        rows.filter_map(|(index, row)| Some((ReplicaId::from_index(index)?, row)))
            .filter(|(id, _)| !self.tried.contains(id))
    }

    fn active(&self, weigh: Weigh) -> Option<Active<'_>> {
        match weigh {
            Weigh::Residents => Some(self.affinity.active(self.now)),
            Weigh::Requests => None,
        }
    }

    /// A replica whose cache is cold computes every history that it is given from the start. So it has a share of its spill
    /// threshold that grows, but always one turn.
    fn standing(&self, id: ReplicaId, row: &Row, now_ns: u64) -> Standing {
        if row.is_suspect {
            return Standing::Suspect;
        }
        let percent = u64::from(self.ramp_percent(id, row, now_ns));
        let threshold = u64::from(row.spill_threshold);
        let is_full = percent < 100 && u64::from(row.in_flight) >= (threshold * percent).div_ceil(100);
        if is_full { Standing::Ramping } else { Standing::Good }
    }

    /// Requests first, then KV use: ten tenths of it weigh as much as one request. What a replica has weighs the more, the
    /// smaller the share is that it is to have so far; one request more is counted, so that this holds for an empty one too.
    fn weight(&self, id: ReplicaId, row: &Row, active: u32, now_ns: u64) -> u64 {
        let requests = u64::from(row.pressure(now_ns)) + u64::from(active) + 1;
        let load = requests * 10 + u64::from(row.kv_use_tenths(now_ns));
        match self.ramp_percent(id, row, now_ns) {
            100 => load,
            percent => load * 100 / u64::from(percent),
        }
    }

    /// The share of its work that a replica may be given.
    fn ramp_percent(&self, id: ReplicaId, row: &Row, now_ns: u64) -> u32 {
        match row.ramps(now_ns) {
            true => self.replicas[id.index()].vitals.ramp_percent(&self.policy.health, self.now),
            false => 100,
        }
    }
}
