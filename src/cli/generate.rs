//! `kvpin man` and `kvpin completions`: what a package installs beside the program.

use std::io;
use std::path::Path;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

/// Writes a man page for the program and one for each subcommand.
pub fn man(program: Command, directory: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(program, directory)
        .with_context(|| format!("can't write into {}", directory.display()))?;
    Ok(())
}

/// Prints what a shell needs to complete command lines.
pub fn completions(mut program: Command, shell: Shell) {
    clap_complete::generate(shell, &mut program, "kvpin", &mut io::stdout());
}
