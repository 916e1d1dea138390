//! What clients, and their requests, may take.

use std::time::Duration;

use super::bounds;
use super::error::Problems;
use super::file::LimitsFile;
use super::locate::Path;
use super::size::Bytes;

/// Bounds on what a request may use. Defaults and accepted ranges are in `bounds.rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, in bytes. Over it: 413.
    pub body_bytes_max: usize,
    /// The largest request head (request line and headers), in bytes.
    pub head_bytes_max: usize,
    /// From the first byte of a request head to its last.
    pub head_timeout: Duration,
    /// How long a client's connection may idle between two requests.
    pub keepalive_timeout: Duration,
    /// How far a client may fall behind `body_rate_min` with its body.
    pub body_timeout: Duration,
    /// What a client has to send of its body on average, in bytes a second.
    pub body_rate_min: u64,
    /// How long one write towards a client may be stuck.
    pub write_timeout: Duration,
    /// How long a TCP connect to a replica may take.
    pub connect_timeout: Duration,
    /// Request bytes kept for one turn so that another replica can be tried. A longer body is sent once only.
    pub replay_bytes_max: usize,
    /// Request bytes held for all turns together; at least `replay_bytes_max`.
    pub replay_memory_bytes_max: usize,
    /// How long the decision on a conversation that isn't known waits for the rest of its body, which tells its history.
    pub history_wait: Duration,
    /// From the moment a replica has been connected to until the head of its response has come. Over it: 504.
    pub response_timeout: Duration,
    /// How long a stream may be silent before its client is sent a ping; `None`: no pings.
    pub ping_interval: Option<Duration>,
    /// Connections of clients at a time.
    pub connections_max: usize,
    /// Connections of one client's address at a time.
    pub connections_per_address_max: usize,
    /// Requests for the engines at a time.
    pub streams_max: usize,
    /// The replicas that one turn is tried on.
    pub tries_max: usize,
    /// Of those, the ones that may take it and break off.
    pub breaks_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        validate(&LimitsFile::default(), &mut Problems::default())
    }
}

/// The limits that a file means.
pub(super) fn validate(file: &LimitsFile, problems: &mut Problems) -> Limits {
    let at = Path::default().key("limits");
    let mut number = |bound, given| problems.number(&at, bound, given);
    // Lossless: `bounds` asserts a 64-bit `usize`.
    let bytes = |number: u64| number as usize;
    let count = bytes;
    let size = |given: Option<Bytes>| given.map(|Bytes(bytes)| bytes);
    let limits = Limits {
        body_bytes_max: bytes(number(&bounds::BODY_BYTES, size(file.body_bytes_max))),
        head_bytes_max: bytes(number(&bounds::HEAD_BYTES, size(file.head_bytes_max))),
        head_timeout: Duration::from_secs(number(&bounds::HEAD_TIMEOUT, file.head_timeout_s)),
        keepalive_timeout: Duration::from_secs(number(&bounds::KEEPALIVE_TIMEOUT, file.keepalive_timeout_s)),
        body_timeout: Duration::from_secs(number(&bounds::BODY_TIMEOUT, file.body_timeout_s)),
        body_rate_min: number(&bounds::BODY_RATE, file.body_rate_min_bytes_per_s),
        write_timeout: Duration::from_secs(number(&bounds::WRITE_TIMEOUT, file.write_timeout_s)),
        connect_timeout: Duration::from_millis(number(&bounds::CONNECT_TIMEOUT, file.connect_timeout_ms)),
        replay_bytes_max: bytes(number(&bounds::REPLAY_BYTES, size(file.replay_bytes_max))),
        replay_memory_bytes_max: bytes(number(&bounds::REPLAY_MEMORY, size(file.replay_memory_bytes_max))),
        history_wait: Duration::from_millis(number(&bounds::HISTORY_WAIT, file.history_wait_ms)),
        response_timeout: Duration::from_secs(number(&bounds::RESPONSE_TIMEOUT, file.response_timeout_s)),
        ping_interval: match number(&bounds::PING_INTERVAL, file.ping_interval_s) {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        },
        connections_max: count(number(&bounds::CONNECTIONS, file.connections_max)),
        connections_per_address_max: count(number(&bounds::CONNECTIONS_PER_ADDRESS, file.connections_per_address_max)),
        streams_max: count(number(&bounds::STREAMS, file.streams_max)),
        tries_max: count(number(&bounds::TRIES, file.tries_max)),
        breaks_max: count(number(&bounds::BREAKS, file.breaks_max)),
    };
    if limits.replay_bytes_max > limits.replay_memory_bytes_max {
        let reason = format!(
            "{} for one turn is more than the {} of replay_memory_bytes_max for all of them",
            limits.replay_bytes_max, limits.replay_memory_bytes_max
        );
        problems.add(at.key(bounds::REPLAY_BYTES.bound.key), reason);
    }
    limits
}
