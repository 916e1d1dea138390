//! What agents do: the sizes of what they say, how often, and the pauses between. Every choice is drawn from a seed.

use std::time::Duration;

use super::text;

/// A range of sizes in tokens, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub least: u32,
    pub most: u32,
}

/// The pause between a reply and the next turn: the agent's tools at work, or its user's thoughts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pause {
    None,
    /// Exponentially distributed round a mean.
    Exponential(Duration),
    /// Log-normally distributed: half of the pauses are shorter than the median, one in a hundred is longer than `p99`.
    HeavyTailed {
        median: Duration,
        p99: Duration,
    },
}

/// Subagents: conversations of their own that a session starts all at once, and whose answers it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Burst {
    /// How many at a time. 0: none.
    pub agents: u32,
    /// A burst follows every so many turns. At least 1.
    pub every: u32,
    /// What each subagent is told at first.
    pub first_tokens: Span,
    pub turns: u32,
}

/// The sizes of sessions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Tokens of the system prompt that all sessions share.
    pub system_tokens: u32,
    /// Tokens of a session's first message.
    pub first_tokens: Span,
    /// Tokens of each later message.
    pub turn_tokens: Span,
    /// Turns in a session, the first included.
    pub turns: u32,
    /// The most tokens of a reply.
    pub reply_tokens: Span,
    pub pause: Pause,
    pub burst: Burst,
}

/// A session from its first turn to its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPlan {
    pub turns: Vec<TurnPlan>,
}

/// A turn that is going to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnPlan {
    /// Not before this time since the workload's start.
    pub due: Duration,
    /// The pause before it, from the reply to the turn before.
    pub pause: Duration,
    /// What is said, in tokens.
    pub message_tokens: u32,
    /// The most tokens of the reply.
    pub reply_tokens: u32,
    /// Whether everything said so far is dropped before it, as when an agent compacts its history.
    pub starts_over: bool,
    /// Subagents that are sent out when it has been answered.
    pub subagents: u32,
}

/// The longest pause, in pauses of the mean length.
const LONGEST_EXPONENTIAL: f64 = 8.0;
/// The longest pause, in those of one in a hundred.
const LONGEST_HEAVY: f64 = 4.0;
/// The standard normal distribution's 99th percentile.
const NORMAL_P99: f64 = 2.326_35;

impl Span {
    pub const fn of(tokens: u32) -> Self {
        Span { least: tokens, most: tokens }
    }

    /// The size that belongs to a share from 0 up to 1.
    fn at(self, share: f64) -> u32 {
        let width = f64::from(self.most.saturating_sub(self.least)) + 1.0;
        self.least.saturating_add((width * share) as u32).min(self.most)
    }
}

impl Pause {
    /// The pause that `seed` draws.
    fn draw(self, seed: u64) -> Duration {
        match self {
            Pause::None => Duration::ZERO,
            Pause::Exponential(mean) => mean.mul_f64((-(1.0 - text::share(seed)).ln()).min(LONGEST_EXPONENTIAL)),
            Pause::HeavyTailed { median, p99 } => {
                let ratio = p99.as_secs_f64() / median.as_secs_f64().max(f64::MIN_POSITIVE);
                let spread = ratio.max(1.0).ln() / NORMAL_P99;
                median.mul_f64((spread * normal(seed)).exp().min(ratio.max(1.0) * LONGEST_HEAVY))
            }
        }
    }
}

impl Burst {
    pub const NONE: Burst = Burst { agents: 0, every: 1, first_tokens: Span::of(0), turns: 0 };

    fn after(self, turn: u32, turns: u32) -> u32 {
        let is_due = (turn + 1).is_multiple_of(self.every.max(1)) && turn + 1 < turns;
        if is_due { self.agents } else { 0 }
    }
}

impl Shape {
    /// A coding agent's first minutes, without pauses.
    pub const AGENT: Shape = Shape {
        system_tokens: 3400,
        first_tokens: Span::of(7000),
        turn_tokens: Span::of(400),
        turns: 6,
        // Replies of an agent differ, and equal ones would march in step.
        reply_tokens: Span { least: 64, most: 256 },
        pause: Pause::None,
        burst: Burst::NONE,
    };

    /// The session that `seed` draws.
    pub fn plan(&self, seed: u64) -> SessionPlan {
        SessionPlan { turns: (0..self.turns).map(|turn| self.turn(seed, turn)).collect() }
    }

    /// What a subagent does.
    pub fn subagent_plan(&self, seed: u64) -> SessionPlan {
        let shape = Shape {
            first_tokens: self.burst.first_tokens,
            turns: self.burst.turns,
            burst: Burst::NONE,
            pause: Pause::None,
            ..*self
        };
        shape.plan(seed)
    }

    fn turn(&self, seed: u64, turn: u32) -> TurnPlan {
        let drawn = |what: u64| seed.wrapping_add(u64::from(turn) << 32).wrapping_add(what << 56);
        let message = if turn == 0 { self.first_tokens } else { self.turn_tokens };
        TurnPlan {
            due: Duration::ZERO,
            pause: if turn == 0 { Duration::ZERO } else { self.pause.draw(drawn(1)) },
            message_tokens: message.at(text::share(drawn(2))),
            reply_tokens: self.reply_tokens.at(text::share(drawn(3))).max(1),
            starts_over: false,
            subagents: self.burst.after(turn, self.turns),
        }
    }
}

/// A draw from the standard normal distribution, by Box and Muller's method.
fn normal(seed: u64) -> f64 {
    let [one, other] = [seed, seed.rotate_left(29) ^ 0x5bd1_e995].map(text::share);
    (-2.0 * (1.0 - one).ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_drawn_from_the_whole_of_their_range_and_nothing_else() {
        let shape = Shape { first_tokens: Span { least: 7200, most: 7500 }, ..Shape::AGENT };
        let sizes: Vec<u32> = (0..2000).map(|seed| shape.plan(seed).turns[0].message_tokens).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!((7200..7210).contains(least) && (7490..=7500).contains(most), "{least} {most}");
        assert_eq!(shape.plan(5), shape.plan(5));
        assert_eq!(Span::of(7).at(0.999), 7);
    }

    #[test]
    fn heavy_tailed_pauses_have_their_median_and_their_p99() {
        let pause = Pause::HeavyTailed { median: Duration::from_secs(2), p99: Duration::from_secs(180) };
        let mut drawn: Vec<f64> = (0..20_000).map(|seed| pause.draw(seed * 7919).as_secs_f64()).collect();
        drawn.sort_by(f64::total_cmp);
        assert!((1.8..2.2).contains(&drawn[10_000]), "{}", drawn[10_000]);
        assert!((140.0..220.0).contains(&drawn[19_800]), "{}", drawn[19_800]);
        assert!(drawn[19_999] <= 720.0);
    }

    #[test]
    fn bursts_come_after_every_so_many_turns_and_never_after_the_last() {
        let burst = Burst { agents: 3, every: 2, first_tokens: Span::of(100), turns: 2 };
        let shape = Shape { burst, ..Shape::AGENT };
        let subagents: Vec<u32> = shape.plan(1).turns.iter().map(|turn| turn.subagents).collect();
        assert_eq!(subagents, [0, 3, 0, 3, 0, 0]);
        let plan = shape.subagent_plan(1);
        assert_eq!((plan.turns.len(), plan.turns[0].message_tokens, plan.turns[1].subagents), (2, 100, 0));
    }
}
