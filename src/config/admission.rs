//! How a model's conversations are let in.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::bounds;
use super::error::Problems;
use super::locate::Path;

/// How a model's conversations are let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionConfig {
    pub mode: AdmissionMode,
    /// Tokens of KV cache a replica has. `None`: not configured; the engine may tell, and until it does nobody is held.
    pub kv_cache_tokens: Option<u64>,
    /// The most turns that wait at once; more are refused.
    pub held_max: u32,
    /// After so long a wait a turn is let in over the line.
    pub hold_max: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionMode {
    /// Nobody waits.
    Off,
    /// A conversation waits while its replica's cache is full of others.
    Auto,
    /// And makes room again for others who have waited for long.
    Fair,
}

/// What the file has of it.
pub(super) struct AdmissionKeys {
    pub admission: Option<AdmissionMode>,
    pub kv_cache_tokens: Option<u64>,
    pub held_max: Option<u64>,
    pub hold_max_s: Option<u64>,
}

pub(super) fn validate(at: &Path, keys: AdmissionKeys, problems: &mut Problems) -> AdmissionConfig {
    let AdmissionKeys { admission, kv_cache_tokens, held_max, hold_max_s } = keys;
    AdmissionConfig {
        mode: admission.unwrap_or(AdmissionMode::Auto),
        kv_cache_tokens: problems.within(at, &bounds::KV_CACHE_TOKENS, kv_cache_tokens),
        // Lossless: its bound is a million.
        held_max: problems.number(at, &bounds::HELD, held_max) as u32,
        hold_max: Duration::from_secs(problems.number(at, &bounds::HOLD, hold_max_s)),
    }
}

impl AdmissionMode {
    /// As the configuration writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            AdmissionMode::Off => "off",
            AdmissionMode::Auto => "auto",
            AdmissionMode::Fair => "fair",
        }
    }
}

impl fmt::Display for AdmissionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
