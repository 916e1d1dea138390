//! The thread that asks NVML, and what it says in the log when something is otherwise than before.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use log::{info, warn};
use parking_lot::Mutex;

use crate::config::NvmlConfig;

use super::driver::Driver;
use super::{Board, Gpu, Source};

/// Reading eight GPUs takes a driver some milliseconds, and people look about as often.
const EVERY: Duration = Duration::from_secs(2);
/// The driver may be loaded after kvpin, or again after an update.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Long enough for a driver that works to end a round: its library is not to be torn down by the process's end amid a call.
/// Nobody waits longer for one that hangs.
const END_WITHIN: Duration = Duration::from_millis(500);
/// What the driver's own packages call it; the name without a version comes with a development package only.
const LIBRARY: &str = "libnvidia-ml.so.1";

/// What the configuration wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub nvml: NvmlConfig,
    /// Whether a replica names its GPUs.
    pub has_claims: bool,
}

/// Ends the thread when it is dropped, if the driver lets it.
pub struct Sampler {
    stop: Option<Sender<Infallible>>,
    ended: Mutex<Receiver<Infallible>>,
}

struct Rounds<W> {
    wanted: W,
    board: Arc<Board>,
    /// Where the driver comes from, or would.
    source: Option<NvmlConfig>,
    driver: Option<Driver>,
    try_at: Instant,
    told: Told,
    lost: BTreeSet<u32>,
}

/// What the log has last said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Missing { is_warning: bool },
    Reading,
}

impl Sampler {
    /// Keeps the board current. `wanted` is asked before every round, so that a reload takes effect.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(board: Arc<Board>, wanted: impl Fn() -> Wanted + Send + 'static) -> io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel::<Infallible>();
        let (ending, ended) = mpsc::channel::<Infallible>();
        thread::Builder::new().name("kvpin-gpus".to_owned()).spawn(move || {
            Rounds::new(board, wanted).run(&stopped);
            drop(ending);
        })?;
        Ok(Sampler { stop: Some(stop), ended: Mutex::new(ended) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop = None;
        // It has ended, or it hangs in the driver and is left there.
        self.ended.get_mut().recv_timeout(END_WITHIN).ok();
    }
}

impl<W: Fn() -> Wanted> Rounds<W> {
    fn new(board: Arc<Board>, wanted: W) -> Self {
        let told = Told::Nothing;
        Rounds { wanted, board, source: None, driver: None, try_at: Instant::now(), told, lost: BTreeSet::new() }
    }

    fn run(mut self, stopped: &Receiver<Infallible>) {
        loop {
            self.round();
            match stopped.recv_timeout(EVERY) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn round(&mut self) {
        let Wanted { nvml, has_claims } = (self.wanted)();
        if self.source.as_ref() != Some(&nvml) {
            self.driver = None;
            self.try_at = Instant::now();
            self.told = Told::Nothing;
            self.source = Some(nvml.clone());
        }
        let library = match nvml {
            NvmlConfig::Off => return self.board.write(Source::Off, Vec::new()),
            NvmlConfig::Auto => LIBRARY.into(),
            NvmlConfig::At(path) => path.into_os_string(),
        };
        match self.look(&library) {
            Some(Ok(gpus)) => {
                self.tell_reading(&gpus);
                self.board.write(Source::Reading, gpus);
            }
            Some(Err(reason)) => {
                self.driver = None;
                self.try_at = Instant::now() + TRIED_AGAIN_AFTER;
                self.tell_missing(&reason, has_claims);
                self.board.write(Source::Missing(reason), Vec::new());
            }
            None => {}
        }
    }

    /// What the GPUs do, or why it can't be said; `None` where it is too early to try again.
    fn look(&mut self, library: &OsString) -> Option<Result<Vec<Gpu>, String>> {
        if self.driver.is_none() {
            if Instant::now() < self.try_at {
                return None;
            }
            match Driver::load(library) {
                Ok(driver) => self.driver = Some(driver),
                Err(error) => return Some(Err(error.to_string())),
            }
        }
        let gpus = self.driver.as_mut()?.look();
        Some(gpus.map_err(|error| error.to_string()))
    }

    /// A machine without the library is nothing unusual, unless somebody has said which GPUs there are.
    fn tell_missing(&mut self, reason: &str, is_warning: bool) {
        let told = Told::Missing { is_warning };
        if std::mem::replace(&mut self.told, told) == told {
            return;
        }
        if is_warning {
            warn!("no NVML, though replicas have `gpus`: nothing is known of them: {reason}");
        } else {
            info!("no NVML, so nothing is known of GPUs: {reason}");
        }
    }

    fn tell_reading(&mut self, gpus: &[Gpu]) {
        if std::mem::replace(&mut self.told, Told::Reading) != Told::Reading {
            info!("NVML tells of {} GPUs", gpus.len());
        }
        let lost: BTreeSet<_> = gpus.iter().filter(|gpu| gpu.is_lost).map(|gpu| gpu.index).collect();
        for index in lost.difference(&self.lost) {
            warn!("GPU {index} is lost: it has fallen off the bus or needs a reset");
        }
        for index in self.lost.difference(&lost) {
            info!("GPU {index} is back");
        }
        self.lost = lost;
    }
}
