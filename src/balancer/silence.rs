//! How long a replica that has requests has given no sign of life.

use std::time::Duration;

/// Time that passed while requests were there and nothing came of them. It stands still while there are none, so that turns
/// which are given up one after the other add up, and an idle engine is never taken for a silent one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    /// Before `from`.
    past: Duration,
    /// Since when there are requests; `None` while there are none.
    from: Option<Duration>,
}

impl Silence {
    /// There are requests, or there are none.
    pub fn set_occupied(&mut self, is_occupied: bool, now: Duration) {
        match (is_occupied, self.from) {
            (true, None) => self.from = Some(now),
            (false, Some(_)) => *self = Silence { past: self.length(now), from: None },
            (true, Some(_)) | (false, None) => {}
        }
    }

    pub fn is_occupied(&self) -> bool {
        self.from.is_some()
    }

    /// A sign of life.
    pub fn end(&mut self, now: Duration) {
        self.past = Duration::ZERO;
        self.from = self.from.map(|_| now);
    }

    pub fn length(&self, now: Duration) -> Duration {
        self.past + self.from.map_or(Duration::ZERO, |from| now.saturating_sub(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_time_with_requests_counts_and_a_sign_of_life_ends_it() {
        let mut silence = Silence::default();
        assert_eq!(silence.length(at(100)), at(0), "an idle engine");
        silence.set_occupied(true, at(100));
        silence.set_occupied(true, at(105));
        assert_eq!(silence.length(at(110)), at(10));
        silence.set_occupied(false, at(110));
        assert_eq!(silence.length(at(500)), at(10), "the turn was given up");
        silence.set_occupied(true, at(500));
        assert_eq!(silence.length(at(505)), at(15));
        silence.end(at(506));
        assert_eq!((silence.length(at(508)), silence.is_occupied()), (at(2), true));
    }
}
