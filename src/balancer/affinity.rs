//! The affinity table: which conversation is pinned where, bounded in entries and in idle age.
//!
//! Pins stand in two lists by recency. A conversation that was used within [`ACTIVE_WINDOW`] is *active*: its history
//! is likely wanted again soon, so it counts as load where it is pinned. The rest are *idle* and only remembered.
//!
//! An engine that restarts has lost every history. Its pins lose their claim all at once, without a pass over them: each
//! carries the replica's *epoch* at the time it was pinned, and one of an older epoch is *lost*.

mod kept;

use std::hash::Hasher;
use std::time::Duration;

use crate::conversation::ConversationKey;

use super::lists::{Lists, Slot};
use super::pin::{Pin, Tokens, millis};
use super::recent::SWEEP_MAX;
use super::replica::ReplicaId;

/// How long after its last turn a conversation still counts as load. Of adjacent requests of one agent 95 % come within
/// 10 s of each other, and gaps beyond a minute mostly end a session (traces of vllm-router's discussion #285).
pub const ACTIVE_WINDOW: Duration = Duration::from_secs(60);

/// How many conversations are pinned to a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Used within [`ACTIVE_WINDOW`].
    pub active: u32,
    /// Those of `active` that are a subagent, a child session or a fork of another conversation.
    pub relatives: u32,
    /// Older, but still remembered.
    pub idle: u32,
    /// Pinned before its cache was lost, and not used since.
    pub lost: u32,
    /// Pinned elsewhere by now, but back here if their turn in flight there fails.
    pub fallback: u32,
    /// Tokens of the active ones, as far as turns of them were measured: what they want to find in the cache. A beginning that
    /// several have in common counts with each.
    pub active_tokens: u64,
}

/// How many conversations are active at one moment.
pub struct Active<'a> {
    held: &'a [Held],
    /// Where those are pinned that are no longer; `None` behind the last of them.
    overdue: [Option<ReplicaId>; SWEEP_MAX],
}

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most pins that are remembered; the one unused for longest goes first.
    pub entries_max: usize,
    /// A pin that was not used for this long is forgotten.
    pub idle_max: Duration,
}

/// The pins of one model.
#[derive(Debug)]
pub struct Affinity {
    bounds: Bounds,
    /// In the lists [`ACTIVE`] and [`IDLE`].
    pins: Lists<ConversationKey, Pin, 2>,
    /// Indexed by [`ReplicaId`].
    held: Vec<Held>,
    /// How often each replica has lost its cache, modulo 2^16; indexed likewise, and 0 for those beyond its end.
    epochs: Vec<u16>,
}

const ACTIVE: usize = 0;
const IDLE: usize = 1;

