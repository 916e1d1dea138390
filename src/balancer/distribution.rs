//! How long something took, counted in classes that grow by a fifth.

use std::time::Duration;

/// Classes from a millisecond to over an hour; what is shorter or longer counts in the first or the last.
const CLASSES: usize = 84;
const SHORTEST_S: f64 = 1e-3;
/// From one class to the next. A quantile so is told to within a tenth.
const GROWTH: f64 = 1.2;

/// Counts since the beginning. Two of them, one taken from the other, are what came between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    counts: [u64; CLASSES],
}

impl Distribution {
    pub fn new() -> Self {
        Distribution { counts: [0; CLASSES] }
    }

    pub fn add(&mut self, took: Duration) {
        self.counts[class_of(took.as_secs_f64())] += 1;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was added since `earlier`. A count that fell was begun anew.
    pub fn since(&self, earlier: &Distribution) -> Distribution {
        let counts = std::array::from_fn(|class| self.counts[class].saturating_sub(earlier.counts[class]));
        Distribution { counts }
    }

    /// Both together.
    pub fn and(&self, other: &Distribution) -> Distribution {
        Distribution { counts: std::array::from_fn(|class| self.counts[class] + other.counts[class]) }
    }

    /// How long it took at most in a share of the cases, 0 to 1, in seconds. `None` where there is no case.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let rank = ((count as f64 * share).ceil() as u64).max(1);
        let mut before = 0;
        let class = self.counts.iter().position(|cases| {
            before += cases;
            before >= rank
        })?;
        // The middle of the class, as ratios go.
        (count > 0).then(|| SHORTEST_S * GROWTH.powf(class as f64 - 0.5))
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution::new()
    }
}

/// The class whose upper bound is the first that isn't exceeded.
fn class_of(seconds: f64) -> usize {
    let class = (seconds / SHORTEST_S).ln() / GROWTH.ln();
    // Casts of what is out of bounds, or no number, saturate.
    (class.ceil().max(0.0) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_told_to_within_a_tenth() {
        for millis in [2, 10, 57, 400, 2_300, 60_000, 600_000] {
            let mut distribution = Distribution::new();
            distribution.add(Duration::from_millis(millis));
            let told = distribution.quantile(0.5).expect("a case") * 1e3;
            assert!((told / millis as f64 - 1.0).abs() < 0.1, "{millis} {told}");
        }
    }

    #[test]
    fn quantiles_are_of_what_came_between() {
        let mut distribution = Distribution::new();
        (0..1000).for_each(|_| distribution.add(Duration::from_secs(100)));
        let earlier = distribution.clone();
        (0..90).for_each(|_| distribution.add(Duration::from_millis(100)));
        (0..10).for_each(|_| distribution.add(Duration::from_secs(10)));
        let between = distribution.since(&earlier);
        assert_eq!(between.count(), 100);
        let (p50, p95) = (between.quantile(0.5).expect("cases"), between.quantile(0.95).expect("cases"));
        assert!(p50 < 0.11 && p95 > 9.0 && p95 < 11.0, "{p50} {p95}");
        assert_eq!(between.and(&earlier), distribution);
        assert_eq!(earlier.since(&distribution).count(), 0);
        assert_eq!(Distribution::new().quantile(0.5), None);
    }

    #[test]
    fn extremes_stand_in_the_outermost_classes() {
        let mut distribution = Distribution::new();
        distribution.add(Duration::ZERO);
        distribution.add(Duration::MAX);
        assert_eq!((distribution.counts[0], distribution.counts[CLASSES - 1]), (1, 1));
    }
}
