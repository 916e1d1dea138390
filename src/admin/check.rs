//! What a reload with another configuration would come to: a text is compared with what runs, and nothing changes.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::config::Comparison;
use crate::dispatch::Table;

use super::lately::ProblemStatus;

/// The most bytes of a request: a file of the largest size that is read, every character of it escaped.
pub const REQUEST_BYTES_MAX: usize = 8 << 20;

/// A configuration to compare.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Where the file is: those that it names are looked for from its directory on.
    pub path: PathBuf,
    pub text: String,
}

/// What a reload would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckAnswer {
    /// Whether it would be taken.
    pub ok: bool,
    /// What would be otherwise, a line each.
    pub changes: Vec<String>,
    /// Why it would be refused.
    pub problems: Vec<ProblemStatus>,
    /// What works but may not be what was meant, and is new.
    pub warnings: Vec<String>,
}

/// Compares a text with the configuration that runs. Its hostnames are resolved, which may take a while.
pub async fn check(table: Arc<Table>, request: &[u8]) -> Result<CheckAnswer, String> {
    let CheckRequest { path, text } = serde_json::from_slice(request)
        .map_err(|error| format!(r#"this takes {{"path": FILE, "text": YAML}}: {error}"#))?;
    let compared = spawn_blocking(move || table.config.compare(&path, &text)).await;
    let Comparison { changes, problems, warnings } = compared.map_err(|error| error.to_string())?;
    let problems: Vec<_> = problems.iter().map(ProblemStatus::from).collect();
    Ok(CheckAnswer { ok: problems.is_empty(), changes, problems, warnings })
}
