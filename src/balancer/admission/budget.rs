//! How many turns may be held, where that is bounded by their share of all turns.

/// Holds that are saved up at most: so many may come one after another.
const SAVED_MAX: f64 = 16.0;

/// A token bucket: every turn adds its share of a hold, and every hold takes a whole one.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    holds: f64,
}

impl Budget {
    pub fn new() -> Self {
        Budget { holds: SAVED_MAX }
    }

    /// A turn has come, of which so many in a hundred may be held.
    pub fn earn(&mut self, held_percent: u32) {
        self.holds = (self.holds + f64::from(held_percent) / 100.0).min(SAVED_MAX);
    }

    /// Whether it may be held. Then it is counted.
    pub fn spend(&mut self) -> bool {
        let is_enough = self.holds >= 1.0;
        if is_enough {
            self.holds -= 1.0;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(held_percent: u32, turns: u32) -> usize {
        let mut budget = Budget::new();
        let mut is_held = || {
            budget.earn(held_percent);
            budget.spend()
        };
        (0..turns).filter(|_| is_held()).count()
    }

    #[test]
    fn no_more_than_the_share_is_held_and_what_was_saved_up() {
        assert_eq!(held(100, 1_000), 1_000);
        assert!((55..=56).contains(&held(4, 1_000)), "{}", held(4, 1_000));
        assert_eq!(held(0, 1_000), 16);
    }
}
