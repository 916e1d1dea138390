//! Which conversation a history belongs to: the way to recognise one whose client names no id.
//!
//! A turn's history is a chain of links, one a message. Of a served turn two links are registered:
//!
//! - its *end*, the last one. The next turn's chain goes on from there, so it holds that link and leads back.
//! - its *answer*, that of the assistant's last message, if its conversation has no id. Some clients put what is true only
//!   now (a reminder, a file) into the newest message and take it out again in the next turn, so the end is never seen
//!   again. A chain that goes on from the answer further than the turn itself did is of the same conversation; one that
//!   doesn't asks something else in the turn's place.
//!
//! A turn that goes on from a link *extends* it from the moment it takes its slot; another turn that goes on from there
//! elsewhere is a fork.

mod kept;

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use crate::conversation::{Chain, ChainKey, ConversationKey, Link};

use super::affinity::Bounds;
use super::recent::Recent;

/// How many links of a history are looked up, the newest first. A turn adds a few messages to what was served before, or
/// some dozens where it called tools in parallel; only a conversation that was forked further back than this begins anew.
/// At 18 ns for each that is not in the processor's cache (`bench/decision.rs`) no client can hold the model's lock for
/// more than about 10 µs.
pub const LOOKUPS_MAX: usize = 512;

/// A link of a turn that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    pub conversation: ConversationKey,
    /// The last link of the turn that goes on from here, if `is_extended`: an `Option` of it would make every history 8
    /// bytes larger.
    extended_by: ChainKey,
    /// Bytes of text up to the link, as in [`Link`].
    pub text_bytes: u32,
    is_extended: bool,
    /// Whether the client gives the conversation an id.
    pub is_named: bool,
    part: Part,
    /// As in [`Extension`].
    behind_answer: u8,
}

/// What part of its turn a registered link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The whole of a turn that began its conversation.
    Beginning,
    /// The whole of a later turn.
    End,
    /// What was said up to the assistant's last message.
    Answer,
}

/// The longest known part of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub registered: Registered,
    key: ChainKey,
    /// The last answer in it, where that is another link.
    answer: Option<ChainKey>,
    /// How many links of the history are behind it.
    behind: usize,
}

/// How far a turn takes a history: what is registered once it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The longest known part of the history, and the last answer in that.
    from: [Option<ChainKey>; 2],
    to: Link,
    /// The turn's own last answer, where that is not its last link.
    answer: Option<Link>,
    /// How many links of the turn are behind `answer`.
    behind_answer: u8,
    is_continued: bool,
    is_named: bool,
}

/// The registered links of one model.
#[derive(Debug)]
pub struct Histories {
    links: Recent<ChainKey, Registered>,
}

impl Registered {
    /// The last link of the turn that goes on from here.
    fn extended_by(&self) -> Option<ChainKey> {
        self.is_extended.then_some(self.extended_by)
    }

    fn extend(&mut self, to: ChainKey) {
        self.extended_by = to;
        self.is_extended = true;
    }

    /// Whether there is an answer among what the link ends. Without one, conversations merely begin alike.
    pub fn holds_answer(&self) -> bool {
        match self.part {
            Part::Beginning => false,
            Part::End | Part::Answer => true,
        }
    }

    /// Whether `other` may be registered in its place. A link by which a conversation without an id is to be found again
    /// isn't given up for one that could only be forked from.
    fn yields_to(&self, other: &Registered) -> bool {
        let is_awaited = !self.is_named && !self.is_extended;
        !(is_awaited && (other.is_named || self.part != Part::Answer && other.part == Part::Answer))
    }
}

impl Known {
    fn of(chain: &Chain, index: usize, registered: Registered) -> Self {
        let answer = match registered.part {
            Part::Beginning | Part::Answer => None,
            Part::End if registered.behind_answer == 0 => None,
            Part::End => index.checked_sub(usize::from(registered.behind_answer)).map(|index| chain.links[index].key),
        };
        Known { registered, key: chain.links[index].key, answer, behind: chain.links.len() - 1 - index }
    }

    /// Whether a turn without an id whose history ends with `last` is one of the same conversation. It is not if another
    /// turn goes on from there; the same last link is the same turn again.
    pub fn goes_on_with(&self, last: ChainKey) -> bool {
        let is_next = match self.registered.part {
            Part::Beginning | Part::End => true,
            Part::Answer => self.behind > usize::from(self.registered.behind_answer),
        };
        is_next && !self.registered.is_named && self.registered.extended_by().is_none_or(|extending| extending == last)
    }
}

impl Extension {
    /// A turn of a conversation without an id, with this history that ends with `to`, goes on from what is known of it.
    pub fn new(chain: &Chain, to: Link, known: Option<&Known>) -> Self {
        // A turn that comes again goes on from nothing.
        let from = known.filter(|known| known.key != to.key).map_or([None; 2], |known| [Some(known.key), known.answer]);
        let behind = chain.last_answer.map_or(0, |index| chain.links.len() - 1 - index);
        // No turn is known to ask so much at once that it can't be counted here.
        let behind_answer = u8::try_from(behind).unwrap_or(0);
        let answer = chain.last_answer.filter(|_| behind_answer > 0).map(|index| chain.links[index]);
        Extension { from, to, answer, behind_answer, is_continued: chain.is_continued, is_named: false }
    }

