//! Letting turns in: who goes straight to its replica, who waits, and who is next.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::Balancer;
use super::admission::{AdmissionMode, Claim, Look, Place, Waiting};
use super::choice::Choice;
use super::cost::{Bill, ColdReason, Cost};
use super::placement::Weigh;
use super::policy::Mode;
use super::replica::ReplicaId;
use super::ticket::Ticket;
use super::turn::{Decision, Placement, Refusal, Turn};

/// What comes of a turn that asks to be let in.
#[derive(Debug)]
#[must_use = "a ticket that is dropped leaves its slot taken for ever, and a place its turn in the line"]
pub enum Entry {
    /// It has a slot.
    Seated(Ticket),
    /// It waits. [`Balancer::take_let_in`] says when it may enter, by [`Balancer::arrive`]; a turn that waits no longer says so to
    /// [`Balancer::leave_line`].
    Held(Place),
}

/// What a conversation takes at least: a block or so, however little is known of it.
const NEED_MIN: u64 = 16;

impl Balancer {
    /// Decides where a turn goes and takes its slot there, or has it wait until its conversation fits. A turn that goes on
    /// elsewhere after a failure was let in already: it [arrives](Balancer::arrive).
    ///
    /// # Errors
    /// When no replica could be given, or too many wait already.
    pub fn admit(&mut self, turn: &Turn<'_>, now: Duration) -> Result<Entry, Refusal> {
        let chosen = self.choose(turn, now);
        let Some((conversation, home)) = chosen.ok().and_then(|choice| self.has_to_ask(&choice, turn)) else {
            return self.settle(chosen, turn, now).map(Entry::Seated);
        };
        if self.door.line.turns() >= self.policy.admission.held_max {
            self.refused[Refusal::LineFull as usize] += 1;
            return Err(Refusal::LineFull);
        }
        // When it comes to the door and not when it gets in: the wait in between is no pause of its client.
        self.note_return(conversation, now);
        let need = self.need(conversation, turn);
        let place = self.door.line.join(conversation, home, need, now);
        let is_alone = self.door.line.turns_at(place) == 1;
        self.let_in(now);
        if let Some(index) = self.door.let_in.iter().position(|let_in| *let_in == place) {
            // Who got in at once was never in the line. Other turns of the conversation were, and are still to be called.
            if is_alone {
                self.door.let_in.swap_remove(index);
            }
            return self.arrive(turn, now).map(Entry::Seated);
        }
        self.door.counters.held += 1;
        Ok(Entry::Held(place))
    }

    /// A turn waits no longer: its client has left.
    pub fn leave_line(&mut self, place: Place, now: Duration) {
        if self.door.line.leave(place, now) {
            self.door.counters.left += 1;
            self.let_in(now);
        }
    }

