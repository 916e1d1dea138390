//! From what the agents of one measurement saw to its figures.
//!
//! A turn is tried up to three times, as the clients' own libraries do. Its wait goes from the first try to the first token of
//! the one that was answered, pauses included. Where none was, it goes on to the end of the measurement: so a refusal that comes
//! quickly never reads as a quick answer. What still waits at the end counts with its wait so far. The longest waits are so
//! known only to be *at least* what is said, and no percentile gets better by what was not answered.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::report::{Ending, Figures, Tally, TurnSeen};
use crate::sim::agent::{TurnOutcome, TurnResult};

/// The tries of one measurement.
#[derive(Debug, Default)]
pub struct Seen {
    /// By session and turn.
    turns: BTreeMap<(u64, u32), Tries>,
    pub errors: u64,
    pub complete: u64,
}

/// What became of one turn.
#[derive(Debug)]
struct Tries {
    first_sent: Duration,
    last: TurnResult,
}

impl Seen {
    pub fn add(&mut self, result: TurnResult) {
        match result.outcome {
            TurnOutcome::Complete => self.complete += 1,
            TurnOutcome::Refused | TurnOutcome::Failed(_) => self.errors += 1,
            TurnOutcome::Cut => {}
        }
        match self.turns.get_mut(&(result.session, result.turn)) {
            Some(tries) => tries.last = result,
            None => {
                let first_sent = result.started;
                self.turns.insert((result.session, result.turn), Tries { first_sent, last: result });
            }
        }
    }

    /// The median wait of the turns that were answered so far.
    pub fn median_wait(&self) -> Option<Duration> {
        let mut waits: Vec<_> = self.turns.values().filter_map(Tries::wait).collect();
        waits.sort_unstable();
        waits.get(waits.len() / 2).copied()
    }

    /// What a session's first turn has come to, in tokens: the median of the prompts and of the replies.
    pub fn sizes(&self) -> Vec<(u32, u64, u64)> {
        let mut by_turn: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for tries in self.turns.values().filter(|tries| !tries.last.is_subagent) {
            if let Some(usage) = tries.last.usage {
                by_turn.entry(tries.last.turn).or_default().push((usage.prompt_tokens, usage.completion_tokens));
            }
        }
        let middle = |mut values: Vec<u64>| {
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        let median = |(turn, sizes): (u32, Vec<(u64, u64)>)| {
            (turn, middle(sizes.iter().map(|size| size.0).collect()), middle(sizes.iter().map(|size| size.1).collect()))
        };
        by_turn.into_iter().map(median).collect()
    }

    /// The figures of what happened within `window` of a measurement that ended with it. `names_engines`: whether what the
    /// responses call a replica is one engine, and not a server whose own balancer chooses among several.
    pub fn figures(self, window: Range<Duration>, names_engines: bool, replicas_busy: Option<f64>) -> Figures {
        let end = window.end;
        let mut tally = Tally::of_a_run(window.start, end);
        let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
        let mut begun: BTreeMap<u64, Duration> = BTreeMap::new();
        for ((session, turn), tries) in &self.turns {
            let replica = tries.last.replica.as_ref().filter(|_| names_engines).map(|name| {
                let next = numbers.len() as u32;
                *numbers.entry(name.clone()).or_insert(next)
            });
            tally.add(&tries.seen(*session, *turn, replica, end));
            if *turn == 0 {
                begun.insert(*session, tries.first_sent);
            }
            let last = &tries.last;
            if last.is_last && !last.is_subagent && last.outcome == TurnOutcome::Complete {
                let from = begun.get(session).copied().unwrap_or(tries.first_sent);
                tally.add_session(from, (last.started + last.total).min(end));
            }
        }
        Figures { errors: Some(self.errors as f64), ..tally.figures(replicas_busy) }
    }
}

impl Tries {
    /// When the answer's first token came, if one did.
    fn first_token(&self) -> Option<Duration> {
        match self.last.outcome {
            TurnOutcome::Complete | TurnOutcome::Cut => self.last.first_token.map(|took| self.last.started + took),
            // What broke off is no answer.
            TurnOutcome::Refused | TurnOutcome::Failed(_) => None,
        }
    }

    fn wait(&self) -> Option<Duration> {
        Some(self.first_token()?.saturating_sub(self.first_sent))
    }

