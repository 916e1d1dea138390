//! `kvpin bench`: agent sessions on a real server, measured. The same work for each of the arms, which take turns.

mod args;
mod arms;
mod calibrate;
mod cell;
mod engines;
mod output;
mod plan;
mod screen;
mod seen;
mod trace;
mod web;

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::sync::watch;

use crate::config::one_word;
use crate::report::{Report, Rung};
use crate::sim::agent::{ASSUMED_BYTES_PER_TOKEN, AgentDialect, AgentWorkload, HttpClient, SessionPlan, http_client};

pub use args::BenchArgs;

use arms::{Arm, Compared};
use calibrate::{Sizes, calibrate};
use cell::{Measured, Stage};
use engines::Engines;
use output::{BrokenOff, Facts, Output, print};
use plan::{Cell, cells};
use screen::Screen;
use web::Web;

/// How long a short question may take: engines on a busy machine are slow to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a measurement is.
const SECONDS: u64 = 180;

/// What comes after the last turn of a trace was due.
const AFTER_TRACE: Duration = Duration::from_secs(60);

/// Exit status of a command that was interrupted, as shells have it for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Measures and prints. Exit 0 done, 1 failed, 130 interrupted; then what was measured until then is printed too.
pub fn run(args: &BenchArgs) -> ExitCode {
    if let Some(log) = &args.record {
        return super::finish(record(log, args.model.as_deref()));
    }
    let runtime = match tokio::runtime::Runtime::new().context("can't start the runtime") {
        Ok(runtime) => runtime,
        Err(error) => return super::finish(Err(error)),
    };
    let output = runtime.block_on(measure(args)).and_then(|output| {
        print(args, &output)?;
        Ok(output)
    });
    // What is left of the agents was abandoned; nothing is waited for.
    runtime.shutdown_background();
    match output.map(|output| output.bench.broken_off) {
        Ok(Some(BrokenOff::Interrupted)) => ExitCode::from(EXIT_INTERRUPTED),
        Ok(Some(BrokenOff::Failed(_))) => ExitCode::FAILURE,
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => super::finish(Err(error)),
    }
}

async fn measure(args: &BenchArgs) -> anyhow::Result<Output> {
    let compared = Compared::of(args, args.model.as_deref()).await?;
    let engines: Vec<String> = match args.engines.as_slice() {
        [] => compared.engines.clone(),
        given => given.iter().map(|url| web::base(url)).collect::<anyhow::Result<_>>()?,
    };
    let bases: Vec<String> = compared.arms.iter().map(|arm| arm.base.clone()).chain(engines.clone()).collect();
    let web = Web::new(&bases, PATIENCE)?;
    let client = http_client(bases.iter().find(|base| base.starts_with("https:")).map_or("http:", String::as_str))?;
    let api_key = args.api_key_file.as_deref().map(key).transpose()?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => first_model(&web, &compared.arms[0], api_key.as_deref()).await?,
    };
    let workload = workload(args, &model, api_key)?;
    let (sessions, length) = match &workload.replay {
        Some(plans) => (vec![u32::try_from(plans.len())?], trace::length(plans) + AFTER_TRACE),
        None => (args.sessions.clone(), Duration::from_secs(SECONDS)),
    };
    let length = args.seconds.map_or(length, Duration::from_secs);
    let run = Run { args, compared, engines: Engines::new(web, engines), client, workload, sessions, length };
    run.through().await
}

/// Everything that a run needs.
struct Run<'a> {
    args: &'a BenchArgs,
    compared: Compared,
    engines: Engines,
    client: HttpClient,
    workload: AgentWorkload,
    /// The ladder.
    sessions: Vec<u32>,
    /// Of each measurement.
    length: Duration,
}

