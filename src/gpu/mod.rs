//! What the GPUs do, as NVIDIA's library NVML says, for those who look at kvpin. Nothing is decided by it.
//!
//! ```text
//!   thread kvpin-gpus:  Sampler --every 2 s--> Driver (NVML, loaded while kvpin runs) --> Board <-- whoever looks
//! ```
//!
//! A driver can take its time, and one whose card has failed may never answer. So only that thread ever asks it, nobody
//! waits for the thread, and of a board that it has not written for a while nothing is taken for true.

mod driver;
mod sampler;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::GpuId;

pub use sampler::{Sampler, Wanted};

/// Five rounds: what is older says nothing of what the GPUs do.
const SILENT_AFTER: Duration = Duration::from_secs(10);

/// What was last heard of the GPUs.
#[derive(Debug)]
pub struct Board(Mutex<Written>);

#[derive(Debug)]
struct Written {
    at: Instant,
    source: Source,
    gpus: Vec<Gpu>,
}

/// How the driver's library is doing, as far as the thread can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// It is being loaded.
    Loading,
    Off,
    /// There is none, or it can't be used.
    Missing(String),
    Reading,
}

/// All GPUs of the machine at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpus {
    pub nvml: Nvml,
    /// In the order of their numbers. Without figures where there are none of the last seconds.
    pub gpus: Vec<Gpu>,
    /// Of the figures; `None` where there are none.
    pub age: Option<Duration>,
}

/// How the driver's library is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nvml {
    Loading,
    Off,
    /// Why it isn't used.
    Missing(String),
    Reading,
    /// It was asked and doesn't answer.
    Silent,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// As `nvidia-smi` numbers it.
    pub index: u32,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// Whether it has fallen off the bus or needs a reset.
    pub is_lost: bool,
    pub figures: Figures,
}

/// What a GPU does. `None`: it has no such figure, or doesn't tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Of the time, that something ran on it; 0 to 100.
    pub utilization_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub temperature_celsius: Option<u32>,
    pub sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
}

impl Board {
    /// What stands there at `now`.
    pub fn look(&self, now: Instant) -> Gpus {
        let written = self.0.lock();
        let age = now.saturating_duration_since(written.at);
        let nvml = match &written.source {
            Source::Off => Nvml::Off,
            Source::Missing(reason) => Nvml::Missing(reason.clone()),
            Source::Loading | Source::Reading if age > SILENT_AFTER => Nvml::Silent,
            Source::Loading => Nvml::Loading,
            Source::Reading => Nvml::Reading,
        };
        let is_current = nvml == Nvml::Reading;
        let gpu = |gpu: &Gpu| if is_current { gpu.clone() } else { gpu.without_figures() };
        Gpus { nvml, gpus: written.gpus.iter().map(gpu).collect(), age: is_current.then_some(age) }
    }

    fn write(&self, source: Source, gpus: Vec<Gpu>) {
        *self.0.lock() = Written { at: Instant::now(), source, gpus };
    }
}

impl Default for Board {
    fn default() -> Self {
        Board(Mutex::new(Written { at: Instant::now(), source: Source::Loading, gpus: Vec::new() }))
    }
}

impl Nvml {
    /// The word used on the status.
    pub fn as_str(&self) -> &'static str {
        match self {
            Nvml::Loading => "loading",
            Nvml::Off => "off",
            Nvml::Missing(_) => "missing",
            Nvml::Reading => "reading",
            Nvml::Silent => "silent",
        }
    }

    /// Why it isn't used, in words.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Nvml::Missing(reason) => Some(reason),
            Nvml::Loading | Nvml::Off | Nvml::Reading | Nvml::Silent => None,
        }
    }
}

impl Gpus {
    /// Where nothing is known of any.
    pub fn none() -> Self {
        Gpus { nvml: Nvml::Off, gpus: Vec::new(), age: None }
    }

    /// The GPU that an operator means.
    pub fn find(&self, id: &GpuId) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| match id {
            GpuId::Index(index) => gpu.index == *index,
            GpuId::Uuid(uuid) => gpu.uuid.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(uuid)),
        })
    }

    /// The numbers of those that exist, ascending, each once.
    pub fn indices(&self, ids: &[GpuId]) -> Vec<u32> {
        let mut indices: Vec<_> = ids.iter().filter_map(|id| Some(self.find(id)?.index)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }
}

impl Gpu {
    fn without_figures(&self) -> Gpu {
        Gpu { figures: Figures::default(), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, uuid: &str) -> Gpu {
        let figures = Figures { utilization_percent: Some(7), ..Figures::default() };
        Gpu { index, uuid: Some(uuid.to_owned()), figures, ..Gpu::default() }
    }

    fn board(source: Source) -> Board {
        let board = Board::default();
        board.write(source, vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")]);
        board
    }

    #[test]
    fn figures_that_nobody_renews_are_shown_no_longer_and_their_gpus_are() {
        let board = board(Source::Reading);
        let fresh = board.look(Instant::now());
        assert_eq!((&fresh.nvml, fresh.gpus[1].figures.utilization_percent), (&Nvml::Reading, Some(7)));
        let later = board.look(Instant::now() + SILENT_AFTER + Duration::from_secs(1));
        assert_eq!((&later.nvml, later.age), (&Nvml::Silent, None));
        assert_eq!(later.gpus[1], Gpu { index: 1, uuid: Some("GPU-b".to_owned()), ..Gpu::default() });
    }

    #[test]
    fn a_library_that_is_loaded_for_ever_is_silent_and_one_that_is_missing_is_not() {
        let later = Instant::now() + 2 * SILENT_AFTER;
        assert_eq!(board(Source::Loading).look(later).nvml, Nvml::Silent);
        assert_eq!(board(Source::Off).look(later).nvml, Nvml::Off);
        let missing = board(Source::Missing("no driver".to_owned())).look(later);
        assert_eq!(missing.nvml.reason(), Some("no driver"));
    }

    #[test]
    fn a_replicas_gpus_are_found_by_number_and_by_uuid_each_once() {
        let gpus = board(Source::Reading).look(Instant::now());
        let uuid = |uuid: &str| GpuId::Uuid(uuid.to_owned());
        assert_eq!(gpus.indices(&[uuid("GPU-b"), GpuId::Index(0), GpuId::Index(1), GpuId::Index(9)]), [0, 1]);
        assert_eq!(gpus.indices(&[uuid("GPU-x")]), [0; 0]);
    }
}
