//! What kvpin adds to a stream and to the first byte, measured on loopback against a direct connection.
//!
//! ```text
//! client ----------------------------> stub upstream      direct
//! client --> kvpin in this process --> stub upstream
//! ```
//!
//! `cargo bench --bench streaming [-- chunks|first_byte]` runs both parts or the one named, in a minute. Without `--bench`
//! (`cargo test --benches`) each part runs once and small, so that it does not rot. What kvpin costs beside other proxies is
//! measured by the bench `compare`.

mod arm;
mod chunks;
mod first_byte;
#[path = "../rig/mod.rs"]
mod rig;

use std::time::Instant;

use anyhow::Context as _;

use rig::stub::{Answer, Stub};

/// As in the `kvpin` program: the parts that run in this process must not differ from it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Once, to see that it works.
    Try,
    Measure,
}

impl Effort {
    /// `rounds` when it is meant seriously.
    pub fn rounds(self, rounds: usize) -> usize {
        match self {
            Effort::Try => 1,
            Effort::Measure => rounds,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let effort = if arguments.iter().any(|argument| argument == "--bench") { Effort::Measure } else { Effort::Try };
    let named: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |part: &str| named.is_empty() || named.contains(&part);
    // One thread for the stub and one for the clients, so that neither waits for the other's work.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stub = Stub::start(Answer::Json, Instant::now()).await.context("the stub upstream")?;
        if is_wanted("chunks") {
            chunks::run(&stub, effort).await.context("chunks")?;
        }
        if is_wanted("first_byte") {
            first_byte::run(&stub, effort).await.context("first_byte")?;
        }
        Ok(())
    })
}
