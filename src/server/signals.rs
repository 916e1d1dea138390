//! The signals that a service is told by.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that a service is told by.
pub struct Signals {
    pub hangup: Signal,
    pub upgrade: Signal,
    /// SIGTERM and SIGINT.
    pub end: [Signal; 2],
}

impl Signals {
    /// From here on these signals don't end the process.
    ///
    /// # Errors
    /// When the system gives no place for them.
    pub fn take() -> anyhow::Result<Self> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
            end: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?],
        })
    }
}
