//! vLLM's own balancer of data-parallel ranks (`v1/engine/core_client.py`, `v1/engine/coordinator.py`), which sees counts of
//! requests and never a prefix or a session.
//!
//! Each API server has a view of its own. A coordinator sends the engines' counts to all of them, at most every 100 ms and at
//! least every few seconds, and what it sends replaces what a server has added since.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::arm::{Arm, Ask};
use super::scenario::{VllmRule, VllmSettings};
use crate::balancer::{Cost, Refusal, Scrape};
use crate::sim::stats::Gauges;

/// The coordinator's `min_stats_update_interval_ms`.
const SENDS_APART: Duration = Duration::from_millis(100);
/// How long the coordinator waits at most while nothing changes: 5 s from the last send, less the time since.
const SENDS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct VllmBalancer {
    rule: VllmRule,
    servers: Vec<Server>,
    /// What the engines have told.
    told: Vec<Told>,
    last_sent: Duration,
    /// When what has changed since is sent.
    due: Option<Duration>,
    /// Which API server has an agent's connection, and where its turn is: by agent.
    turns: Vec<Option<(usize, usize)>>,
    first_server_percent: u32,
    connections: ChaCha8Rng,
}

/// What one engine has told of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Told {
    waiting: u32,
    running: u32,
    kv_use: f64,
}

#[derive(Debug)]
struct Server {
    view: Vec<Told>,
    /// Its own requests that are in an engine.
    in_flight: Vec<u32>,
    /// Where its search begins.
    start: usize,
}

