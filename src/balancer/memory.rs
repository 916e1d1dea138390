//! What is remembered of conversations: where they are pinned, what else they are called, how far their histories go.
//! Here a turn is given its conversation.

use std::time::Duration;

use crate::conversation::{Chain, ConversationKey, Link};

use super::affinity::{Affinity, Bounds};
use super::aliases::Aliases;
use super::histories::{Extension, Histories, Known, fork_of};
use super::pin::Pin;
use super::replica::ReplicaId;
use super::ticket::{Lesson, Ticket};
use super::turn::{Decision, Placement, Recognised, Turn};

/// The least history, in bytes of text, that draws a fork without an id to its origin's replica: about a thousand tokens,
/// which an engine reads again in about a tenth of a second. For less, an even load is worth more. The system prompt and
/// the tools don't count: every conversation of an agent has them in common, wherever it is.
pub const FORK_TEXT_BYTES_MIN: u32 = 4096;

/// What one model's balancer remembers of conversations.
#[derive(Debug)]
pub struct Memory {
    pub pins: Affinity,
    pub aliases: Aliases,
    pub histories: Histories,
}

/// Where a conversation is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub replica: ReplicaId,
    /// Whether the replica may still have its history in its cache. Not if it was restarted since.
    pub has_claim: bool,
}

/// The conversation of a turn, and what the memory says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    pub conversation: ConversationKey,
    pub recognised: Recognised,
    /// Where the conversation is pinned.
    pub home: Option<Home>,
    /// The id by which the turn names its conversation, if it does.
    name: Option<ConversationKey>,
    /// Whether `name` becomes an alias once the turn is served: another id of the same turn is what is known.
    joins: bool,
    /// Of whom the conversation, if it is new, is a subagent, a child session or a fork.
    parent: Option<ConversationKey>,
    /// Where its history is, if it is new and was forked from another one.
    pub fork_home: Option<ReplicaId>,
    pub extension: Option<Extension>,
}

impl Memory {
    pub fn new(bounds: Bounds) -> Self {
        Memory { pins: Affinity::new(bounds), aliases: Aliases::new(bounds), histories: Histories::new(bounds) }
    }

