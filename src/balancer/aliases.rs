//! Other names of conversations. A client may name the same conversation in a header of one request, in the body of the
//! next and in both at once; every id that came together with a known one leads to the same conversation from then on.
//!
//! An alias leads to a pin and never to another alias, a key that has a pin is no alias, and an alias means nothing once
//! the pin is gone. So no chain of names has to be followed, and none can turn in a circle.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::affinity::Bounds;
use super::recent::Recent;

/// How many other ids of one request are looked at. No client is known to send more than three, and each one costs a
/// lookup.
pub const ALIASES_MAX: usize = 4;

/// The other names of one model's conversations.
#[derive(Debug)]
pub struct Aliases {
    names: Recent<ConversationKey, ConversationKey>,
}

impl Aliases {
    pub fn new(bounds: Bounds) -> Self {
        Aliases { names: Recent::new(bounds) }
    }

    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.names.set_bounds(bounds);
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The conversation that a name led to. Whether it still does depends on its pin.
    pub fn meant_by(&self, name: ConversationKey) -> Option<ConversationKey> {
        self.names.get(name).map(|entry| entry.value)
    }

    /// From here on `name` leads to `conversation`.
    pub fn set(&mut self, name: ConversationKey, conversation: ConversationKey, now: Duration) {
        self.names.put(name, conversation, now);
    }

    /// A turn has come under that name.
    pub fn touch(&mut self, name: ConversationKey, now: Duration) {
        self.names.touch(name, now);
    }

    pub fn remove(&mut self, name: ConversationKey) {
        self.names.remove(name);
    }

    /// Drops a bounded number of names that are over a bound, unless they are old and their conversation is pinned.
    pub fn sweep(&mut self, now: Duration, is_pinned: impl Fn(ConversationKey) -> bool) {
        self.names.sweep(now, |conversation| is_pinned(*conversation));
    }

    /// Panics unless the names are ordered by use and none of them has a pin.
    #[cfg(any(test, debug_assertions))]
    pub fn check_invariants(&self, has_pin: impl Fn(ConversationKey) -> bool) {
        self.names.check_invariants();
        for (name, conversation) in self.names.iter() {
            assert!(!has_pin(name), "a conversation is also another's alias");
            assert_ne!(name, *conversation, "an alias leads to itself");
        }
    }
}
