//! Every metric that is counted as it happens: name, unit, help and labels side by side.
//!
//! What a balancer already counts is not counted here again: the admin listener renders it from a snapshot, declared in
//! the same manner in [`crate::admin`].

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Handles for counting, and the registry they stand in.
#[derive(Clone)]
pub struct Metrics {
    pub registry: Registry,
    /// From the arrival of the request head to the first token of the answer. Labels: model, decision.
    pub time_to_first_byte: HistogramVec,
    /// What kvpin itself adds before a turn's request goes out: from its whole head to the first write to a replica, without
    /// the time in which it waited for the client's body or for a connection. Label: model.
    pub overhead: HistogramVec,
    /// Since the Unix epoch, in seconds.
    pub started_at: Gauge,
    /// Between two events of a stream that carry something generated. Label: model.
    pub time_between_tokens: HistogramVec,
    /// How long a turn was held that got in. Label: model.
    pub hold: HistogramVec,
    /// Requests that kvpin answered itself with an error. Label: reason.
    pub refused: IntCounterVec,
    /// Connections of clients at this moment.
    pub connections: IntGauge,
    /// Connections that were closed for what they did or because there were too many. Label: reason.
    pub connections_refused: IntCounterVec,
    /// Label: outcome (applied, refused).
    pub reloads: IntCounterVec,
    /// 1 or 0.
    pub last_reload_success: IntGauge,
    /// Seconds since the Unix epoch.
    pub last_reload_success_at: Gauge,
    /// Label: outcome (done, failed).
    pub upgrades: IntCounterVec,
    /// Label: outcome (written, failed).
    pub state_writes: IntCounterVec,
    pub state_bytes: IntGauge,
    /// Seconds since the Unix epoch.
    pub state_written_at: Gauge,
    /// Turns that were tried again, on another replica or on a fresh connection. Label: reason.
    pub retries: IntCounterVec,
    /// Pings sent to clients because their stream was silent.
    pub pings: IntCounter,
    /// Connections of clients that were to become secure ones. Label: outcome (done, failed, timed_out).
    pub tls_handshakes: IntCounterVec,
    /// When the certificates of the listeners run out. Labels: listen, host (the first that the certificate is for).
    pub certificates_expire: IntGaugeVec,
    /// Lines of the access log that were not written.
    pub access_log_dropped: IntCounter,
    /// Bytes of request bodies that are held at this moment.
    pub request_bytes_held: IntGauge,
    /// Panics, wherever in kvpin. One in the handling of a request costs that request.
    pub panics: IntCounter,
}

/// Seconds. vLLM's own buckets for the time to first token, so that the two histograms can be laid over each other,
/// without its finest and its coarsest.
const FIRST_BYTE_BUCKETS: [f64; 16] =
    [0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0, 640.0];

/// Seconds. vLLM's buckets for the time per output token, for the same reason.
const BETWEEN_TOKENS_BUCKETS: [f64; 14] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 10.0];

/// Seconds. A turn with a long history to scan takes some hundreds of microseconds on an idle core; what takes milliseconds
/// waits for a core.
const OVERHEAD_BUCKETS: [f64; 12] =
    [0.000_05, 0.000_1, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1.0];

/// Seconds. Below 1 a client notices nothing; 300 is where `hold_max_s` lets everybody in, and 360 where Claude Code has given up.
const HOLD_BUCKETS: [f64; 14] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 120.0, 180.0, 300.0, 360.0];

