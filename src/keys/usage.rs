//! What a key is using: requests in flight, requests of the last minute, and counts for the metrics.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;

use super::window::Window;

/// What a key uses, behind its lock. It is held for a few additions.
#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<Usage>);

#[derive(Debug, Default)]
struct Usage {
    in_flight: u32,
    minute: Window,
    counts: [u64; Verdict::ALL.len()],
}

/// One request in flight. Dropping it gives the place back.
#[derive(Debug)]
pub struct Slot(Arc<Shared>);

/// Why a key gets no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OverLimit {
    #[error("{max} requests are in flight")]
    InFlight { max: u32 },
    #[error("{max} requests came within a minute")]
    PerMinute {
        max: u32,
        /// Seconds until there is room for one more.
        retry_after_s: u32,
    },
}

/// What became of a request with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was given to a replica.
    Passed,
    /// The key may not do that.
    Forbidden,
    /// The key is over one of its limits.
    Limited,
    /// kvpin refused it for another reason.
    Refused,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Passed, Verdict::Forbidden, Verdict::Limited, Verdict::Refused];

    /// The word for the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Forbidden => "forbidden",
            Verdict::Limited => "limited",
            Verdict::Refused => "refused",
        }
    }
}

impl Shared {
    pub(super) fn count(&self, verdict: Verdict) {
        self.0.lock().counts[verdict as usize] += 1;
    }

    /// Requests in flight, and all of them by what became of them.
    pub(super) fn counts(&self) -> (u32, Vec<(Verdict, u64)>) {
        let usage = self.0.lock();
        (usage.in_flight, Verdict::ALL.map(|verdict| (verdict, usage.counts[verdict as usize])).to_vec())
    }
}

/// Takes a slot. One that would be too many at the same time doesn't count as one of the minute.
pub(super) fn enter(
    shared: &Arc<Shared>,
    in_flight_max: Option<u32>,
    requests_per_minute_max: Option<u32>,
    now: Duration,
) -> Result<Slot, OverLimit> {
    let mut usage = shared.0.lock();
    if let Some(max) = in_flight_max.filter(|max| usage.in_flight >= *max) {
        return Err(OverLimit::InFlight { max });
    }
    if let Some(max) = requests_per_minute_max {
        usage.minute.take(max, now).map_err(|retry_after_s| OverLimit::PerMinute { max, retry_after_s })?;
    }
    usage.in_flight += 1;
    Ok(Slot(Arc::clone(shared)))
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.0.lock().in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn so_many_at_the_same_time_and_no_more() {
        let usage = Arc::<Shared>::default();
        let enter = || enter(&usage, Some(2), None, NOW);
        let (first, second) = (enter().unwrap(), enter().unwrap());
        assert_eq!(enter().unwrap_err(), OverLimit::InFlight { max: 2 });
        drop(first);
        let third = enter().unwrap();
        assert!(enter().is_err());
        drop((second, third));
        assert_eq!(usage.counts().0, 0);
    }

    #[test]
    fn one_too_many_at_the_same_time_is_none_of_the_minute() {
        let usage = Arc::<Shared>::default();
        let enter = || enter(&usage, Some(1), Some(2), NOW);
        let first = enter().unwrap();
        for _ in 0..10 {
            assert_eq!(enter().unwrap_err(), OverLimit::InFlight { max: 1 });
        }
        drop(first);
        drop(enter().unwrap());
        assert!(matches!(enter().unwrap_err(), OverLimit::PerMinute { max: 2, .. }));
        assert_eq!(usage.counts().0, 0, "a refused one takes no place");
    }

    #[test]
    fn every_verdict_has_a_count_of_its_own() {
        let usage = Shared::default();
        for (times, verdict) in Verdict::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| usage.count(verdict));
        }
        let counts: Vec<_> = usage.counts().1.iter().map(|(verdict, count)| (verdict.as_str(), *count)).collect();
        assert_eq!(counts, [("passed", 0), ("forbidden", 1), ("limited", 2), ("refused", 3)]);
    }
}
