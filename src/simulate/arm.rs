//! Who decides where a turn goes: the balancer that serves, and those that it is compared with.

use std::time::Duration;

use super::hashed::Hashed;
use super::kvpin::Kvpin;
use super::scenario::{ArmName, Scenario};
use super::vllm::VllmBalancer;
use crate::balancer::{AdmissionMode, Cost, Mode, Refusal, Scrape};
use crate::conversation::ConversationKey;
use crate::sim::stats::Gauges;

/// A turn that needs a replica.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The agent's place in the run. It has one turn at a time.
    pub agent: usize,
    pub key: ConversationKey,
    pub parent: Option<ConversationKey>,
    pub body_bytes: u64,
}

/// A balancer as the simulation drives it: by the same calls, and with the same knowledge, as a live one.
pub trait Arm {
    /// Decides for a turn, and takes its slot. `None`: it is held.
    fn arrive(&mut self, ask: Ask, now: Duration) -> Result<Option<usize>, Refusal>;

    /// The turns that were held and are not any more, by their agents, each with its replica.
    fn let_in(&mut self, _now: Duration) -> Vec<(usize, Result<usize, Refusal>)> {
        Vec::new()
    }

    /// Time has passed.
    fn tick(&mut self, _now: Duration) {}

    /// The first byte of a turn's answer has come, so long after it arrived.
    fn first_byte(&mut self, agent: usize, took: Duration, now: Duration);

    /// A turn is over, and has cost so much.
    fn ended(&mut self, agent: usize, cost: Cost, now: Duration);

    /// A replica was looked at.
    fn scraped(&mut self, replica: usize, scrape: Scrape);

    /// A replica ended a step, and would say this of itself.
    fn reported(&mut self, replica: usize, gauges: Gauges, now: Duration);
}

/// The arm of that name for a scenario.
pub fn build(name: ArmName, scenario: &Scenario, seed: u64) -> Box<dyn Arm> {
    let replicas = scenario.fleet.replicas;
    match name {
        ArmName::Vllm => Box::new(VllmBalancer::new(scenario.vllm, replicas, seed)),
        ArmName::Affinity => Box::new(Kvpin::new(scenario, Mode::Affinity, AdmissionMode::Off)),
        ArmName::Admission => Box::new(Kvpin::new(scenario, Mode::Affinity, AdmissionMode::Auto)),
        ArmName::Fair => Box::new(Kvpin::new(scenario, Mode::Affinity, AdmissionMode::Fair)),
        ArmName::LeastLoaded => Box::new(Kvpin::new(scenario, Mode::LeastLoaded, AdmissionMode::Off)),
        ArmName::Hashed => Box::new(Hashed::new(replicas)),
    }
}
