//! The room that turns claim on their replicas, and what they teach of how much conversations need.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::Balancer;
use super::admission::Claim;
use super::choice::Choice;
use super::cost::{Bill, ColdReason, Cost};
use super::replica::ReplicaId;
use super::ticket::Ticket;
use super::turn::{Decision, Placement, Turn};

/// What a conversation takes at least: a block or so, however little is known of it.
const NEED_MIN: u64 = 16;

impl Balancer {
    /// The tokens that a turn's conversation needs room for.
    pub(super) fn need(&self, conversation: ConversationKey, turn: &Turn<'_>) -> u64 {
        self.taken_for(Some(conversation), turn.body_bytes) + self.reserve()
    }

    /// What is kept for a conversation to grow by.
    fn reserve(&self) -> u64 {
        self.door.learnt.growth() * u64::from(self.policy.admission.tuning.reserve_turns)
    }

    /// The tokens that a turn is taken for until it was measured.
    fn taken_for(&self, conversation: Option<ConversationKey>, body_bytes: u64) -> u64 {
        let known = conversation.and_then(|key| self.memory.pins.at(key)).map_or(0, |pin| pin.footprint());
        let sent = self.bytes_per_token.tokens(body_bytes);
        let guess = if known == 0 && sent == 0 { self.door.learnt.first() } else { known.max(sent) };
        guess.max(NEED_MIN)
    }

    /// Tokens of KV cache on a replica; `None` where nobody tells, and nobody is held for it.
    pub(super) fn capacity(&self, id: ReplicaId) -> Option<u64> {
        let told = || self.replicas[id.index()].load.scrape().map(|scrape| scrape.kv_capacity_tokens);
        self.policy.admission.capacity_tokens.or_else(told).filter(|tokens| *tokens > 0)
    }

    /// Tokens that turns in flight claim on a replica.
    #[cfg(test)]
    pub(super) fn claimed(&self, id: ReplicaId) -> u64 {
        self.door.rooms.claimed(id)
    }

    /// A turn that was given a slot takes its room.
    pub(super) fn claim(&mut self, choice: &Choice, turn: &Turn<'_>, now: Duration) -> Claim {
        let replica = choice.replica;
        let capacity = self.capacity(replica).filter(|_| self.holds_turns());
        let Some(capacity) = capacity else { return Claim::Nothing };
        let speaker = choice.speaker.as_ref().filter(|_| choice.decision.binds());
        let tokens = self.taken_for(speaker.map(|speaker| speaker.conversation), turn.body_bytes);
        let Some(speaker) = speaker.filter(|_| !matches!(choice.decision, Decision::Spilled { .. })) else {
            return self.door.rooms.visit(replica, tokens);
        };
        let conversation = speaker.conversation;
        self.note_return(conversation, now);
        if self.door.room_of(conversation) != Some(replica) {
            self.door.rooms.enter(conversation, replica, tokens, now);
        }
        if let Some(parent) = speaker.parent() {
            self.door.rooms.refresh(parent, now);
        }
        let claim = self.door.rooms.begin(conversation, tokens);
        let growth = u64::from(self.policy.admission.tuning.growth_percent);
        self.door.relieve(replica, capacity * growth / 100, conversation);
        claim
    }

    /// How long conversations are silent is learnt from those who lost their room too: else whoever came back late would not
    /// count, stays would become ever shorter, and more would come back too late.
    pub(super) fn note_return(&mut self, conversation: ConversationKey, now: Duration) {
        if let Some((silent, asks)) = self.door.rooms.came_back(conversation, now) {
            self.door.gaps.returned(asks, silent);
        }
    }

    /// A turn's cost teaches how much room conversations take.
    pub(super) fn learn_room(&mut self, ticket: &Ticket, cost: &Cost, bill: &Bill, before: u64, now: Duration) {
        let Claim::Resident { .. } = ticket.claim else { return };
        let (Some(conversation), Some(prompt)) = (ticket.bound(), cost.prompt) else { return };
        let length = prompt + cost.completion;
        if let Some(first) = ticket.first {
            self.door.learnt.computed(bill.computed, first.saturating_sub(ticket.seated));
        }
        match ticket.decision {
            Decision::Placed { reason: Placement::New } => {
                // That nothing was found says something only where others had left anything.
                let others_came = self.door.rooms.room(ticket.replica).and_then(|room| room.used_since);
                let could_find = others_came.is_some_and(|since| since <= ticket.seated);
                self.door.learnt.began(length, cost.cached.filter(|found| *found > 0 || could_find));
                self.door.rooms.room_mut(ticket.replica).used_since.get_or_insert(now);
                self.door.rooms.share(self.door.learnt.shared());
            }
            Decision::Sticky if before > 0 => {
                self.door.learnt.grew(length.saturating_sub(before));
                self.trim(ticket, cost, bill, now);
            }
            Decision::Sticky
            | Decision::Placed { .. }
            | Decision::Spilled { .. }
            | Decision::ClientPinned
            | Decision::Unpinned { .. }
            | Decision::Side => {}
        }
        self.door.rooms.measured(conversation, length + self.reserve(), cost.asks);
    }

    /// What a resident misses of its history was evicted though it was counted on.
    fn trim(&mut self, ticket: &Ticket, cost: &Cost, bill: &Bill, now: Duration) {
        let Claim::Resident { is_return: true, .. } = ticket.claim else { return };
        let (Some(prompt), Some(_)) = (cost.prompt, cost.cached) else { return };
        let missed = match bill.cold {
            Some(cold) if matches!(cold.reason, ColdReason::Evicted) => cold.tokens as f64 / prompt.max(1) as f64,
            Some(_) => return,
            None => 0.0,
        };
        self.door.rooms.room_mut(ticket.replica).trim.found(missed, now);
    }

    /// A turn has ended and gives its claim back.
    pub(super) fn unclaim(&mut self, ticket: &Ticket, now: Duration) {
        if let Claim::Resident { .. } = ticket.claim
            && ticket.first.is_some()
        {
            let asks = ticket.bound().and_then(|key| self.door.rooms.resident(key)).is_some_and(|it| it.asks);
            self.door.gaps.answered(asks);
        }
        self.door.rooms.end(ticket.bound(), ticket.replica, ticket.claim, now);
        if let Some(conversation) = ticket.bound().filter(|key| !self.memory.pins.contains(*key)) {
            self.door.rooms.dismiss(conversation);
        }
    }
}
