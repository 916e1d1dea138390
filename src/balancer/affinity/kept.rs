//! Pins as records, and records as pins.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::super::pin::{Pin, millis};
use super::super::records::PinRecord;
use super::super::replica::ReplicaId;
use super::super::walk::{Place, Used, Walked, used_since};
use super::{ACTIVE, ACTIVE_WINDOW, Affinity, IDLE};

impl Used for Pin {
    fn last_used(&self) -> Duration {
        Duration::from_millis(self.last_used_ms)
    }
}

impl Affinity {
    /// The next idle pins, `max` at most.
    pub fn export_idle(
        &self,
        place: &mut Place<ConversationKey>,
        max: usize,
        at: Duration,
    ) -> (Walked, Vec<PinRecord>) {
        self.export(IDLE, place, max, at)
    }

    /// The next active pins, `max` at most.
    pub fn export_active(
        &self,
        place: &mut Place<ConversationKey>,
        max: usize,
        at: Duration,
    ) -> (Walked, Vec<PinRecord>) {
        self.export(ACTIVE, place, max, at)
    }

    /// The pins that were used at or after `since`, `max` at most, in the order of use. All of them are active.
    pub fn export_since(&self, since: Duration, max: usize, at: Duration) -> Vec<PinRecord> {
        // Pins keep the time in milliseconds.
        let used = used_since(&self.pins, ACTIVE, Duration::from_millis(millis(since)), max);
        let mut records: Vec<_> = used.map(|(key, pin)| pin.record(key, &self.epochs, at)).collect();
        records.reverse();
        records
    }

    /// Pins a conversation as a record has it. Returns whether it did: not where the record is too old, or a later use is
    /// known.
    pub fn restore(&mut self, record: &PinRecord, replica: ReplicaId, last_used: Duration, now: Duration) -> bool {
        let key = record.key.into();
        let known = self.at(key);
        if known.is_some_and(|pin| pin.in_flight > 0 || pin.last_used_ms > millis(last_used)) {
            return false;
        }
        let mut pin = Pin::new(replica, record.parent.map(ConversationKey::from).filter(|parent| *parent != key));
        pin.joined = record.joined;
        pin.proven = true;
        // Any epoch but the present one is lost.
        let epoch = self.epoch(replica);
        pin.epoch = if record.has_claim { epoch } else { epoch.wrapping_sub(1) };
        pin.last_used_ms = millis(last_used);
        pin.measure(record.tokens.unwrap_or_default());
        if self.is_forgotten(&pin, now) {
            return false;
        }
        self.forget(key);
        self.make_room();
        self.put_restored(key, pin, now);
        true
    }

    /// Puts a pin at the end of the list that it belongs to. A list is ordered by use: a pin that comes late counts as used
    /// when the one before it was.
    fn put_restored(&mut self, key: ConversationKey, mut pin: Pin, now: Duration) {
        let list = if pin.idle(now) <= ACTIVE_WINDOW { ACTIVE } else { IDLE };
        let newest = self.pins.last(list).map_or(0, |slot| self.pins.at(slot).last_used_ms);
        pin.last_used_ms = pin.last_used_ms.max(newest);
        self.put(key, pin, list);
    }

    fn export(
        &self,
        list: usize,
        place: &mut Place<ConversationKey>,
        max: usize,
        at: Duration,
    ) -> (Walked, Vec<PinRecord>) {
        let mut records = Vec::with_capacity(max.min(self.pins.len_of(list)));
        let walked = place.walk(&self.pins, list, max, |key, pin| records.push(pin.record(key, &self.epochs, at)));
        (walked, records)
    }
}

impl Pin {
    fn record(&self, key: ConversationKey, epochs: &[u16], at: Duration) -> PinRecord {
        let epoch = epochs.get(self.replica.index()).copied().unwrap_or(0);
        PinRecord {
            key: key.into(),
            replica: self.replica.index() as u16,
            parent: self.parent().map(Into::into),
            joined: self.joined,
            has_claim: self.epoch == epoch,
            tokens: self.tokens(),
            age_ms: millis(at).saturating_sub(self.last_used_ms),
        }
    }
}
