//! From turns to figures. A turn that failed, or that still waits when the time is over, is counted and never dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use super::figures::Figures;

/// One turn as its client saw it. All times are on one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnSeen {
    /// Names its session within the run.
    pub session: u64,
    /// Its place in the session, from 0.
    pub turn: u32,
    /// When the client wanted it.
    pub wished: Duration,
    /// When the first byte of the answer came.
    pub first_byte: Option<Duration>,
    /// When the turn was over.
    pub ended: Duration,
    pub ending: Ending,
    /// The replica that served it, in any numbering, where that is known.
    pub replica: Option<u32>,
    /// Whether it was held back, where the balancer tells.
    pub is_held: Option<bool>,
    /// Tokens of the prompt, and those of them that the engine found in its cache, where it tells.
    pub prompt_tokens: u64,
    pub cached_tokens: Option<u64>,
    pub output_tokens: u64,
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Complete,
    /// It failed, was refused or broke off.
    Failed,
    /// The run was over before it was.
    Cut,
}

/// The turns of one rung, counted within a window of time: what ended before it warms up only.
#[derive(Debug)]
pub struct Tally {
    from: Duration,
    until: Duration,
    /// What ends until then counts too, if it runs when the window ends.
    drained: Duration,
    /// Whether a turn without an answer is in the percentiles with its wait until it ended.
    counts_unanswered: bool,
    /// Whether a turn that is cut off adds the tokens that had come.
    counts_cut: bool,
    ttfbs: Vec<Duration>,
    sessions: Vec<Duration>,
    longest_wait: Option<Duration>,
    turns: u64,
    waiting: u64,
    errors: u64,
    output_tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    later: u64,
    stayed: u64,
    held_known: u64,
    held: u64,
    /// Where the newest turn of each session was served.
    last: BTreeMap<u64, u32>,
}

impl Tally {
    /// Counts what happens from `from` until `until`.
    pub fn new(from: Duration, until: Duration) -> Self {
        Tally {
            from,
            until,
            drained: until,
            counts_unanswered: false,
            counts_cut: false,
            ttfbs: Vec::new(),
            sessions: Vec::new(),
            longest_wait: None,
            turns: 0,
            waiting: 0,
            errors: 0,
            output_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            later: 0,
            stayed: 0,
            held_known: 0,
            held: 0,
            last: BTreeMap::new(),
        }
    }

    /// Turns that run when the window ends count as if they had ended within it, if they end by then. Rates are those of the
    /// window all the same, so that they are too high by what runs over: some benchmarks count so.
    pub fn counting_until(self, drained: Duration) -> Self {
        Tally { drained, ..self }
    }

    /// Counts a run to its very end. A turn that has no answer is in the percentiles with its wait until it ended. Where nothing
    /// went before, one that is cut off adds the tokens that had come; after a warm-up as many were there when it ended.
    pub fn of_a_run(from: Duration, until: Duration) -> Self {
        Tally { counts_unanswered: true, counts_cut: from.is_zero(), ..Tally::new(from, until) }
    }

    /// Adds a turn, those of a session in their order. A turn counts where its first byte came within the window, or where it
    /// ended in it without one; its tokens count where it ended in it.
    pub fn add(&mut self, turn: &TurnSeen) {
        let before = turn.replica.and_then(|replica| self.last.insert(turn.session, replica));
        let noticed = turn.first_byte.unwrap_or(turn.ended);
        if self.has(noticed) || turn.ending == Ending::Cut {
            self.note_wait(turn);
        }
        if self.has(turn.ended) && turn.ending == Ending::Failed {
            self.errors += 1;
        }
        let is_counted = match turn.ending {
            Ending::Complete => true,
            Ending::Cut => self.counts_cut,
            Ending::Failed => false,
        };
        if self.has(turn.ended) && is_counted {
            self.output_tokens += turn.output_tokens;
        }
        if turn.first_byte.is_some_and(|first| self.has(first)) {
            self.note_served(turn, before);
        }
    }

    /// A session has had its last answer.
    pub fn add_session(&mut self, begun: Duration, ended: Duration) {
        if self.has(ended) {
            self.sessions.push(ended.saturating_sub(begun));
        }
    }

    /// The figures. How many replicas were busy is not seen from turns alone: vLLM doesn't say where its own balancer sent one.
    pub fn figures(mut self, replicas_busy: Option<f64>) -> Figures {
        self.ttfbs.sort_unstable();
        self.sessions.sort_unstable();
        let hours = self.until.saturating_sub(self.from).as_secs_f64() / 3600.0;
        let rate = |count: u64, per_hour: f64| (hours > 0.0).then(|| count as f64 / (hours * per_hour));
        Figures {
            sessions_per_hour: rate(self.sessions.len() as u64, 1.0),
            output_tokens_per_min: rate(self.output_tokens, 60.0),
            ttfb_p50_s: quantile(&self.ttfbs, 50),
            ttfb_p95_s: quantile(&self.ttfbs, 95),
            ttfb_p99_s: quantile(&self.ttfbs, 99),
            longest_wait_s: self.longest_wait.map(|wait| wait.as_secs_f64()),
            replicas_busy,
            prefix_hit_percent: percent(self.cached_tokens, self.prompt_tokens),
            stayed_percent: percent(self.stayed, self.later),
            held_percent: percent(self.held, self.held_known),
            waiting_at_end: Some(self.waiting as f64),
            session_p50_s: quantile(&self.sessions, 50),
            session_p95_s: quantile(&self.sessions, 95),
            errors: Some(self.errors as f64),
        }
        .rounded()
    }

