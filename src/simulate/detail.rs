//! What lies behind a rung's figures: how the replicas shared the work, and how deep in their sessions the turns were.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::report::{Ending, TurnSeen};

/// The turns of one cell by replica and by their place in the session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// By replica.
    pub replicas: Vec<Share>,
    /// By the place in the session, from the first turn on.
    pub turns: BTreeMap<u32, Share>,
}

/// Some of the turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    ttfbs: Vec<Duration>,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Requests that were seen running and waiting, in all looks together.
    running: u64,
    waiting: u64,
    looks: u64,
}

impl Detail {
    pub fn new(replicas: usize) -> Self {
        Detail { replicas: vec![Share::default(); replicas], turns: BTreeMap::new() }
    }

    /// A replica was looked at.
    pub fn look(&mut self, replica: usize, running: u32, waiting: u32) {
        let share = &mut self.replicas[replica];
        share.running += u64::from(running);
        share.waiting += u64::from(waiting);
        share.looks += 1;
    }

    pub fn add(&mut self, turn: &TurnSeen) {
        let (Some(first), Some(replica), Ending::Complete) = (turn.first_byte, turn.replica, turn.ending) else {
            return;
        };
        for share in [&mut self.replicas[replica as usize], self.turns.entry(turn.turn).or_default()] {
            share.ttfbs.push(first.saturating_sub(turn.wished));
            share.prompt_tokens += turn.prompt_tokens;
            share.cached_tokens += turn.cached_tokens.unwrap_or(0);
        }
    }

    /// Two tables: by replica, and by the turn's place in its session.
    pub fn table(&self) -> String {
        let mut text = "| replica | running | waiting | turns | TTFB p50 s | TTFB p95 s | hits % |\n".to_owned();
        text += "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
        for (replica, share) in self.replicas.iter().enumerate() {
            let mean = |sum: u64| sum as f64 / share.looks.max(1) as f64;
            let (running, waiting) = (mean(share.running), mean(share.waiting));
            text += &format!("| {replica} | {running:.1} | {waiting:.1} | {} |\n", share.cells());
        }
        text += "\n| turn | turns | TTFB p50 s | TTFB p95 s | hits % |\n| ---: | ---: | ---: | ---: | ---: |\n";
        for (turn, share) in &self.turns {
            text += &format!("| {} | {} |\n", turn + 1, share.cells());
        }
        text
    }
}

impl Share {
    fn cells(&self) -> String {
        let mut sorted = self.ttfbs.clone();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
            sorted.get(rank).map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()))
        };
        let hits = self.cached_tokens as f64 * 100.0 / self.prompt_tokens.max(1) as f64;
        format!("{} | {} | {} | {hits:.1}", sorted.len(), at(50), at(95))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_shared_out_by_replica_and_by_their_place() {
        let turn = |turn, replica, took| TurnSeen {
            session: 0,
            turn,
            wished: Duration::ZERO,
            first_byte: Some(Duration::from_secs(took)),
            ended: Duration::from_secs(took),
            ending: Ending::Complete,
            replica: Some(replica),
            is_held: None,
            prompt_tokens: 100,
            cached_tokens: Some(40),
            output_tokens: 1,
        };
        let mut detail = Detail::new(2);
        detail.look(1, 2, 3);
        detail.look(1, 0, 0);
        for seen in [turn(0, 1, 4), turn(1, 1, 2), turn(1, 0, 1)] {
            detail.add(&seen);
        }
        let text = detail.table();
        assert!(text.contains("| 1 | 1.0 | 1.5 | 2 | 2.00 | 4.00 | 40.0 |"), "{text}");
        assert!(text.contains("| 2 | 2 | 1.00 | 2.00 | 40.0 |"), "{text}");
    }
}
