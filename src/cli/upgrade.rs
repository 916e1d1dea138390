//! `kvpin upgrade`: has a new process take the place of the one that serves.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::admin::UPGRADE;

use super::admin_token::TokenArgs;
use super::drain::{Admin, AdminArgs};

/// Longer than the old process waits for the new one.
const PATIENCE: Duration = Duration::from_secs(240);

/// Of which kvpin.
#[derive(clap::Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    at: AdminArgs,
    #[command(flatten)]
    token: TokenArgs,
}

/// Asks for an upgrade and waits for it. Exit 0: a new process serves. 1: none does, and the old one goes on; 64 wrong usage,
/// 78 bad configuration.
pub fn run(args: &UpgradeArgs) -> ExitCode {
    let (url, config) = match args.at.url() {
        Ok(found) => found,
        Err(exit) => return exit,
    };
    super::finish(super::block_on(async {
        let token = args.token.token(config.as_ref())?;
        let answer = Admin { url, token }.post(UPGRADE, b"{}".to_vec(), PATIENCE).await?;
        let answer: Value = serde_json::from_slice(&answer).context("its answer can't be read")?;
        println!("process {} serves; the one before it finishes what it has", answer["pid"]);
        Ok(())
    }))
}
