//! An answer that has begun and falls silent.
//!
//! Nothing can be made up for it any more, and an engine may need its time. But a replica that is down has lost it: an engine
//! that hangs, or a vLLM server that was told to end, whose engine is gone while it waits for its connections to be closed.
//! The client is kept from trying again for as long as the stream seems to live, and the server from ending.

use std::time::Duration;

use crate::config::Config;

/// Counts the looks that found nothing since something came.
pub struct Stall {
    /// Between two looks: the ping interval or an even part of it.
    pub look_every: Duration,
    looks_per_ping: Option<u32>,
    bearable: Duration,
    looks: u32,
}

/// What a look at a silent answer calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Wait,
    Ping,
}

impl Stall {
    /// `ping_interval` is of a stream that may be pinged. As long as an engine may stand still before it counts as hung, so
    /// long is borne of an answer whose replica is down.
    pub fn new(ping_interval: Option<Duration>, config: &Config) -> Self {
        let bearable = config.health.hung;
        let looks_per_ping =
            ping_interval.map(|interval| interval.as_secs().div_ceil(bearable.as_secs()).max(1) as u32);
        let look_every = match (ping_interval, looks_per_ping) {
            (Some(interval), Some(looks)) => interval / looks,
            (None, _) | (_, None) => bearable,
        };
        Stall { look_every, looks_per_ping, bearable, looks: 0 }
    }

    /// Something has come.
    pub fn is_over(&mut self) {
        self.looks = 0;
    }

    /// One more look has found nothing.
    pub fn look(&mut self) -> Call {
        self.looks = self.looks.saturating_add(1);
        match self.looks_per_ping {
            Some(looks) if self.looks.is_multiple_of(looks) => Call::Ping,
            Some(_) | None => Call::Wait,
        }
    }

    /// Whether it has lasted for longer than is borne of a replica that is down.
    pub fn is_unbearable(&self) -> bool {
        self.look_every * self.looks >= self.bearable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(ping_s: Option<u64>, hung_s: u64) -> Stall {
        let yaml = format!("health: {{hung_s: {hung_s}}}\nmodels: {{m: {{replicas: ['http://127.0.0.1:1']}}}}");
        let config = Config::from_yaml(&yaml).expect(&yaml);
        Stall::new(ping_s.map(Duration::from_secs), &config)
    }

    #[test]
    fn pings_are_due_at_their_interval_however_long_a_hang_is_borne() {
        for (ping_s, hung_s) in [(15, 30), (15, 15), (15, 10), (15, 4), (1, 86_400), (3600, 1)] {
            let mut stall = stall(Some(ping_s), hung_s);
            let mut pinged = Vec::new();
            let mut unbearable_after = None;
            for look in 1..=3 * 3600 {
                let after = stall.look_every * look;
                if stall.look() == Call::Ping {
                    pinged.push(after.as_secs_f64().round() as u64);
                }
                if stall.is_unbearable() {
                    unbearable_after = unbearable_after.or(Some(after));
                }
            }
            assert_eq!(pinged[..2], [ping_s, 2 * ping_s], "{ping_s} {hung_s}");
            let unbearable_after = unbearable_after.map_or(f64::INFINITY, |after| after.as_secs_f64());
            assert!(unbearable_after >= hung_s as f64 - 1e-3, "{ping_s} {hung_s} {unbearable_after}");
            assert!(hung_s > 3600 || unbearable_after < 2.0 * hung_s as f64, "{ping_s} {hung_s} {unbearable_after}");
        }
    }

    #[test]
    fn what_comes_ends_the_stall_and_an_answer_that_is_no_stream_gets_no_ping() {
        let mut stall = stall(None, 5);
        assert_eq!(stall.look(), Call::Wait);
        assert!(stall.is_unbearable());
        stall.is_over();
        assert!(!stall.is_unbearable());
    }
}
