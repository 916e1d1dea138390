//! The decision core: which replica serves a turn.
//!
//! Pure: it waits for nothing, reads no clock, draws no entropy, logs nothing and touches no registry. `now` comes in as
//! the time since an epoch of the caller's choice and never goes back; what was decided, and why, goes out as values. So
//! the code that serves production is the code that tests and the simulator drive in virtual time.
//!
//! The life of a turn: [`Balancer::arrive`] decides and takes the slot, [`Balancer::served`] marks the first byte of a
//! good response, [`Balancer::finish`] gives the slot back. A [`Ticket`] carries the turn from one to the next.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod affinity;
mod load;
mod membership;
mod placement;
mod replica;
mod snapshot;
#[cfg(test)]
mod tests;
mod turn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use affinity::{ACTIVE_WINDOW, Bounds, Held};
pub use load::{SCRAPE_AGE_MAX, Scrape};
pub use replica::{Counters, DownReason, Health, Membership, ReplicaId, ReplicaSpec};
pub use snapshot::{ReplicaSnapshot, Snapshot};
pub use turn::{Decision, Outcome, Placement, Ranks, Refusal, Turn, TurnKind, Unpinned};

use crate::conversation::ConversationKey;

use affinity::Affinity;
use placement::{Field, Rotation, Weigh};
use replica::Replica;

/// `max_num_seqs` where neither the configuration nor the engine tells it. vLLM does not publish it in its metrics; its
/// own default is higher, and assuming too little only spills earlier.
pub const ASSUMED_MAX_NUM_SEQS: u32 = 32;

/// How a model wants its turns placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub mode: Mode,
    pub spill_threshold: SpillThreshold,
    /// What the engines were started with, where the configuration says so.
    pub max_num_seqs: Option<u32>,
    pub bounds: Bounds,
}

/// Whether conversations are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Affinity,
    /// Every turn goes to the least loaded replica. Pins are kept but not used.
    LeastLoaded,
}

/// How many turns kvpin lets run on a replica before sticky ones may go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillThreshold {
    /// A quarter of `max_num_seqs`, at least 1.
    Auto,
    Fixed(u32),
}

/// Where a `max_num_seqs` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxNumSeqsSource {
    Configured,
    Engine,
    Assumed,
}

impl Mode {
    /// The word used on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Affinity => "affinity",
            Mode::LeastLoaded => "least_loaded",
        }
    }
}

impl MaxNumSeqsSource {
    /// The word used on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            MaxNumSeqsSource::Configured => "configured",
            MaxNumSeqsSource::Engine => "engine",
            MaxNumSeqsSource::Assumed => "assumed",
        }
    }
}

/// A turn that holds a slot on a replica. It must go back through [`Balancer::finish`].
#[derive(Debug)]
#[must_use = "a ticket that is dropped leaves its slot taken for ever"]
pub struct Ticket {
    pub replica: ReplicaId,
    pub decision: Decision,
    conversation: Option<ConversationKey>,
    counted: bool,
}

/// The replicas, pins and counters of one model.
#[derive(Debug)]
pub struct Balancer {
    policy: Policy,
    replicas: Vec<Replica>,
    affinity: Affinity,
    rotation: Rotation,
    refused: [u64; Refusal::ALL.len()],
}

impl Balancer {
    pub fn new(policy: Policy, specs: Vec<ReplicaSpec>, now: Duration) -> Self {
        let mut balancer = Balancer {
            policy,
            replicas: Vec::new(),
            affinity: Affinity::new(policy.bounds),
            rotation: Rotation::default(),
            refused: [0; Refusal::ALL.len()],
        };
        balancer.reconfigure(policy, specs, now);
        balancer
    }

    /// Decides where a turn goes and takes its slot there.
    pub fn arrive(&mut self, turn: &Turn<'_>, now: Duration) -> Result<Ticket, Refusal> {
        self.affinity.sweep(now);
        let (replica, decision) = self.decide(turn, now).inspect_err(|refusal| {
            self.refused[*refusal as usize] += 1;
        })?;
        self.replicas[replica.index()].load.begin();
        let conversation = turn.conversation.filter(|_| Self::belongs_to_its_conversation(decision));
        if let Some(pin) = conversation.and_then(|key| self.affinity.touch(key, now)) {
            pin.in_flight = pin.in_flight.saturating_add(1);
        }
        Ok(Ticket { replica, decision, conversation, counted: false })
    }

    /// The first byte of a good response has come: the turn counts as served, and its pin holds from here on.
    pub fn served(&mut self, ticket: &mut Ticket, now: Duration) {
        self.count(ticket);
        if let Some(key) = ticket.conversation {
            self.affinity.prove(key, ticket.replica, now);
        }
    }