impl Metrics {
    /// Declares every metric in a registry of its own.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let metrics = Metrics {
            time_to_first_byte: HistogramVec::new(
                HistogramOpts::new(
                    "kvpin_time_to_first_byte_seconds",
                    "Time from the request head to the first token: pings, heads and announcements of a role are none.",
                )
                .buckets(FIRST_BYTE_BUCKETS.to_vec()),
                &["model", "decision"],
            )?,
            overhead: HistogramVec::new(
                HistogramOpts::new(
                    "kvpin_overhead_seconds",
                    "Time that kvpin itself takes from a turn's whole head to the first write to a replica: waiting for the \
                     client's body and for a connection is not in it.",
                )
                .buckets(OVERHEAD_BUCKETS.to_vec()),
                &["model"],
            )?,
            started_at: Gauge::new("process_start_time_seconds", "When the process began, since the Unix epoch.")?,
            time_between_tokens: HistogramVec::new(
                HistogramOpts::new(
                    "kvpin_time_between_tokens_seconds",
                    "Time between two events of a stream that carry something generated, about a token each.",
                )
                .buckets(BETWEEN_TOKENS_BUCKETS.to_vec()),
                &["model"],
            )?,
            hold: HistogramVec::new(
                HistogramOpts::new(
                    "kvpin_hold_seconds",
                    "Time that turns were held until their conversations fit, of those that got in.",
                )
                .buckets(HOLD_BUCKETS.to_vec()),
                &["model"],
            )?,
            refused: IntCounterVec::new(
                Opts::new("kvpin_refused_requests_total", "Requests that kvpin answered itself with an error."),
                &["reason"],
            )?,
            connections: IntGauge::new("kvpin_connections", "Connections of clients.")?,
            connections_refused: IntCounterVec::new(
                Opts::new(
                    "kvpin_connections_refused_total",
                    "Connections of clients that were closed: there were too many, or no head came in time or within its limit.",
                ),
                &["reason"],
            )?,
            reloads: IntCounterVec::new(
                Opts::new("kvpin_reloads_total", "Reloads of the configuration, by outcome."),
                &["outcome"],
            )?,
            last_reload_success: IntGauge::new(
                "kvpin_last_reload_success",
                "1 if the newest reload was applied, or there was none, 0 if it was refused.",
            )?,
            last_reload_success_at: Gauge::new(
                "kvpin_last_reload_success_timestamp_seconds",
                "When the configuration that runs was read, since the Unix epoch.",
            )?,
            upgrades: IntCounterVec::new(
                Opts::new("kvpin_upgrades_total", "Tries to put another process in the place of this one, by outcome."),
                &["outcome"],
            )?,
            state_writes: IntCounterVec::new(
                Opts::new("kvpin_state_writes_total", "Writes of the state file, by outcome."),
                &["outcome"],
            )?,
            state_bytes: IntGauge::new("kvpin_state_bytes", "Size of the state file as it was written last.")?,
            state_written_at: Gauge::new(
                "kvpin_state_written_timestamp_seconds",
                "When the state file was written last, since the Unix epoch; 0 where it was not.",
            )?,
            retries: IntCounterVec::new(
                Opts::new(
                    "kvpin_retried_turns_total",
                    "Turns tried again before anything of a response was passed on, by what had failed them.",
                ),
                &["reason"],
            )?,
            pings: IntCounter::new("kvpin_pings_total", "Pings sent to clients because their stream was silent.")?,
            tls_handshakes: IntCounterVec::new(
                Opts::new("kvpin_tls_handshakes_total", "TLS handshakes of clients, by outcome."),
                &["outcome"],
            )?,
            certificates_expire: IntGaugeVec::new(
                Opts::new(
                    "kvpin_certificate_expiry_timestamp_seconds",
                    "When the certificates that clients are shown run out, in seconds since 1970.",
                ),
                &["listen", "host"],
            )?,
            access_log_dropped: IntCounter::new(
                "kvpin_access_log_dropped_lines_total",
                "Lines of the access log that were not written: its file was full or too slow.",
            )?,
            request_bytes_held: IntGauge::new(
                "kvpin_request_held_bytes",
                "Bytes of request bodies held until their turn has an answer, out of replay_memory_bytes_max.",
            )?,
            panics: IntCounter::new(
                "kvpin_panics_total",
                "Panics in kvpin; one in the handling of a request loses that request.",
            )?,
            registry,
        };
        metrics.register()?;
        metrics.begin();
        Ok(metrics)
    }

    /// Counters whose labels are known begin at 0. One that appears with its first event would not show it as an increase, and
    /// no alert would see it.
    fn begin(&self) {
        for (counters, outcomes) in [
            (&self.reloads, &["applied", "refused"][..]),
            (&self.upgrades, &["done", "failed"]),
            (&self.state_writes, &["written", "failed"]),
            (&self.tls_handshakes, &["done", "failed", "timed_out"]),
        ] {
            for outcome in outcomes {
                counters.with_label_values(&[*outcome]);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.started_at.set(now.as_secs_f64());
    }

    fn register(&self) -> prometheus::Result<()> {
        self.registry.register(Box::new(self.time_to_first_byte.clone()))?;
        self.registry.register(Box::new(self.overhead.clone()))?;
        self.registry.register(Box::new(self.started_at.clone()))?;
        self.registry.register(Box::new(self.time_between_tokens.clone()))?;
        self.registry.register(Box::new(self.hold.clone()))?;
        self.registry.register(Box::new(self.refused.clone()))?;
        self.registry.register(Box::new(self.connections.clone()))?;
        self.registry.register(Box::new(self.connections_refused.clone()))?;
        self.registry.register(Box::new(self.reloads.clone()))?;
        self.registry.register(Box::new(self.last_reload_success.clone()))?;
        self.registry.register(Box::new(self.last_reload_success_at.clone()))?;
        self.registry.register(Box::new(self.upgrades.clone()))?;
        self.registry.register(Box::new(self.state_writes.clone()))?;
        self.registry.register(Box::new(self.state_bytes.clone()))?;
        self.registry.register(Box::new(self.state_written_at.clone()))?;
        self.registry.register(Box::new(self.retries.clone()))?;
        self.registry.register(Box::new(self.pings.clone()))?;
        self.registry.register(Box::new(self.tls_handshakes.clone()))?;
        self.registry.register(Box::new(self.certificates_expire.clone()))?;
        self.registry.register(Box::new(self.access_log_dropped.clone()))?;
        self.registry.register(Box::new(self.request_bytes_held.clone()))?;
        self.registry.register(Box::new(self.panics.clone()))
    }
}
