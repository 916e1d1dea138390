//! All that was measured.

use serde::Serialize;

use crate::machine::Machine;
use crate::proxies::Installed;
use crate::work::{Case, Column, Scenario};

/// Every measurement of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub proxies: Vec<Named>,
    pub cases: Vec<Measured>,
    /// What went wrong, in words.
    pub failures: Vec<String>,
}

/// A proxy and its version.
#[derive(Debug, Serialize)]
pub struct Named {
    pub name: String,
    pub version: String,
}

/// A case and its figures.
#[derive(Debug, Serialize)]
pub struct Measured {
    pub scenario: String,
    pub name: String,
    #[serde(serialize_with = "names")]
    pub columns: &'static [Column],
    /// For each proxy its rounds, and in each a figure for each column; none for a round that failed.
    pub figures: Vec<Vec<Option<Vec<f64>>>>,
}

impl Report {
    pub fn new(machine: Machine, proxies: &[Installed], cases: &[Case]) -> Report {
        let named = |installed: &Installed| Named { name: installed.proxy.name(), version: installed.version() };
        let empty = |case: &Case| {
            let scenario: Scenario = case.scenario;
            Measured {
                scenario: scenario.name(),
                name: case.name.clone(),
                columns: scenario.columns(),
                figures: vec![Vec::new(); proxies.len()],
            }
        };
        Report {
            machine,
            proxies: proxies.iter().map(named).collect(),
            cases: cases.iter().map(empty).collect(),
            failures: Vec::new(),
        }
    }

    /// Adds what a round has of a proxy in a case.
    pub fn add(&mut self, case: usize, proxy: usize, round: u32, measured: anyhow::Result<Vec<f64>>) {
        let case = &mut self.cases[case];
        let rounds = &mut case.figures[proxy];
        rounds.resize(round as usize, None);
        match measured {
            Ok(figures) => rounds.push(Some(figures)),
            Err(error) => {
                rounds.push(None);
                let (round, proxy) = (round + 1, &self.proxies[proxy].name);
                self.failures.push(format!("{}: {}: {proxy}, round {round}: {error:#}", case.scenario, case.name));
            }
        }
    }

    /// Which of the proxies has this name.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.proxies.iter().position(|proxy| proxy.name == name)
    }
}

impl Measured {
    /// A column's figure in a round.
    pub fn figure(&self, proxy: usize, round: usize, column: usize) -> Option<f64> {
        let figure = *self.figures.get(proxy)?.get(round)?.as_ref()?.get(column)?;
        (!figure.is_nan()).then_some(figure)
    }

    pub fn rounds(&self, proxy: usize) -> usize {
        self.figures.get(proxy).map_or(0, Vec::len)
    }
}

fn names<S: serde::Serializer>(columns: &&'static [Column], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(columns.iter().map(|column| column.name))
}