/// Passes the key through: a [`ConversationKey`] is already the output of a keyed hash, so it needs no second one.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl Affinity {
    pub fn new(bounds: Bounds) -> Self {
        Affinity { bounds, pins: Lists::new(), held: Vec::new(), epochs: Vec::new() }
    }

    /// Changes the bounds; entries over the new ones go as turns arrive.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The number of pins that are remembered.
    pub fn len(&self) -> usize {
        self.pins.len()
    }

    /// How many conversations `replica` holds.
    pub fn held(&self, replica: ReplicaId) -> Held {
        self.held.get(replica.index()).copied().unwrap_or_default()
    }

    /// How many conversations are active where, without those that the next sweep puts to rest. Costs a step for each of
    /// these; a table that is swept with every turn has few.
    pub fn active(&self, now: Duration) -> Active<'_> {
        let mut active = Active { held: &self.held, overdue: [None; SWEEP_MAX] };
        let overdue = self.overdue(now).filter(|pin| pin.in_flight == 0 && self.has_claim(pin));
        active.overdue.iter_mut().zip(overdue).for_each(|(place, pin)| *place = Some(pin.replica));
        active
    }

    /// The cache of a replica is gone: no pin has a claim on it any more.
    pub fn lose_claims(&mut self, replica: ReplicaId) {
        let held = self.count(replica);
        *held = Held { lost: held.lost + held.active + held.idle, fallback: held.fallback, ..Held::default() };
        let index = replica.index();
        if index >= self.epochs.len() {
            self.epochs.resize(index + 1, 0);
        }
        self.epochs[index] = self.epochs[index].wrapping_add(1);
    }

    /// Whether the replica of a pin has kept its cache since.
    pub fn has_claim(&self, pin: &Pin) -> bool {
        pin.epoch == self.epoch(pin.replica)
    }

    fn epoch(&self, replica: ReplicaId) -> u16 {
        self.epochs.get(replica.index()).copied().unwrap_or(0)
    }

    /// Whether there is a pin, even one that is past its idle age.
    pub fn contains(&self, key: ConversationKey) -> bool {
        self.pins.find(key).is_some()
    }

    /// The pin of a conversation as it is, even one that is past its idle age.
    pub fn at(&self, key: ConversationKey) -> Option<&Pin> {
        self.pins.get(key)
    }

    /// The pin of a conversation as it is, unless it is past its idle age.
    pub fn peek(&self, key: ConversationKey, now: Duration) -> Option<&Pin> {
        let pin = self.at(key)?;
        (!self.is_forgotten(pin, now)).then_some(pin)
    }

    /// All pins, the one used last first.
    pub fn by_recency(&self) -> impl Iterator<Item = (ConversationKey, &Pin)> {
        self.pins.newest(ACTIVE).chain(self.pins.newest(IDLE))
    }

    /// The pin of a conversation, marked as used now. A pin past its idle age is forgotten instead.
    pub fn touch(&mut self, key: ConversationKey, now: Duration) -> Option<&mut Pin> {
        let slot = self.pins.find(key)?;
        if self.is_forgotten(self.pins.at(slot), now) {
            self.remove(slot);
            return None;
        }
        // A turn touches its pin four times, and all but the first find it active: it only changes its place in the list.
        if self.pins.list_at(slot) == IDLE {
            return Some(self.change(slot, now, |_| {}));
        }
        self.pins.move_to(slot, ACTIVE);
        let pin = self.pins.at_mut(slot);
        pin.last_used_ms = millis(now);
        Some(pin)
    }

    /// Pins a conversation that has no pin, or one past its idle age.
    pub fn insert(&mut self, key: ConversationKey, pin: Pin, now: Duration) -> &mut Pin {
        self.forget(key);
        self.make_room();
        let epoch = self.epoch(pin.replica);
        let slot = self.put(key, Pin { epoch, last_used_ms: millis(now), ..pin }, ACTIVE);
        self.pins.at_mut(slot)
    }

    /// Moves a conversation to another replica; the old one is remembered until the new one has served it.
    pub fn repin(&mut self, key: ConversationKey, replica: ReplicaId, now: Duration) -> Option<&mut Pin> {
        let slot = self.pins.find(key)?;
        let epoch = self.epoch(replica);
        Some(self.change(slot, now, |pin| {
            if pin.proven {
                (pin.previous, pin.previous_epoch) = (Some(pin.replica), pin.epoch);
            }
            (pin.replica, pin.epoch, pin.proven) = (replica, epoch, false);
        }))
    }

    /// A turn of the conversation was measured.
    pub fn measure(&mut self, key: ConversationKey, tokens: Tokens) {
        let Some(slot) = self.pins.find(key).filter(|slot| self.pins.list_at(*slot) == ACTIVE) else {
            // A turn that ends touches its pin first, so this is one that was forgotten meanwhile.
            return;
        };
        let pin = self.pins.at_mut(slot);
        let before = pin.footprint();
        pin.measure(tokens);
        let pin = *pin;
        if self.has_claim(&pin) {
            let held = self.count(pin.replica);
            held.active_tokens = held.active_tokens - before + pin.footprint();
        }
    }

    /// `replica` has served a turn of the conversation: if that is where it is pinned, the pin holds from here on.
    pub fn prove(&mut self, key: ConversationKey, replica: ReplicaId, now: Duration) {
        let Some(&Pin { replica: home, proven, .. }) = self.touch(key, now).map(|pin| &*pin) else { return };
        if home != replica || proven {
            return;
        }
        if let Some(slot) = self.pins.find(key) {
            self.change(slot, now, |pin| (pin.proven, pin.previous) = (true, None));
        }
    }

    /// Gives up a pin that was never proven: back to the replica before it, or forgotten.
    pub fn give_up(&mut self, key: ConversationKey, now: Duration) {
        let Some(slot) = self.pins.find(key) else { return };
        let Pin { previous: Some(previous), previous_epoch, .. } = *self.pins.at(slot) else {
            self.remove(slot);
            return;
        };
        self.change(slot, now, |pin| {
            (pin.replica, pin.epoch, pin.previous, pin.proven) = (previous, previous_epoch, None, true);
        });
    }

    /// Forgets a conversation's pin.
    pub fn forget(&mut self, key: ConversationKey) {
        if let Some(slot) = self.pins.find(key) {
            self.remove(slot);
        }
    }

    /// Ages a bounded number of pins: active ones become idle, idle ones past their age, or over a bound that a reload
    /// has lowered, are forgotten.
    pub fn sweep(&mut self, now: Duration) {
        for _ in 0..SWEEP_MAX {
            let Some(slot) = self.pins.first(ACTIVE) else { break };
            let pin = *self.pins.at(slot);
            if pin.idle(now) <= ACTIVE_WINDOW {
                break;
            }
            if pin.in_flight > 0 {
                self.change(slot, now, |_| {});
            } else {
                self.count_out(&pin, ACTIVE);
                self.pins.move_to(slot, IDLE);
                self.count_in(&pin, IDLE);
            }
        }
        for _ in 0..SWEEP_MAX {
            let Some(slot) = self.pins.first(IDLE) else { break };
            if self.pins.at(slot).idle(now) <= self.bounds.idle_max && self.len() <= self.bounds.entries_max {
                break;
            }
            self.remove(slot);
        }
    }

    fn is_forgotten(&self, pin: &Pin, now: Duration) -> bool {
        pin.in_flight == 0 && pin.idle(now) > self.bounds.idle_max
    }

    /// The active pins that the next sweep looks at.
    fn overdue(&self, now: Duration) -> impl Iterator<Item = &Pin> {
        let oldest = self.pins.iter(ACTIVE).map(|(_, pin)| pin).take(SWEEP_MAX);
        oldest.take_while(move |pin| pin.idle(now) > ACTIVE_WINDOW)
    }

    /// Forgets those unused for longest until there is room for one more.
    fn make_room(&mut self) {
        while self.len() >= self.bounds.entries_max {
            let Some(slot) = self.pins.first(IDLE).or_else(|| self.pins.first(ACTIVE)) else { return };
            self.remove(slot);
        }
    }

    /// Changes a pin, which is used by that.
    fn change(&mut self, slot: Slot, now: Duration, change: impl FnOnce(&mut Pin)) -> &mut Pin {
        let before = *self.pins.at(slot);
        self.count_out(&before, self.pins.list_at(slot));
        self.pins.move_to(slot, ACTIVE);
        let pin = self.pins.at_mut(slot);
        change(pin);
        pin.last_used_ms = millis(now);
        let after = *pin;
        self.count_in(&after, ACTIVE);
        self.pins.at_mut(slot)
    }

    fn put(&mut self, key: ConversationKey, pin: Pin, list: usize) -> Slot {
        self.count_in(&pin, list);
        self.pins.push(key, pin, list)
    }

    fn remove(&mut self, slot: Slot) {
        let list = self.pins.list_at(slot);
        let pin = self.pins.remove(slot);
        self.count_out(&pin, list);
    }

    fn count_in(&mut self, pin: &Pin, list: usize) {
        let (has_claim, footprint) = (self.has_claim(pin), pin.footprint());
        let held = self.count(pin.replica);
        *held.place_of(list, has_claim) += 1;
        if list == ACTIVE && has_claim {
            held.relatives += u32::from(pin.has_parent);
            held.active_tokens += footprint;
        }
        if let Some(previous) = pin.previous {
            self.count(previous).fallback += 1;
        }
    }

    fn count_out(&mut self, pin: &Pin, list: usize) {
        let (has_claim, footprint) = (self.has_claim(pin), pin.footprint());
        let held = self.count(pin.replica);
        *held.place_of(list, has_claim) -= 1;
        if list == ACTIVE && has_claim {
            held.relatives -= u32::from(pin.has_parent);
            held.active_tokens -= footprint;
        }
        if let Some(previous) = pin.previous {
            self.count(previous).fallback -= 1;
        }
    }

    fn count(&mut self, replica: ReplicaId) -> &mut Held {
        let index = replica.index();
        if index >= self.held.len() {
            self.held.resize(index + 1, Held::default());
        }
        &mut self.held[index]
    }

    /// Panics unless the counts agree with the pins, every pin stands in one list, and the lists are ordered by use.
    #[cfg(any(test, debug_assertions, fuzzing))]
    pub fn check_invariants(&self) {
        self.pins.check_invariants();
        let mut counted = Affinity { held: vec![Held::default(); self.held.len()], ..Affinity::new(self.bounds) };
        counted.epochs.clone_from(&self.epochs);
        for list in [ACTIVE, IDLE] {
            let mut newest = 0;
            for (key, pin) in self.pins.iter(list) {
                counted.count_in(pin, list);
                assert!(list == ACTIVE || pin.in_flight == 0, "a conversation in flight is idle");
                assert!(pin.last_used_ms >= newest, "a list is out of order");
                newest = pin.last_used_ms;
                assert!(pin.previous.is_none() || !pin.proven, "a proven pin remembers another");
                assert_ne!(pin.parent(), Some(key), "a conversation is its own parent");
            }
        }
        assert_eq!(counted.held, self.held, "the counts do not agree with the pins");
    }
}

impl Active<'_> {
    pub fn on(&self, replica: ReplicaId) -> u32 {
        let overdue = self.overdue.iter().map_while(|place| *place).filter(|id| *id == replica).count();
        let active = self.held.get(replica.index()).map_or(0, |held| held.active);
        active.saturating_sub(overdue as u32)
    }
}

impl Held {
    /// The count that a pin in a list is part of.
    fn place_of(&mut self, list: usize, has_claim: bool) -> &mut u32 {
        match list {
            _ if !has_claim => &mut self.lost,
            ACTIVE => &mut self.active,
            _ => &mut self.idle,
        }
    }
}
