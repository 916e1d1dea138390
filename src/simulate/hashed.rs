//! Every session where the hash of its id says: what `hash $http_x_session_id` of a plain proxy does.

use std::time::Duration;

use super::arm::{Arm, Ask};
use crate::balancer::{Cost, Refusal, Scrape};
use crate::sim::stats::Gauges;

#[derive(Debug)]
pub struct Hashed {
    replicas: usize,
}

impl Hashed {
    pub fn new(replicas: usize) -> Self {
        Hashed { replicas }
    }
}

impl Arm for Hashed {
    fn arrive(&mut self, ask: Ask, _now: Duration) -> Result<Option<usize>, Refusal> {
        // A subagent sends its session's id, so that it goes where its parent goes.
        Ok(Some((ask.parent.unwrap_or(ask.key).0 % self.replicas as u64) as usize))
    }

    fn first_byte(&mut self, _agent: usize, _took: Duration, _now: Duration) {}

    fn ended(&mut self, _agent: usize, _cost: Cost, _now: Duration) {}

    fn scraped(&mut self, _replica: usize, _scrape: Scrape) {}

    fn reported(&mut self, _replica: usize, _gauges: Gauges, _now: Duration) {}
}
