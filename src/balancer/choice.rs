//! The choice of a replica, apart from its effects: what is decided for a turn, with nothing changed yet.

use std::time::Duration;

use super::Balancer;
use super::health::Health;
use super::memory::{Home, Speaker};
use super::placement::{Field, Weigh};
use super::policy::Mode;
use super::replica::{Membership, Replica, ReplicaId};
use super::turn::{Decision, Placement, Ranks, Refusal, Turn, TurnKind, Unpinned};

/// What was decided for a turn.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub replica: ReplicaId,
    pub decision: Decision,
    /// Whether the replica was found by load, so that among equals the next one's turn comes.
    pub by_load: bool,
    /// Whose turn it is.
    pub speaker: Option<Speaker>,
}

impl Choice {
    fn by_load(replica: ReplicaId, decision: Decision) -> Self {
        Choice { replica, decision, by_load: true, speaker: None }
    }

    fn settled(replica: ReplicaId, decision: Decision) -> Self {
        Choice { replica, decision, by_load: false, speaker: None }
    }
}

impl Balancer {
    /// Decides where a turn goes. Taking the choice up is [`Balancer::take`].
    pub(super) fn choose(&self, turn: &Turn<'_>, now: Duration) -> Result<Choice, Refusal> {
        let speaker = self.speaker(turn, now);
        let choice = match (turn.client_pin, turn.kind) {
            (Some(named), _) => self.choose_client_pinned(named, turn, now)?,
            (None, TurnKind::Side) => Choice::by_load(self.least_loaded(turn, Weigh::Requests, now)?, Decision::Side),
            (None, TurnKind::Stateless) => self.choose_unpinned(turn, Unpinned::NoHistory, now)?,
            (None, TurnKind::Conversation) => self.choose_for(speaker.as_ref(), turn, now)?,
        };
        Ok(Choice { speaker, ..choice })
    }

    /// Whose turn it is. Without affinity no pin is used, so nothing is looked up.
    fn speaker(&self, turn: &Turn<'_>, now: Duration) -> Option<Speaker> {
        match (turn.kind, self.policy.mode) {
            (TurnKind::Side | TurnKind::Stateless, _) => None,
            (TurnKind::Conversation, Mode::Affinity) => self.memory.recognise(turn, now),
            (TurnKind::Conversation, Mode::LeastLoaded) => turn.conversation.map(Speaker::named),
        }
    }

    fn choose_client_pinned(&self, named: ReplicaId, turn: &Turn<'_>, now: Duration) -> Result<Choice, Refusal> {
        if !self.field(turn, now).is_open(named) {
            return Err(Refusal::ClientPinDown);
        }
        let reason = Unpinned::RankIgnored;
        let obeyed = self.can_address(named, turn.ranks);
        Ok(Choice::settled(named, if obeyed { Decision::ClientPinned } else { Decision::Unpinned { reason } }))
    }

    fn choose_for(&self, speaker: Option<&Speaker>, turn: &Turn<'_>, now: Duration) -> Result<Choice, Refusal> {
        if speaker.is_none() && turn.history().is_none() {
            return self.choose_unpinned(turn, Unpinned::NoSession, now);
        }
        let Some(speaker) = speaker.filter(|_| self.policy.mode == Mode::Affinity) else {
            return self.choose_unpinned(turn, Unpinned::AffinityOff, now);
        };
        match speaker.home {
            Some(home) => self.choose_pinned(speaker, home, turn, now),
            None => self.choose_new(speaker, turn, now),
        }
    }

    fn choose_pinned(&self, speaker: &Speaker, home: Home, turn: &Turn<'_>, now: Duration) -> Result<Choice, Refusal> {
        let reserved = self.reserved(speaker.conversation, turn, now);
        // One that was let in elsewhere has found nothing left at home.
        let moved = reserved.filter(|room| *room != home.replica).map(|_| Placement::HomeFull);
        if let Some(reason) = self.home_lost(home, turn.tried).or(moved) {
            return self.place(reserved, turn, reason, now);
        }
        let home = home.replica;
        if !self.can_address(home, turn.ranks) {
            return self.choose_unpinned(turn, Unpinned::RankIgnored, now);
        }
        if self.has_room(home) {
            return Ok(Choice::settled(home, Decision::Sticky));
        }
        let takes_visitors = |id| self.takes_visitors(id, speaker.conversation, turn);
        let target = self.field(turn, now).spill_target(home, takes_visitors);
        Ok(match target {
            Some(target) => Choice::settled(target, Decision::Spilled { from: home }),
            None => Choice::settled(home, Decision::Sticky),
        })
    }