    /// The turn has ended: its slot is free again.
    pub fn finish(&mut self, mut ticket: Ticket, outcome: Outcome, now: Duration) {
        if outcome != Outcome::MovedOn {
            self.count(&mut ticket);
        }
        let replica = &mut self.replicas[ticket.replica.index()];
        replica.counters.count_outcome(outcome);
        replica.load.end();
        let Some(key) = ticket.conversation else { return };
        let Some(pin) = self.affinity.touch(key, now) else { return };
        pin.in_flight = pin.in_flight.saturating_sub(1);
        if !pin.proven && pin.in_flight == 0 {
            self.affinity.give_up(key, now);
        }
    }

    /// A probe or a turn has shown whether a replica can be reached. Returns whether that is news.
    pub fn set_health(&mut self, id: ReplicaId, health: Health, now: Duration) -> bool {
        self.replicas.get_mut(id.index()).is_some_and(|replica| replica.set_health(health, now))
    }

    /// A server can't be reached: every replica behind its address is down. Returns whether that is news.
    pub fn server_down(&mut self, address: SocketAddr, reason: DownReason, now: Duration) -> bool {
        let behind = self.replicas.iter_mut().filter(|replica| replica.spec.address == address);
        behind.map(|replica| replica.set_health(Health::Down(reason), now)).filter(|is_news| *is_news).count() > 0
    }

    /// A scrape of the replica is being asked for.
    pub fn scrape_begins(&mut self, id: ReplicaId) {
        if let Some(replica) = self.replicas.get_mut(id.index()) {
            replica.load.scrape_begins();
        }
    }

    /// What the replica's engine said of itself.
    pub fn scraped(&mut self, id: ReplicaId, scrape: Scrape) {
        if let Some(replica) = self.replicas.get_mut(id.index()) {
            replica.scraped(scrape);
        }
    }

    /// The engine told its `max_num_seqs`. It is used where the configuration has none.
    pub fn set_max_num_seqs(&mut self, id: ReplicaId, max_num_seqs: u32) {
        if let Some(replica) = self.replicas.get_mut(id.index()) {
            replica.reported_max_num_seqs = Some(max_num_seqs);
        }
    }

    /// The configured replica of that name.
    pub fn replica_named(&self, name: &str) -> Option<ReplicaId> {
        self.configured().find(|(_, replica)| replica.spec.name == name).map(|(id, _)| id)
    }

    /// The configured replicas with their ids, in the order of their ids.
    pub fn specs(&self) -> impl Iterator<Item = (ReplicaId, &Arc<ReplicaSpec>)> {
        self.configured().map(|(id, replica)| (id, &replica.spec))
    }

    /// Whether `id` is still the engine that `spec` reaches. A reload may give the id of a retired replica to another.
    pub fn is_engine_of(&self, id: ReplicaId, spec: &ReplicaSpec) -> bool {
        self.replicas.get(id.index()).is_some_and(|replica| replica.spec.same_engine(spec))
    }

    /// The replica that a turn was given: what it is and how it is reached.
    pub fn spec(&self, ticket: &Ticket) -> &Arc<ReplicaSpec> {
        &self.replicas[ticket.replica.index()].spec
    }

    /// Whether any replica can be given a turn and has been seen up.
    pub fn is_ready(&self) -> bool {
        self.replicas.iter().any(|replica| replica.serves() && replica.health == Health::Up)
    }

    /// Everything a reader may want to see. Costs a pass over the replicas, not over the pins.
    pub fn snapshot(&self, now: Duration) -> Snapshot {
        snapshot::take(self, now)
    }

    /// Whether a conversation is pinned.
    pub fn knows(&self, key: ConversationKey, now: Duration) -> bool {
        self.affinity.knows(key, now)
    }

    fn decide(&mut self, turn: &Turn<'_>, now: Duration) -> Result<(ReplicaId, Decision), Refusal> {
        if let Some(named) = turn.client_pin {
            return self.decide_client_pinned(named, turn, now);
        }
        if turn.kind == TurnKind::Side {
            return Ok((self.least_loaded(turn, Weigh::Requests, now)?, Decision::Side));
        }
        if turn.kind == TurnKind::Stateless {
            return self.unpinned(turn, Unpinned::NoHistory, now);
        }
        let Some(key) = turn.conversation else {
            return self.unpinned(turn, Unpinned::NoSession, now);
        };
        if self.policy.mode == Mode::LeastLoaded {
            return self.unpinned(turn, Unpinned::AffinityOff, now);
        }
        match self.affinity.touch(key, now).map(|pin| pin.replica) {
            None => self.place(key, turn, Placement::New, now),
            Some(home) => self.decide_pinned(key, home, turn, now),
        }
    }

    fn decide_client_pinned(
        &self,
        named: ReplicaId,
        turn: &Turn<'_>,
        now: Duration,
    ) -> Result<(ReplicaId, Decision), Refusal> {
        if !self.field(turn, now).is_open(named) {
            return Err(Refusal::ClientPinDown);
        }
        let reason = Unpinned::RankIgnored;
        let obeyed = self.can_address(named, turn.ranks);
        Ok((named, if obeyed { Decision::ClientPinned } else { Decision::Unpinned { reason } }))
    }