impl Run<'_> {
    /// From the first measurement to the last, or to an interrupt.
    async fn through(mut self) -> anyhow::Result<Output> {
        let args = self.args;
        let cells = cells(&self.sessions, self.compared.arms.len(), args.rounds);
        let mut screen = Screen::new(args.rounds, cells.len());
        let sizes = self.calibrate(&mut screen).await?;
        let mut stop = interrupts();
        let warmup = Duration::from_secs(args.warmup);
        let mut measured = Vec::new();
        let mut broken_off = None;
        for cell in cells {
            let stage = Stage {
                arms: &self.compared.arms,
                switch: self.compared.switch.as_ref(),
                engines: &self.engines,
                client: &self.client,
                window: warmup..warmup + self.length,
            };
            match stage.measure(cell, self.workload_of(cell), &mut screen, &mut stop).await {
                Ok(Some(of_cell)) => measured.push(of_cell),
                Ok(None) => broken_off = Some(BrokenOff::Interrupted),
                Err(error) => broken_off = Some(BrokenOff::Failed(format!("{error:#}"))),
            }
            if let Some(why) = &broken_off {
                screen.say(&format!("{why}: what was being measured is left out"));
                break;
            }
        }
        if let Some(switch) = &self.compared.switch {
            // What was measured is worth more than an end without a complaint.
            if let Err(error) = switch.put_back().await {
                screen.say(&format!("affinity was not put back as it was: {error:#}"));
            }
        }
        Ok(self.output(sizes, broken_off, measured))
    }

    /// Each arm answers once at least, before anything is measured.
    async fn calibrate(&mut self, screen: &mut Screen) -> anyhow::Result<Sizes> {
        let mut sizes = None;
        for (number, arm) in self.compared.arms.iter().enumerate() {
            self.workload.base = arm.base.clone();
            let of_arm = calibrate(&mut self.workload, &self.client, number as u64).await?;
            sizes.get_or_insert(of_arm);
        }
        let Some(sizes) = sizes else { bail!("there is nothing to measure") };
        let tokens = |count: Option<u64>| count.map_or("?".to_owned(), |count| count.to_string());
        screen.say(&format!(
            "model {}: {} bytes of this text are a token; the system prompt has {} tokens, a first message {} or more, the first turn in all {} or more",
            self.workload.model,
            sizes.bytes_per_token,
            tokens(sizes.system_tokens),
            tokens(sizes.first_message_tokens),
            tokens(sizes.first_turn_tokens),
        ));
        if sizes.first_turn_tokens.is_none() {
            screen.say("the server tells no usage: sizes are estimates, and so are output tokens");
        }
        Ok(sizes)
    }

    /// The work of a cell: the same sizes for every arm of a rung in a round, and a text that no other cell has.
    fn workload_of(&self, cell: Cell) -> AgentWorkload {
        let of_rung =
            self.args.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(cell.round) << 32 | u64::from(cell.sessions));
        AgentWorkload {
            base: self.compared.arms[cell.arm].base.clone(),
            sessions: cell.sessions as usize,
            seed: of_rung,
            salt: cell.arm as u64 + 1,
            ..self.workload.clone()
        }
    }

    fn output(&self, sizes: Sizes, broken_off: Option<BrokenOff>, measured: Vec<Measured>) -> Output {
        let rungs: Vec<Rung> = measured.iter().map(|measured| measured.rung.clone()).collect();
        let arms = self.compared.arms.iter().map(|arm| (arm.name.clone(), arm.base.clone())).collect();
        Output {
            report: Report::of_rounds(&rungs),
            bench: Facts {
                model: self.workload.model.clone(),
                api: match self.workload.dialect {
                    AgentDialect::Messages => "/v1/messages",
                    AgentDialect::Chat => "/v1/chat/completions",
                },
                arms,
                engines: self.engines.urls().to_vec(),
                warmup_s: self.args.warmup,
                seconds: self.length.as_secs(),
                rounds: self.args.rounds,
                seed: self.args.seed,
                sizes,
                broken_off,
                cells: measured,
            },
        }
    }
}

fn workload(args: &BenchArgs, model: &str, api_key: Option<String>) -> anyhow::Result<AgentWorkload> {
    let shape = args.shape.shape();
    let replay = args.replay.as_deref().map(|file| replay(file, shape.system_tokens)).transpose()?;
    Ok(AgentWorkload {
        base: String::new(),
        model: model.to_owned(),
        sessions: 0,
        dialect: args.api.into(),
        shape,
        replay,
        // What runs at the end is cut off there, and counted as what it was.
        grace: Duration::ZERO,
        seed: args.seed,
        salt: 0,
        bytes_per_token: ASSUMED_BYTES_PER_TOKEN,
        api_key,
        session_headers: args.session_headers.clone(),
    })
}

fn replay(file: &Path, system_tokens: u32) -> anyhow::Result<Arc<Vec<SessionPlan>>> {
    let plans = trace::read(open(file)?, system_tokens).with_context(|| file.display().to_string())?;
    Ok(Arc::new(plans))
}

/// Prints a trace of an access log, and says on stderr what it took.
fn record(log: &Path, model: Option<&str>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let recorded = trace::record(open(log)?, model, &mut out).with_context(|| log.display().to_string())?;
    eprintln!("{} turns of {} sessions; {} lines passed over", recorded.turns, recorded.sessions, recorded.passed_over);
    Ok(())
}

fn open(file: &Path) -> anyhow::Result<BufReader<File>> {
    Ok(BufReader::new(File::open(file).with_context(|| format!("can't read {}", file.display()))?))
}

fn key(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let key = one_word(&text, 1).map_err(|reason| anyhow::anyhow!("{}: {reason}", file.display()))?;
    Ok(key.expose().to_owned())
}

async fn first_model(web: &Web, arm: &Arm, api_key: Option<&str>) -> anyhow::Result<String> {
    let url = format!("{}/v1/models", arm.base);
    let listed: Value = serde_json::from_slice(&web.get(&url, api_key).await?)
        .with_context(|| format!("{url} is no list of models"))?;
    match listed["data"][0]["id"].as_str() {
        Some(id) => Ok(id.to_owned()),
        None => bail!("{url} lists no model; name one with --model"),
    }
}

/// Turns true with Ctrl-C.
fn interrupts() -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            sender.send_replace(true);
        }
        // Held for good: a channel that closes reads as an interrupt.
        sender.closed().await;
    });
    receiver
}
