//! The admin token, for the subcommands that ask a kvpin that serves.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use http::header::AUTHORIZATION;
use http::request::Builder;

use crate::config::{Config, Secret, one_word};

/// Where scripts may have it, whose command lines others can see.
const VARIABLE: &str = "KVPIN_ADMIN_TOKEN";

/// Where the token is.
#[derive(clap::Args, Debug)]
pub struct TokenArgs {
    /// A file with the admin token. Default: the one that the configuration names, else what KVPIN_ADMIN_TOKEN holds.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The token to show, if there is one. `config` is the configuration that the command was given.
    pub fn token(&self, config: Option<&Config>) -> anyhow::Result<Option<Secret>> {
        if let Some(file) = &self.token_file {
            let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
            let token = one_word(&text, 1).map_err(|reason| anyhow!("{}: {reason}", file.display()))?;
            return Ok(Some(token));
        }
        if let Some(token) = config.and_then(|config| config.admin_token.as_ref()) {
            return Ok(Some(token.secret.clone()));
        }
        match std::env::var(VARIABLE) {
            Ok(text) => one_word(&text, 1).map(Some).map_err(|reason| anyhow!("{VARIABLE}: {reason}")),
            Err(std::env::VarError::NotPresent) => Ok(None),
            // Its own words would quote it.
            Err(std::env::VarError::NotUnicode(_)) => Err(anyhow!("{VARIABLE} isn't text")),
        }
    }
}

/// Shows the token with a request.
pub fn authorized(call: Builder, token: Option<&Secret>) -> Builder {
    match token {
        Some(token) => call.header(AUTHORIZATION, format!("Bearer {}", token.expose())),
        None => call,
    }
}
