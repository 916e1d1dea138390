//! How soon conversations come back, and what that makes of the time that a silent one keeps its room.

use std::time::Duration;

/// Classes of gaps: the first holds what comes within [`SHORTEST_S`], each next one twice as much.
const CLASSES: usize = 12;
/// A tenth of a second: a client that answers at once does so within it.
const SHORTEST_S: f64 = 0.1;
/// What an answer leaves of the weight of those before it: the last two hundred or so decide.
const KEPT: f64 = 0.995;
/// With fewer answers than this nothing was seen yet.
const ANSWERS_MIN: f64 = 8.0;
/// What a history that is read again costs, in times of what reading it takes: a part of that time it has waited for others.
/// What more or less of it brings is in `bench/admission.md`.
const REREAD_WEIGHT: f64 = 0.9;
/// The stay until something was seen, after an answer that asks for a tool: what an agent's tools mostly take (traces of
/// vllm-router's discussion #285: 95 % within 10 s).
const STAY_AT_FIRST: Duration = Duration::from_secs(5);

/// Counts of gaps between an answer and the next turn of its conversation, of answers of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    answers: f64,
    returns: [f64; CLASSES],
}

/// Gaps after answers that ask for a tool's result, and after those that end what the client asked for. After the first kind
/// a program goes on, after the second a person does, or nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    asking: Seen,
    ending: Seen,
}

impl Gaps {
    /// An answer has ended.
    pub fn answered(&mut self, asks: bool) {
        let seen = self.seen_mut(asks);
        seen.answers = seen.answers * KEPT + 1.0;
        seen.returns.iter_mut().for_each(|count| *count *= KEPT);
    }

    /// The conversation came back, so long after such an answer.
    pub fn returned(&mut self, asks: bool, gap: Duration) {
        let class = (gap.as_secs_f64() / SHORTEST_S).log2().ceil().max(0.0) as usize;
        if class < CLASSES {
            self.seen_mut(asks).returns[class] += 1.0;
        }
    }

    /// How long a resident may be silent after such an answer. `reread` is how long its history would keep an engine busy
    /// if it had to be read again; `share` is the part of the cache that it has, 0 to 1: so much of the engine stands idle
    /// for it meanwhile, at worst.
    pub fn stay(&self, asks: bool, reread: Duration, share: f64) -> Duration {
        let seen = if asks { &self.asking } else { &self.ending };
        if seen.answers < ANSWERS_MIN {
            // After the other answers a person goes on, who takes longer than any stay, or nobody.
            return if asks { STAY_AT_FIRST } else { Duration::ZERO };
        }
        // Not to wait at all costs nothing and brings nothing.
        let (mut best_s, mut best_worth) = (0.0, 0.0);
        let (mut back, mut waited_s, mut from) = (0.0, 0.0, 0.0);
        for class in 0..CLASSES {
            let until = bound_s(class);
            // Who comes back in this class was waited for to its middle, whoever is left to its end.
            let came = (seen.returns[class] / seen.answers).min(1.0 - back);
            waited_s += came * (until - from) / 2.0 + (1.0 - back - came) * (until - from);
            back += came;
            let worth = back * reread.as_secs_f64() * REREAD_WEIGHT - share * waited_s;
            if worth > best_worth {
                (best_s, best_worth) = (until, worth);
            }
            from = until;
        }
        Duration::from_secs_f64(best_s)
    }

    fn seen_mut(&mut self, asks: bool) -> &mut Seen {
        if asks { &mut self.asking } else { &mut self.ending }
    }
}

/// The end of a class, in seconds.
fn bound_s(class: usize) -> f64 {
    SHORTEST_S * f64::from(1_u32 << class)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REREAD: Duration = Duration::from_secs(4);

    fn seen(gaps: &[(u64, u32)], lost: u32) -> Gaps {
        let mut seen = Gaps::default();
        for _ in 0..20 {
            for (millis, times) in gaps {
                for _ in 0..*times {
                    seen.answered(true);
                    seen.returned(true, Duration::from_millis(*millis));
                }
            }
            (0..lost).for_each(|_| seen.answered(true));
        }
        seen
    }

    #[test]
    fn as_long_as_nothing_was_seen_the_stay_is_that_of_common_tools() {
        assert_eq!(Gaps::default().stay(true, REREAD, 0.2), STAY_AT_FIRST);
        assert_eq!(Gaps::default().stay(false, REREAD, 0.2), Duration::ZERO, "nobody is known to come back");
        let asking = seen(&[(20, 5)], 1);
        assert_eq!(asking.stay(false, REREAD, 0.2), Duration::ZERO, "the other kind of answer was not seen");
    }

    #[test]
    fn whoever_comes_back_at_once_or_never_is_not_waited_for() {
        let stay = seen(&[(20, 5)], 1).stay(true, REREAD, 0.2);
        assert!(stay <= Duration::from_millis(200), "{stay:?}");
    }

    #[test]
    fn a_gap_is_waited_for_as_long_as_reading_again_costs_more() {
        let gaps = seen(&[(6_000, 3)], 1);
        let cheap = gaps.stay(true, Duration::from_millis(100), 0.5);
        assert!(cheap <= Duration::from_millis(200), "{cheap:?}");
        let dear = gaps.stay(true, Duration::from_secs(20), 0.1);
        assert!((6.0..=13.0).contains(&dear.as_secs_f64()), "{dear:?}");
    }

    #[test]
    fn gaps_of_minutes_are_no_reason_to_keep_room() {
        let stay = seen(&[(600_000, 3)], 0).stay(true, Duration::from_secs(5), 0.2);
        assert_eq!(stay, Duration::ZERO);
    }

    #[test]
    fn the_best_stay_is_the_same_for_all_who_fit_into_the_cache_and_longer_for_who_does_not() {
        let gaps = seen(&[(300, 2), (6_000, 3), (40_000, 1)], 1);
        let stay = |cache_shares: f64| gaps.stay(true, REREAD.mul_f64(cache_shares), cache_shares.min(1.0));
        assert!(!stay(1.0).is_zero());
        for cache_shares in [0.001, 0.1, 0.33, 0.9] {
            assert_eq!(stay(cache_shares), stay(1.0), "{cache_shares}");
        }
        assert!(stay(50.0) > stay(1.0), "{:?}", stay(50.0));
    }
}