    fn seen(&self, session: u64, turn: u32, replica: Option<u32>, end: Duration) -> TurnSeen {
        let last = &self.last;
        let ending = match last.outcome {
            TurnOutcome::Complete => Ending::Complete,
            TurnOutcome::Refused | TurnOutcome::Failed(_) => Ending::Failed,
            TurnOutcome::Cut => Ending::Cut,
        };
        let ended = match ending {
            // One that ended with it may have been seen a moment after it.
            Ending::Complete => (last.started + last.total).min(end),
            Ending::Failed | Ending::Cut => end,
        };
        let output_tokens = match (ending, last.usage) {
            (Ending::Failed, _) => 0,
            (Ending::Complete | Ending::Cut, Some(usage)) => usage.completion_tokens,
            (Ending::Complete | Ending::Cut, None) => last.pieces,
        };
        TurnSeen {
            session,
            turn,
            wished: self.first_sent,
            first_byte: self.first_token().map(|at| at.min(end)),
            ended,
            ending,
            replica,
            is_held: last.is_held,
            prompt_tokens: last.usage.map_or(0, |usage| usage.prompt_tokens),
            cached_tokens: last.usage.map(|usage| usage.cached_tokens),
            output_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::sim::agent::{TurnFailure, TurnUsage};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const LENGTH: Duration = Duration::from_secs(60);

    fn result(session: u64, turn: u32, started_ms: u64, outcome: TurnOutcome) -> TurnResult {
        let is_answered = matches!(outcome, TurnOutcome::Complete);
        TurnResult {
            session,
            turn,
            started: MS(started_ms),
            first_token: is_answered.then_some(MS(100)),
            total: MS(500),
            is_subagent: false,
            is_last: turn == 1,
            pieces: 0,
            outcome,
            status: Some(200),
            usage: is_answered.then_some(TurnUsage { prompt_tokens: 100, cached_tokens: 40, completion_tokens: 20 }),
            replica: Some("a".into()),
            decision: None,
            retry_after: None,
            is_held: None,
            said: None,
        }
    }

    fn figures(results: Vec<TurnResult>) -> Figures {
        let mut seen = Seen::default();
        results.into_iter().for_each(|result| seen.add(result));
        seen.figures(Duration::ZERO..LENGTH, true, None)
    }

    #[test]
    fn the_wait_of_a_turn_that_is_tried_again_begins_with_its_first_try() {
        let figures = figures(vec![
            result(0, 0, 0, TurnOutcome::Refused),
            result(0, 0, 1_500, TurnOutcome::Failed(TurnFailure::InStream)),
            result(0, 0, 3_000, TurnOutcome::Complete),
            result(0, 1, 4_000, TurnOutcome::Complete),
        ]);
        assert_eq!((figures.errors, figures.longest_wait_s), (Some(2.0), Some(3.1)));
        assert_eq!((figures.ttfb_p50_s, figures.ttfb_p95_s), (Some(0.1), Some(3.1)));
        assert_eq!((figures.output_tokens_per_min, figures.prefix_hit_percent), (Some(40.0), Some(40.0)));
        assert_eq!((figures.sessions_per_hour, figures.session_p50_s), (Some(60.0), Some(4.5)));
        assert_eq!(figures.stayed_percent, Some(100.0));
    }

    #[test]
    fn a_turn_that_was_never_answered_makes_no_percentile_better() {
        let figures = figures(vec![
            result(0, 0, 10_000, TurnOutcome::Complete),
            result(1, 0, 10_000, TurnOutcome::Refused),
            result(1, 0, 11_000, TurnOutcome::Refused),
            result(1, 0, 12_000, TurnOutcome::Refused),
        ]);
        assert_eq!((figures.errors, figures.waiting_at_end), (Some(3.0), Some(0.0)));
        assert_eq!((figures.ttfb_p95_s, figures.longest_wait_s), (Some(50.0), Some(50.0)));
    }

    #[test]
    fn what_waits_at_the_end_counts_with_its_wait_so_far_and_what_is_cut_with_its_tokens() {
        let waiting = TurnResult { total: MS(25_000), ..result(0, 0, 35_000, TurnOutcome::Cut) };
        let cut = TurnResult { first_token: Some(MS(200)), pieces: 33, ..result(1, 0, 59_000, TurnOutcome::Cut) };
        let figures = figures(vec![waiting, cut]);
        assert_eq!((figures.errors, figures.waiting_at_end), (Some(0.0), Some(1.0)));
        assert_eq!((figures.ttfb_p50_s, figures.ttfb_p95_s), (Some(0.2), Some(25.0)));
        assert_eq!(figures.output_tokens_per_min, Some(33.0));
    }

    #[test]
    fn what_happened_while_it_warmed_up_is_not_counted() {
        let mut seen = Seen::default();
        let first = TurnResult { total: MS(20_500), ..result(0, 1, 9_000, TurnOutcome::Complete) };
        let cut = TurnResult { first_token: Some(MS(200)), pieces: 33, ..result(1, 0, 59_000, TurnOutcome::Cut) };
        let turns = [result(0, 0, 0, TurnOutcome::Complete), first, result(2, 0, 30_000, TurnOutcome::Complete), cut];
        turns.into_iter().for_each(|result| seen.add(result));
        let figures = seen.figures(MS(20_000)..MS(60_000), true, None);
        assert_eq!((figures.sessions_per_hour, figures.session_p50_s), (Some(90.0), Some(29.5)));
        assert_eq!(figures.output_tokens_per_min, Some(60.0), "of the two turns that ended in the 40 s");
    }

    #[test]
    fn where_a_server_chooses_the_engine_nobody_knows_whether_a_turn_stayed() {
        let mut seen = Seen::default();
        seen.add(result(0, 0, 0, TurnOutcome::Complete));
        seen.add(result(0, 1, 1_000, TurnOutcome::Complete));
        assert_eq!(seen.figures(Duration::ZERO..LENGTH, false, Some(2.5)).stayed_percent, None);
    }
}
