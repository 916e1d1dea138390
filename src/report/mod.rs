//! What a run of agents is judged by, whoever made it: `bench` on real engines, `simulate` on modelled ones. One set of columns,
//! one way to count, one table and one JSON form, so that figures of the two can be laid side by side.

mod figures;
mod plot;
mod rounds;
mod table;
mod tally;

pub use figures::{Column, Figures};
pub use plot::{NoPlot, Plot};
pub use rounds::{Range, summarise};
pub use table::table;
pub use tally::{Ending, Tally, TurnSeen};

use serde::{Deserialize, Serialize};

/// What `--json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// One for each number of sessions and arm; medians, where there were several rounds.
    pub rungs: Vec<Rung>,
    /// How far the rounds lie apart, in the order of `rungs`. Empty where there was one round.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<Range>,
}

/// The figures of one arm with so many sessions at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rung {
    pub sessions: u32,
    pub arm: String,
    #[serde(flatten)]
    pub figures: Figures,
}

impl Report {
    /// The report of a run with one round.
    pub fn of(rungs: Vec<Rung>) -> Self {
        Report { rungs, ranges: Vec::new() }
    }

    /// The report of several rounds: rungs of the same sessions and arm are summed up, in the order in which each came first.
    pub fn of_rounds(rungs: &[Rung]) -> Self {
        summarise(rungs)
    }
}