    /// Changes the bounds; what is over the new ones goes as turns arrive.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.pins.set_bounds(bounds);
        self.aliases.set_bounds(bounds);
        self.histories.set_bounds(bounds);
    }

    /// Who speaks: the conversation that the turn names, or else the one that its history belongs to. Costs a lookup for
    /// a known id, at most [`super::ALIASES_MAX`] more for an unknown one, and what [`Histories::longest_known`] costs.
    pub fn recognise(&self, turn: &Turn<'_>, now: Duration) -> Option<Speaker> {
        match (turn.conversation, turn.history()) {
            (Some(name), None) => Some(self.by_name(name, turn, now)),
            (Some(name), Some((chain, whole))) => {
                let speaker = self.by_name(name, turn, now);
                Some(self.with_history(speaker, chain, whole, now))
            }
            (None, Some((chain, whole))) => Some(self.by_history(turn, chain, whole, now)),
            (None, None) => None,
        }
    }

    /// Whether an id leads to a pinned conversation.
    pub fn knows(&self, id: ConversationKey, now: Duration) -> bool {
        let pinned = |key| self.home(key, now).is_some();
        pinned(id) || self.aliases.meant_by(id).is_some_and(pinned)
    }

    /// A turn takes a slot for its conversation: the conversation is pinned, moved or marked as used, as decided.
    pub fn hold(&mut self, speaker: &Speaker, replica: ReplicaId, decision: Decision, now: Duration) {
        let key = speaker.conversation;
        let pin = match decision {
            Decision::Placed { reason: Placement::New | Placement::Forked } => {
                self.aliases.remove(key);
                let parent = speaker.parent.filter(|parent| *parent != key);
                Some(self.pins.insert(key, Pin::new(replica, parent), now))
            }
            Decision::Placed {
                reason:
                    Placement::HomeDown
                    | Placement::HomeRemoved
                    | Placement::HomeFailed
                    | Placement::HomeRestarted
                    | Placement::HomeDraining
                    | Placement::HomeSleeping
                    | Placement::HomeFull,
            } => self.pins.repin(key, replica, now),
            Decision::Sticky | Decision::Spilled { .. } => self.pins.touch(key, now),
            Decision::ClientPinned | Decision::Unpinned { .. } | Decision::Side => return,
        };
        if let Some(pin) = pin {
            pin.in_flight = pin.in_flight.saturating_add(1);
        }
        if let Some(extension) = &speaker.extension {
            self.histories.extend(extension, key);
        }
        match speaker.joining() {
            Some(name) => self.aliases.begin_joining(name, key),
            None => self.touch_alias(speaker, now),
        }
    }

    /// More is heard of a turn that holds a slot and was not served: its aliases, and its history if it has one, take the
    /// place of what was known of it.
    pub fn learn_more(&mut self, ticket: &mut Ticket, turn: &Turn<'_>, now: Duration) {
        let Some(conversation) = ticket.bound() else { return };
        let before = ticket.lesson.take();
        let (mut extension, joining) = before.map_or((None, None), |lesson| (lesson.extension, lesson.joining));
        if let Some((chain, whole)) = turn.history() {
            if let Some(before) = &extension {
                self.histories.retract(before, conversation);
            }
            let known = self.longest_known(chain, now);
            let found = Extension::new(chain, whole, known.as_ref());
            let found = if ticket.recognised == Some(Recognised::Fingerprint) { found } else { found.named() };
            self.histories.extend(&found, conversation);
            extension = Some(found);
        }
        ticket.lesson = Lesson::of(turn, extension, joining);
    }

    /// A turn of the conversation was served: its pin holds, and what the turn says of itself is learned.
    pub fn learn(&mut self, ticket: &mut Ticket, now: Duration) {
        let Some(conversation) = ticket.bound() else { return };
        self.pins.prove(conversation, ticket.replica, now);
        let Some(lesson) = ticket.lesson.take() else { return };
        if let Some(name) = lesson.joining {
            self.join(name, conversation, now);
        }
        for alias in lesson.aliases.into_iter().flatten() {
            if self.is_free(alias, now) && self.pins.contains(conversation) {
                self.aliases.set(alias, conversation, now);
            }
        }
        if let Some(extension) = &lesson.extension {
            self.histories.register(extension, conversation, now);
        }
    }

    /// A turn has ended. If it was not served, it was no part of its conversation, and a pin that no turn has proven goes
    /// with its last one.
    pub fn release(&mut self, ticket: &Ticket, now: Duration) {
        let Some(conversation) = ticket.bound() else { return };
        if let Some(lesson) = &ticket.lesson {
            self.forgo(lesson, conversation);
        }
        let Some(pin) = self.pins.touch(conversation, now) else { return };
        pin.in_flight = pin.in_flight.saturating_sub(1);
        if !pin.proven && pin.in_flight == 0 {
            self.pins.give_up(conversation, now);
        }
    }

    /// Ages a bounded part of what is remembered.
    pub fn sweep(&mut self, now: Duration) {
        self.pins.sweep(now);
        let pins = &self.pins;
        self.aliases.sweep(now, |conversation| pins.peek(conversation, now).is_some());
        self.histories.sweep(now, |conversation| pins.peek(conversation, now).is_some());
    }

    fn by_name(&self, name: ConversationKey, turn: &Turn<'_>, now: Duration) -> Speaker {
        let explicit = Speaker { parent: turn.parent, ..Speaker::named(name) };
        if let Some(home) = self.home(name, now) {
            return Speaker { home: Some(home), ..explicit };
        }
        let alias = Speaker { recognised: Recognised::Alias, ..explicit };
        if let Some(conversation) = self.aliases.meant_by(name)
            && let Some(home) = self.home(conversation, now)
        {
            return Speaker { conversation, home: Some(home), ..alias };
        }
        // Only one name may join a conversation this way. An id that comes with a second one is shared by several
        // conversations, as a `prompt_cache_key` that stands for a whole application is.
        let joined = turn.other_names().find_map(|other| {
            self.pins.peek(other, now).filter(|pin| !pin.joined && self.aliases.may_join(name, other))?;
            Some(Speaker { conversation: other, home: self.home(other, now), joins: true, ..alias })
        });
        joined.unwrap_or(explicit)
    }

    /// Adds what a named conversation's history says. Only one that holds an answer can be a fork: sessions that merely
    /// begin alike are not.
    fn with_history(&self, speaker: Speaker, chain: &Chain, whole: Link, now: Duration) -> Speaker {
        let known = if chain.is_continued { self.longest_known(chain, now) } else { None };
        let extension = Some(Extension::new(chain, whole, known.as_ref()).named());
        let origin = known.map(|known| known.registered.conversation);
        match origin.filter(|origin| speaker.home.is_none() && *origin != speaker.conversation) {
            // What both share may be far longer than the part that is known: a named conversation's later turns
            // mostly come without their histories. So its length is no reason against it.
            Some(origin) => {
                let parent = speaker.parent.or(Some(origin));
                Speaker { extension, parent, fork_home: self.warm_home(origin, now), ..speaker }
            }
            None => Speaker { extension, ..speaker },
        }
    }

    /// A conversation with an id is not found by its history: its client says who speaks, and this one doesn't.
    fn by_history(&self, turn: &Turn<'_>, chain: &Chain, whole: Link, now: Duration) -> Speaker {
        let known = self.longest_known(chain, now);
        let speaker = |conversation| Speaker {
            home: self.home(conversation, now),
            parent: turn.parent,
            extension: Some(Extension::new(chain, whole, known.as_ref())),
            ..Speaker::unnamed(conversation)
        };
        let Some(known) = known else { return speaker(ConversationKey(whole.key.0)) };
        let origin = known.registered.conversation;
        if known.goes_on_with(whole.key) {
            return speaker(origin);
        }
        let branch = speaker(fork_of(origin, whole.key));
        if !known.registered.holds_answer() {
            return branch;
        }
        let is_worth_it = known.registered.text_bytes >= FORK_TEXT_BYTES_MIN;
        let fork_home = if is_worth_it { self.warm_home(origin, now) } else { None };
        Speaker { parent: turn.parent.or(Some(origin)), fork_home, ..branch }
    }

    fn longest_known(&self, chain: &Chain, now: Duration) -> Option<Known> {
        self.histories.longest_known(chain, now, |conversation| self.home(conversation, now).is_some())
    }

    fn home(&self, conversation: ConversationKey, now: Duration) -> Option<Home> {
        let pin = self.pins.peek(conversation, now)?;
        Some(Home { replica: pin.replica, has_claim: self.pins.has_claim(pin) })
    }

    /// Where a conversation's history may still be in a cache.
    fn warm_home(&self, conversation: ConversationKey, now: Duration) -> Option<ReplicaId> {
        self.home(conversation, now).filter(|home| home.has_claim).map(|home| home.replica)
    }

    /// The conversation was asked for under another name than its own.
    fn touch_alias(&mut self, speaker: &Speaker, now: Duration) {
        if let Some(name) = speaker.name.filter(|name| *name != speaker.conversation) {
            self.aliases.touch(name, now);
        }
    }

    /// A turn was served that came under a new name: that leads to its conversation from here on, unless it was given a
    /// pin meanwhile.
    fn join(&mut self, name: ConversationKey, conversation: ConversationKey, now: Duration) {
        self.aliases.end_joining(conversation);
        if self.home(name, now).is_some() {
            return;
        }
        if let Some(pin) = self.pins.touch(conversation, now) {
            pin.joined = true;
            // It may have had a pin that is past its age and was not swept yet.
            self.pins.forget(name);
            self.aliases.set(name, conversation, now);
        }
    }

    /// What a turn would have taught is not learned.
    fn forgo(&mut self, lesson: &Lesson, conversation: ConversationKey) {
        if lesson.joining.is_some() {
            self.aliases.end_joining(conversation);
        }
        if let Some(extension) = &lesson.extension {
            self.histories.retract(extension, conversation);
        }
    }

    /// Whether an id has neither a pin nor leads to one.
    fn is_free(&self, id: ConversationKey, now: Duration) -> bool {
        let leads = self.aliases.meant_by(id).is_some_and(|conversation| self.home(conversation, now).is_some());
        !leads && !self.pins.contains(id)
    }

    /// Panics unless the parts agree with themselves and each other.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        self.pins.check_invariants();
        self.aliases.check_invariants(|name| self.pins.contains(name));
        self.histories.check_invariants();
    }
}

impl Speaker {
    /// A conversation under the name that a turn gives it, of which nothing else is known.
    pub fn named(name: ConversationKey) -> Self {
        Speaker { name: Some(name), recognised: Recognised::Explicit, ..Speaker::unnamed(name) }
    }

    /// The name under which the turn joins a conversation that is known by another one.
    pub fn joining(&self) -> Option<ConversationKey> {
        self.name.filter(|_| self.joins)
    }

    /// Of whom the conversation, if it is new, is a subagent, a child session or a fork.
    pub fn parent(&self) -> Option<ConversationKey> {
        self.parent
    }

    fn unnamed(conversation: ConversationKey) -> Self {
        Speaker {
            conversation,
            recognised: Recognised::Fingerprint,
            home: None,
            name: None,
            joins: false,
            parent: None,
            fork_home: None,
            extension: None,
        }
    }
}
