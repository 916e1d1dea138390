//! `kvpin replica`: a simulated vLLM server, for trying kvpin without a GPU.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::sim::config::EngineConfig;
use crate::sim::script::Script;
use crate::sim::server::{ReplicaOptions, ReplicaServer};

/// What to simulate. The defaults are about a 4B model on a card of 16 GiB.
#[derive(Debug, Clone, Args)]
pub struct ReplicaArgs {
    /// Where to listen; 0 lets the system choose.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// The served model's name.
    #[arg(long, default_value_t = ReplicaOptions::default().model)]
    model: String,
    /// Ranks behind the one port, each with a cache of its own.
    #[arg(long, default_value_t = 1, value_name = "N")]
    data_parallel_size: usize,
    /// Tokens of KV that a rank's cache holds.
    #[arg(long, default_value_t = EngineConfig::default().kv_tokens, value_name = "TOKENS")]
    kv_tokens: u32,
    /// Tokens of prompt and reply together, at most as many as the cache holds.
    #[arg(long, default_value_t = EngineConfig::default().max_model_len, value_name = "TOKENS")]
    max_model_len: u32,
    /// Tokens in a block of KV.
    #[arg(long, default_value_t = EngineConfig::default().block_size, value_name = "TOKENS")]
    block_size: u32,
    /// Prompt tokens that a rank computes per second.
    #[arg(long, default_value_t = EngineConfig::default().prefill_tokens_per_s, value_name = "TOKENS")]
    prefill_tokens_per_s: f64,
    /// What a step costs before any prefill in it, in milliseconds.
    #[arg(long, default_value_t = EngineConfig::default().step.as_secs_f64() * 1000.0, value_name = "MS")]
    step_ms: f64,
    /// Requests that a rank runs at once.
    #[arg(long, default_value_t = EngineConfig::default().max_num_seqs, value_name = "N")]
    max_num_seqs: usize,
    /// How many times faster than real time the engines run.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    time_scale: f64,
    /// What the model says, tool calls included; without it, letters without a meaning. A YAML or JSON file:
    ///
    /// {otherwise: TEXT, rules: [{says: WORDS, steps: [{call: {tool: NAME, arguments: {}}}, {text: TEXT}]}]}
    ///
    /// The newest message of the user with a rule's words chooses the rule, each tool's result leads to its next step.
    #[arg(long, value_name = "FILE", verbatim_doc_comment)]
    script: Option<PathBuf>,
    /// What clients have to show as a bearer token where vLLM's own flag guards: paths that begin with /v1 or /v2.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Answer /server_info, as vLLM does with VLLM_SERVER_DEV_MODE=1.
    #[arg(long)]
    dev_mode: bool,
}

/// Serves until SIGINT or SIGTERM, which cut what is running. Prints the server's address once it accepts connections.
pub fn run(args: ReplicaArgs) -> anyhow::Result<()> {
    let options = args.options()?;
    tokio::runtime::Runtime::new().context("can't start the runtime")?.block_on(serve(options))
}

async fn serve(options: ReplicaOptions) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let listen = options.listen;
    let server = ReplicaServer::start(options).await.with_context(|| format!("can't serve on {listen}"))?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "http://{}", server.address())?;
    stdout.flush()?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    server.shutdown().await;
    Ok(())
}

impl ReplicaArgs {
    fn options(self) -> anyhow::Result<ReplicaOptions> {
        let step = Duration::try_from_secs_f64(self.step_ms / 1000.0).context("--step-ms is out of range")?;
        let defaults = EngineConfig::default();
        let engine = EngineConfig {
            block_size: self.block_size,
            kv_tokens: self.kv_tokens,
            // vLLM refuses to start with a context that its cache can't hold; here a smaller cache shortens it.
            max_model_len: self.max_model_len.min(self.kv_tokens - self.kv_tokens % self.block_size.max(1)),
            max_num_seqs: self.max_num_seqs,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            step,
            ..defaults
        };
        Ok(ReplicaOptions {
            listen: SocketAddr::from((self.host, self.port)),
            model: self.model,
            data_parallel_size: self.data_parallel_size,
            engine,
            time_scale: self.time_scale,
            dev_mode: self.dev_mode,
            api_key: self.api_key,
            script: self.script.as_deref().map(script).transpose()?,
            ..ReplicaOptions::default()
        })
    }
}

fn script(file: &Path) -> anyhow::Result<Script> {
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    Script::from_yaml(&text).with_context(|| format!("can't use {}", file.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReplicaArgs,
    }

    fn options(line: &[&str]) -> anyhow::Result<ReplicaOptions> {
        Line::try_parse_from(["replica"].iter().chain(line))?.args.options()
    }

    #[test]
    fn without_flags_the_engine_is_the_default_one() {
        let options = options(&[]).expect("options");
        assert_eq!(options.engine, EngineConfig::default());
        assert_eq!(options.listen.to_string(), "127.0.0.1:8000");
    }

    #[test]
    fn a_small_cache_shortens_the_context() {
        let options = options(&["--kv-tokens", "1000", "--block-size", "64"]).expect("options");
        assert_eq!(options.engine.max_model_len, 960);
        assert_eq!(options.engine.validate(), Ok(()));
    }

    #[test]
    fn a_script_is_read_and_a_bad_one_refused_by_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("script.yaml");
        let line = ["--script", file.to_str().expect("UTF-8")];
        for (text, is_script) in [("otherwise: hello", true), ("other: hello", false)] {
            std::fs::write(&file, text).expect("written");
            match options(&line) {
                Ok(options) => assert!(is_script && options.script.is_some()),
                Err(error) => assert!(!is_script && format!("{error:#}").contains("script.yaml"), "{error:#}"),
            }
        }
    }

    #[test]
    fn a_step_that_is_no_time_is_refused() {
        assert!(options(&["--step-ms", "-1"]).is_err());
        assert!(options(&["--step-ms", "NaN"]).is_err());
    }
}
