//! A timer for silence that costs nothing while there is none.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Rings when nothing has come for a while. What comes only leaves its time behind; the timer looks at that when it runs out,
/// and goes on for what is left. So a chunk costs a reading of the clock, and no timer is set for it.
pub struct Alarm {
    timer: Pin<Box<Sleep>>,
    last: Instant,
    patience: Option<Duration>,
}

impl Alarm {
    pub fn new(patience: Option<Duration>) -> Self {
        let last = Instant::now();
        let timer = Box::pin(sleep_until(last + patience.unwrap_or_default()));
        Alarm { timer, last, patience }
    }

    /// Something has come.
    pub fn put_off(&mut self) {
        self.last = Instant::now();
    }

    /// Rings after `patience` from here on; `None`: never.
    pub fn set(&mut self, patience: Option<Duration>) {
        self.put_off();
        self.patience = patience;
        self.timer.as_mut().reset(self.last + patience.unwrap_or_default());
    }

    /// When something came last.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Waits for the silence, and begins anew. Can be dropped while it waits.
    pub async fn rings(&mut self) {
        let Some(patience) = self.patience else { return std::future::pending().await };
        loop {
            self.timer.as_mut().await;
            let due = self.last + patience;
            if due <= Instant::now() {
                return self.set(Some(patience));
            }
            self.timer.as_mut().reset(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_after_the_silence_and_not_before() {
        let mut alarm = Alarm::new(Some(10 * SECOND));
        let begin = Instant::now();
        assert!(timeout(9 * SECOND, alarm.rings()).await.is_err());
        alarm.put_off();
        assert!(timeout(9 * SECOND, alarm.rings()).await.is_err());
        alarm.rings().await;
        assert_eq!(begin.elapsed().as_secs(), 19);
        alarm.rings().await;
        assert_eq!(begin.elapsed().as_secs(), 29);
        alarm.set(None);
        assert!(timeout(1000 * SECOND, alarm.rings()).await.is_err());
    }
}
