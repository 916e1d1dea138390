//! The engine's time behind a socket: real time, sped up.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How far an engine may fall behind, in real time, before it gives up catching up. Timers fire at whole milliseconds, so
/// short steps are always late by a little and the ones after them make up for it; a machine that can't keep the pace must
/// not turn its backlog into a burst later.
const LARGEST_LAG: Duration = Duration::from_millis(50);

/// Virtual time since a start, running `scale` times as fast as real time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    scale: f64,
}

impl Clock {
    /// A clock at zero; `scale` must be positive.
    pub fn start(scale: f64) -> Self {
        Self { started: Instant::now(), scale }
    }

    /// The virtual time of this moment.
    pub fn now(&self) -> Duration {
        self.started.elapsed().mul_f64(self.scale)
    }

    /// Sleeps until a virtual instant; if that has passed, only lets other tasks run.
    pub async fn sleep_until(&self, at: Duration) {
        let deadline = self.started + at.div_f64(self.scale);
        if deadline > Instant::now() {
            sleep_until(deadline).await;
        } else {
            tokio::task::yield_now().await;
        }
    }

    /// Where a busy engine continues after a step that should have ended at `at`.
    pub fn resume(&self, at: Duration) -> Duration {
        let now = self.now();
        let behind = now.saturating_sub(at);
        if behind.div_f64(self.scale) > LARGEST_LAG { now } else { at }
    }
}
