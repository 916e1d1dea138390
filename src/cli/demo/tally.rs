//! What the agents of one arm have seen so far, and the figures that come of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

/// One turn as its agent saw it. Times are the engines', not the wall's.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub session: u64,
    pub replica: String,
    pub failed: bool,
    pub first_token: Option<Duration>,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
}

/// The turns of one arm.
#[derive(Debug, Default)]
pub struct Tally {
    turns: u64,
    errors: u64,
    /// Turns after the first of their session, and how many of them came back to the replica of the turn before.
    later: u64,
    stayed: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    first_tokens: Vec<Duration>,
    /// Where the newest turn of each session was served.
    last: HashMap<u64, String>,
}

/// The figures of one arm, as `--json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub arm: &'static str,
    pub turns: u64,
    pub errors: u64,
    /// Of the turns after a session's first, those served where the turn before was.
    pub sticky_percent: f64,
    /// Prompt tokens that the engines found in their caches.
    pub prefix_hit_percent: f64,
    pub ttfb_p50_s: f64,
    pub ttfb_p95_s: f64,
    pub output_tokens_per_min: f64,
}

impl Tally {
    pub fn add(&mut self, seen: Seen) {
        if seen.failed {
            self.errors += 1;
            return;
        }
        self.turns += 1;
        self.prompt_tokens += seen.prompt_tokens;
        self.cached_tokens += seen.cached_tokens;
        self.output_tokens += seen.output_tokens;
        self.first_tokens.extend(seen.first_token);
        if let Some(before) = self.last.insert(seen.session, seen.replica.clone()) {
            self.later += 1;
            self.stayed += u64::from(before == seen.replica);
        }
    }

    /// The figures after `elapsed` of the engines' time.
    pub fn figures(&self, arm: &'static str, elapsed: Duration) -> Figures {
        let mut first_tokens = self.first_tokens.clone();
        first_tokens.sort_unstable();
        Figures {
            arm,
            turns: self.turns,
            errors: self.errors,
            sticky_percent: percent(self.stayed, self.later),
            prefix_hit_percent: percent(self.cached_tokens, self.prompt_tokens),
            ttfb_p50_s: quantile(&first_tokens, 0.50),
            ttfb_p95_s: quantile(&first_tokens, 0.95),
            output_tokens_per_min: self.output_tokens as f64 / (elapsed.as_secs_f64() / 60.0).max(f64::MIN_POSITIVE),
        }
    }
}

/// 0 where there is nothing to share.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

/// The smallest value that at least a share `q` of the sorted values doesn't exceed, in seconds; 0 where there is none.
fn quantile(sorted: &[Duration], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, Duration::as_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(session: u64, replica: &str) -> Seen {
        Seen {
            session,
            replica: replica.into(),
            first_token: Some(Duration::from_millis(100 * (session + 1))),
            prompt_tokens: 100,
            cached_tokens: 60,
            output_tokens: 10,
            ..Seen::default()
        }
    }

    #[test]
    fn a_session_stays_when_each_turn_comes_back_to_the_one_before() {
        let mut tally = Tally::default();
        for (session, replica) in [(0, "a"), (1, "b"), (0, "a"), (1, "c"), (1, "c"), (0, "a")] {
            tally.add(seen(session, replica));
        }
        tally.add(Seen { failed: true, ..seen(0, "b") });
        let figures = tally.figures("affinity", Duration::from_secs(30));
        assert_eq!((figures.turns, figures.errors), (6, 1));
        assert_eq!((figures.sticky_percent, figures.prefix_hit_percent), (75.0, 60.0));
        assert_eq!((figures.ttfb_p50_s, figures.ttfb_p95_s), (0.1, 0.2));
        assert_eq!(figures.output_tokens_per_min, 120.0);
    }

    #[test]
    fn no_turns_give_zeros() {
        let figures = Tally::default().figures("off", Duration::ZERO);
        assert_eq!((figures.sticky_percent, figures.ttfb_p95_s, figures.output_tokens_per_min), (0.0, 0.0, 0.0));
    }
}
