//! Letting turns in: who goes straight to its replica, who waits, and who is next.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::Balancer;
use super::admission::{AdmissionMode, Look, Place, Waiting};
use super::choice::Choice;
use super::placement::{Field, Weigh};
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

/// How much longer a new conversation waits for a replica that is less loaded than the one that has room: as long as a silent
/// resident that may come back at once is waited for. A conversation stays where it is placed.
const SOON: Duration = Duration::from_millis(100);

/// One pass along the line.
struct Pass {
    look: Look,
    /// As all will be in a moment if nobody comes back.
    soon: Look,
    /// Replicas that nobody else gets into in this pass, by their indices.
    shut: Vec<bool>,
    /// Who was let in to them in this pass, and comes yet.
    coming: Vec<u32>,
}

impl Balancer {
    /// Decides where a turn goes and takes its slot there, or has it wait until its conversation fits. A turn that goes on
    /// elsewhere after a failure was let in already: it [arrives](Balancer::arrive).
    ///
    /// # Errors
    /// When no replica could be given, or too many wait already.
    pub fn admit(&mut self, turn: &Turn<'_>, now: Duration) -> Result<Entry, Refusal> {
        let chosen = self.choose(turn, now);
        self.door.budget.earn(self.policy.admission.tuning.held_percent);
        let Some((conversation, home)) = chosen.ok().and_then(|choice| self.has_to_ask(&choice, turn)) else {
            return self.settle(chosen, turn, now).map(Entry::Seated);
        };
        if self.door.line.turns() >= self.policy.admission.held_max {
            self.refused[Refusal::LineFull as usize] += 1;
            return Err(Refusal::LineFull);
        }
        if !self.door.budget.spend() {
            self.door.counters.forced += 1;
            return self.settle(chosen, turn, now).map(Entry::Seated);
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
        let mut pass = self.pass(now);
        let mut index = 0;
        while let Some(waiting) = self.door.line.get(index).copied() {
            if !waiting.is_taken() {
                index += 1;
                continue;
            }
            match self.room_for(&waiting, &pass) {
                Some(replica) => {
                    self.seat(index, &waiting, replica, now);
                    pass.coming[replica.index()] += 1;
                }
                None => {
                    self.rotate(&waiting, &pass.shut, now);
                    match waiting.home.filter(|home| self.is_open(*home)) {
                        Some(home) => pass.shut[home.index()] = true,
                        // Whoever takes any room is not overtaken by those who want a certain one.
                        None => return,
                    }
                    index += 1;
                }
            }
            if pass.shut.iter().all(|shut| *shut) {
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

    fn pass(&self, now: Duration) -> Pass {
        let [look, soon] = [now, now + SOON].map(|at| Look::new(self.policy.admission, at));
        Pass { look, soon, shut: vec![false; self.replicas.len()], coming: vec![0; self.replicas.len()] }
    }

    /// The replica where somebody who waits gets in; the residents who had to go for it are gone then.
    fn room_for(&mut self, waiting: &Waiting, pass: &Pass) -> Option<ReplicaId> {
        let is_overdue = self.is_overdue(waiting, pass.look.now);
        let found = match waiting.home.filter(|home| self.is_open(*home) && !self.has_lost(waiting, *home)) {
            Some(home) => {
                let takes = || is_overdue || self.going_for(home, waiting, &pass.look).is_some();
                Some(home).filter(|home| !pass.shut[home.index()] && takes())
            }
            None => self.any_room_for(waiting, pass, is_overdue),
        }?;
        for conversation in self.going_for(found, waiting, &pass.look).unwrap_or_default() {
            self.door.rooms.dismiss(conversation);
        }
        Some(found)
    }

    /// The least loaded replica that has room, unless one with less load has it in a moment: that is waited for once. For who
    /// is overdue, any.
    fn any_room_for(&mut self, waiting: &Waiting, pass: &Pass, is_overdue: bool) -> Option<ReplicaId> {
        let now = pass.look.now;
        if !is_overdue && pass.look.is_misfit(waiting.need) {
            return None;
        }
        let field = Field { coming: &pass.coming, ..self.field_of_all(now) };
        let least_loaded = |suits: &dyn Fn(ReplicaId) -> bool| {
            let suits = |id: ReplicaId| !pass.shut[id.index()] && suits(id);
            field.least_loaded_of(Weigh::Residents, &self.rotation, suits)
        };
        let takes = |id| self.going_for(id, waiting, &pass.look).is_some();
        // Who finds room now finds it in a moment too.
        let takes_soon = |id| self.going_for(id, waiting, &pass.soon).is_some();
        let waits_on = waiting.choosy_since.is_none_or(|since| now.saturating_sub(since) < SOON);
        let found = if waits_on && !is_overdue { least_loaded(&takes_soon) } else { least_loaded(&takes) };
        match found {
            Some(id) if takes(id) => Some(id),
            Some(_) => {
                if least_loaded(&takes).is_some() {
                    self.door.line.is_choosy(waiting.place, now);
                }
                None
            }
            None if is_overdue => least_loaded(&|_| true),
            None => {
                pass.look.note_misfit(waiting.need, self.door.rooms.shared());
                None
            }
        }
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

    /// The replica where a conversation was let in that has not been there yet.
    pub(super) fn reserved(&self, conversation: ConversationKey, turn: &Turn<'_>, now: Duration) -> Option<ReplicaId> {
        self.door.room_of(conversation).filter(|id| self.field(turn, now).is_open(*id))
    }

    fn is_open(&self, id: ReplicaId) -> bool {
        self.replicas.serves(id)
    }
}
