//! What comes out: a table with what it doesn't say of itself, JSON, pictures.

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::report::{self, Plot, Report};

use super::args::BenchArgs;
use super::calibrate::Sizes;
use super::cell::Measured;

/// What `--json` prints.
#[derive(Serialize)]
pub struct Output {
    #[serde(flatten)]
    pub report: Report,
    pub bench: Facts,
}

/// What was measured, and how.
#[derive(Serialize)]
pub struct Facts {
    pub model: String,
    pub api: &'static str,
    pub arms: Vec<(String, String)>,
    pub engines: Vec<String>,
    /// How long each measurement had gone on when it began to count.
    pub warmup_s: u64,
    pub seconds: u64,
    pub rounds: u32,
    pub seed: u64,
    pub sizes: Sizes,
    /// Why not everything was measured.
    pub broken_off: Option<BrokenOff>,
    pub cells: Vec<Measured>,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokenOff {
    Interrupted,
    Failed(String),
}

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrokenOff::Interrupted => f.write_str("interrupted"),
            BrokenOff::Failed(why) => f.write_str(why),
        }
    }
}

/// Prints the table, or JSON, and writes what files were asked for.
pub fn print(args: &BenchArgs, output: &Output) -> anyhow::Result<()> {
    if let Some(directory) = &args.plots {
        plot(&output.report, directory)?;
    }
    let json = serde_json::to_string(output)?;
    if let Some(file) = &args.save {
        std::fs::write(file, format!("{json}\n")).with_context(|| format!("can't write {}", file.display()))?;
    }
    if args.json {
        println!("{json}");
    } else {
        println!("{}", report::table(&output.report));
        println!("{}", words(output));
    }
    Ok(())
}

/// Writes every picture that the report is good for.
fn plot(report: &Report, directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("can't make {}", directory.display()))?;
    for plot in Plot::ALL {
        match plot.svg(report) {
            Ok(svg) => {
                let file = directory.join(plot.file());
                std::fs::write(&file, svg).with_context(|| format!("can't write {}", file.display()))?;
            }
            Err(reason) => eprintln!("{reason}"),
        }
    }
    Ok(())
}

/// What the table doesn't say of itself.
fn words(output: &Output) -> String {
    let facts = &output.bench;
    let of_all = |holds: fn(&Measured) -> bool| facts.cells.iter().all(holds);
    let caches = match of_all(|cell| cell.caches_emptied) {
        true => "Before each measurement the engines emptied their caches, and its text is new.",
        false => {
            "The text of each measurement is new, its system prompt too; the engines keep what they hold of others."
        }
    };
    let hits = match of_all(|cell| cell.hits_by_engines) {
        true => "Hits are the engines' own count.",
        false => "Hits are of the usage that complete answers tell.",
    };
    let sizes = facts.cells.last().map_or_else(String::new, |cell| {
        let turns = cell.sizes.iter().map(|(_, prompt, reply)| format!("{prompt}+{reply}"));
        format!(" Measured prompt and reply tokens, turn by turn: {}.", turns.collect::<Vec<_>>().join(", "))
    });
    let warmup = match facts.warmup_s {
        0 => String::new(),
        warmup_s => format!(" after {warmup_s} s of warm-up"),
    };
    format!(
        "{} s a measurement{warmup}, {} rounds, {}, seed {}. {caches} {hits}{sizes}\n\
         A wait goes from a turn's first try to its first token. Of a turn without an answer it goes to the end of the measurement, and\n\
         is in the percentiles with that: what stands there is the least that it can have been.",
        facts.seconds, facts.rounds, facts.api, facts.seed,
    )
}
