//! The words for a replica's health: what it is, why, and what is news about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::replica::ReplicaSpec;

/// The most replicas that a description of an outage names: a refusal must stay readable.
const NAMES_MAX: usize = 20;

/// Whether a replica can be given turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Not looked at yet. It is given turns: a failure to connect says soon enough if it is down.
    Unknown,
    Up,
    /// It failed lately. Conversations that are pinned to it stay; new ones go elsewhere as long as another one is up.
    Suspect(DownReason),
    Down(DownReason),
    /// It takes nothing new and finishes what it has.
    Draining(DrainReason),
    /// Its engine sleeps: requests would hang until it is woken.
    Sleeping,
}

/// What showed that a replica is down, or gave reason to suspect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReason {
    ConnectRefused,
    ConnectTimedOut,
    /// Its certificate is not believed, or is for somebody else: it may not be who it should be.
    CertificateRefused,
    /// There is no TLS to be had with it.
    TlsFailed,
    /// It accepted a connection but did not answer a probe, or answered that its engine is dead.
    ProbeFailed,
    /// It took turns and broke them off before their first event.
    BrokeOff,
    /// It answered turns with errors that say that it can't serve.
    Failing,
    /// It has requests, but neither did its engine make a step nor did a response go on.
    Hung,
}

/// Who wants a replica to take nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainReason {
    /// An operator, over the admin listener.
    Ordered,
    /// The configuration.
    Configured,
    /// The engine itself: it is about to end.
    ShuttingDown,
}

/// What showed that an engine's cache is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartCause {
    /// Its server's process has another start time.
    StartTime,
    /// Its counters fell.
    CountersFell,
    /// Nobody listened there for a while.
    WasRefused,
}

/// Something that an operator wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    Changed {
        replica: Arc<ReplicaSpec>,
        was: Health,
        is: Health,
        /// How long it had been what it was.
        after: Duration,
    },
    Restarted {
        replica: Arc<ReplicaSpec>,
        cause: RestartCause,
    },
    /// The last turn has ended of a replica that takes nothing new, or that a reload took out.
    Drained {
        replica: Arc<ReplicaSpec>,
    },
}

/// Why none of a model's replicas takes a turn: each with its health and for how long it has had it. Displayed outside of the
/// balancer's lock.
#[derive(Clone, Debug)]
pub struct Outage(pub(super) Vec<(Arc<ReplicaSpec>, Health, Duration)>);

impl Health {
    /// The word used in logs and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Suspect(_) => "suspect",
            Health::Down(_) => "down",
            Health::Draining(_) => "draining",
            Health::Sleeping => "sleeping",
        }
    }

    /// The word for the reason behind it, where there is one to tell.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Health::Suspect(reason) | Health::Down(reason) => Some(reason.as_str()),
            Health::Draining(reason) => Some(reason.as_str()),
            Health::Unknown | Health::Up | Health::Sleeping => None,
        }
    }

    /// Whether a replica of that health may be given turns at all.
    pub fn serves(self) -> bool {
        match self {
            Health::Unknown | Health::Up | Health::Suspect(_) => true,
            Health::Down(_) | Health::Draining(_) | Health::Sleeping => false,
        }
    }
}

impl DownReason {
    /// The word used in logs, metric labels and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            DownReason::ConnectRefused => "connect_refused",
            DownReason::ConnectTimedOut => "connect_timed_out",
            DownReason::CertificateRefused => "certificate_refused",
            DownReason::TlsFailed => "tls_failed",
            DownReason::ProbeFailed => "probe_failed",
            DownReason::BrokeOff => "broke_off",
            DownReason::Failing => "failing",
            DownReason::Hung => "hung",
        }
    }

    /// The same for the people behind a client.
    fn words(self) -> &'static str {
        match self {
            DownReason::ConnectRefused => "connection refused",
            DownReason::ConnectTimedOut => "connection timed out",
            DownReason::CertificateRefused => "its certificate is not trusted",
            DownReason::TlsFailed => "TLS handshake failed",
            DownReason::ProbeFailed => "probe failed",
            DownReason::BrokeOff => "broke off",
            DownReason::Failing => "failing",
            DownReason::Hung => "hung",
        }
    }
}

impl DrainReason {
    /// The word used in logs and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            DrainReason::Ordered => "ordered",
            DrainReason::Configured => "configured",
            DrainReason::ShuttingDown => "shutting_down",
        }
    }
}

impl RestartCause {
    /// The word used in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            RestartCause::StartTime => "start_time",
            RestartCause::CountersFell => "counters_fell",
            RestartCause::WasRefused => "was_refused",
        }
    }
}

/// As in `r0 down (connection refused) for 12 s, r1 draining`.
impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (replica, health, age)) in self.0.iter().take(NAMES_MAX).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", replica.name, health.as_str())?;
            if let Health::Down(reason) | Health::Suspect(reason) = health {
                write!(f, " ({}) for {} s", reason.words(), age.as_secs())?;
            }
        }
        match self.0.len().checked_sub(NAMES_MAX) {
            Some(more @ 1..) => write!(f, " and {more} more"),
            Some(0) | None => Ok(()),
        }
    }
}
