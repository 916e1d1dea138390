//! How a model wants its turns placed, and its replicas judged.

use std::time::Duration;

use super::admission::Admission;
use super::affinity::Bounds;

/// `max_num_seqs` where neither the configuration nor the engine tells it. vLLM does not publish it in its metrics; its
/// own default is higher, and assuming too little only spills earlier.
pub const ASSUMED_MAX_NUM_SEQS: u32 = 32;

/// How a model wants its turns placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub mode: Mode,
    pub spill_threshold: SpillThreshold,
    /// What the engines were started with, where the configuration says so.
    pub max_num_seqs: Option<u32>,
    pub admission: Admission,
    pub bounds: Bounds,
    pub health: HealthPolicy,
}

/// By what a replica is taken down and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// Failures in a row that take a replica down. At least 1.
    pub failures: u32,
    /// Good probes in a row that bring it back. At least 1.
    pub successes: u32,
    /// How long a replica may have requests and give no sign of life.
    pub hung: Duration,
    /// How long it takes, after it came back, until it is given as much as any other.
    pub ramp: Duration,
}

/// Whether conversations are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Affinity,
    /// Every turn goes to the least loaded replica. Pins are kept but not used.
    LeastLoaded,
}

/// How many turns kvpin lets run on a replica before sticky ones may go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillThreshold {
    /// A quarter of `max_num_seqs`, at least 1.
    Auto,
    Fixed(u32),
}

/// Where a `max_num_seqs` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxNumSeqsSource {
    Configured,
    Engine,
    Assumed,
}

/// As the configuration has it where it says nothing.
impl Default for HealthPolicy {
    fn default() -> Self {
        HealthPolicy { failures: 3, successes: 2, hung: Duration::from_secs(30), ramp: Duration::from_secs(30) }
    }
}

impl Policy {
    /// The `max_num_seqs` of an engine that told `reported`, and where it comes from.
    pub fn max_num_seqs(&self, reported: Option<u32>) -> (u32, MaxNumSeqsSource) {
        match (self.max_num_seqs, reported) {
            (Some(configured), _) => (configured, MaxNumSeqsSource::Configured),
            (None, Some(reported)) => (reported, MaxNumSeqsSource::Engine),
            (None, None) => (ASSUMED_MAX_NUM_SEQS, MaxNumSeqsSource::Assumed),
        }
    }

    /// The turns in flight from which on sticky ones may leave a replica whose engine told `reported`.
    pub fn spill_threshold(&self, reported: Option<u32>) -> u32 {
        match self.spill_threshold {
            SpillThreshold::Fixed(turns) => turns,
            SpillThreshold::Auto => (self.max_num_seqs(reported).0 / 4).max(1),
        }
    }
}

impl Mode {
    /// The word used on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Affinity => "affinity",
            Mode::LeastLoaded => "least_loaded",
        }
    }
}

impl MaxNumSeqsSource {
    /// The word used on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            MaxNumSeqsSource::Configured => "configured",
            MaxNumSeqsSource::Engine => "engine",
            MaxNumSeqsSource::Assumed => "assumed",
        }
    }
}
