//! What the models did over the last hour and the last week, in steps: a bounded ring for each model and range.

mod ring;
mod track;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use crate::balancer::Snapshot;
use crate::dispatch::{Event, Routing};

pub use ring::Point;

use track::Track;

/// How often the models are looked at. What is counted is exact whatever it is; what is busy is an average of so many looks.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// The history of every model that is served.
#[derive(Debug, Default)]
pub struct History {
    tracks: Mutex<BTreeMap<String, Track>>,
}

/// How far back, and in which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// 10 s steps for an hour.
    Hour,
    /// 5 min steps for a week.
    Week,
}

/// The page `/api/v1/history`. Fields are added, never renamed or given another meaning; times are seconds since the Unix
/// epoch.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryPage {
    pub range_s: u64,
    pub step_s: u64,
    pub now_s: f64,
    pub models: Vec<ModelHistory>,
    /// What happened within the range, the oldest first.
    pub events: Vec<EventEntry>,
}

/// A model's points, the oldest first. A step in which the process did not run has none.
#[derive(Clone, Debug, Serialize)]
pub struct ModelHistory {
    pub name: String,
    pub points: Vec<Point>,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct EventEntry {
    pub at_s: f64,
    /// `health`, `restart`, `drained` or `reload`.
    pub kind: &'static str,
    pub model: Option<String>,
    pub replica: Option<String>,
    pub text: String,
}

impl Range {
    /// `1h` or `1w`.
    pub fn parse(word: &str) -> Option<Range> {
        match word {
            "1h" => Some(Range::Hour),
            "1w" => Some(Range::Week),
            _ => None,
        }
    }

    pub fn length(self) -> Duration {
        match self {
            Range::Hour => Duration::from_secs(60 * 60),
            Range::Week => Duration::from_secs(7 * 24 * 60 * 60),
        }
    }

    pub fn step(self) -> Duration {
        match self {
            Range::Hour => Duration::from_secs(10),
            Range::Week => Duration::from_secs(5 * 60),
        }
    }

    /// How many steps it has.
    fn steps(self) -> usize {
        // Lossless: 2,016 at most.
        (self.length().as_secs() / self.step().as_secs()) as usize
    }
}

impl History {
    /// Takes a look: what was counted since the last one goes into the steps that `now` belongs to.
    pub fn look(&self, models: &[(&str, Snapshot)], now: SystemTime) {
        let mut tracks = self.tracks.lock();
        tracks.retain(|name, _| models.iter().any(|(served, _)| served == name));
        for (name, snapshot) in models {
            match tracks.get_mut(*name) {
                Some(track) => track.look(snapshot, now),
                None => {
                    tracks.insert((*name).to_owned(), Track::new(snapshot, now));
                }
            }
        }
    }

    /// The page for a range, with what happened meanwhile.
    pub fn page(&self, range: Range, events: &[Event], now: SystemTime) -> HistoryPage {
        let tracks = self.tracks.lock();
        HistoryPage {
            range_s: range.length().as_secs(),
            step_s: range.step().as_secs(),
            now_s: unix(now).as_secs_f64(),
            models: tracks
                .iter()
                .map(|(name, track)| ModelHistory { name: name.clone(), points: track.points(range, now) })
                .collect(),
            events: events.iter().map(EventEntry::from).collect(),
        }
    }

    /// Looks at what is served until the process ends.
    pub async fn keep(self: Arc<Self>, routing: Arc<Routing>, mut on_shutdown: watch::Receiver<bool>) {
        let mut ticks = interval(LOOKED_AT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                _ = on_shutdown.wait_for(|shutdown| *shutdown) => return,
            }
            let table = routing.table();
            let snapshots: Vec<_> = table
                .models
                .iter()
                .map(|model| (model.name.as_str(), model.dispatcher.with(|balancer, now| balancer.snapshot(now))))
                .collect();
            self.look(&snapshots, SystemTime::now());
        }
    }
}

impl From<&Event> for EventEntry {
    fn from(event: &Event) -> Self {
        let named = |name: &String| Some(name.clone()).filter(|name| !name.is_empty());
        EventEntry {
            at_s: unix(event.at).as_secs_f64(),
            kind: event.kind.as_str(),
            model: named(&event.model),
            replica: named(&event.replica),
            text: event.text.clone(),
        }
    }
}

/// Time since the Unix epoch; zero before it.
fn unix(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
