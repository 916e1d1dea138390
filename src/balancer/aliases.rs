//! Other names of conversations. A client may name the same conversation in a header of one request, in the body of the
//! next and in both at once; every id that came together with a known one leads to the same conversation from then on.
//!
//! An alias leads to a pin and never to another alias, a key that has a pin is no alias, and an alias means nothing once
//! the pin is gone. So no chain of names has to be followed, and none can turn in a circle.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::conversation::ConversationKey;

use super::affinity::Bounds;
use super::export::age_ms;
use super::recent::{Entry, Recent};
use super::records::AliasRecord;
use super::walk::{Place, Walked};

/// How many other ids of one request are looked at. No client is known to send more than three, and each one costs a
/// lookup.
pub const ALIASES_MAX: usize = 4;

/// The other names of one model's conversations.
#[derive(Debug)]
pub struct Aliases {
    names: Recent<ConversationKey, ConversationKey>,
    /// By the conversation, as long as turns are in flight under a name that comes to lead to it once one is served.
    joining: BTreeMap<ConversationKey, Joining>,
}

/// A name that is about to become an alias.
#[derive(Clone, Copy, Debug)]
struct Joining {
    name: ConversationKey,
    turns: u32,
}

impl Aliases {
    pub fn new(bounds: Bounds) -> Self {
        Aliases { names: Recent::new(bounds), joining: BTreeMap::new() }
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

    /// Whether a turn may join a conversation under a name: none does so under another one at this time.
    pub fn may_join(&self, name: ConversationKey, conversation: ConversationKey) -> bool {
        self.joining.get(&conversation).is_none_or(|joining| joining.name == name)
    }

    /// A turn that joins a conversation under a name takes its slot.
    pub fn begin_joining(&mut self, name: ConversationKey, conversation: ConversationKey) {
        self.joining.entry(conversation).or_insert(Joining { name, turns: 0 }).turns += 1;
    }

    /// A turn that joined a conversation was served, or has ended without that.
    pub fn end_joining(&mut self, conversation: ConversationKey) {
        if let Some(joining) = self.joining.get_mut(&conversation) {
            joining.turns -= 1;
            if joining.turns == 0 {
                self.joining.remove(&conversation);
            }
        }
    }

    #[cfg(test)]
    pub fn joining(&self) -> usize {
        self.joining.values().map(|joining| joining.turns as usize).sum()
    }

    pub fn remove(&mut self, name: ConversationKey) {
        self.names.remove(name);
    }

    /// The next names, `max` at most.
    pub fn export(
        &mut self,
        place: &mut Place<ConversationKey>,
        max: usize,
        at: Duration,
    ) -> (Walked, Vec<AliasRecord>) {
        let mut records = Vec::with_capacity(max.min(self.len()));
        let walked = self.names.walk(place, max, |name, entry| records.push(record(name, entry, at)));
        (walked, records)
    }

    /// The names that were used at or after `since`, `max` at most, in the order of use.
    pub fn export_since(&self, since: Duration, max: usize, at: Duration) -> Vec<AliasRecord> {
        let mut records: Vec<_> =
            self.names.used_since(since, max).map(|(name, entry)| record(name, entry, at)).collect();
        records.reverse();
        records
    }

    /// From here on `name` leads to `conversation`, unless it was used later than that. Returns whether it does.
    pub fn restore(&mut self, name: ConversationKey, conversation: ConversationKey, last_used: Duration) -> bool {
        self.names.restore(name, conversation, last_used)
    }

    /// Drops a bounded number of names that are over a bound, unless they are old and their conversation is pinned.
    pub fn sweep(&mut self, now: Duration, is_pinned: impl Fn(ConversationKey) -> bool) {
        self.names.sweep(now, |conversation| is_pinned(*conversation));
    }

    /// Panics unless the names are ordered by use and none of them has a pin.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self, has_pin: impl Fn(ConversationKey) -> bool) {
        self.names.check_invariants();
        for (name, conversation) in self.names.iter() {
            assert!(!has_pin(name), "a conversation is also another's alias");
            assert_ne!(name, *conversation, "an alias leads to itself");
        }
    }
}

fn record(name: ConversationKey, entry: &Entry<ConversationKey>, at: Duration) -> AliasRecord {
    AliasRecord { name: name.into(), conversation: entry.value.into(), age_ms: age_ms(entry.last_used, at) }
}
