//! The budget of request bytes that all turns together may hold, and each turn's share of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus::IntGauge;

/// Bytes of request bodies held at this moment, by all turns.
#[derive(Debug)]
pub struct Budget {
    used: AtomicUsize,
    /// Shows `used`.
    gauge: IntGauge,
}

/// What one turn holds of the budget. Dropping it gives the rest back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub fn new(gauge: IntGauge) -> Self {
        Budget { used: AtomicUsize::new(0), gauge }
    }

    #[cfg(test)]
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), bytes: 0 }
    }
}

impl Share {
    /// Takes more of the budget. Returns whether it stayed under `bytes_max` in all; if not, nothing is taken.
    #[must_use]
    pub fn take(&mut self, bytes: usize, bytes_max: usize) -> bool {
        let before = self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > bytes_max {
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.bytes += bytes;
        self.budget.gauge.add(bytes as i64);
        true
    }

    /// Gives everything back before the turn ends.
    pub fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.gauge.sub(bytes as i64);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_together_stay_under_the_budget_and_give_back_on_drop() {
        let gauge = IntGauge::new("held", "Held.").unwrap();
        let budget = Arc::new(Budget::new(gauge.clone()));
        let mut first = budget.share();
        let mut second = budget.share();
        assert!(first.take(60, 100));
        assert!(!second.take(41, 100));
        assert!(second.take(40, 100));
        drop(first);
        assert_eq!((budget.used(), gauge.get()), (40, 40));
        assert!(second.take(60, 100));
        drop(second);
        assert_eq!(budget.used(), 0);
    }
}
