//! kvpin's own decisions: the balancer that serves, driven as `dispatch` and `replica` drive it.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::arm::{Arm, Ask};
use super::scenario::{BalancerSettings, Scenario, SpillThreshold};
use crate::balancer::{
    self, Balancer, Bounds, Cost, HealthPolicy, Mode, Outcome, Policy, Refusal, ReplicaId, ReplicaSpec,
};
use crate::balancer::{AdmissionMode, Entry, Place, Scrape, Ticket, Turn};
use crate::sim::stats::Gauges;

#[derive(Debug)]
pub struct Kvpin {
    balancer: Balancer,
    /// The turns in flight, by their agent.
    tickets: BTreeMap<usize, Ticket>,
    held: BTreeMap<Place, Vec<Ask>>,
}

/// What the configuration has by default.
const BOUNDS: Bounds = Bounds { entries_max: 100_000, idle_max: Duration::from_secs(24 * 60 * 60) };

impl Kvpin {
    pub fn new(scenario: &Scenario, mode: Mode, admission: AdmissionMode) -> Self {
        let BalancerSettings { spill_threshold, admission: settings } = scenario.balancer;
        let policy = Policy {
            mode,
            spill_threshold: match spill_threshold {
                SpillThreshold::Turns(turns) => balancer::SpillThreshold::Fixed(turns),
                SpillThreshold::Word(_) => balancer::SpillThreshold::Auto,
            },
            max_num_seqs: Some(scenario.fleet.max_num_seqs as u32),
            admission: settings.policy(admission),
            bounds: BOUNDS,
            health: HealthPolicy::default(),
        };
        let specs = (0..scenario.fleet.replicas as u16).map(spec).collect();
        Kvpin {
            balancer: Balancer::new(policy, specs, Duration::ZERO),
            tickets: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }
}

impl Arm for Kvpin {
    fn arrive(&mut self, ask: Ask, now: Duration) -> Result<Option<usize>, Refusal> {
        Ok(match self.balancer.admit(&turn(&ask), now)? {
            Entry::Seated(ticket) => Some(self.seat(&ask, ticket)),
            Entry::Held(place) => {
                self.held.entry(place).or_default().push(ask);
                None
            }
        })
    }

    fn let_in(&mut self, now: Duration) -> Vec<(usize, Result<usize, Refusal>)> {
        let places = self.balancer.take_let_in();
        let asks: Vec<_> = places.iter().filter_map(|place| self.held.remove(place)).flatten().collect();
        let mut let_in = Vec::new();
        for ask in asks {
            let ticket = self.balancer.arrive(&turn(&ask), now);
            let_in.push((ask.agent, ticket.map(|ticket| self.seat(&ask, ticket))));
        }
        let_in
    }

    fn tick(&mut self, now: Duration) {
        self.balancer.tick(now);
    }

    fn first_byte(&mut self, agent: usize, took: Duration, now: Duration) {
        if let Some(ticket) = self.tickets.get_mut(&agent) {
            self.balancer.served(ticket, now);
            self.balancer.note_first_byte(ticket, took);
        }
    }

    fn ended(&mut self, agent: usize, cost: Cost, now: Duration) {
        if let Some(ticket) = self.tickets.remove(&agent) {
            self.balancer.charge(&ticket, &cost, now);
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

impl Kvpin {
    fn seat(&mut self, ask: &Ask, ticket: Ticket) -> usize {
        let replica = ticket.replica.index();
        self.tickets.insert(ask.agent, ticket);
        replica
    }
}

fn turn(ask: &Ask) -> Turn<'static> {
    Turn { parent: ask.parent, body_bytes: ask.body_bytes, ..Turn::of(Some(ask.key)) }
}

/// The replicas of a simulation have addresses that nobody reaches.
fn spec(number: u16) -> ReplicaSpec {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
    let (name, authority) = (format!("replica-{number}"), address.to_string());
    ReplicaSpec { name, address, authority, is_tls: false, rank: None, drain: false }
}
