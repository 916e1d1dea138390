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

/// How good a choice a replica is, by its standing and then by its load: the less, the better. In one number, because each
/// replica's is compared for every choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u64);

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
    /// Conversations that are given to a replica but are not there yet, by its index; of those behind the end there are none.
    pub coming: &'a [u32],
}

const STANDING_SHIFT: u32 = 62;

impl Rank {
    /// That of no replica: worse than any.
    const NONE: Rank = Rank(u64::MAX);

    /// A load of requests that are counted in 32 bits leaves the highest bits free.
    fn new(standing: Standing, load: u64) -> Self {
        Rank((standing as u64) << STANDING_SHIFT | load)
    }

    fn is_good(self) -> bool {
        self.0 >> STANDING_SHIFT == Standing::Good as u64
    }
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
        self.least_loaded_of(weigh, rotation, |_| true)
    }

    /// The least loaded replica of those that may serve and of which `suits` is true.
    pub fn least_loaded_of(
        &self,
        weigh: Weigh,
        rotation: &Rotation,
        suits: impl Fn(ReplicaId) -> bool,
    ) -> Option<ReplicaId> {
        let (now_ns, active) = (nanos(self.now), self.active(weigh));
        let rows = self.replicas.rows();
        let first = rotation.0 % rows.len().max(1);
        let better = |best: (Rank, Option<ReplicaId>), index: usize| {
            let row = &rows[index];
            let Some(id) = ReplicaId::from_index(index).filter(|id| row.serves && suits(*id)) else { return best };
            let coming = self.coming.get(index).copied().unwrap_or(0);
            let active = active.as_ref().map_or(0, |active| active.on(id)) + coming;
            let rank = self.rank(id, row, active, now_ns);
            if rank < best.0 && !self.tried.contains(&id) { (rank, Some(id)) } else { best }
        };
        // In the order of the rotation: of equals the one is kept that was found first.
        (first..rows.len()).chain(0..first).fold((Rank::NONE, None), better).1
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
            .map(|(id, row)| (self.rank(id, row, 0, now_ns), id))
            .filter(|(rank, id)| rank.is_good() && takes_visitors(*id))
            .min()
            .map(|(_, id)| id)
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

    /// Requests first, then KV use: ten tenths of it weigh as much as one request. One request more is counted, so that a share
    /// of its work makes a difference for an empty replica too.
    fn rank(&self, id: ReplicaId, row: &Row, active: u32, now_ns: u64) -> Rank {
        let requests = u64::from(row.pressure(now_ns)) + u64::from(active) + 1;
        let load = requests * 10 + u64::from(row.kv_use_tenths(now_ns));
        match (row.ramps(now_ns), row.is_suspect) {
            (true, _) => self.rank_of_ramping(id, row, load),
            (false, true) => Rank::new(Standing::Suspect, load),
            (false, false) => Rank::new(Standing::Good, load),
        }
    }

    /// A replica whose cache is cold computes every history that it is given from the start. So it has a share of its spill
    /// threshold that grows, but always one turn; and what it has weighs the more, the smaller the share is.
    fn rank_of_ramping(&self, id: ReplicaId, row: &Row, load: u64) -> Rank {
        let percent = u64::from(self.replicas[id.index()].vitals.ramp_percent(&self.policy.health, self.now));
        let share = (u64::from(row.spill_threshold) * percent).div_ceil(100);
        let standing = match row.is_suspect {
            true => Standing::Suspect,
            false if percent < 100 && u64::from(row.in_flight) >= share => Standing::Ramping,
            false => Standing::Good,
        };
        Rank::new(standing, load * 100 / percent)
    }
}
