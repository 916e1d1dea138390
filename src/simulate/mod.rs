//! `kvpin simulate`: agents, balancers and engines in virtual time.
//!
//! ```text
//! scenario --> world --+--> agent     what is asked, and when
//!                      +--> arm       who decides: kvpin's balancer itself, vLLM's, or a hash
//!                      +--> host      the engines of `sim`, many steps at a time
//!                      +--> report    what came of it
//! ```
//! The balancer is the one that serves, and the engine the one behind `kvpin replica`. One scenario and one seed give one
//! report, on any machine: events of one moment have an order, iterated maps are ordered, time is whole nanoseconds, and nothing is
//! computed by functions that differ between C libraries. So a policy can be judged by differences that no noise made.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod agent;
mod arm;
mod detail;
mod hashed;
mod host;
mod kvpin;
mod queue;
mod scenario;
mod settings;
mod spread;
#[cfg(test)]
mod tests;
mod vllm;
mod world;

use std::time::Duration;

pub use detail::Detail;
pub use scenario::{ArmName, Scenario};
pub use settings::Setting;

use crate::report::Rung;
use world::World;

/// One rung of one arm: a run of its own, which knows nothing of the others.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    pub sessions: u32,
    pub arm: ArmName,
}

/// The cells of a scenario in the order of the report.
pub fn cells(scenario: &Scenario) -> Vec<Cell> {
    let arms =
        |sessions: &u32| scenario.arms.iter().map(|arm| Cell { sessions: *sessions, arm: *arm }).collect::<Vec<_>>();
    scenario.sessions.iter().flat_map(arms).collect()
}

/// Runs a cell. `progress` is told the virtual time now and then.
pub fn run(scenario: &Scenario, cell: Cell, seed: u64, progress: &dyn Fn(Duration)) -> anyhow::Result<(Rung, Detail)> {
    let Cell { sessions, arm } = cell;
    let (figures, detail) = World::new(scenario, arm, sessions, seed)?.run(progress);
    Ok((Rung { sessions, arm: arm.as_str().to_owned(), figures }, detail))
}
