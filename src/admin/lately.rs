//! What has lately been done to the process, for the status.

use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::Problem;

/// The most lines of a reload that are kept to be shown. The log has them all.
const LINES_MAX: usize = 200;

/// The newest of each kind.
#[derive(Debug, Default)]
pub struct Lately {
    pub reload: Mutex<Option<ReloadStatus>>,
    pub upgrade: Mutex<Option<UpgradeStatus>>,
}

/// A reload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// Seconds since the Unix epoch.
    pub at_unix_s: f64,
    /// `applied` or `refused`.
    pub outcome: String,
    /// What was otherwise, a line each; of a refused one, what would have been.
    pub changes: Vec<String>,
    /// Why it was refused.
    pub problems: Vec<ProblemStatus>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemStatus {
    /// Counted from 1.
    pub line: Option<usize>,
    pub path: String,
    pub reason: String,
}

/// A try to put another process in the place of this one that came to nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpgradeStatus {
    /// Seconds since the Unix epoch.
    pub at_unix_s: f64,
    /// Why.
    pub failed: String,
}

impl ReloadStatus {
    pub fn applied(changes: Vec<String>) -> Self {
        ReloadStatus::new("applied", changes, &[])
    }

    pub fn refused(changes: Vec<String>, problems: &[Problem]) -> Self {
        ReloadStatus::new("refused", changes, problems)
    }

    fn new(outcome: &str, changes: Vec<String>, problems: &[Problem]) -> Self {
        ReloadStatus {
            at_unix_s: unix_s(),
            outcome: outcome.to_owned(),
            changes: shortened(changes),
            problems: problems.iter().take(LINES_MAX).map(ProblemStatus::from).collect(),
        }
    }
}

impl UpgradeStatus {
    pub fn failed(why: String) -> Self {
        UpgradeStatus { at_unix_s: unix_s(), failed: why }
    }
}

impl From<&Problem> for ProblemStatus {
    fn from(problem: &Problem) -> Self {
        let Problem { line, path, reason } = problem.clone();
        ProblemStatus { line, path, reason }
    }
}

fn shortened(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines
}

fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
