//! What can be wrong with a replica that was given a turn, as long as the turn can still go elsewhere.

use pingora::Error;

use crate::balancer::{DownReason, Evidence};
use crate::connector::down_reason;

/// Why a try came to nothing. The same word stands in the log and in the metric of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A pooled connection had been closed by the replica, as vLLM does after 5 s. Says nothing of the replica.
    StaleConnection,
    /// It can't be connected to. `None` if what failed is on this machine, such as the lack of a file descriptor.
    Unreachable(Option<DownReason>),
    /// It took the turn, and then the connection ended or carried no HTTP before anything was generated.
    BrokeOff,
    /// It was found to be down while the turn waited for its first event.
    WentDown,
    /// It refused with 502 or 503, as vLLM does when its queue is full or its engine is dead.
    Failing,
    /// Its engine failed on this turn.
    EngineError,
    /// It takes no new requests because it is about to end.
    Draining,
}

impl Trouble {
    /// One of each word.
    pub const ALL: [Trouble; 7] = [
        Trouble::StaleConnection,
        Trouble::Unreachable(None),
        Trouble::BrokeOff,
        Trouble::WentDown,
        Trouble::Failing,
        Trouble::EngineError,
        Trouble::Draining,
    ];

    /// Why a replica can't be connected to.
    pub fn connecting(error: &Error) -> Self {
        Trouble::Unreachable(down_reason(error))
    }

    /// The word used in logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Trouble::StaleConnection => "stale_connection",
            Trouble::Unreachable(_) => "unreachable",
            Trouble::BrokeOff => "broke_off",
            Trouble::WentDown => "went_down",
            Trouble::Failing => "failing",
            Trouble::EngineError => "engine_error",
            Trouble::Draining => "draining",
        }
    }

    /// What it says of the replica's health.
    pub fn evidence(self) -> Option<Evidence> {
        match self {
            // That it is down, the balancer has said.
            Trouble::StaleConnection | Trouble::WentDown => None,
            Trouble::Unreachable(reason) => reason.map(Evidence::Unreachable),
            Trouble::BrokeOff => Some(Evidence::BrokeOff),
            Trouble::Failing | Trouble::EngineError => Some(Evidence::Failing),
            Trouble::Draining => Some(Evidence::Draining),
        }
    }

    /// Whether the turn itself may have been what the replica broke on. One that was refused has done no harm.
    pub fn is_break(self) -> bool {
        match self {
            Trouble::BrokeOff | Trouble::EngineError | Trouble::WentDown => true,
            Trouble::StaleConnection | Trouble::Unreachable(_) | Trouble::Failing | Trouble::Draining => false,
        }
    }
}
