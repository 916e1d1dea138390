//! kvpin's own decisions: the balancer that serves, driven as `dispatch` and `replica` drive it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::arm::{Arm, Ask};
use super::scenario::{BalancerSettings, Scenario, SpillThreshold};
use crate::balancer::{
    self, Balancer, Bounds, Cost, HealthPolicy, Mode, Outcome, Policy, Refusal, ReplicaId, ReplicaSpec,
};
use crate::balancer::{Scrape, Ticket, Turn};
use crate::sim::stats::Gauges;

#[derive(Debug)]
pub struct Kvpin {
    balancer: Balancer,
    /// The turns in flight, by their agent.
    tickets: BTreeMap<usize, Ticket>,
}

/// What the configuration has by default.
const BOUNDS: Bounds = Bounds { entries_max: 100_000, idle_max: Duration::from_secs(24 * 60 * 60) };

impl Kvpin {
    pub fn new(scenario: &Scenario, mode: Mode) -> Self {
        let BalancerSettings { spill_threshold } = scenario.balancer;
        let policy = Policy {
            mode,
            spill_threshold: match spill_threshold {
                SpillThreshold::Turns(turns) => balancer::SpillThreshold::Fixed(turns),
                SpillThreshold::Word(_) => balancer::SpillThreshold::Auto,
            },
            max_num_seqs: Some(scenario.fleet.max_num_seqs as u32),
            bounds: BOUNDS,
            health: HealthPolicy::default(),
        };
        let specs = (0..scenario.fleet.replicas as u16).map(spec).collect();
        Kvpin { balancer: Balancer::new(policy, specs, Duration::ZERO), tickets: BTreeMap::new() }
    }
}

impl Arm for Kvpin {
    fn arrive(&mut self, ask: Ask, now: Duration) -> Result<usize, Refusal> {
        let turn = Turn { parent: ask.parent, ..Turn::of(Some(ask.key)) };
        let ticket = self.balancer.arrive(&turn, now)?;
        let replica = ticket.replica.index();
        self.tickets.insert(ask.agent, ticket);
        Ok(replica)
    }

    fn first_byte(&mut self, agent: usize, took: Duration, now: Duration) {
        if let Some(ticket) = self.tickets.get_mut(&agent) {
            self.balancer.served(ticket, now);
            self.balancer.note_first_byte(ticket, took);
        }
    }

    fn ended(&mut self, agent: usize, cost: Cost, now: Duration) {
        if let Some(ticket) = self.tickets.remove(&agent) {
            self.balancer.charge(&ticket, &cost);
            self.balancer.finish(ticket, Outcome::Completed, now);
        }
        // A live shell logs them.
        drop(self.balancer.take_news());
    }

    fn scraped(&mut self, replica: usize, scrape: Scrape) {
        if let Some(id) = ReplicaId::from_index(replica) {
            self.balancer.scrape_begins(id);
            self.balancer.scraped(id, scrape);
        }
    }

    fn reported(&mut self, _replica: usize, _gauges: Gauges, _now: Duration) {}
}

/// The replicas of a simulation have addresses that nobody reaches.
fn spec(number: u16) -> ReplicaSpec {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
    let (name, authority) = (format!("replica-{number}"), address.to_string());
    ReplicaSpec { name, address, authority, is_tls: false, rank: None, drain: false }
}
