//! The GPUs as the status shows them, and which replica runs on which.

use serde::{Deserialize, Serialize};

use crate::dispatch::Model;
use crate::gpu::{Figures, Gpu, Gpus};

use super::status::seconds;

/// How NVIDIA's library NVML is doing, from which the GPUs' figures come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NvmlStatus {
    /// `reading`; `off` (configured so); `missing` (there is none, or it can't be used); `loading`; or `silent`: it was asked and
    /// has not answered for ten seconds.
    pub state: String,
    /// Why it is missing, in words.
    pub reason: Option<String>,
    /// Of the GPUs' figures; `null` where there are none.
    pub age_s: Option<f64>,
}

/// A GPU of this machine. A figure that it doesn't have, or that is not current, is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// As `nvidia-smi` numbers it.
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// Whether it has fallen off the bus or needs a reset.
    pub lost: bool,
    /// Of the time, that something ran on it.
    pub utilization_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    /// The limit that holds, of those that there are.
    pub power_limit_watts: Option<f64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
}

impl From<&Gpus> for NvmlStatus {
    fn from(gpus: &Gpus) -> Self {
        NvmlStatus {
            state: gpus.nvml.as_str().to_owned(),
            reason: gpus.nvml.reason().map(str::to_owned),
            age_s: gpus.age.map(seconds),
        }
    }
}

impl From<&Gpu> for GpuStatus {
    fn from(gpu: &Gpu) -> Self {
        let Gpu { index, uuid, name, is_lost, figures } = gpu.clone();
        let Figures {
            utilization_percent,
            memory_used_bytes,
            memory_total_bytes,
            power_watts,
            power_limit_watts,
            temperature_celsius,
            sm_clock_mhz,
            memory_clock_mhz,
        } = figures;
        GpuStatus {
            index,
            uuid,
            name,
            lost: is_lost,
            utilization_percent,
            memory_used_bytes,
            memory_total_bytes,
            power_watts,
            power_limit_watts,
            temperature_celsius,
            sm_clock_mhz,
            memory_clock_mhz,
        }
    }
}

/// The numbers of the GPUs that a replica runs on, as far as it is configured and they exist.
pub(super) fn of_replica(model: &Model, replica: &str, gpus: &Gpus) -> Vec<u32> {
    model.gpus.get(replica).map_or_else(Vec::new, |ids| gpus.indices(ids))
}

/// What is configured and does not exist, in words. Nothing where it isn't known which GPUs there are.
pub(super) fn notes(model: &Model, gpus: &Gpus) -> Vec<String> {
    if gpus.gpus.is_empty() {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for (replica, ids) in &model.gpus {
        let missing = ids.iter().filter(|id| gpus.find(id).is_none());
        notes.extend(missing.map(|id| format!("replica {replica}: there is no GPU {id}")));
    }
    notes.sort();
    notes
}