    fn decide_pinned(
        &mut self,
        key: ConversationKey,
        home: ReplicaId,
        turn: &Turn<'_>,
        now: Duration,
    ) -> Result<(ReplicaId, Decision), Refusal> {
        if let Some(reason) = self.home_lost(home, turn.tried) {
            return self.place(key, turn, reason, now);
        }
        if !self.can_address(home, turn.ranks) {
            return self.unpinned(turn, Unpinned::RankIgnored, now);
        }
        if self.replicas[home.index()].load.in_flight() < self.threshold(&self.replicas[home.index()]) {
            return Ok((home, Decision::Sticky));
        }
        let target = self.field(turn, now).spill_target(home, |replica| self.threshold(replica));
        Ok(match target {
            Some(target) => (target, Decision::Spilled { from: home }),
            None => (home, Decision::Sticky),
        })
    }

    fn place(
        &mut self,
        key: ConversationKey,
        turn: &Turn<'_>,
        reason: Placement,
        now: Duration,
    ) -> Result<(ReplicaId, Decision), Refusal> {
        let chosen = self.least_loaded(turn, Weigh::Residents, now)?;
        if !self.can_address(chosen, turn.ranks) {
            return Ok((chosen, Decision::Unpinned { reason: Unpinned::RankIgnored }));
        }
        if reason == Placement::New {
            self.affinity.insert(key, chosen, now);
        } else {
            self.affinity.repin(key, chosen, now);
        }
        Ok((chosen, Decision::Placed { reason }))
    }

    fn unpinned(&mut self, turn: &Turn<'_>, reason: Unpinned, now: Duration) -> Result<(ReplicaId, Decision), Refusal> {
        Ok((self.least_loaded(turn, Weigh::Requests, now)?, Decision::Unpinned { reason }))
    }

    fn least_loaded(&mut self, turn: &Turn<'_>, weigh: Weigh, now: Duration) -> Result<ReplicaId, Refusal> {
        let field = Field { replicas: &self.replicas, affinity: &self.affinity, now, tried: turn.tried };
        match field.least_loaded(weigh, &mut self.rotation) {
            Some(id) => Ok(id),
            None if field.any_serves() => Err(Refusal::EveryReplicaFailed),
            None => Err(Refusal::NoReplicaUp),
        }
    }

    fn field<'a>(&'a self, turn: &Turn<'a>, now: Duration) -> Field<'a> {
        Field { replicas: &self.replicas, affinity: &self.affinity, now, tried: turn.tried }
    }

    fn home_lost(&self, home: ReplicaId, tried: &[ReplicaId]) -> Option<Placement> {
        let replica = &self.replicas[home.index()];
        if replica.membership == Membership::Retired {
            Some(Placement::HomeRemoved)
        } else if !replica.serves() {
            Some(Placement::HomeDown)
        } else if tried.contains(&home) {
            Some(Placement::HomeFailed)
        } else {
            None
        }
    }

    fn can_address(&self, id: ReplicaId, ranks: Ranks) -> bool {
        ranks == Ranks::Obeyed || self.replicas[id.index()].spec.rank.is_none()
    }

    /// A client's own choice and a side call say nothing about where the conversation's history is.
    fn belongs_to_its_conversation(decision: Decision) -> bool {
        match decision {
            Decision::Sticky | Decision::Placed { .. } | Decision::Spilled { .. } => true,
            Decision::ClientPinned | Decision::Unpinned { .. } | Decision::Side => false,
        }
    }

    fn threshold(&self, replica: &Replica) -> u32 {
        match self.policy.spill_threshold {
            SpillThreshold::Fixed(turns) => turns,
            SpillThreshold::Auto => (self.max_num_seqs(replica).0 / 4).max(1),
        }
    }

    fn max_num_seqs(&self, replica: &Replica) -> (u32, MaxNumSeqsSource) {
        match (self.policy.max_num_seqs, replica.reported_max_num_seqs) {
            (Some(configured), _) => (configured, MaxNumSeqsSource::Configured),
            (None, Some(reported)) => (reported, MaxNumSeqsSource::Engine),
            (None, None) => (ASSUMED_MAX_NUM_SEQS, MaxNumSeqsSource::Assumed),
        }
    }

    fn count(&mut self, ticket: &mut Ticket) {
        if !std::mem::replace(&mut ticket.counted, true) {
            self.replicas[ticket.replica.index()].counters.count_decision(ticket.decision);
        }
    }

    fn configured(&self) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas
            .iter()
            .enumerate()
            .filter_map(|(index, replica)| Some((ReplicaId::from_index(index)?, replica)))
            .filter(|(_, replica)| replica.membership == Membership::Configured)
    }

    /// Panics unless the parts agree with each other. For tests, after every step.
    #[cfg(any(test, debug_assertions))]
    pub fn check_invariants(&self) {
        self.affinity.check_invariants();
        for replica in &self.replicas {
            assert!(replica.membership == Membership::Configured || !replica.serves(), "a retired replica serves");
        }
    }
}
