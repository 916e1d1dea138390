//! What was seen of a replica that says something of its health.

use super::health::DownReason;

/// One observation, by a probe, a scrape or a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A probe or a scrape was answered well.
    Answered,
    /// A turn got its first good event, or bytes flow on a stream.
    Served,
    /// Nothing can be reached there. Says the same of every rank of the server.
    Unreachable(DownReason),
    /// A probe was not answered in time, or badly.
    ProbeFailed,
    /// A turn was taken and broken off before its first event.
    BrokeOff,
    /// A turn was answered with an error that says that this engine can't serve: 502, 503, a failed engine.
    Failing,
    /// The engine takes no new requests because it is about to end, though its health check still says that all is well.
    Draining,
}
