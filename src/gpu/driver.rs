//! What is asked of NVML, one GPU after the other. Any of it may not be supported, and any GPU may be lost.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Figures, Gpu};

/// More than any machine has: a library that counts more is not believed.
const GPUS_MAX: u32 = 256;

const MILLIWATTS_PER_WATT: f64 = 1_000.0;

/// NVML, loaded. Every call blocks for as long as the driver likes.
pub(super) struct Driver {
    nvml: Nvml,
    /// What GPUs were called when they could still say it.
    known: BTreeMap<u32, Identity>,
}

#[derive(Clone, Default)]
struct Identity {
    uuid: Option<String>,
    name: Option<String>,
}

/// The answers of one GPU.
#[derive(Default)]
struct Answers {
    is_lost: bool,
}

impl Driver {
    /// Loads the library, from where the loader finds it if it has no path.
    pub fn load(library: &OsStr) -> Result<Driver, NvmlError> {
        Ok(Driver { nvml: Nvml::builder().lib_path(library).init()?, known: BTreeMap::new() })
    }

    /// What all GPUs do. An error is of the library as a whole.
    pub fn look(&mut self) -> Result<Vec<Gpu>, NvmlError> {
        let count = self.nvml.device_count()?.min(GPUS_MAX);
        Ok((0..count).map(|index| self.gpu(index)).collect())
    }

    fn gpu(&mut self, index: u32) -> Gpu {
        let identity = self.known.entry(index).or_default();
        let mut answers = Answers::default();
        let mut figures = Figures::default();
        if let Some(device) = answers.take(self.nvml.device_by_index(index)) {
            identity.uuid = answers.take(device.uuid()).or(identity.uuid.take());
            identity.name = answers.take(device.name()).or(identity.name.take());
            figures = answers.figures(&device);
        }
        let Identity { uuid, name } = identity.clone();
        let is_lost = answers.is_lost;
        // What a GPU said before it was lost, in the same round, is no figure of it.
        Gpu { index, uuid, name, is_lost, figures: if is_lost { Figures::default() } else { figures } }
    }
}

impl Answers {
    /// An answer, or that there is none. Only some of the reasons why are worth more than that.
    fn take<T>(&mut self, answer: Result<T, NvmlError>) -> Option<T> {
        self.is_lost |= matches!(answer, Err(NvmlError::GpuLost | NvmlError::ResetRequired));
        answer.ok()
    }

    fn figures(&mut self, device: &Device<'_>) -> Figures {
        let watts = |milliwatts: u32| f64::from(milliwatts) / MILLIWATTS_PER_WATT;
        let utilization = self.take(device.utilization_rates());
        let memory = self.take(device.memory_info());
        Figures {
            utilization_percent: utilization.map(|rates| rates.gpu),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_total_bytes: memory.map(|memory| memory.total),
            power_watts: self.take(device.power_usage()).map(watts),
            power_limit_watts: self.take(device.enforced_power_limit()).map(watts),
            temperature_celsius: self.take(device.temperature(TemperatureSensor::Gpu)),
            sm_clock_mhz: self.take(device.clock_info(Clock::SM)),
            memory_clock_mhz: self.take(device.clock_info(Clock::Memory)),
        }
    }
}
