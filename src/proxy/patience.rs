//! How long a client may keep kvpin waiting for its body.
//!
//! A client owes its body at a rate, and may fall behind by so many seconds: what it sends earns it time, what it is waited for
//! costs it time, and it can't earn more than it began with. So a body is cut that stops, and one that trickles in: a byte now
//! and then would hold a request's memory for as long as the client likes. Only waiting counts, and not the time in which
//! nothing is read because the replica takes nothing.

use std::time::Duration;

use bytes::Bytes;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;

/// What is left of a client's time.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    max: Duration,
    /// Bytes a second.
    rate: u64,
    /// Since when something is being waited for.
    since: Option<Instant>,
}

impl Patience {
    pub fn new(limits: &Limits) -> Self {
        Patience { left: limits.body_timeout, max: limits.body_timeout, rate: limits.body_rate_min, since: None }
    }

    /// Waits for a read, best for a pinned one: what is given by value has room here twice. Dropped meanwhile, it goes on with
    /// the next call.
    ///
    /// # Errors
    /// Those of the read; `ReadTimedout` if the client's time is over.
    pub async fn wait(&mut self, read: impl Future<Output = Result<Option<Bytes>>>) -> Result<Option<Bytes>> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let Ok(read) = timeout_at(since + self.left, read).await else {
            return Error::e_explain(ErrorType::ReadTimedout, "a body that is too slow");
        };
        self.since = None;
        if let Ok(Some(bytes)) = &read {
            self.heard(since.elapsed(), bytes.len());
        }
        read
    }

    fn heard(&mut self, waited: Duration, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        self.left = (self.left.saturating_sub(waited) + earned).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// How long a body of pieces that come at intervals is waited for, and whether it came to its end.
    async fn waited(piece: usize, interval_s: u64, pieces: usize) -> (u64, bool) {
        let limits = Limits { body_timeout: Duration::from_secs(60), body_rate_min: 1000, ..Limits::default() };
        let mut patience = Patience::new(&limits);
        let begun = Instant::now();
        for _ in 0..pieces {
            let read = async {
                sleep(Duration::from_secs(interval_s)).await;
                Ok(Some(Bytes::from(vec![0; piece])))
            };
            if patience.wait(read).await.is_err() {
                return (begun.elapsed().as_secs(), false);
            }
        }
        (begun.elapsed().as_secs(), true)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_trickles_or_stops_is_cut_and_one_at_the_rate_may_take_as_long_as_it_takes() {
        assert_eq!(waited(1, 59, 100).await, (60, false), "a byte a minute");
        assert_eq!(waited(1, 1, 1000).await, (60, false), "a byte a second");
        assert_eq!(waited(0, 70, 1).await, (60, false), "nothing");
        assert_eq!(waited(999, 1, 10_000).await, (10_000, true), "just under the rate: behind by 10 s in the end");
        assert_eq!(waited(10_000, 10, 1000).await, (10_000, true), "at the rate");
        assert_eq!(waited(1_000_000, 59, 100).await, (5900, true), "in bursts");
        assert_eq!(waited(1_000_000, 61, 100).await, (60, false), "what was sent early buys no longer silence");
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_left_and_gone_on_with_is_one_wait() {
        let mut patience = Patience::new(&Limits { body_timeout: Duration::from_secs(60), ..Limits::default() });
        let begun = Instant::now();
        while begun.elapsed().as_secs() < 55 {
            let left = tokio::time::timeout(Duration::from_secs(1), patience.wait(std::future::pending())).await;
            assert!(left.is_err());
        }
        assert!(patience.wait(std::future::pending()).await.is_err());
        assert_eq!(begun.elapsed().as_secs(), 60);
    }
}