impl VllmBalancer {
    pub fn new(settings: VllmSettings, engines: usize, seed: u64) -> Self {
        let server = |number: usize| Server {
            view: vec![Told::default(); engines],
            in_flight: vec![0; engines],
            start: engines * number / settings.api_servers,
        };
        VllmBalancer {
            rule: settings.rule,
            servers: (0..settings.api_servers).map(server).collect(),
            told: vec![Told::default(); engines],
            last_sent: Duration::ZERO,
            due: None,
            turns: Vec::new(),
            first_server_percent: settings.first_server_percent,
            connections: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Sends what the coordinator has sent until now.
    fn catch_up(&mut self, now: Duration) {
        if let Some(due) = self.due.filter(|due| *due <= now) {
            self.send(due);
        }
        let quiet = now.saturating_sub(self.last_sent).as_nanos() / SENDS_WITHIN.as_nanos();
        if self.due.is_none() && quiet > 0 {
            self.send(self.last_sent + SENDS_WITHIN * quiet as u32);
        }
    }

    fn send(&mut self, at: Duration) {
        for server in &mut self.servers {
            server.view.copy_from_slice(&self.told);
        }
        self.last_sent = at;
        self.due = None;
    }

    /// Whichever of the servers that share the socket takes the connection.
    fn accept(&mut self) -> usize {
        let percent = self.connections.random_range(0..100);
        let any = self.connections.random_range(0..self.servers.len());
        if percent < self.first_server_percent { 0 } else { any }
    }

    fn choose(&mut self, server: usize) -> usize {
        let servers = self.servers.len() as u32;
        let Server { view, in_flight, start } = &mut self.servers[server];
        let engines = view.len();
        let order = (0..engines).map(|step| (*start + step) % engines);
        let score = |engine: &usize| {
            let told = view[*engine];
            match self.rule {
                VllmRule::Counts | VllmRule::CountsUntold => f64::from(told.waiting * 4 + told.running),
                VllmRule::Score => {
                    let requests = (servers * in_flight[*engine]).max(told.waiting + told.running);
                    f64::from(requests) + f64::from(told.waiting) * 6.0 * (told.kv_use - 0.5).max(0.0)
                }
            }
        };
        let chosen = order.min_by(|one, other| score(one).total_cmp(&score(other))).unwrap_or(0);
        in_flight[chosen] += 1;
        view[chosen].waiting += servers;
        match self.rule {
            VllmRule::Counts | VllmRule::CountsUntold => {}
            VllmRule::Score => *start = (*start + 1) % engines,
        }
        chosen
    }
}

impl Arm for VllmBalancer {
    fn arrive(&mut self, ask: Ask, now: Duration) -> Result<Option<usize>, Refusal> {
        self.catch_up(now);
        let server = self.accept();
        let engine = self.choose(server);
        if self.turns.len() <= ask.agent {
            self.turns.resize(ask.agent + 1, None);
        }
        self.turns[ask.agent] = Some((server, engine));
        Ok(Some(engine))
    }

    fn first_byte(&mut self, _agent: usize, _took: Duration, _now: Duration) {}

    fn ended(&mut self, agent: usize, _cost: Cost, _now: Duration) {
        if let Some((server, engine)) = self.turns[agent].take() {
            self.servers[server].in_flight[engine] -= 1;
        }
    }

    fn scraped(&mut self, _replica: usize, _scrape: Scrape) {}

    fn reported(&mut self, replica: usize, gauges: Gauges, now: Duration) {
        self.catch_up(now);
        let told = match self.rule {
            VllmRule::CountsUntold => return,
            VllmRule::Counts | VllmRule::Score => {
                Told { waiting: gauges.waiting as u32, running: gauges.running as u32, kv_use: gauges.kv_usage }
            }
        };
        let counts = |told: &Told| (told.waiting, told.running);
        if counts(&self.told[replica]) != counts(&told) {
            self.due.get_or_insert(now.max(self.last_sent + SENDS_APART));
        }
        self.told[replica] = told;
        self.catch_up(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::ConversationKey;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn balancer(rule: VllmRule) -> VllmBalancer {
        VllmBalancer::new(VllmSettings { rule, ..VllmSettings::default() }, 4, 0)
    }

    /// Where requests go that come at these seconds, each from an agent of its own.
    fn route(balancer: &mut VllmBalancer, agents: std::ops::Range<usize>, at: Duration) -> Vec<usize> {
        let ask = |agent| Ask { agent, key: ConversationKey(0), parent: None, body_bytes: 0 };
        agents.map(|agent| balancer.arrive(ask(agent), at).expect("it serves").expect("an engine")).collect()
    }

    fn gauges(running: usize, waiting: usize, kv_usage: f64) -> Gauges {
        Gauges { running, waiting, kv_usage }
    }

    #[test]
    fn without_counts_every_few_seconds_begin_at_the_same_engine_again() {
        let mut balancer = balancer(VllmRule::CountsUntold);
        balancer.reported(0, gauges(9, 9, 1.0), S(1));
        assert_eq!(route(&mut balancer, 0..6, S(1)), [0, 1, 2, 3, 0, 1]);
        assert_eq!(route(&mut balancer, 6..8, S(4)), [2, 3]);
        assert_eq!(route(&mut balancer, 8..10, S(5)), [0, 1], "the send of the fifth second forgets what was added");
    }

    #[test]
    fn told_counts_replace_what_a_server_has_added() {
        let mut balancer = balancer(VllmRule::Counts);
        balancer.reported(0, gauges(2, 0, 0.1), S(1));
        assert_eq!(route(&mut balancer, 0..3, S(1)), [1, 2, 3]);
        balancer.reported(1, gauges(1, 0, 0.1), S(1) + Duration::from_millis(50));
        assert_eq!(route(&mut balancer, 3..4, S(1) + Duration::from_millis(60)), [0], "what was told is not sent yet");
        assert_eq!(route(&mut balancer, 4..6, S(2)), [2, 3]);
    }

    #[test]
    fn requests_in_flight_count_though_no_engine_has_told_them() {
        let mut balancer = balancer(VllmRule::Score);
        assert_eq!(route(&mut balancer, 0..4, S(1)), [0, 1, 2, 3]);
        balancer.ended(2, Cost::default(), S(2));
        assert_eq!(route(&mut balancer, 4..5, S(20)), [2]);
    }

    #[test]
    fn a_queue_in_front_of_a_full_cache_weighs_more() {
        let mut balancer = balancer(VllmRule::Score);
        for (engine, kv_usage) in [(0, 1.0), (1, 0.4), (2, 1.0), (3, 1.0)] {
            balancer.reported(engine, gauges(2, 1, kv_usage), S(1));
        }
        assert_eq!(route(&mut balancer, 0..2, S(2)), [1, 1]);
    }

    #[test]
    fn each_server_begins_at_an_engine_of_its_own() {
        let settings = VllmSettings { rule: VllmRule::CountsUntold, api_servers: 4, first_server_percent: 0 };
        let balancer = VllmBalancer::new(settings, 4, 0);
        assert_eq!(balancer.servers.iter().map(|server| server.start).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let settings = VllmSettings { first_server_percent: 100, ..settings };
        assert_eq!(route(&mut VllmBalancer::new(settings, 4, 0), 0..4, S(1)), [0, 1, 2, 3]);
    }
}
