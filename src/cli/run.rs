//! `kvpin run`: serve until told to end.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use log::{LevelFilter, error, info, warn};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::metrics::Metrics;
use crate::server::{Drained, Server};

use super::EXIT_CONFIG;

/// Pingora logs whole heads at debug, API keys and all, and every connection that a client breaks off as an error.
const SILENCED: [&str; 3] = ["pingora_core", "pingora_proxy", "pingora_pool"];

/// Serves by the configuration at `path`.
pub fn run(path: &Path) -> ExitCode {
    begin_logging();
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{}:\n{error}", path.display());
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    match serve(path, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &Path, config: Config) -> anyhow::Result<()> {
    for warning in config.warnings() {
        warn!("{warning}");
    }
    let runtime = Builder::new_current_thread().enable_all().build().context("can't start the signal loop")?;
    runtime.block_on(async {
        // Before anything serves: a signal that nobody waits for would end the process.
        let signals = Signals::take()?;
        let server = Server::start(config)?;
        count_panics(server.routing.metrics.clone());
        for address in &server.listen {
            info!("listening on {address}");
        }
        if let Some(address) = server.admin {
            info!("admin on {address}");
        }
        signals.obey(path, &server).await;
        Ok(())
    })
}

/// `RUST_LOG` says what is logged, else it is what `info` has. Neither turns Pingora's logs on, unless it names them.
fn begin_logging() {
    let mut logger = env_logger::Builder::new();
    logger.filter_level(LevelFilter::Info);
    for module in SILENCED {
        logger.filter_module(module, LevelFilter::Off);
    }
    logger.parse_default_env().init();
}

/// The signals that a service is told by.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn take() -> anyhow::Result<Self> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Reloads on SIGHUP. On SIGTERM or SIGINT lets open requests end; on a second one leaves at once.
    async fn obey(mut self, path: &Path, server: &Server) {
        loop {
            tokio::select! {
                _ = self.hangup.recv() => server.reload(path),
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
            }
        }
        let grace = server.routing.table().config.shutdown_grace;
        info!("shutting down: open requests have {} s to end", grace.as_secs());
        tokio::select! {
            drained = server.drain(grace) => match drained {
                Drained::Whole => info!("every request has ended"),
                Drained::Cut { open } => warn!("{open} requests were still open and are cut off"),
            },
            () = self.told_to_end() => warn!("told twice: open requests are cut off"),
        }
    }

    async fn told_to_end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// A panic ends the task of one connection. It is logged as ever, and counted, so that somebody sees it.
fn count_panics(metrics: Metrics) {
    let metrics = Arc::new(metrics);
    let log_it = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        metrics.panics.inc();
        log_it(panic);
    }));
}
