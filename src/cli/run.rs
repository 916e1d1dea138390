//! `kvpin run`: serve until told to end.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use log::{error, info, warn};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::metrics::Metrics;
use crate::server::{Drained, Server};

use super::EXIT_CONFIG;

/// What is logged unless `RUST_LOG` says otherwise. Pingora logs every connection that a client breaks off as an error.
const LOG_FILTER: &str = "info,pingora_core=off,pingora_proxy=off,pingora_pool=off";

/// Serves by the configuration at `path`.
pub fn run(path: &Path) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(LOG_FILTER)).init();
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
    let server = Server::start(config)?;
    count_panics(server.routing.metrics.clone());
    for address in &server.listen {
        info!("listening on {address}");
    }
    if let Some(address) = server.admin {
        info!("admin on {address}");
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start the signal loop")?
        .block_on(obey_signals(path, &server))
}

/// Reloads on SIGHUP. On SIGTERM or SIGINT lets open requests end; on a second one leaves at once.
async fn obey_signals(path: &Path, server: &Server) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            _ = hangup.recv() => server.reload(path),
            () = either(&mut terminate, &mut interrupt) => break,
        }
    }
    let grace = server.routing.table().config.shutdown_grace;
    info!("shutting down: open requests have {} s to end", grace.as_secs());
    tokio::select! {
        drained = server.drain(grace) => match drained {
            Drained::Whole => info!("every request has ended"),
            Drained::Cut { open } => warn!("{open} requests were still open and are cut off"),
        },
        () = either(&mut terminate, &mut interrupt) => warn!("told twice: open requests are cut off"),
    }
    Ok(())
}

async fn either(first: &mut Signal, second: &mut Signal) {
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
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
