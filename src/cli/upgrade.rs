//! `kvpin upgrade`: has a new process take the place of the one that serves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::admin::UPGRADE;

use super::drain::{Admin, AdminArgs};

/// Longer than the old process waits for the new one.
const PATIENCE: Duration = Duration::from_secs(240);

/// Of which kvpin.
#[derive(clap::Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    at: AdminArgs,
}

/// Asks for an upgrade and waits for it. Exit 0: a new process serves. 1: none does, and the old one goes on; 64 wrong usage,
/// 78 bad configuration.
pub fn run(args: &UpgradeArgs) -> ExitCode {
    let url = match args.at.url() {
        Ok(url) => url,
        Err(exit) => return exit,
    };
    super::finish(super::block_on(async {
        let answer = Admin { url }.post(UPGRADE, b"{}".to_vec(), PATIENCE).await?;
        let answer: Value = serde_json::from_slice(&answer).context("its answer can't be read")?;
        println!("process {} serves; the one before it finishes what it has", answer["pid"]);
        Ok(())
    }))
}
