//! What the agents of one arm have seen so far, and the figures that come of it.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use crate::sim::agent::{TurnOutcome, TurnResult};

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
    /// Counts a turn that has ended. One that the end of the demo cut off tells nothing.
    pub fn add(&mut self, result: TurnResult, speed: f64) {
        match result.outcome {
            TurnOutcome::Complete => self.add_complete(result, speed),
            TurnOutcome::Refused | TurnOutcome::Failed(_) => self.errors += 1,
            TurnOutcome::Cut => {}
        }
    }

    fn add_complete(&mut self, result: TurnResult, speed: f64) {
        self.turns += 1;
        if let Some(usage) = result.usage {
            self.prompt_tokens += usage.prompt_tokens;
            self.cached_tokens += usage.cached_tokens;
            self.output_tokens += usage.completion_tokens;
        }
        self.first_tokens.extend(result.first_token.map(|time| time.mul_f64(speed)));
        let Some(replica) = result.replica else { return };
        if result.turn > 0 {
            self.later += 1;
            self.stayed += u64::from(self.last.get(&result.session) == Some(&replica));
        }
        self.last.insert(result.session, replica);
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
    use crate::sim::agent::TurnUsage;

    fn turn(session: u64, turn: u32, replica: &str) -> TurnResult {
        TurnResult {
            session,
            turn,
            started: Duration::ZERO,
            first_token: Some(Duration::from_millis(100 * (session + 1))),
            total: Duration::from_secs(1),
            outcome: TurnOutcome::Complete,
            is_subagent: false,
            is_last: false,
            pieces: 10,
            status: Some(200),
            usage: Some(TurnUsage { prompt_tokens: 100, cached_tokens: 60, completion_tokens: 10 }),
            replica: Some(replica.into()),
            decision: None,
            said: None,
            retry_after: None,
        }
    }

    #[test]
    fn a_session_stays_when_each_turn_comes_back_to_the_one_before() {
        let mut tally = Tally::default();
        for (session, number, replica) in [(0, 0, "a"), (1, 0, "b"), (0, 1, "a"), (1, 1, "c"), (1, 2, "c"), (0, 2, "a")]
        {
            tally.add(turn(session, number, replica), 2.0);
        }
        tally.add(TurnResult { outcome: TurnOutcome::Refused, ..turn(0, 3, "b") }, 2.0);
        tally.add(TurnResult { outcome: TurnOutcome::Cut, ..turn(0, 3, "b") }, 2.0);
        let figures = tally.figures("affinity", Duration::from_secs(30));
        assert_eq!((figures.turns, figures.errors), (6, 1));
        assert_eq!((figures.sticky_percent, figures.prefix_hit_percent), (75.0, 60.0));
        assert_eq!((figures.ttfb_p50_s, figures.ttfb_p95_s), (0.2, 0.4));
        assert_eq!(figures.output_tokens_per_min, 120.0);
    }

    #[test]
    fn no_turns_give_zeros() {
        let figures = Tally::default().figures("off", Duration::ZERO);
        assert_eq!((figures.sticky_percent, figures.ttfb_p95_s, figures.output_tokens_per_min), (0.0, 0.0, 0.0));
    }
}
