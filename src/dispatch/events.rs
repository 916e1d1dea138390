//! What has happened lately that an operator wants to see on a time line: changes of replicas' health, restarts, drains, reloads.

use std::collections::VecDeque;
use std::time::SystemTime;

use parking_lot::Mutex;

/// The most that are remembered; the oldest go first.
const EVENTS_MAX: usize = 512;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: SystemTime,
    pub kind: EventKind,
    /// Empty for what concerns all of kvpin.
    pub model: String,
    /// Empty for what concerns no single replica.
    pub replica: String,
    /// What happened, for people.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A replica's health changed.
    Health,
    /// An engine was restarted: its cache is empty.
    Restart,
    /// The last turn has ended of a replica that takes nothing new.
    Drained,
    Reload,
    /// An operator switched a model's affinity.
    Affinity,
}

/// The newest events, in the order in which they came.
#[derive(Debug, Default)]
pub struct Events {
    newest: Mutex<VecDeque<Event>>,
}

impl EventKind {
    /// The word used in the history.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Health => "health",
            EventKind::Restart => "restart",
            EventKind::Drained => "drained",
            EventKind::Reload => "reload",
            EventKind::Affinity => "affinity",
        }
    }
}

impl Events {
    pub fn add(&self, kind: EventKind, model: &str, replica: &str, text: String) {
        let (model, replica) = (model.to_owned(), replica.to_owned());
        let event = Event { at: SystemTime::now(), kind, model, replica, text };
        let mut newest = self.newest.lock();
        if newest.len() == EVENTS_MAX {
            newest.pop_front();
        }
        newest.push_back(event);
    }

    /// Those since `begin`, the oldest first.
    pub fn since(&self, begin: SystemTime) -> Vec<Event> {
        self.newest.lock().iter().filter(|event| event.at >= begin).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_in_their_order() {
        let events = Events::default();
        let begin = SystemTime::now();
        for number in 0..=EVENTS_MAX {
            events.add(EventKind::Health, "m", "r", number.to_string());
        }
        let texts: Vec<_> = events.since(begin).into_iter().map(|event| event.text).collect();
        assert_eq!((texts.len(), texts[0].as_str(), texts[EVENTS_MAX - 1].as_str()), (EVENTS_MAX, "1", "512"));
        assert_eq!(events.since(SystemTime::now() + std::time::Duration::from_secs(1)), []);
    }
}