    fn has(&self, at: Duration) -> bool {
        self.from <= at && at <= self.drained
    }

    fn note_wait(&mut self, turn: &TurnSeen) {
        let noticed = turn.first_byte.unwrap_or(turn.ended);
        let wait = noticed.min(self.drained).saturating_sub(turn.wished);
        self.longest_wait = self.longest_wait.max(Some(wait));
        if self.counts_unanswered && turn.first_byte.is_none() {
            self.ttfbs.push(wait);
        }
        let waits = match turn.ending {
            Ending::Cut => turn.first_byte.is_none_or(|first| first > self.until),
            Ending::Complete | Ending::Failed => noticed > self.until,
        };
        self.waiting += u64::from(waits);
    }

    fn note_served(&mut self, turn: &TurnSeen, before: Option<u32>) {
        self.turns += 1;
        self.ttfbs.extend(turn.first_byte.map(|first| first.saturating_sub(turn.wished)));
        if let Some(cached) = turn.cached_tokens {
            self.prompt_tokens += turn.prompt_tokens;
            self.cached_tokens += cached;
        }
        if let Some(is_held) = turn.is_held {
            self.held_known += 1;
            self.held += u64::from(is_held);
        }
        if let (Some(replica), Some(before)) = (turn.replica, before)
            && turn.turn > 0
        {
            self.later += 1;
            self.stayed += u64::from(replica == before);
        }
    }
}

impl Figures {
    /// To a thousandth, so that what is printed is what is compared.
    fn rounded(mut self) -> Self {
        for column in super::Column::ALL {
            self.set(column, self.get(column).map(|value| (value * 1000.0).round() / 1000.0));
        }
        self
    }
}

fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 * 100.0 / whole as f64)
}

/// The smallest value that at least so many percent of the sorted values don't exceed, in seconds.
fn quantile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).map(Duration::as_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn turn(turn: u32, wished: u64, took: u64, replica: u32) -> TurnSeen {
        TurnSeen {
            session: 0,
            turn,
            wished: S(wished),
            first_byte: Some(S(wished + took)),
            ended: S(wished + took + 1),
            ending: Ending::Complete,
            replica: Some(replica),
            is_held: Some(took > 5),
            prompt_tokens: 100,
            cached_tokens: Some(60),
            output_tokens: 10,
        }
    }

    #[test]
    fn figures_are_of_what_came_within_the_window() {
        let mut tally = Tally::new(S(10), S(70));
        // Before the window; it still says where the session was.
        tally.add(&turn(0, 0, 1, 1));
        tally.add(&turn(1, 12, 2, 1));
        tally.add(&turn(2, 20, 6, 2));
        // The first byte is within, the end is not.
        tally.add(&turn(3, 68, 2, 2));
        tally.add_session(S(1), S(9));
        tally.add_session(S(1), S(61));
        let figures = tally.figures(Some(1.5));
        assert_eq!((figures.sessions_per_hour, figures.output_tokens_per_min), (Some(60.0), Some(20.0)));
        assert_eq!((figures.ttfb_p50_s, figures.ttfb_p95_s, figures.longest_wait_s), (Some(2.0), Some(6.0), Some(6.0)));
        assert_eq!((figures.stayed_percent, figures.held_percent), (Some(66.667), Some(33.333)));
        assert_eq!((figures.prefix_hit_percent, figures.session_p50_s), (Some(60.0), Some(60.0)));
        assert_eq!((figures.waiting_at_end, figures.errors), (Some(0.0), Some(0.0)));
    }

    #[test]
    fn a_turn_that_still_waits_or_has_failed_is_in_the_figures() {
        let mut tally = Tally::new(S(0), S(60));
        let waits = TurnSeen { first_byte: None, ended: S(60), ending: Ending::Cut, ..turn(0, 10, 0, 0) };
        tally.add(&waits);
        tally.add(&TurnSeen { session: 1, first_byte: None, ending: Ending::Failed, ..turn(0, 10, 4, 0) });
        // Cut with its answer under way: it waits for nothing.
        tally.add(&TurnSeen { session: 2, ending: Ending::Cut, ended: S(60), ..turn(0, 10, 3, 0) });
        let figures = tally.figures(None);
        assert_eq!((figures.waiting_at_end, figures.errors), (Some(1.0), Some(1.0)));
        assert_eq!((figures.longest_wait_s, figures.ttfb_p50_s), (Some(50.0), Some(3.0)));
        assert_eq!((figures.output_tokens_per_min, figures.replicas_busy), (Some(0.0), None));
    }

    #[test]
    fn nothing_seen_is_no_figure() {
        let figures = Tally::new(S(0), S(60)).figures(None);
        assert_eq!((figures.ttfb_p50_s, figures.stayed_percent, figures.session_p95_s), (None, None, None));
        assert_eq!(figures.sessions_per_hour, Some(0.0));
    }
}
