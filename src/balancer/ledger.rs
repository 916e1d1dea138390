//! The books: what the turns of each replica cost, and how many tokens a body's bytes come to.

use super::cost::{Bill, ColdReason, Cost};

/// What the turns that a replica served cost, in tokens. Counted since the process started or the replica was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Prompt tokens that the engine says it found in its cache.
    pub cached: u64,
    /// Prompt tokens that were computed, by the engine's count.
    pub computed: u64,
    /// Prompt tokens of turns that the engine didn't count, estimated from their bytes. They are taken for computed.
    pub estimated: u64,
    pub completion: u64,
    pub measured_turns: u64,
    pub unmeasured_turns: u64,
    /// Of the measured turns, those whose engine didn't tell what it found in its cache: all counts as computed.
    pub untold_turns: u64,
    cold: [ColdLine; ColdReason::ALL.len()],
}

/// Turns that were colder than they should have been, for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdLine {
    pub turns: u64,
    /// Prompt tokens that were computed again.
    pub tokens: u64,
    /// Prompt tokens that were found all the same.
    pub survived: u64,
}

/// How many bytes of a request's body make a token of prompt, learnt from the turns that were measured.
#[derive(Clone, Copy, Debug)]
pub struct BytesPerToken {
    bytes: f64,
    tokens: f64,
}

/// What JSON of agents comes to with current tokenizers; it has the weight of one such turn.
const TOKENS_AT_FIRST: f64 = 1_000.0;
const BYTES_AT_FIRST: f64 = 4.0 * TOKENS_AT_FIRST;
/// What a turn leaves of the weight of those before it: the last fifty or so decide.
const KEPT: f64 = 0.98;

impl Ledger {
    pub fn book(&mut self, bill: &Bill, cost: &Cost) {
        self.cached += bill.cached;
        self.completion += bill.completion;
        if bill.is_measured {
            self.computed += bill.computed;
            self.measured_turns += 1;
            self.untold_turns += u64::from(cost.cached.is_none());
        } else {
            self.estimated += bill.computed;
            self.unmeasured_turns += 1;
        }
        if let Some(cold) = &bill.cold {
            let line = &mut self.cold[cold.reason as usize];
            line.turns += 1;
            line.tokens += cold.tokens;
            line.survived += cold.survived;
        }
    }

    /// Adds what stands in other books.
    pub fn add(&mut self, other: &Ledger) {
        for (sum, part) in self.numbers().into_iter().zip(other.clone().numbers()) {
            *sum += *part;
        }
    }

    /// What was booked since `earlier`. Books that fell were begun anew.
    pub fn since(&self, earlier: &Ledger) -> Ledger {
        let mut since = *self;
        for (number, before) in since.numbers().into_iter().zip(earlier.clone().numbers()) {
            *number = number.saturating_sub(*before);
        }
        since
    }

    /// Every number of the books, in a fixed order.
    fn numbers(&mut self) -> Vec<&mut u64> {
        let Ledger { cached, computed, estimated, completion, measured_turns, unmeasured_turns, untold_turns, cold } =
            self;
        let cold = cold.iter_mut().flat_map(|line| [&mut line.turns, &mut line.tokens, &mut line.survived]);
        [cached, computed, estimated, completion, measured_turns, unmeasured_turns, untold_turns]
            .into_iter()
            .chain(cold)
            .collect()
    }

    /// Every reason for cold turns with its line, in a fixed order.
    pub fn cold(&self) -> impl Iterator<Item = (ColdReason, ColdLine)> {
        ColdReason::ALL.into_iter().zip(self.cold)
    }
}

impl BytesPerToken {
    pub fn new() -> Self {
        BytesPerToken { bytes: BYTES_AT_FIRST, tokens: TOKENS_AT_FIRST }
    }

    pub fn learn(&mut self, bytes: u64, tokens: u64) {
        if bytes == 0 || tokens == 0 {
            return;
        }
        self.bytes = self.bytes * KEPT + bytes as f64;
        self.tokens = self.tokens * KEPT + tokens as f64;
    }

    /// The tokens that a body of so many bytes is taken for.
    pub fn tokens(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.tokens / self.bytes).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::Cold;
    use super::*;

    #[test]
    fn a_measured_turn_and_an_estimated_one_stand_apart_in_the_books() {
        let mut ledger = Ledger::default();
        let cold = Cold { reason: ColdReason::Spilled, tokens: 60, survived: 7 };
        let bill = Bill { cached: 7, computed: 93, completion: 5, is_measured: true, cold: Some(cold) };
        ledger
            .book(&bill, &Cost { request_bytes: 400, prompt: Some(100), cached: Some(7), completion: 5, asks: false });
        let guess = Bill { computed: 50, completion: 2, ..Bill::default() };
        ledger.book(&guess, &Cost { request_bytes: 200, completion: 2, ..Cost::default() });
        let found = (ledger.cached, ledger.computed, ledger.estimated, ledger.completion);
        assert_eq!(found, (7, 93, 50, 7));
        assert_eq!((ledger.measured_turns, ledger.unmeasured_turns, ledger.untold_turns), (1, 1, 0));
        let lines: Vec<_> = ledger.cold().filter(|(_, line)| line.turns > 0).collect();
        assert_eq!(lines, [(ColdReason::Spilled, ColdLine { turns: 1, tokens: 60, survived: 7 })]);
    }

    #[test]
    fn the_bytes_of_a_token_are_learnt_from_what_was_measured() {
        let mut ratio = BytesPerToken::new();
        assert_eq!(ratio.tokens(8_000), 2_000);
        for _ in 0..500 {
            ratio.learn(30_000, 10_000);
        }
        assert_eq!(ratio.tokens(3_000), 1_000);
        ratio.learn(0, 10);
        ratio.learn(10, 0);
        assert_eq!(ratio.tokens(3_000), 1_000);
    }
}
