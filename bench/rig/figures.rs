//! Samples and what is said of them.

use std::time::Duration;

/// Measurements of one kind.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Adds a time in milliseconds.
    pub fn push_ms(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e3);
    }

    /// The value that a share `q` of the samples does not exceed; NaN when there is none.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Each sample over the one of the same round in `other`.
    pub fn over(&self, other: &Samples) -> Samples {
        Samples(self.0.iter().zip(&other.0).map(|(mine, theirs)| mine / theirs).collect())
    }
}
