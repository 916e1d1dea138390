//! Every number of the file: its key, its default and what is accepted. The one place where these are said.
//!
//! Zero is refused, because a limit of nothing or a wait of no time is a mistake, and no key here means "unlimited". The one
//! exception is `ping_interval_s`, where it turns the pings off.

use std::ops::RangeInclusive;

/// What a number of the file may be. The unit is the end of the key.
pub(super) struct Bound {
    pub(super) key: &'static str,
    pub(super) min: u64,
    pub(super) max: u64,
}

/// A number that always has a value.
pub(super) struct Number {
    pub(super) bound: Bound,
    pub(super) default: u64,
}

// The maxima below exceed 32 bits, and become `usize`.
const _: () = assert!(usize::BITS >= 64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DAY_S: u64 = 24 * 60 * 60;
const HOUR_S: u64 = 60 * 60;

/// Faster than 50 ms, reading a page of metrics costs the engine's API server more than it tells.
pub(super) const SCRAPE_INTERVAL: Number = number("scrape_interval_ms", 1000, 50..=60_000);
/// An agent's turn can run for minutes; ten of them is what a stop should wait for.
pub(super) const SHUTDOWN_GRACE: Number = number("shutdown_grace_s", 600, 1..=DAY_S);

/// What a crash costs: the pins of a minute, each of which costs one reading of a history.
pub(super) const STATE_INTERVAL: Number = number("state_interval_s", 60, 1..=HOUR_S);

/// A probe costs the engine's API server well under a millisecond.
pub(super) const HEALTH_INTERVAL: Number = number("interval_ms", 1000, 50..=60_000);
/// An API server of vLLM that tokenizes long prompts answers late, and must not be taken for dead for it.
pub(super) const HEALTH_TIMEOUT: Number = number("timeout_ms", 5000, 50..=60_000);
/// The price of a wrong verdict is every cache of the server; of a late one, a second try for each turn that finds out.
pub(super) const HEALTH_FAILURES: Number = number("failures", 3, 1..=100);
pub(super) const HEALTH_SUCCESSES: Number = number("successes", 2, 1..=100);
/// vLLM takes from half a minute to some minutes to start, so that asking it every few seconds loses nothing.
pub(super) const HEALTH_BACKOFF: Number = number("backoff_max_ms", 5000, 50..=300_000);
/// Longer than any step of an engine, and short beside the 85 minutes for which a hung engine was seen to pass its probes.
pub(super) const HUNG: Number = number("hung_s", 30, 1..=DAY_S);
pub(super) const RAMP: Number = number("ramp_s", 30, 1..=HOUR_S);

/// A million tokens of history is about 4 MB of JSON; images come as base64 on top.
pub(super) const BODY_BYTES: Number = number("body_bytes_max", 32 * MIB, KIB..=4 * GIB);
/// Pingora refuses a head over 1,048,575 bytes whatever is set here (pingora-core, protocols/http/v1/common.rs).
pub(super) const HEAD_BYTES: Number = number("head_bytes_max", 64 * KIB, KIB..=MIB - 1);
pub(super) const HEAD_TIMEOUT: Number = number("head_timeout_s", 10, 1..=HOUR_S);
/// Longer than the 60 s that clients and tunnels usually keep a connection, so that they close first and no request meets a closing one.
pub(super) const KEEPALIVE_TIMEOUT: Number = number("keepalive_timeout_s", 75, 1..=DAY_S);
pub(super) const BODY_TIMEOUT: Number = number("body_timeout_s", 60, 1..=HOUR_S);
/// A tenth of what the slowest mobile networks give. Held on average, with `body_timeout_s` to spare.
pub(super) const BODY_RATE: Number = number("body_rate_min_bytes_per_s", KIB, 1..=GIB);
pub(super) const WRITE_TIMEOUT: Number = number("write_timeout_s", 60, 1..=HOUR_S);
/// Replicas are on this machine or next to it: a connect that takes longer has met a dead host.
/// More than the second after which a connection is asked for again that found its listener's queue full.
pub(super) const CONNECT_TIMEOUT: Number = number("connect_timeout_ms", 1500, 1..=60_000);
pub(super) const REPLAY_BYTES: Number = number("replay_bytes_max", 8 * MIB, KIB..=4 * GIB);
pub(super) const REPLAY_MEMORY: Number = number("replay_memory_bytes_max", 512 * MIB, KIB..=1024 * GIB);
pub(super) const HISTORY_WAIT: Number = number("history_wait_ms", 5, 1..=1000);
/// An answer that isn't streamed says nothing until it is whole, which can take minutes.
pub(super) const RESPONSE_TIMEOUT: Number = number("response_timeout_s", 600, 1..=DAY_S);
/// The strictest client known cuts a silent stream after 20 s. 0 turns the pings off.
pub(super) const PING_INTERVAL: Number = number("ping_interval_s", 15, 0..=HOUR_S);
/// An idle connection costs some kilobytes (`tests/crowds`); each may need a second descriptor, towards a replica.
pub(super) const CONNECTIONS: Number = number("connections_max", 16_384, 1..=1_000_000);
/// Generous, because a proxy in front that isn't in `trusted_proxies` has one address for all of its clients.
pub(super) const CONNECTIONS_PER_ADDRESS: Number = number("connections_per_address_max", 4096, 1..=1_000_000);
/// Far over what the engines of a machine run at a time (`max_num_seqs`, some hundreds each); what is over that waits there.
pub(super) const STREAMS: Number = number("streams_max", 8192, 1..=1_000_000);
/// Connection attempts are bounded each, so a client waits for seconds at most where none succeeds.
pub(super) const TRIES: Number = number("tries_max", 8, 1..=64);
/// What broke two replicas may break them all.
pub(super) const BREAKS: Number = number("breaks_max", 2, 1..=64);

/// No default: [`super::ModelConfig::ASSUMED_MAX_NUM_SEQS`] stands in where the engine doesn't tell.
pub(super) const MAX_NUM_SEQS: Bound = bound("max_num_seqs", 1..=65_536);
pub(super) const SPILL_THRESHOLD: Bound = bound("spill_threshold", 1..=65_536);
/// From a context to more than any card holds.
pub(super) const KV_CACHE_TOKENS: Bound = bound("kv_cache_tokens", 1_000..=10_000_000_000);
/// Each is a client's connection and the part of its body that is kept.
pub(super) const HELD: Number = number("held_max", 1_000, 0..=1_000_000);
/// Claude Code gives up after 360 s without a response's head, and a turn that is let in still has its prompt to be read.
pub(super) const HOLD: Number = number("hold_max_s", 300, 1..=HOUR_S);
/// Bounds three tables: pins (under 200 bytes each), histories and other ids (88 each; `bench/pin_memory.rs`). With all of them full,
/// the default takes under 380 MB and the maximum under 38 GB.
pub(super) const CONVERSATIONS: Number = number("conversations_max", 1_000_000, 1..=100_000_000);
/// An agent that was silent for an hour has most likely lost its KV cache to others.
pub(super) const CONVERSATION_IDLE: Number = number("conversation_idle_s", HOUR_S, 1..=30 * DAY_S);
pub(super) const DATA_PARALLEL_SIZE: Number = number("data_parallel_size", 1, 1..=REPLICAS_MAX as u64);

/// A listener's certificates are looked through in every handshake.
pub(super) const CERTIFICATES_MAX: usize = 64;
/// Each key has series of its own in the metrics.
pub(super) const KEYS_MAX: usize = 4096;
/// Of one name: the old key and the new one, and room for a mistake in between.
pub(super) const KEY_HASHES_MAX: usize = 4;
pub(super) const KEY_MODELS_MAX: usize = 1024;
pub(super) const KEY_NAME_BYTES_MAX: usize = 64;
pub(super) const KEY_IN_FLIGHT: Bound = bound("in_flight_max", 1..=65_536);
pub(super) const KEY_REQUESTS_PER_MINUTE: Bound = bound("requests_per_minute_max", 1..=1_000_000);
/// The largest keys file that is read: a thousand bytes for each of the most keys.
pub(super) const KEYS_FILE_BYTES_MAX: u64 = 4 * MIB;
/// A key or token in a file of its own.
pub(super) const SECRET_BYTES_MAX: usize = 4096;
/// 16 random bytes in base64 have 22 characters. Fewer could be guessed.
pub(super) const ADMIN_TOKEN_BYTES_MIN: usize = 22;

/// Each is looked up in every request.
pub(super) const SESSION_HEADERS_MAX: usize = 16;
/// Each is compared with every path that kvpin doesn't know.
pub(super) const ALLOW_PATHS_MAX: usize = 64;
pub(super) const PATH_BYTES_MAX: usize = 256;
/// Each is looked at for every connection.
pub(super) const TRUSTED_PROXIES_MAX: usize = 64;
/// In a model, ranks counted. Sixteen times what the cost of a decision is measured with.
pub(super) const REPLICAS_MAX: usize = 1024;
/// Of a replica. Twice the GPUs of the largest machines that are one system.
pub(super) const GPUS_MAX: usize = 64;
/// Four times that, so that no number that a machine has is refused.
pub(super) const GPU_INDEX_MAX: u64 = 255;
/// Longer than any name on the model hub, short enough for a metric label.
pub(super) const MODEL_NAME_BYTES_MAX: usize = 256;
pub(super) const REPLICA_NAME_BYTES_MAX: usize = 128;

const fn bound(key: &'static str, range: RangeInclusive<u64>) -> Bound {
    Bound { key, min: *range.start(), max: *range.end() }
}

const fn number(key: &'static str, default: u64, range: RangeInclusive<u64>) -> Number {
    Number { bound: bound(key, range), default }
}