    /// The places whose turns may enter since this was asked last.
    pub fn take_let_in(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.door.let_in)
    }

    /// Whether anybody waits. Then [`Balancer::tick`] wants to be called every now and then: stays run out and holds end
    /// without anything happening.
    pub fn has_line(&self) -> bool {
        !self.door.line.is_empty()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) {
        self.door.line.sweep(now);
        self.let_in(now);
    }

    /// Lets in who is next, as far as there is room: in order, but for those who wait for a replica that has none while others
    /// have.
    pub(super) fn let_in(&mut self, now: Duration) {
        if self.door.line.is_empty() {
            return;
        }
        let are_served = !self.holds_turns();
        if are_served || !self.field_of_all(now).any_serves() {
            // Nobody is held any more; or nobody can be served, and everybody is to hear of it.
            while let Some(waiting) = self.door.line.remove(0) {
                if are_served {
                    self.door.note_held(&waiting, now);
                }
                self.door.let_in.push(waiting.place);
            }
            return;
        }
        let look = Look::new(self.policy.admission, now);
        let mut shut = vec![false; self.replicas.len()];
        let mut index = 0;
        while let Some(waiting) = self.door.line.get(index).copied() {
            if !waiting.is_taken() {
                index += 1;
                continue;
            }
            match self.room_for(&waiting, &shut, &look) {
                Some(replica) => self.seat(index, &waiting, replica, now),
                None => {
                    self.rotate(&waiting, &shut, now);
                    match waiting.home.filter(|home| self.is_open(*home)) {
                        Some(home) => shut[home.index()] = true,
                        // Whoever takes any room is not overtaken by those who want a certain one.
                        None => return,
                    }
                    index += 1;
                }
            }
            if shut.iter().all(|shut| *shut) {
                return;
            }
        }
    }

    /// The conversation that has to be let in for a turn, and where it was at home; `None` for a turn that nobody asks.
    fn has_to_ask(&self, choice: &Choice, turn: &Turn<'_>) -> Option<(ConversationKey, Option<ReplicaId>)> {
        if !self.holds_turns() || !turn.tried.is_empty() {
            return None;
        }
        let speaker = choice.speaker.filter(|_| choice.decision.binds())?;
        let conversation = speaker.conversation;
        let home = match choice.decision {
            Decision::Sticky => Some(choice.replica),
            Decision::Spilled { from } => Some(from),
            Decision::Placed { reason: Placement::Forked } => Some(choice.replica),
            Decision::Placed { .. } | Decision::ClientPinned | Decision::Unpinned { .. } | Decision::Side => None,
        };
        if self.door.room_of(conversation).is_some_and(|room| home.is_none_or(|home| home == room)) {
            return None;
        }
        // Its parent waits for it, and keeps its room meanwhile.
        let parent = self.memory.pins.at(conversation).map_or(speaker.parent(), |pin| pin.parent());
        if parent.is_some_and(|parent| self.door.room_of(parent).is_some()) {
            return None;
        }
        let is_free = |id: ReplicaId| {
            let need = self.need(conversation, turn);
            self.door.line.is_empty() && self.fits(id, need)
        };
        (!is_free(home.unwrap_or(choice.replica))).then_some((conversation, home))
    }

    /// Whether anybody is held. Without affinity nobody has a cache to be kept.
    pub(super) fn holds_turns(&self) -> bool {
        self.policy.admission.mode != AdmissionMode::Off && self.policy.mode == Mode::Affinity
    }

    /// Whether somebody who needs so many tokens fits without anybody having to go.
    fn fits(&self, id: ReplicaId, need: u64) -> bool {
        let Some(capacity) = self.capacity(id) else { return true };
        let limit = self.door.limit(id, capacity, &self.policy.admission);
        self.door.rooms.with_another(id, need) <= limit
    }

    /// Whether a turn may be spilled to a replica: not if residents would have to suffer.
    pub(super) fn takes_visitors(&self, id: ReplicaId, conversation: ConversationKey, turn: &Turn<'_>) -> bool {
        !self.holds_turns() || self.fits(id, self.need(conversation, turn))
    }

    /// The replica where somebody who waits gets in; the residents who had to go for it are gone then.
    fn room_for(&mut self, waiting: &Waiting, shut: &[bool], look: &Look) -> Option<ReplicaId> {
        let is_overdue = self.is_overdue(waiting, look.now);
        let takes = |id: ReplicaId| {
            let fits = || self.going_for(id, waiting, look).is_some();
            !shut[id.index()] && (is_overdue && waiting.home == Some(id) || fits())
        };
        let home = waiting.home.filter(|home| self.is_open(*home) && !self.has_lost(waiting, *home));
        let found = match home {
            Some(home) => Some(home).filter(|home| takes(*home)),
            None if !is_overdue && look.is_misfit(waiting.need) => None,
            None => {
                let least_loaded = |suits: &dyn Fn(ReplicaId) -> bool| {
                    self.field_of_all(look.now).least_loaded_of(Weigh::Residents, &self.rotation, suits)
                };
                match least_loaded(&takes) {
                    None if is_overdue => least_loaded(&|id| !shut[id.index()]),
                    None => {
                        look.note_misfit(waiting.need, self.door.rooms.shared());
                        None
                    }
                    Some(roomy) => Some(roomy),
                }
            }
        }?;
        for conversation in self.going_for(found, waiting, look).unwrap_or_default() {
            self.door.rooms.dismiss(conversation);
        }
        Some(found)
    }

    /// Whether nothing is left of a conversation in the cache that it waits for, so that it may as well go elsewhere.
    fn has_lost(&self, waiting: &Waiting, home: ReplicaId) -> bool {
        let Some(pin) = self.memory.pins.at(waiting.conversation).filter(|pin| pin.replica == home) else {
            // A fork, which has not been there yet.
            return false;
        };
        let (Some(tokens), Some(capacity)) = (pin.tokens(), self.capacity(home)) else { return false };
        let computed_since = u64::from(self.replicas[home.index()].computed.wrapping_sub(tokens.mark));
        computed_since >= capacity
    }

    /// The residents who have to go for somebody to fit on a replica; `None` if that is not enough.
    fn going_for(&self, id: ReplicaId, waiting: &Waiting, look: &Look) -> Option<Vec<ConversationKey>> {
        let cold_max = look.policy.tuning.cold_max;
        let cold = self.door.rooms.room(id).map_or(0, |room| room.cold);
        match self.capacity(id) {
            _ if cold_max > 0 && cold >= cold_max => None,
            Some(capacity) => self.door.room_for(id, waiting.need, capacity, look),
            None => Some(Vec::new()),
        }
    }

    fn is_overdue(&self, waiting: &Waiting, now: Duration) -> bool {
        now.saturating_sub(waiting.since) >= self.policy.admission.hold_max
    }

    fn seat(&mut self, index: usize, waiting: &Waiting, replica: ReplicaId, now: Duration) {
        if self.door.note_held(waiting, now) && self.is_overdue(waiting, now) {
            self.door.counters.forced += u64::from(waiting.turns());
        }
        self.door.line.remove(index);
        self.door.rooms.enter(waiting.conversation, replica, waiting.need, now);
        self.door.let_in.push(waiting.place);
    }

    /// Has a resident make room for somebody who has waited for too long, where that is wanted.
    fn rotate(&mut self, waiting: &Waiting, shut: &[bool], now: Duration) {
        let after = self.policy.admission.tuning.rotate_after;
        let is_due = |since: Duration| now.saturating_sub(since) >= after;
        if self.policy.admission.mode != AdmissionMode::Fair || !is_due(waiting.since) {
            return;
        }
        let ids = (0..self.replicas.len()).filter_map(ReplicaId::from_index);
        let ids = ids.filter(|id| waiting.home.is_none_or(|home| home == *id));
        let oldest = ids
            .filter(|id| !shut[id.index()] && self.is_open(*id) && !self.door.rooms.has_notice(*id))
            .filter_map(|id| self.door.rooms.longest_in(id))
            .min_by_key(|(key, resident)| (resident.since, *key))
            .filter(|(_, resident)| is_due(resident.since))
            .map(|(key, _)| key);
        if let Some(conversation) = oldest {
            self.door.counters.parked += 1;
            self.door.rooms.give_notice(conversation);
        }
    }

    /// The tokens that a turn's conversation needs room for.
    fn need(&self, conversation: ConversationKey, turn: &Turn<'_>) -> u64 {
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

    /// The replica where a conversation was let in that has not been there yet.
    pub(super) fn reserved(&self, conversation: ConversationKey, turn: &Turn<'_>, now: Duration) -> Option<ReplicaId> {
        self.door.room_of(conversation).filter(|id| self.field(turn, now).is_open(*id))
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

    fn is_open(&self, id: ReplicaId) -> bool {
        self.replicas.serves(id)
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
    fn note_return(&mut self, conversation: ConversationKey, now: Duration) {
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
