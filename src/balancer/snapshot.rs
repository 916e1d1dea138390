//! A read-only view of a model's balancer, from which every reader is fed: metrics, status, the demo's table, reports.

use std::sync::Arc;
use std::time::Duration;

use crate::conversation::ConversationKey;

use super::admission::{AdmissionMode, DoorCounters};
use super::affinity::Held;
use super::distribution::Distribution;
use super::health::{DrainReason, Health};
use super::ledger::Ledger;
use super::load::Scrape;
use super::replica::{Counters, Membership, ReplicaId, ReplicaSpec};
use super::turn::Refusal;
use super::{Balancer, MaxNumSeqsSource, Mode, SpillThreshold};

/// A model at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub mode: Mode,
    pub spill_threshold: SpillThreshold,
    /// Conversations that are remembered, active or idle.
    pub conversations: usize,
    /// Other ids that lead to one of them.
    pub conversation_aliases: usize,
    /// Histories by which a conversation without an id, or the origin of a fork, is recognised.
    pub histories: usize,
    pub refused: Vec<(Refusal, u64)>,
    pub door: DoorSnapshot,
    /// From a turn's arrival to the first byte of its answer.
    pub first_bytes: Distribution,
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
    /// Why it takes nothing new, whatever its health.
    pub drain: Option<DrainReason>,
    /// How much of its work it is given, 10 to 100: it came back, or was restarted, not long ago.
    pub ramp_percent: u32,
    /// Turns that hold a lease.
    pub in_flight: u32,
    /// Conversations pinned to it.
    pub held: Held,
    /// In-flight turns from which on sticky ones may spill.
    pub spill_threshold: u32,
    pub max_num_seqs: u32,
    pub max_num_seqs_source: MaxNumSeqsSource,
    pub counters: Counters,
    pub ledger: Ledger,
    /// `None` where nobody would be held for it: without affinity, with admission off, or where the cache's size isn't known.
    pub room: Option<RoomSnapshot>,
    /// The newest scrape, and its age.
    pub scrape: Option<(Scrape, Duration)>,
}

/// Who waits for a model's caches at one moment.
#[derive(Clone, Debug, Default)]
pub struct DoorSnapshot {
    pub mode: AdmissionMode,
    /// Turns that wait, and how long the first of them has.
    pub held: u32,
    pub longest: Duration,
    /// Tokens of KV cache that their conversations need.
    pub needed_tokens: u64,
    pub counters: DoorCounters,
    /// How long turns were held that waited and were let in.
    pub holds: Distribution,
}

/// Who has room in a replica's cache at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomSnapshot {
    /// Conversations that were let in.
    pub residents: u32,
    /// Tokens that they and the turns of others want of the cache.
    pub working_set_tokens: u64,
    /// Up to how many conversations are let in.
    pub limit_tokens: u64,
}

/// A conversation at one moment.
#[derive(Clone, Debug)]
pub struct ConversationSnapshot {
    pub key: ConversationKey,
    /// The replica that it is pinned to.
    pub replica: ReplicaId,
    pub spec: Arc<ReplicaSpec>,
    /// The conversation that it is a subagent, a child session or a fork of.
    pub parent: Option<ConversationKey>,
    /// Turns that hold a lease.
    pub in_flight: u16,
    /// Since a turn of it last began, was served or ended.
    pub idle: Duration,
    /// Whether the replica has served a turn of it.
    pub is_proven: bool,
}

/// The conversations that were used last, the newest first.
pub(super) fn newest(balancer: &Balancer, limit: usize, now: Duration) -> Vec<ConversationSnapshot> {
    let newest = balancer.memory.pins.by_recency().take(limit);
    let snapshots = newest.map(|(key, pin)| ConversationSnapshot {
        key,
        replica: pin.replica,
        spec: Arc::clone(&balancer.replicas[pin.replica.index()].spec),
        parent: pin.parent(),
        in_flight: pin.in_flight,
        idle: pin.idle(now),
        is_proven: pin.proven,
    });
    snapshots.collect()
}

impl Balancer {
    fn room(&self, id: ReplicaId) -> Option<RoomSnapshot> {
        let policy = &self.policy.admission;
        let capacity = self.capacity(id).filter(|_| self.holds_turns())?;
        Some(RoomSnapshot {
            residents: self.door.rooms.room(id).map_or(0, |room| room.residents()),
            working_set_tokens: self.door.rooms.working_set(id),
            limit_tokens: self.door.limit(id, capacity, policy),
        })
    }

    fn door_snapshot(&self, now: Duration) -> DoorSnapshot {
        DoorSnapshot {
            mode: self.policy.admission.mode,
            held: self.door.line.turns(),
            longest: self.door.line.longest(now),
            needed_tokens: self.door.line.needs(),
            counters: self.door.counters,
            holds: self.door.holds.clone(),
        }
    }
}

pub(super) fn take(balancer: &Balancer, now: Duration) -> Snapshot {
    let replicas = balancer
        .replicas
        .iter()
        .enumerate()
        .filter(|(_, replica)| replica.membership == Membership::Configured || replica.load.in_flight() > 0)
        .filter_map(|(index, replica)| {
            let id = ReplicaId::from_index(index)?;
            let (max_num_seqs, max_num_seqs_source) = balancer.policy.max_num_seqs(replica.reported_max_num_seqs);
            Some(ReplicaSnapshot {
                id,
                spec: Arc::clone(&replica.spec),
                membership: replica.membership,
                health: replica.health(),
                health_age: now.saturating_sub(replica.health_since()),
                drain: replica.drain_reason(),
                ramp_percent: replica.vitals.ramp_percent(&balancer.policy.health, now),
                in_flight: replica.load.in_flight(),
                held: balancer.memory.pins.held(id),
                spill_threshold: balancer.threshold(replica),
                max_num_seqs,
                max_num_seqs_source,
                counters: replica.counters,
                ledger: replica.ledger,
                room: balancer.room(id),
                scrape: replica.load.scrape().map(|scrape| (*scrape, now.saturating_sub(scrape.at))),
            })
        })
        .collect();
    Snapshot {
        mode: balancer.policy.mode,
        spill_threshold: balancer.policy.spill_threshold,
        conversations: balancer.memory.pins.len(),
        conversation_aliases: balancer.memory.aliases.len(),
        histories: balancer.memory.histories.len(),
        first_bytes: balancer.first_bytes.clone(),
        door: balancer.door_snapshot(now),
        refused: Refusal::ALL.into_iter().zip(balancer.refused).collect(),
        replicas,
    }
}
