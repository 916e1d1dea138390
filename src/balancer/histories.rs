//! Which conversation a history belongs to: the way to recognise one whose client names no id.
//!
//! A turn's history is a chain of links, one a message. The last link of a served turn is registered: the next turn's
//! chain goes on from there, so it holds that link and leads back. A turn that goes on from a link *extends* it from the
//! moment it takes its slot; another turn that goes on from there elsewhere is a fork.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use crate::conversation::{Chain, ChainKey, ConversationKey, Link};

use super::affinity::Bounds;
use super::recent::Recent;

/// The last link of a turn that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    pub conversation: ConversationKey,
    /// The last link of the turn that goes on from here, if `is_extended`: an `Option` of it would make every history 8
    /// bytes larger.
    extended_by: ChainKey,
    /// Bytes of text up to the link, as in [`Link`].
    pub text_bytes: u32,
    is_extended: bool,
}

/// The longest part of a history that was served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub key: ChainKey,
    pub registered: Registered,
}

/// How far a turn takes a history: what is registered once it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The longest part of the history that was served before.
    from: Option<ChainKey>,
    to: Link,
}

/// The registered links of one model.
#[derive(Debug)]
pub struct Histories {
    links: Recent<ChainKey, Registered>,
}

impl Registered {
    fn new(conversation: ConversationKey, link: Link) -> Self {
        Registered { conversation, extended_by: link.key, text_bytes: link.text_bytes, is_extended: false }
    }

    /// The last link of the turn that goes on from here.
    pub fn extended_by(&self) -> Option<ChainKey> {
        self.is_extended.then_some(self.extended_by)
    }

    fn extend(&mut self, to: ChainKey) {
        self.extended_by = to;
        self.is_extended = true;
    }
}

impl Known {
    /// Whether a turn whose history ends with `last` is one of the same conversation. It is a fork if another turn goes on
    /// from there; the same last link is the same turn again.
    pub fn goes_on_with(&self, last: ChainKey) -> bool {
        self.registered.extended_by().is_none_or(|extending| extending == last)
    }
}

impl Extension {
    /// A turn whose history ends with `to` goes on from what is known of it.
    pub fn new(known: Option<&Known>, to: Link) -> Self {
        // A turn that comes again goes on from nothing.
        Extension { from: known.map(|known| known.key).filter(|from| *from != to.key), to }
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

    /// The longest part of a history that was served before. An old link is known as long as its conversation is
    /// pinned. Costs a lookup for each link behind that part.
    pub fn longest_known(
        &self,
        chain: &Chain,
        now: Duration,
        is_pinned: impl Fn(ConversationKey) -> bool,
    ) -> Option<Known> {
        if self.links.len() == 0 {
            return None;
        }
        chain.links.iter().rev().find_map(|link| {
            let entry = self.links.get(link.key)?;
            let is_known = !self.links.is_old(entry, now) || is_pinned(entry.value.conversation);
            is_known.then_some(Known { key: link.key, registered: entry.value })
        })
    }

    /// A turn of the conversation takes its slot. Another one that goes on from the same link is a fork from here on,
    /// whichever of them is served first.
    pub fn extend(&mut self, extension: &Extension, conversation: ConversationKey) {
        let before = extension.from.and_then(|from| self.links.get_mut(from));
        // The turn of a fork says nothing of where its origin's own turns are.
        if let Some(before) = before.filter(|before| before.conversation == conversation) {
            before.extend(extension.to.key);
        }
    }

    /// A turn of the conversation has ended and was not served: it extends nothing, unless it was served another time. A
    /// copy of it that is still in flight extends again when it is served.
    pub fn retract(&mut self, extension: &Extension, conversation: ConversationKey) {
        if self.links.get(extension.to.key).is_some_and(|entry| entry.value.conversation == conversation) {
            return;
        }
        let before = extension.from.and_then(|from| self.links.get_mut(from));
        if let Some(before) = before.filter(|before| before.extended_by() == Some(extension.to.key)) {
            before.is_extended = false;
        }
    }

    /// A turn of the conversation was served.
    pub fn register(&mut self, extension: &Extension, conversation: ConversationKey, now: Duration) {
        if let Some(from) = extension.from {
            self.links.touch(from, now);
        }
        self.extend(extension, conversation);
        let to = extension.to;
        match self.links.touch(to.key, now).filter(|known| known.conversation == conversation) {
            // It may have been extended since.
            Some(known) => known.text_bytes = to.text_bytes,
            None => self.links.put(to.key, Registered::new(conversation, to), now),
        }
    }

    /// Drops a bounded number of links that are over a bound, unless they are old and their conversation is pinned.
    pub fn sweep(&mut self, now: Duration, is_pinned: impl Fn(ConversationKey) -> bool) {
        self.links.sweep(now, |registered| is_pinned(registered.conversation));
    }

    /// Panics unless the links are ordered by use.
    #[cfg(any(test, debug_assertions))]
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
