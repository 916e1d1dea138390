//! What the process tells systemd, where it was started by it. Elsewhere nothing is said, and nobody minds.

use std::process;

use log::debug;
use sd_notify::NotifyState;

/// It serves, and this is what.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It reads its configuration again; [`ready`] is to follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => debug!("systemd is not told of a reload: {error}"),
    }
}

/// It is about to end.
pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Another process is the service from here on.
pub fn main_process_is(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// This process is the service again.
pub fn main_process_is_this() {
    main_process_is(process::id());
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        debug!("systemd can't be told: {error}");
    }
}
