//! The columns, and a value or nothing for each.

use serde::{Deserialize, Serialize, Serializer};

/// A figure is absent where nothing was seen that it could be taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Sessions that ended within the measured time.
    pub sessions_per_hour: Option<f64>,
    /// Tokens of the turns that ended within it.
    pub output_tokens_per_min: Option<f64>,
    /// From the client's wish to the first byte of the answer, holds included.
    pub ttfb_p50_s: Option<f64>,
    pub ttfb_p95_s: Option<f64>,
    pub ttfb_p99_s: Option<f64>,
    /// The longest that any turn waited for its first byte, those that still wait at the end included.
    pub longest_wait_s: Option<f64>,
    /// Replicas with at least one request, on average over the time.
    pub replicas_busy: Option<f64>,
    /// Prompt tokens that the engines found in their caches.
    pub prefix_hit_percent: Option<f64>,
    /// Turns after their session's first that were served where the turn before was.
    pub stayed_percent: Option<f64>,
    /// Turns that the balancer held back before it sent them on.
    pub held_percent: Option<f64>,
    /// Turns without a first byte when the time was over.
    #[serde(serialize_with = "whole")]
    pub waiting_at_end: Option<f64>,
    /// From a session's first wish to the end of its last answer.
    pub session_p50_s: Option<f64>,
    pub session_p95_s: Option<f64>,
    /// Turns that failed or were refused.
    #[serde(serialize_with = "whole")]
    pub errors: Option<f64>,
}

/// One of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    SessionsPerHour,
    OutputTokensPerMin,
    TtfbP50,
    TtfbP95,
    TtfbP99,
    LongestWait,
    ReplicasBusy,
    PrefixHits,
    Stayed,
    Held,
    WaitingAtEnd,
    SessionP50,
    SessionP95,
    Errors,
}

impl Column {
    /// Every column in the order of the table.
    pub const ALL: [Column; 14] = [
        Column::SessionsPerHour,
        Column::OutputTokensPerMin,
        Column::TtfbP50,
        Column::TtfbP95,
        Column::TtfbP99,
        Column::LongestWait,
        Column::ReplicasBusy,
        Column::PrefixHits,
        Column::Stayed,
        Column::Held,
        Column::WaitingAtEnd,
        Column::SessionP50,
        Column::SessionP95,
        Column::Errors,
    ];

    /// The two lines over the column.
    pub fn title(self) -> [&'static str; 2] {
        match self {
            Column::SessionsPerHour => ["sessions", "/h"],
            Column::OutputTokensPerMin => ["tokens", "/min"],
            Column::TtfbP50 => ["TTFB", "p50 s"],
            Column::TtfbP95 => ["TTFB", "p95 s"],
            Column::TtfbP99 => ["TTFB", "p99 s"],
            Column::LongestWait => ["longest", "wait s"],
            Column::ReplicasBusy => ["replicas", "busy"],
            Column::PrefixHits => ["prefix", "hits %"],
            Column::Stayed => ["stayed", "%"],
            Column::Held => ["held", "%"],
            Column::WaitingAtEnd => ["waiting", "at end"],
            Column::SessionP50 => ["session", "p50 s"],
            Column::SessionP95 => ["session", "p95 s"],
            Column::Errors => ["errors", ""],
        }
    }

    /// Digits behind the point in the table.
    pub fn decimals(self) -> usize {
        match self {
            Column::SessionsPerHour | Column::OutputTokensPerMin | Column::WaitingAtEnd | Column::Errors => 0,
            Column::PrefixHits | Column::Stayed | Column::Held => 1,
            Column::LongestWait | Column::SessionP50 | Column::SessionP95 => 1,
            Column::TtfbP50 | Column::TtfbP95 | Column::TtfbP99 | Column::ReplicasBusy => 2,
        }
    }
}

impl Figures {
    pub fn get(&self, column: Column) -> Option<f64> {
        let mut copy = *self;
        *copy.at(column)
    }

    pub fn set(&mut self, column: Column, value: Option<f64>) {
        *self.at(column) = value;
    }

    fn at(&mut self, column: Column) -> &mut Option<f64> {
        match column {
            Column::SessionsPerHour => &mut self.sessions_per_hour,
            Column::OutputTokensPerMin => &mut self.output_tokens_per_min,
            Column::TtfbP50 => &mut self.ttfb_p50_s,
            Column::TtfbP95 => &mut self.ttfb_p95_s,
            Column::TtfbP99 => &mut self.ttfb_p99_s,
            Column::LongestWait => &mut self.longest_wait_s,
            Column::ReplicasBusy => &mut self.replicas_busy,
            Column::PrefixHits => &mut self.prefix_hit_percent,
            Column::Stayed => &mut self.stayed_percent,
            Column::Held => &mut self.held_percent,
            Column::WaitingAtEnd => &mut self.waiting_at_end,
            Column::SessionP50 => &mut self.session_p50_s,
            Column::SessionP95 => &mut self.session_p95_s,
            Column::Errors => &mut self.errors,
        }
    }
}

/// A count is written as one, unless it is the median of an even number of rounds.
fn whole<S: Serializer>(count: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match count {
        Some(count) if count.fract() == 0.0 && *count >= 0.0 => serializer.serialize_u64(*count as u64),
        Some(count) => serializer.serialize_f64(*count),
        None => serializer.serialize_none(),
    }
}
