//! Which conversation a history belongs to: the way to recognise one whose client names no id.
//!
//! A turn's history is a chain of links, one a message. The last link of a served turn is registered, and nothing else
//! is: the next turn's chain goes on from there, so it holds that link and leads back. A link that a deeper turn of its
//! conversation was seen to go on from is *extended*; a second turn that goes on from it is a fork.

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
    /// Bytes of text up to the link, as in [`Link`].
    pub text_bytes: u32,
    pub is_extended: bool,
}

/// How far a turn takes a history: what is registered once it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// The longest part of the history that was served before.
    pub from: Option<ChainKey>,
    pub to: Link,
}

/// The registered links of one model.
#[derive(Debug)]
pub struct Histories {
    links: Recent<ChainKey, Registered>,
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
    ) -> Option<(ChainKey, Registered)> {
        if self.links.len() == 0 {
            return None;
        }
        chain.links.iter().rev().find_map(|link| {
            let entry = self.links.get(link.key)?;
            let is_known = !self.links.is_old(entry, now) || is_pinned(entry.value.conversation);
            is_known.then_some((link.key, entry.value))
        })
    }

    /// A turn of the conversation was served.
    pub fn register(&mut self, extension: Extension, conversation: ConversationKey, now: Duration) {
        let Extension { from, to } = extension;
        if let Some(from) = from.filter(|from| *from != to.key)
            && let Some(before) = self.links.touch(from, now)
        {
            // The turn of a fork says nothing of where its origin's own turns are.
            before.is_extended |= before.conversation == conversation;
        }
        self.links.put(to.key, Registered { conversation, text_bytes: to.text_bytes, is_extended: false }, now);
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
