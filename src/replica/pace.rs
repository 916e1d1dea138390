//! When a server is looked at next: regularly, and ever more rarely while it doesn't answer.

use std::time::Duration;

use tokio::time::Instant;

/// The times at which something is asked of one server.
#[derive(Debug, Default)]
pub struct Pace {
    /// Looks without an answer, in a row.
    misses: u32,
    due: Option<Instant>,
}

/// How often to look.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    pub interval: Duration,
    /// So many misses in a row, and it is asked more rarely from then on.
    pub misses_max: u32,
    /// The longest time between two looks.
    pub backoff_max: Duration,
}

impl Pace {
    /// Whether it is time. `slack` is how much too early a look may come: rounds are a little early or late.
    pub fn is_due(&self, now: Instant, slack: Duration) -> bool {
        self.due.is_none_or(|due| now + slack >= due)
    }

    /// A look begins.
    pub fn begin(&mut self, now: Instant, rhythm: Rhythm) {
        self.due = Some(now + self.wait(rhythm));
    }

    /// A look was answered.
    pub fn answered(&mut self) {
        self.misses = 0;
    }

    /// A look was not. Returns how many in a row that makes.
    pub fn missed(&mut self) -> u32 {
        self.misses = self.misses.saturating_add(1);
        self.misses
    }

    fn wait(&self, rhythm: Rhythm) -> Duration {
        match self.misses.checked_sub(rhythm.misses_max) {
            None => rhythm.interval,
            Some(more) => {
                let factor = 1_u32.checked_shl(more).unwrap_or(u32::MAX);
                rhythm.interval.saturating_mul(factor).clamp(rhythm.interval, rhythm.backoff_max.max(rhythm.interval))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_asked_ever_more_rarely_and_at_once_as_ever_when_it_does() {
        let rhythm = Rhythm { interval: Duration::from_secs(1), misses_max: 2, backoff_max: Duration::from_secs(5) };
        let mut pace = Pace::default();
        let mut waits = Vec::new();
        for _ in 0..6 {
            waits.push(pace.wait(rhythm).as_secs());
            pace.missed();
        }
        assert_eq!(waits, [1, 1, 1, 2, 4, 5]);
        (0..100).for_each(|_| assert!(pace.missed() > 0));
        assert_eq!(pace.wait(rhythm).as_secs(), 5);
        pace.answered();
        assert_eq!(pace.wait(rhythm).as_secs(), 1);
        let now = Instant::now();
        assert!(pace.is_due(now, Duration::ZERO));
        pace.begin(now, rhythm);
        assert!(!pace.is_due(now, Duration::ZERO) && pace.is_due(now, Duration::from_secs(1)));
    }
}
