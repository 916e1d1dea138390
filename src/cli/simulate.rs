//! `kvpin simulate`: a scenario in virtual time.

use std::io::{IsTerminal as _, Write as _};
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::report::{Report, Rung, table};
use crate::simulate::{self, Cell, Detail, Scenario, Setting};

/// What to simulate.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The name of a scenario that comes with kvpin, or the path of one in YAML.
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Chooses what the agents ask and when. The same seed gives the same report, on any machine.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many runs with a seed each, from --seed on. The report has their medians and ranges.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000), value_name = "N")]
    rounds: u64,
    /// Put a value over what the scenario says, as in fleet.replicas=8 or sessions=[4,8].
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Show of each run how the replicas shared the work, and how deep in their sessions the turns were.
    #[arg(long, conflicts_with = "json")]
    detail: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What came of one cell.
type Outcome = anyhow::Result<(Rung, Detail)>;

/// Runs every cell of the scenario and prints the report.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let scenario = load(&args.scenario, &args.settings)?;
    let results = simulate_all(&scenario, args)?;
    let rungs: Vec<Rung> = results.iter().map(|(rung, _)| rung.clone()).collect();
    let report = Report::of_rounds(&rungs);
    let mut text = match args.json {
        true => serde_json::to_string(&report)? + "\n",
        false => format!("{}\n\n{}", scenario.about.trim_end(), table(&report)),
    };
    for (Rung { sessions, arm, .. }, detail) in results.iter().filter(|_| args.detail) {
        text += &format!("\n{sessions} sessions, {arm}:\n\n{}", detail.table());
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// The scenario of that name, or in the file of that path, with settings put over it.
fn load(name: &str, settings: &[Setting]) -> anyhow::Result<Scenario> {
    let text = match Scenario::built_in(name) {
        Some(text) => text.to_owned(),
        None if Path::new(name).is_file() => {
            std::fs::read_to_string(name).with_context(|| format!("can't read {name}"))?
        }
        None => {
            let known = Scenario::names().collect::<Vec<_>>().join(", ");
            bail!("there is no scenario {name:?} and no file of that name; scenarios are {known}")
        }
    };
    Scenario::parse(&text, settings).with_context(|| format!("can't use the scenario {name}"))
}

/// Cells know nothing of each other, so that they may run in any order, on as many cores as there are.
fn simulate_all(scenario: &Scenario, args: &SimulateArgs) -> anyhow::Result<Vec<(Rung, Detail)>> {
    let seeds = args.seed..args.seed.saturating_add(args.rounds);
    let jobs: Vec<(u64, Cell)> =
        seeds.flat_map(|seed| simulate::cells(scenario).into_iter().map(move |cell| (seed, cell))).collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Outcome>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let line = Progress { shown: std::io::stderr().is_terminal() && !args.json, all: jobs.len() };
    let work = || {
        while let Some((index, (seed, cell))) = claim(&next, &jobs) {
            let progress = |now| line.show(index, cell, now);
            let result = simulate::run(scenario, *cell, *seed, &progress);
            if let Ok(mut results) = results.lock() {
                results[index] = Some(result);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len()) {
            scope.spawn(work);
        }
    });
    line.clear();
    let results = results.into_inner().map_err(|_| anyhow::anyhow!("a simulation failed"))?;
    results.into_iter().flatten().collect()
}

fn claim<'a, T>(next: &AtomicUsize, jobs: &'a [T]) -> Option<(usize, &'a T)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}

/// One line on a terminal, written over and over.
struct Progress {
    shown: bool,
    all: usize,
}

impl Progress {
    fn show(&self, index: usize, cell: &Cell, now: Duration) {
        // Once in ten virtual seconds is often enough to look at.
        if self.shown && now.as_secs().is_multiple_of(10) {
            let (arm, sessions, at) = (cell.arm.as_str(), cell.sessions, now.as_secs());
            eprint!("\r{} of {}: {sessions} sessions, {arm}, {at} s \x1b[K", index + 1, self.all);
        }
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}
