//! Requests within any minute, exactly enough: never more than the limit in any 60 seconds.
//!
//! A token bucket would be smaller, but lets twice the limit through in the minute after a quiet one. This counts by the
//! second, over the one under way and the 60 before it, in about 250 bytes whatever the limit is.

use std::time::Duration;

/// The second under way, and those before it that may reach into the last minute.
const SECONDS: usize = 61;

/// Requests of the last minute.
#[derive(Clone, Debug)]
pub struct Window {
    /// By the second, as a ring.
    counts: [u32; SECONDS],
    /// The second that was counted in last.
    newest_s: u64,
    total: u32,
}

impl Default for Window {
    fn default() -> Self {
        Window { counts: [0; SECONDS], newest_s: 0, total: 0 }
    }
}

impl Window {
    /// Counts a request, if that stays within `max`. If not, says in how many seconds one more will, 1 to 61.
    pub fn take(&mut self, max: u32, now: Duration) -> Result<(), u32> {
        self.advance(now.as_secs());
        if self.total < max {
            self.counts[slot(self.newest_s)] += 1;
            self.total += 1;
            return Ok(());
        }
        Err(self.seconds_until_room(max))
    }

    /// Forgets what is older than a minute. A clock that was read before another request's lock is taken for the later one.
    fn advance(&mut self, now_s: u64) {
        let passed = now_s.saturating_sub(self.newest_s);
        if passed >= SECONDS as u64 {
            *self = Window { newest_s: now_s, ..Window::default() };
            return;
        }
        for second in self.newest_s + 1..=self.newest_s + passed {
            self.total -= std::mem::take(&mut self.counts[slot(second)]);
        }
        self.newest_s += passed;
    }

    fn seconds_until_room(&self, max: u32) -> u32 {
        let mut total = self.total;
        for ahead in 1..SECONDS as u32 {
            // The second whose place this one takes.
            total -= self.counts[slot(self.newest_s + u64::from(ahead))];
            if total < max {
                return ahead;
            }
        }
        SECONDS as u32
    }
}

fn slot(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_limit_may_be_used_at_once_and_is_free_again_a_minute_later() {
        let mut window = Window::default();
        for _ in 0..3 {
            assert_eq!(window.take(3, at(500)), Ok(()));
        }
        assert_eq!(window.take(3, at(900)), Err(61));
        assert_eq!(window.take(3, at(60_900)), Err(1));
        assert_eq!(window.take(3, at(61_000)), Ok(()));
    }

    #[test]
    fn a_lower_limit_waits_for_as_many_as_are_too_many() {
        let mut window = Window::default();
        for second in [0, 10, 20] {
            assert_eq!(window.take(3, at(second * 1000)), Ok(()));
        }
        assert_eq!(window.take(1, at(30_000)), Err(20 + 61 - 30));
        assert_eq!(window.take(1, at(81_000)), Ok(()));
    }

    #[test]
    fn a_clock_that_was_read_earlier_changes_nothing() {
        let mut window = Window::default();
        assert_eq!(window.take(2, at(10_000)), Ok(()));
        assert_eq!(window.take(2, at(9_000)), Ok(()));
        assert_eq!(window.take(2, at(70_000)), Err(1));
    }

    proptest! {
        /// Held against a list of every time.
        #[test]
        fn no_minute_has_more_than_the_limit_and_the_time_to_wait_is_enough(
            gaps in prop::collection::vec(0..20_000_u64, 1..200),
            max in 1..12_u32,
        ) {
            let mut window = Window::default();
            let mut taken: Vec<u64> = Vec::new();
            let mut now = 0;
            for gap in gaps {
                now += gap;
                let of_last_minute = |from: u64| taken.iter().filter(|time| **time + 60_000 > from).count() as u32;
                match window.take(max, at(now)) {
                    Ok(()) => {
                        prop_assert!(of_last_minute(now) < max, "{} at {now} with {taken:?}", max);
                        taken.push(now);
                    }
                    Err(retry_after_s) => {
                        prop_assert!((1..=61).contains(&retry_after_s));
                        // Up to a second more than a minute is counted.
                        prop_assert!(taken.iter().filter(|time| **time + 61_000 > now).count() as u32 >= max);
                        let later = now / 1000 * 1000 + u64::from(retry_after_s) * 1000;
                        prop_assert_eq!(window.clone().take(max, at(later)), Ok(()));
                    }
                }
            }
        }
    }
}
