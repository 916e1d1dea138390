//! What kvpin costs beside the proxies that a user would otherwise put there: nginx, HAProxy, Envoy, two routers for LLMs, and
//! Pingora alone, which shows what kvpin adds to it.
//!
//! ```text
//! load (this process, one thread) --> a proxy (a child process, one worker) --> four stubs (this process, one thread)
//! load ----------------------------------- direct ----------------------------> four stubs
//! ```
//!
//! In each round every scenario meets every proxy once, each started afresh, in an order that turns from round to round. What
//! else the machine does so meets all alike, and ratios within a round are what counts. How to run and read it: `README.md`.

mod bodies;
mod certificate;
mod child;
mod cores;
mod front;
mod machine;
mod options;
mod proxies;
mod report;
#[path = "../rig/mod.rs"]
mod rig;
mod rounds;
mod table;
mod upstreams;
mod work;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use options::Options;

/// As in the `kvpin` program: the bare Pingora must not differ from it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if let Some(listen) = options.serve_bare {
        proxies::bare::serve(listen, &options.upstreams)
    }
    cores::raise_open_files()?;
    let cores = cores::Cores::divide().context("can't divide the cores")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Children end when what holds them is dropped, which a signal alone would not do.
        let mut end = signal(SignalKind::terminate())?;
        tokio::select! {
            done = rounds::run(&options, &cores) => done,
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Into::into).and_then(|()| bail!("interrupted")),
            _ = end.recv() => bail!("told to end"),
        }
    })
}
