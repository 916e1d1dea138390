//! `kvpin demo`: what affinity does, seen in a minute. Two boxes of simulated replicas, the real proxy in front of each, the
//! same agents on both; one box with affinity, one without.

mod screen;
mod tally;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::server::Server;
use crate::sim::agent::{AgentWorkload, Pause, TurnResult, http_client};
use crate::sim::server::{ReplicaOptions, ReplicaServer};

use screen::{Picture, Screen, summary};
use tally::{Figures, Tally};

const MODEL: &str = "qwen3-4b";

/// How often the table is drawn.
const REDRAW: Duration = Duration::from_millis(250);

/// How long an agent's tools work between two turns, on average and in the engines' time.
const TOOLS: Duration = Duration::from_secs(3);

/// How much of the time is left for turns that run when no new ones begin.
const GRACE: Duration = Duration::from_secs(3);

/// Turns of agents that were seen but not yet counted. They are counted every [`REDRAW`].
const RESULTS_MAX: usize = 1024;

/// How `kvpin demo` is told what to do.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How long to run, in all, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Agent sessions at the same time, on each box.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    sessions: u32,
    /// Replicas in each box.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    replicas: u32,
    /// How many times faster than a real card the engines run. All times shown are the engines'.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    speed: u32,
    /// Print one JSON object at the end, and nothing else.
    #[arg(long)]
    json: bool,
}

/// One box: its replicas, the proxy in front of them, and the agents that drive it.
struct Arm {
    name: &'static str,
    server: Server,
    /// Dropped with the arm, which ends them.
    _replicas: Vec<ReplicaServer>,
    results: mpsc::Receiver<TurnResult>,
    agents: JoinHandle<()>,
    tally: Tally,
    speed: f64,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    arms: Vec<Figures>,
}

/// Runs both arms side by side and prints what came of them.
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let runtime = Runtime::new().context("can't start the runtime")?;
    let arms = runtime.block_on(play(args))?;
    if args.json {
        println!("{}", serde_json::to_string(&Report { arms })?);
    } else {
        println!("\n{}", summary(&arms));
        println!("{}", verdict(args));
    }
    // What is left of the agents was abandoned; nothing is waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn play(args: &DemoArgs) -> anyhow::Result<Vec<Figures>> {
    let begun = Instant::now();
    let length = Duration::from_secs(args.seconds);
    let mut arms = [Arm::start("affinity", args).await?, Arm::start("off", args).await?];
    let draws = !args.json && std::io::stdout().is_terminal();
    if !draws && !args.json {
        println!(
            "{} sessions on {} replicas, with affinity and without, for {} s",
            args.sessions, args.replicas, args.seconds
        );
    }
    let mut screen = Screen::new(std::io::stdout());
    while begun.elapsed() < length && !arms.iter().all(|arm| arm.agents.is_finished()) {
        tokio::time::sleep(REDRAW.min(length.saturating_sub(begun.elapsed()))).await;
        arms.iter_mut().for_each(Arm::count);
        if draws {
            let pictures = arms.iter().map(|arm| arm.picture(begun.elapsed())).collect::<Vec<_>>();
            screen.draw(&pictures, length.saturating_sub(begun.elapsed()), columns())?;
        }
    }
    arms.iter_mut().for_each(Arm::count);
    let elapsed = begun.elapsed();
    Ok(arms.iter().map(|arm| arm.figures(elapsed)).collect())
}

impl Arm {
    async fn start(name: &'static str, args: &DemoArgs) -> anyhow::Result<Arm> {
        let length = Duration::from_secs(args.seconds);
        let mut replicas = Vec::new();
        for _ in 0..args.replicas {
            let options =
                ReplicaOptions { model: MODEL.into(), time_scale: f64::from(args.speed), ..ReplicaOptions::default() };
            replicas.push(ReplicaServer::start(options).await.context("can't start a simulated replica")?);
        }
        let server = Server::start(config(name == "affinity", &replicas)?)?;
        let address = *server.listen.first().context("the proxy has no address")?;
        let (sender, results) = mpsc::channel(RESULTS_MAX);
        let mut workload = AgentWorkload::new(address, MODEL, args.sessions as usize);
        workload.shape.pause = Pause::Exponential(TOOLS.div_f64(f64::from(args.speed)));
        workload.grace = GRACE.min(length / 4);
        let until = tokio::time::Instant::now() + length - workload.grace;
        let client = http_client(&workload.base).context("no client for the agents")?;
        let agents = tokio::spawn(workload.drive(client, until, sender));
        let speed = f64::from(args.speed);
        Ok(Arm { name, server, _replicas: replicas, results, agents, tally: Tally::default(), speed })
    }

    /// Counts the turns that have ended since the last time.
    fn count(&mut self) {
        while let Ok(result) = self.results.try_recv() {
            self.tally.add(result, self.speed);
        }
    }

    fn figures(&self, elapsed: Duration) -> Figures {
        self.tally.figures(self.name, elapsed.mul_f64(self.speed))
    }

    fn picture(&self, elapsed: Duration) -> Picture {
        let table = self.server.routing.table();
        let snapshot = table.models[0].dispatcher.with(|balancer, now| balancer.snapshot(now));
        Picture { title: self.name, snapshot, figures: self.figures(elapsed) }
    }
}

/// A configuration as an operator would write it, so that the demo goes the way that production goes.
fn config(affinity: bool, replicas: &[ReplicaServer]) -> anyhow::Result<Config> {
    let urls: Vec<_> = replicas.iter().map(|replica| format!("http://{}", replica.address())).collect();
    let model = serde_json::json!({ "affinity": affinity, "max_num_seqs": 32, "replicas": urls });
    let file = serde_json::json!({
        "listen": "127.0.0.1:0", "admin": "off", "access_log": { "to": "off" }, "scrape_interval_ms": 250,
        "models": BTreeMap::from([(MODEL, model)]),
    });
    // JSON is YAML.
    Config::from_yaml(&file.to_string()).map_err(|error| anyhow::anyhow!("{error}"))
}

fn verdict(args: &DemoArgs) -> String {
    format!(
        "Simulated engines of 33,280 tokens of KV cache each, {} times as fast as a card; every time above is the engines'.\n\
         \"off\" sends each turn to the least loaded replica.",
        args.speed
    )
}

/// The terminal's width; a common one where it can't be told.
fn columns() -> usize {
    terminal_size::terminal_size().map_or(120, |(width, _)| usize::from(width.0))
}
