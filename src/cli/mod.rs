//! The command line: one file a subcommand.

mod admin_token;
mod bench;
mod check;
mod demo;
mod drain;
mod explain;
mod generate;
mod keys;
mod replica;
mod run;
mod simulate;
mod status;
mod upgrade;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

/// Exit status for a configuration that can't be used: `EX_CONFIG` of sysexits.h.
pub const EXIT_CONFIG: u8 = 78;
/// Exit status for a command line that can't be understood: `EX_USAGE` of sysexits.h.
const EXIT_USAGE: u8 = 64;

/// What the help and the man page say beside the subcommands.
const MORE: &str = "\
Signals of `kvpin run`:
  HUP         read the configuration again; a bad file changes nothing, and the log says why
  USR2        have a new process take over, from the same path and with the same file; no request is lost
  TERM, INT   finish what is open and end; a second one cuts it off

Exit status:
  0   done
  1   failed
  64  wrong usage
  78  bad configuration

Files:
  /etc/kvpin/kvpin.yaml   the configuration of the service
  /var/lib/kvpin/state    what it remembers of conversations over a restart
  /var/log/kvpin          for the access log, if the configuration has it in a file";

/// An edge load balancer that keeps every agent conversation on the vLLM replica that holds its KV cache.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true, after_long_help = MORE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve by a configuration file. SIGHUP reloads it, SIGUSR2 has a new process take over, SIGTERM finishes what is open and ends.
    Run(run::RunArgs),
    /// Read a configuration and say what it means, or every problem with it.
    Check {
        /// The configuration.
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        against: check::AgainstArgs,
    },
    /// Show what a kvpin that serves does: models, replicas, and what turns cost.
    Status(status::StatusArgs),
    /// Have a new process take the place of the one that serves: of another version, or with other listeners. No request is lost.
    Upgrade(upgrade::UpgradeArgs),
    /// Have a replica take no new conversations; those it has move elsewhere with their next turn.
    Drain(drain::DrainArgs),
    /// Let a drained replica serve again.
    Undrain(drain::UndrainArgs),
    /// Say which rule recognises a raw HTTP request on stdin, and where it would go.
    Explain(explain::ExplainArgs),
    /// Make, list and remove the API keys that clients have to show.
    Keys(keys::KeysArgs),
    /// Show what affinity does: simulated replicas, the real proxy and agent sessions, beside the same without affinity.
    Demo(demo::DemoArgs),
    /// Measure a server with agent sessions: kvpin with affinity and without, or several servers side by side.
    Bench(Box<bench::BenchArgs>),
    /// Run one simulated vLLM server.
    Replica(replica::ReplicaArgs),
    /// Run a scenario in virtual time: agents, balancers and modelled engines, hours in seconds.
    Simulate(simulate::SimulateArgs),
    /// Write man pages into a directory.
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Print what a shell needs to complete command lines.
    #[command(hide = true)]
    Completions { shell: Shell },
}

/// Runs the command line and gives the process's exit status: 0 done, 1 failed, 64 wrong usage, 78 bad configuration.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let is_mistake = error.use_stderr();
            return match error.print() {
                Ok(()) if is_mistake => ExitCode::from(EXIT_USAGE),
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Check { config, json, against } => check::run(&config, json, &against),
        Command::Status(args) => status::run(&args),
        Command::Upgrade(args) => upgrade::run(&args),
        Command::Drain(args) => drain::drain(&args),
        Command::Undrain(args) => drain::undrain(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Demo(args) => finish(demo::run(&args)),
        Command::Bench(args) => bench::run(&args),
        Command::Replica(args) => finish(replica::run(args)),
        Command::Simulate(args) => finish(simulate::run(&args)),
        Command::Man { directory } => finish(generate::man(Cli::command(), &directory)),
        Command::Completions { shell } => {
            generate::completions(Cli::command(), shell);
            ExitCode::SUCCESS
        }
    }
}

fn block_on<T>(what: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(what)
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvpin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
