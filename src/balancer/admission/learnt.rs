//! What the turns of a model teach of how much room conversations take.

use std::time::Duration;

/// First turns whose finds are remembered.
const FINDS: usize = 16;
/// What conversations have in common is counted in steps of so many tokens, so that it doesn't change with every turn.
const SHARED_STEP: u64 = 256;
/// What a turn leaves of the weight of those before it.
const KEPT: f64 = 0.95;
/// By how many tokens a conversation grows in a turn, until that was seen.
const GROWTH_AT_FIRST: f64 = 1_000.0;
/// A conversation whose length nobody has told yet.
const FIRST_AT_FIRST: f64 = 8_000.0;
/// Tokens a second that an engine computes, until that was seen.
const RATE_AT_FIRST: f64 = 4_000.0;
/// A turn with less to compute says little of the rate.
const RATE_TOKENS_MIN: u64 = 1_000;
/// The best rate seen is believed a little less with every turn: an engine that was idle then may never be so again.
const RATE_KEPT: f64 = 0.999;

#[derive(Clone, Debug)]
pub struct Learnt {
    finds: [u64; FINDS],
    found: usize,
    growth: f64,
    first: f64,
    rate: f64,
}

impl Learnt {
    pub fn new() -> Self {
        Learnt { finds: [0; FINDS], found: 0, growth: GROWTH_AT_FIRST, first: FIRST_AT_FIRST, rate: RATE_AT_FIRST }
    }

    /// The first turn of a conversation was so long, and so much of it was in the cache already: others had left it there.
    pub fn began(&mut self, tokens: u64, found: Option<u64>) {
        self.first = self.first * KEPT + tokens as f64 * (1.0 - KEPT);
        if let Some(found) = found {
            self.finds[self.found % FINDS] = found;
            self.found += 1;
        }
    }

    /// A conversation has grown by so many tokens with a turn.
    pub fn grew(&mut self, tokens: u64) {
        self.growth = self.growth * KEPT + tokens as f64 * (1.0 - KEPT);
    }

    /// So many tokens were computed, and the first of the answer came so long after the turn was sent.
    pub fn computed(&mut self, tokens: u64, took: Duration) {
        if tokens < RATE_TOKENS_MIN || took.is_zero() {
            return;
        }
        self.rate = (self.rate * RATE_KEPT).max(tokens as f64 / took.as_secs_f64()).min(1e7);
    }

    /// Tokens that conversations begin with in common: what three of four first turns found at least.
    pub fn shared(&self) -> u64 {
        let count = self.found.min(FINDS);
        if count == 0 {
            return 0;
        }
        let mut finds = self.finds;
        let finds = &mut finds[..count];
        finds.sort_unstable();
        finds[count / 4] / SHARED_STEP * SHARED_STEP
    }

    /// By how many tokens a conversation grows in a turn.
    pub fn growth(&self) -> u64 {
        self.growth as u64
    }

    /// How long a conversation is with its first turn.
    pub fn first(&self) -> u64 {
        self.first as u64
    }

    /// How long an engine is busy with so many tokens.
    pub fn reread(&self, tokens: u64) -> Duration {
        Duration::from_secs_f64(tokens as f64 / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_conversations_share_is_what_three_of_four_find_at_least() {
        let mut learnt = Learnt::new();
        assert_eq!(learnt.shared(), 0);
        for _ in 0..15 {
            learnt.began(11_000, Some(3_500));
        }
        assert_eq!(learnt.shared(), 3_328);
        (0..3).for_each(|_| learnt.began(11_000, Some(0)));
        assert_eq!(learnt.shared(), 3_328);
        (0..3).for_each(|_| learnt.began(11_000, Some(0)));
        assert_eq!(learnt.shared(), 0);
    }

    #[test]
    fn lengths_and_growth_follow_what_is_seen() {
        let mut learnt = Learnt::new();
        for _ in 0..200 {
            learnt.began(60_000, None);
            learnt.grew(700);
        }
        assert!((59_000..=60_000).contains(&learnt.first()), "{}", learnt.first());
        assert!((690..=710).contains(&learnt.growth()), "{}", learnt.growth());
    }

    #[test]
    fn the_rate_is_the_best_that_was_seen_lately() {
        let mut learnt = Learnt::new();
        learnt.computed(10_000, Duration::from_secs(1));
        learnt.computed(10_000, Duration::from_secs(20));
        learnt.computed(10, Duration::from_nanos(1));
        let reread = learnt.reread(10_000).as_secs_f64();
        assert!((1.0..1.01).contains(&reread), "{reread}");
    }
}
