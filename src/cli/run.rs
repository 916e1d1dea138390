//! `kvpin run`: serve until told to end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use log::{LevelFilter, error, warn};
use tokio::runtime::Builder;

use crate::config::{Config, ConfigError};
use crate::metrics::Metrics;
use crate::server::{Life, Start};

use super::EXIT_CONFIG;

/// Pingora logs whole heads at debug, API keys and all, and every connection that a client breaks off as an error.
const SILENCED: [&str; 2] = ["pingora_core", "pingora_pool"];

/// By which configuration, and in whose place.
#[derive(clap::Args)]
pub struct RunArgs {
    /// The configuration.
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Take the sockets over that the process which has started this one offers on stdin. kvpin itself starts its
    /// successors so.
    #[arg(long, hide = true)]
    take_over: bool,
}

/// Serves by a configuration.
pub fn run(args: &RunArgs) -> ExitCode {
    begin_logging();
    let path = &args.config;
    let config = match Config::load(path) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{}:\n{error}", path.display());
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    let start = if args.take_over { Start::TakeOver } else { Start::Alone };
    match serve(path, config, start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref::<ConfigError>().is_some() => {
            eprintln!("{}:\n{error}", path.display());
            ExitCode::from(EXIT_CONFIG)
        }
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &Path, config: Config, start: Start) -> anyhow::Result<()> {
    for warning in config.warnings() {
        warn!("{warning}");
    }
    let runtime = Builder::new_current_thread().enable_all().build().context("can't start the signal loop")?;
    let lived = runtime.block_on(async {
        let life = Life::begin(path, config, start)?;
        count_panics(life.server().routing.metrics.clone());
        life.run().await;
        Ok(())
    });
    // A reload that still resolves a hostname, or an upgrade that is being prepared, is nothing to wait for.
    runtime.shutdown_background();
    lived
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

/// A panic ends the task of one connection. It is logged as ever, and counted, so that somebody sees it.
fn count_panics(metrics: Metrics) {
    let metrics = Arc::new(metrics);
    let log_it = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        metrics.panics.inc();
        log_it(panic);
    }));
}