    /// The same of a conversation with an id: it is found by that, so of its history only the end is registered, for its
    /// forks.
    pub fn named(self) -> Self {
        Extension { answer: None, behind_answer: 0, is_named: true, ..self }
    }

    fn registers(&self, part: Part, link: Link, conversation: ConversationKey) -> Registered {
        Registered {
            conversation,
            extended_by: link.key,
            text_bytes: link.text_bytes,
            is_extended: false,
            is_named: self.is_named,
            part,
            behind_answer: self.behind_answer,
        }
    }
}

impl Histories {
    pub fn new(bounds: Bounds) -> Self {
        Histories { links: Recent::new(bounds) }
    }

    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.links.set_bounds(bounds);
    }

    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The longest known part of a history. An old link is known as long as its conversation is pinned. Costs a lookup for
    /// each link behind that part, and [`LOOKUPS_MAX`] at most.
    pub fn longest_known(
        &self,
        chain: &Chain,
        now: Duration,
        is_pinned: impl Fn(ConversationKey) -> bool,
    ) -> Option<Known> {
        if self.links.len() == 0 {
            return None;
        }
        chain.links.iter().enumerate().rev().take(LOOKUPS_MAX).find_map(|(index, link)| {
            let entry = self.links.get(link.key)?;
            let is_known = !self.links.is_old(entry, now) || is_pinned(entry.value.conversation);
            is_known.then(|| Known::of(chain, index, entry.value))
        })
    }

    /// A turn of the conversation takes its slot. Another one that goes on from the same link is a fork from here on,
    /// whichever of them is served first.
    pub fn extend(&mut self, extension: &Extension, conversation: ConversationKey) {
        for from in extension.from.into_iter().flatten() {
            // The turn of a fork says nothing of where its origin's own turns are.
            let before = self.links.get_mut(from).filter(|before| before.conversation == conversation);
            if let Some(before) = before {
                before.extend(extension.to.key);
            }
        }
    }

    /// A turn of the conversation has ended and was not served: it extends nothing, unless it was served another time. A
    /// copy of it that is still in flight extends again when it is served.
    pub fn retract(&mut self, extension: &Extension, conversation: ConversationKey) {
        if self.links.get(extension.to.key).is_some_and(|entry| entry.value.conversation == conversation) {
            return;
        }
        for from in extension.from.into_iter().flatten() {
            let before = self.links.get_mut(from);
            if let Some(before) = before.filter(|before| before.extended_by() == Some(extension.to.key)) {
                before.is_extended = false;
            }
        }
    }

    /// A turn of the conversation was served.
    pub fn register(&mut self, extension: &Extension, conversation: ConversationKey, now: Duration) {
        for from in extension.from.into_iter().flatten() {
            self.links.touch(from, now);
        }
        self.extend(extension, conversation);
        if let Some(answer) = extension.answer {
            self.put_answer(answer, extension, conversation, now);
        }
        let end = if extension.is_continued { Part::End } else { Part::Beginning };
        self.put(extension.to, extension.registers(end, extension.to, conversation), now);
    }

    /// Drops a bounded number of links that are over a bound, unless they are old and their conversation is pinned.
    pub fn sweep(&mut self, now: Duration, is_pinned: impl Fn(ConversationKey) -> bool) {
        self.links.sweep(now, |registered| is_pinned(registered.conversation));
    }

    /// A turn may ask more than the one before it without an answer between them. Both have the same last answer, and
    /// what counts is how far the later one went on.
    fn put_answer(&mut self, answer: Link, extension: &Extension, conversation: ConversationKey, now: Duration) {
        let known = self.links.get_mut(answer.key).filter(|known| known.part == Part::Answer);
        if let Some(known) = known.filter(|known| known.extended_by() == Some(extension.to.key)) {
            known.is_extended = false;
            known.behind_answer = extension.behind_answer;
        }
        self.put(answer, extension.registers(Part::Answer, answer, conversation), now);
    }

    fn put(&mut self, link: Link, registered: Registered, now: Duration) {
        match self.links.get(link.key).map(|entry| entry.value) {
            // It may have been extended since.
            Some(known) if known.conversation == registered.conversation => {
                self.links.touch(link.key, now);
            }
            Some(known) if !known.yields_to(&registered) => {}
            Some(_) | None => self.links.put(link.key, registered, now),
        }
    }

    /// Panics unless the links are ordered by use.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        self.links.check_invariants();
    }
}

/// The conversation that a turn begins which leaves `parent` behind and whose history ends with `last`. The same for
/// every copy of the turn, and another one than `parent`.
///
/// Both are outputs of a keyed hash that no client knows, so this one needs no key.
pub fn fork_of(parent: ConversationKey, last: ChainKey) -> ConversationKey {
    let mut hasher = SipHasher24::new();
    hasher.write_u64(parent.0);
    hasher.write_u64(last.0);
    let key = hasher.finish();
    ConversationKey(if key == parent.0 { !key } else { key })
}
