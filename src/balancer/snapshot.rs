//! A read-only view of a model's balancer, from which every reader is fed: metrics, status, the demo's table, reports.

use std::sync::Arc;
use std::time::Duration;

use super::affinity::Held;
use super::load::Scrape;
use super::replica::{Counters, Health, Membership, ReplicaId, ReplicaSpec};
use super::turn::Refusal;
use super::{Balancer, MaxNumSeqsSource, Mode, SpillThreshold};

/// A model at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub mode: Mode,
    pub spill_threshold: SpillThreshold,
    /// Conversations that are remembered, active or idle.
    pub conversations: usize,
    pub refused: Vec<(Refusal, u64)>,
    /// Configured replicas, and retired ones that still hold leases.
    pub replicas: Vec<ReplicaSnapshot>,
}

/// A replica at one moment.
#[derive(Clone, Debug)]
pub struct ReplicaSnapshot {
    pub id: ReplicaId,
    pub spec: Arc<ReplicaSpec>,
    pub membership: Membership,
    pub health: Health,
    /// How long it has had that health.
    pub health_age: Duration,
    /// Turns that hold a lease.
    pub in_flight: u32,
    /// Conversations pinned to it.
    pub held: Held,
    /// In-flight turns from which on sticky ones may spill.
    pub spill_threshold: u32,
    pub max_num_seqs: u32,
    pub max_num_seqs_source: MaxNumSeqsSource,
    pub counters: Counters,
    /// The newest scrape, and its age.
    pub scrape: Option<(Scrape, Duration)>,
}

pub(super) fn take(balancer: &Balancer, now: Duration) -> Snapshot {
    let replicas = balancer
        .replicas
        .iter()
        .enumerate()
        .filter(|(_, replica)| replica.membership == Membership::Configured || replica.load.in_flight() > 0)
        .filter_map(|(index, replica)| {
            let id = ReplicaId::from_index(index)?;
            let (max_num_seqs, max_num_seqs_source) = balancer.max_num_seqs(replica);
            Some(ReplicaSnapshot {
                id,
                spec: Arc::clone(&replica.spec),
                membership: replica.membership,
                health: replica.health,
                health_age: now.saturating_sub(replica.health_since),
                in_flight: replica.load.in_flight(),
                held: balancer.affinity.held(id),
                spill_threshold: balancer.threshold(replica),
                max_num_seqs,
                max_num_seqs_source,
                counters: replica.counters,
                scrape: replica.load.scrape().map(|scrape| (*scrape, now.saturating_sub(scrape.at))),
            })
        })
        .collect();
    Snapshot {
        mode: balancer.policy.mode,
        spill_threshold: balancer.policy.spill_threshold,
        conversations: balancer.affinity.len(),
        refused: Refusal::ALL.into_iter().zip(balancer.refused).collect(),
        replicas,
    }
}
