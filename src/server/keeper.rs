//! Keeps the state file: reads it at a start, writes it from time to time, and at a stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use anyhow::Context as _;
use log::{info, warn};
use parking_lot::Mutex;

use crate::config::{Config, StateFile};
use crate::dispatch::Routing;
use crate::state::file::{self, Found, Stored};

use super::transfer::{Restorer, head, unix_ms, write_models};

/// Where systemd says that a service's state belongs: directories, with colons between them.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// Writes the state of one process.
#[derive(Clone)]
pub struct Keeper {
    routing: Arc<Routing>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    /// What the state file has.
    written: Option<Version>,
    is_failing: bool,
    /// Whether the file is another process's by now.
    is_given_away: bool,
}

/// What tells whether there is something new to write.
#[derive(PartialEq, Eq)]
struct Version {
    path: PathBuf,
    changes: Vec<(String, u64)>,
}

/// Ends the keeper's thread when it is dropped.
pub struct Keeping {
    _end: mpsc::Sender<()>,
}

/// The state that an earlier process has left. What is no state is put aside, with a warning.
pub fn find(config: &Config) -> Option<Stored> {
    let path = path(config)?;
    match file::find(&path) {
        Found::Nothing => None,
        Found::State(stored) => Some(stored),
        Found::Damaged(damage) => {
            match file::set_aside(&path, unix_ms() / 1_000) {
                Ok(aside) => {
                    warn!("{} is not used: {damage}. It is now {}", path.display(), aside.display());
                }
                Err(error) => {
                    warn!("{} is not used: {damage}. It can't be put aside: {error}", path.display());
                }
            }
            None
        }
    }
}

/// Gives what another process has left to the balancers. What they know from later stays.
pub fn restore(routing: &Routing, stored: Stored) -> Restorer {
    let mut restorer = Restorer::new(routing, &stored.head);
    if let Err(damage) = stored.read(|frame| restorer.take(frame)) {
        warn!("the state file has changed while it was read: {damage}");
    }
    restorer
}

impl Keeper {
    pub fn new(routing: Arc<Routing>) -> Self {
        Keeper { routing, kept: Arc::default() }
    }

    /// Writes from time to time, on a thread of its own, beginning now.
    pub fn begin(&self) -> anyhow::Result<Keeping> {
        let (end, on_end) = mpsc::channel();
        let keeper = self.clone();
        let keep = move || loop {
            keeper.keep();
            let interval = keeper.routing.table().config.state_interval;
            match on_end.recv_timeout(interval) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        thread::Builder::new().name("kvpin-state".into()).spawn(keep).context("can't start a thread")?;
        Ok(Keeping { _end: end })
    }

    /// Writes the state if anything has changed.
    pub fn keep(&self) {
        let mut kept = self.kept.lock();
        let Some(version) = self.version().filter(|_| !kept.is_given_away) else { return };
        if kept.written.as_ref() == Some(&version) {
            return;
        }
        let table = self.routing.table();
        let saved = file::save(&version.path, head(&self.routing), |writer| write_models(&table, writer));
        let metrics = &self.routing.metrics;
        match saved {
            Ok(bytes) => {
                metrics.state_writes.with_label_values(&["written"]).inc();
                metrics.state_bytes.set(bytes as i64);
                metrics.state_written_at.set(unix_ms() as f64 / 1_000.0);
                if kept.is_failing {
                    info!("{} is written again", version.path.display());
                }
                *kept = Kept { written: Some(version), ..Kept::default() };
            }
            Err(error) => {
                metrics.state_writes.with_label_values(&["failed"]).inc();
                if !kept.is_failing {
                    warn!(
                        "{} can't be written: {error}. What is remembered ends with the process",
                        version.path.display()
                    );
                }
                kept.is_failing = true;
            }
        }
    }

    /// Another process writes the state from here on. Waits for a write that goes on.
    pub fn give_away(&self) {
        self.kept.lock().is_given_away = true;
    }

    /// It is this process's again.
    pub fn take_back(&self) {
        *self.kept.lock() = Kept::default();
    }

    /// `None` where no state is to be kept.
    fn version(&self) -> Option<Version> {
        let table = self.routing.table();
        let changes = table.models.iter().map(|model| {
            let changes = model.dispatcher.with(|balancer, _| balancer.changes());
            (model.name.clone(), changes)
        });
        Some(Version { path: path(&table.config)?, changes: changes.collect() })
    }
}

fn path(config: &Config) -> Option<PathBuf> {
    match &config.state_file {
        StateFile::Off => None,
        StateFile::At(path) => Some(path.clone()),
        StateFile::Default => {
            let directories = std::env::var_os(STATE_DIRECTORY)?;
            let first = std::env::split_paths(&directories).next().filter(|path| path.is_absolute())?;
            Some(first.join("state"))
        }
    }
}