    fn choose_new(&self, speaker: &Speaker, turn: &Turn<'_>, now: Duration) -> Result<Choice, Refusal> {
        let field = self.field(turn, now);
        let can_take = |id: &ReplicaId| field.is_open(*id) && self.can_address(*id, turn.ranks) && self.has_room(*id);
        let reserved = self.reserved(speaker.conversation, turn, now);
        match speaker.fork_home.filter(can_take) {
            Some(home) if reserved.is_none_or(|reserved| reserved == home) => {
                Ok(Choice::settled(home, Decision::Placed { reason: Placement::Forked }))
            }
            Some(_) | None => self.place(reserved, turn, Placement::New, now),
        }
    }

    /// Pins a conversation: where it was let in, or else by load.
    fn place(
        &self,
        reserved: Option<ReplicaId>,
        turn: &Turn<'_>,
        reason: Placement,
        now: Duration,
    ) -> Result<Choice, Refusal> {
        let chosen = match reserved {
            Some(reserved) => reserved,
            None => self.least_loaded(turn, Weigh::Residents, now)?,
        };
        let decision = if self.can_address(chosen, turn.ranks) {
            Decision::Placed { reason }
        } else {
            Decision::Unpinned { reason: Unpinned::RankIgnored }
        };
        Ok(Choice::by_load(chosen, decision))
    }

    fn choose_unpinned(&self, turn: &Turn<'_>, reason: Unpinned, now: Duration) -> Result<Choice, Refusal> {
        Ok(Choice::by_load(self.least_loaded(turn, Weigh::Requests, now)?, Decision::Unpinned { reason }))
    }

    fn least_loaded(&self, turn: &Turn<'_>, weigh: Weigh, now: Duration) -> Result<ReplicaId, Refusal> {
        let field = self.field(turn, now);
        match field.least_loaded(weigh, &self.rotation) {
            Some(id) => Ok(id),
            None if field.any_serves() => Err(Refusal::EveryReplicaFailed),
            None => Err(Refusal::NoReplicaUp),
        }
    }

    pub(super) fn field<'a>(&'a self, turn: &Turn<'a>, now: Duration) -> Field<'a> {
        Field { tried: turn.tried, ..self.field_of_all(now) }
    }

    /// For a turn that has failed nowhere yet.
    pub(super) fn field_of_all(&self, now: Duration) -> Field<'_> {
        let (policy, replicas, affinity) = (&self.policy, &self.replicas, &self.memory.pins);
        Field { policy, replicas, affinity, now, tried: &[], coming: &[] }
    }

    fn home_lost(&self, home: Home, tried: &[ReplicaId]) -> Option<Placement> {
        let replica = &self.replicas[home.replica.index()];
        if replica.membership == Membership::Retired {
            return Some(Placement::HomeRemoved);
        }
        match replica.health() {
            Health::Down(_) => Some(Placement::HomeDown),
            Health::Draining(_) => Some(Placement::HomeDraining),
            Health::Sleeping => Some(Placement::HomeSleeping),
            Health::Unknown | Health::Up | Health::Suspect(_) if tried.contains(&home.replica) => {
                Some(Placement::HomeFailed)
            }
            Health::Unknown | Health::Up | Health::Suspect(_) if !home.has_claim => Some(Placement::HomeRestarted),
            Health::Unknown | Health::Up | Health::Suspect(_) => None,
        }
    }

    fn can_address(&self, id: ReplicaId, ranks: Ranks) -> bool {
        ranks == Ranks::Obeyed || self.replicas[id.index()].spec.rank.is_none()
    }

    /// Whether a replica is under its spill threshold.
    fn has_room(&self, id: ReplicaId) -> bool {
        let row = &self.replicas.rows()[id.index()];
        row.in_flight < row.spill_threshold
    }

    pub(super) fn threshold(&self, replica: &Replica) -> u32 {
        self.policy.spill_threshold(replica.reported_max_num_seqs)
    }
}
