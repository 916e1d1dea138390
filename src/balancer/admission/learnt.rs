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
/// Tokens a second that an engine with others to serve computes of a prompt, until that was seen.
const RATE_AT_FIRST: f64 = 4_000.0;
/// A turn with less to compute says little of the rate.
const RATE_TOKENS_MIN: u64 = 1_000;
/// No engine computes more in a second. What looks like it was in the cache.
const RATE_MAX: f64 = 1e6;

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
        let rate = (tokens as f64 / took.as_secs_f64()).min(RATE_MAX);
        self.rate = self.rate * KEPT + rate * (1.0 - KEPT);
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

    /// How long it takes to read so many tokens again.
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
    fn the_rate_is_what_was_seen_lately_and_one_odd_turn_changes_little() {
        let mut learnt = Learnt::new();
        (0..200).for_each(|_| learnt.computed(10_000, Duration::from_secs(5)));
        learnt.computed(10, Duration::from_nanos(1));
        let reread = learnt.reread(10_000).as_secs_f64();
        assert!((4.9..5.1).contains(&reread), "{reread}");
        learnt.computed(10_000, Duration::from_millis(500));
        let reread = learnt.reread(10_000).as_secs_f64();
        assert!((3.0..5.0).contains(&reread), "{reread}");
    }
}
