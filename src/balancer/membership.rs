//! Which replicas a model has: reloads add them, retire them and take them back.

use std::sync::Arc;
use std::time::Duration;

use super::affinity::Held;
use super::replica::{Membership, Replica, ReplicaId, ReplicaSpec};
use super::{Balancer, Policy};

impl Balancer {
    /// Takes a new configuration. Replicas that reach the same engine keep their id, pins, leases and counters; the
    /// others retire, and finish what they hold.
    pub fn reconfigure(&mut self, policy: Policy, specs: Vec<ReplicaSpec>, now: Duration) {
        self.changes += 1;
        self.policy = policy;
        self.memory.set_bounds(policy.bounds);
        self.replicas.change_all(&policy, |replica| replica.membership = Membership::Retired);
        for spec in specs {
            self.configure_replica(Arc::new(spec), now);
        }
        self.drop_unused_tail();
        self.let_in(now);
    }

    fn configure_replica(&mut self, spec: Arc<ReplicaSpec>, now: Duration) {
        let index_of = |known: Option<usize>| known.and_then(ReplicaId::from_index);
        let known = self.replicas.iter().position(|replica| replica.spec.same_engine(&spec));
        if let Some(id) = index_of(known) {
            self.replicas.change(id, &self.policy, |replica| replica.configure(spec, now));
        } else if let Some(id) = index_of(self.unused()) {
            self.replicas.change(id, &self.policy, |replica| *replica = Replica::new(spec, now));
            self.door.rooms.empty(id);
        } else {
            self.replicas.push(Replica::new(spec, now), &self.policy);
        }
    }

    /// The index of a retired replica that nothing refers to any more.
    fn unused(&self) -> Option<usize> {
        (0..self.replicas.len()).find(|index| self.is_unused(*index))
    }

    fn is_unused(&self, index: usize) -> bool {
        let replica = &self.replicas[index];
        let held = ReplicaId::from_index(index).map_or(Held::default(), |id| self.memory.pins.held(id));
        replica.membership == Membership::Retired && replica.load.in_flight() == 0 && held == Held::default()
    }

    fn drop_unused_tail(&mut self) {
        while self.replicas.len().checked_sub(1).is_some_and(|last| self.is_unused(last)) {
            self.replicas.pop();
        }
    }
}
