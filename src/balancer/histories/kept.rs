//! Registered links as records, and records as links.

use std::time::Duration;

use crate::conversation::ChainKey;

use super::super::export::age_ms;
use super::super::records::{HistoryRecord, PartRecord};
use super::super::walk::{Place, Walked};
use super::{Histories, Part, Registered};

impl Histories {
    /// The next links, `max` at most.
    pub fn export(&mut self, place: &mut Place<ChainKey>, max: usize, at: Duration) -> (Walked, Vec<HistoryRecord>) {
        let mut records = Vec::with_capacity(max.min(self.len()));
        let walked = self.links.walk(place, max, |link, entry| {
            records.push(entry.value.record(link, age_ms(entry.last_used, at)));
        });
        (walked, records)
    }

    /// The links that were used at or after `since`, `max` at most, in the order of use.
    pub fn export_since(&self, since: Duration, max: usize, at: Duration) -> Vec<HistoryRecord> {
        let used = self.links.used_since(since, max);
        let mut records: Vec<_> =
            used.map(|(link, entry)| entry.value.record(link, age_ms(entry.last_used, at))).collect();
        records.reverse();
        records
    }

    /// Registers a link as a record has it, unless a later use of it is known.
    pub fn restore(&mut self, record: &HistoryRecord, last_used: Duration) -> bool {
        self.links.restore(record.link.into(), Registered::from(record), last_used)
    }
}

impl Registered {
    fn record(&self, link: ChainKey, age_ms: u64) -> HistoryRecord {
        HistoryRecord {
            link: link.into(),
            conversation: self.conversation.into(),
            extended_by: self.extended_by().map(Into::into),
            text_bytes: self.text_bytes,
            is_named: self.is_named,
            part: match self.part {
                Part::Beginning => PartRecord::Beginning,
                Part::End => PartRecord::End,
                Part::Answer => PartRecord::Answer,
            },
            behind_answer: self.behind_answer,
            age_ms,
        }
    }
}

impl From<&HistoryRecord> for Registered {
    fn from(record: &HistoryRecord) -> Self {
        Registered {
            conversation: record.conversation.into(),
            extended_by: record.extended_by.map_or(ChainKey(0), Into::into),
            text_bytes: record.text_bytes,
            is_extended: record.extended_by.is_some(),
            is_named: record.is_named,
            part: match record.part {
                PartRecord::Beginning => Part::Beginning,
                PartRecord::End => Part::End,
                PartRecord::Answer => Part::Answer,
            },
            behind_answer: record.behind_answer,
        }
    }
}
