//! The routers for LLMs, which share an ancestor and most of their options.

use std::io;
use std::path::Path;
use std::process::Command;

use super::Setting;
use crate::front::free_address;

/// The Python packages that they come in.
pub const VLLM_ROUTER: &str = "vllm-router==0.1.17";
pub const SMG: &str = "smg==1.13.0";

pub fn vllm_router(program: &Path, setting: &Setting<'_>, policy: &str) -> io::Result<Command> {
    let mut command = Command::new(program);
    finish(&mut command, setting, policy)?;
    Ok(command)
}

pub fn smg(program: &Path, setting: &Setting<'_>, policy: &str) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.arg("launch").arg("--disable-tokenizer-autoload").args(["--routing-key-headers", "x-session-id"]);
    finish(&mut command, setting, policy)?;
    Ok(command)
}

/// One worker, no lines for requests (they are told by the environment: one of the two doesn't mind its own option), probes as
/// often as the others', and as many requests at a time as there are.
fn finish(command: &mut Command, setting: &Setting<'_>, policy: &str) -> io::Result<()> {
    let urls = setting.upstreams.iter().map(|upstream| format!("http://{upstream}"));
    command.env("TOKIO_WORKER_THREADS", "1").env("RUST_LOG", "warn");
    command.args(["--policy", policy, "--host", "127.0.0.1", "--port"]).arg(setting.listen.port().to_string());
    command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port"]).arg(free_address()?.port().to_string());
    command.args(["--worker-startup-check-interval", "1", "--max-concurrent-requests", "32768"]);
    command.args(["--health-check-interval-secs", "1", "--health-check-timeout-secs", "1"]);
    command.args(["--health-failure-threshold", "2", "--health-success-threshold", "1"]);
    command.arg("--worker-urls").args(urls);
    Ok(())
}
