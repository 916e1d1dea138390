//! A replica in virtual time: its engine, and which agent waits for which of its requests.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::balancer::{Scrape, Signs};
use crate::sim::engine::Engine;
use crate::sim::request::{Outline, RequestId, SubmitError, TokenEvent};

#[derive(Debug)]
pub struct Host {
    pub engine: Engine,
    agents: BTreeMap<RequestId, usize>,
    /// When the steps under way end, and which of the ends that were announced is the one that holds.
    due: Option<Duration>,
    announced: u32,
    busy_since: Option<Duration>,
    busy: Duration,
}

/// When a host's steps end, if nothing comes before.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    pub at: Duration,
    /// An end is void once another one was announced.
    pub announced: u32,
}

/// What came of steps that have ended.
#[derive(Debug)]
pub struct Ended {
    /// Each token with the agent whose it is.
    pub tokens: Vec<(usize, TokenEvent)>,
    /// When the next steps end, if that is news.
    pub due: Option<Due>,
}

impl Host {
    pub fn new(engine: Engine) -> Self {
        Host { engine, agents: BTreeMap::new(), due: None, announced: 0, busy_since: None, busy: Duration::ZERO }
    }

    /// Takes a request. Returns when the steps end that are under way now, if that is news.
    pub fn submit(&mut self, outline: Outline, agent: usize, now: Duration) -> Result<Option<Due>, SubmitError> {
        let request = self.engine.submit_outline(outline)?;
        self.agents.insert(request, agent);
        self.busy_since.get_or_insert(now);
        let due = self.engine.interrupt(now).or_else(|| self.engine.begin_steps(now));
        Ok(self.announce(due))
    }

    /// Ends the steps that are due, unless the announcement is void, and begins the next ones.
    pub fn end_steps(&mut self, announced: u32, now: Duration) -> Option<Ended> {
        if announced != self.announced || self.due != Some(now) {
            return None;
        }
        let events = self.engine.end_step();
        let mut tokens = Vec::with_capacity(events.len());
        for event in events {
            let agent = match event.finished {
                Some(_) => self.agents.remove(&event.request),
                None => self.agents.get(&event.request).copied(),
            };
            tokens.extend(agent.map(|agent| (agent, event)));
        }
        if self.agents.is_empty()
            && let Some(since) = self.busy_since.take()
        {
            self.busy += now - since;
        }
        let due = self.engine.begin_steps(now);
        Some(Ended { tokens, due: self.announce(due) })
    }

    /// How long it has had requests, until `now`.
    pub fn busy(&self, now: Duration) -> Duration {
        self.busy + self.busy_since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// What a look at its metrics shows.
    pub fn scrape(&self, now: Duration) -> Scrape {
        let (gauges, counters) = (self.engine.gauges(), self.engine.counters());
        let (steps, tokens) = self.engine.progress(now);
        let config = self.engine.config();
        Scrape {
            at: now,
            running: gauges.running as u32,
            waiting: gauges.waiting as u32,
            kv_use: gauges.kv_usage,
            kv_capacity_tokens: u64::from(config.blocks()) * u64::from(config.block_size),
            prefix_queries_tokens: counters.prefix_queries,
            prefix_hits_tokens: counters.prefix_hits,
            prompt_tokens: counters.prompt_tokens,
            generation_tokens: counters.generation_tokens + tokens,
            signs: Signs {
                start_s: Some(0.0),
                steps: Some(counters.iteration_count() + steps),
                generated: Some(counters.generation_tokens + tokens),
                engines: 1,
                is_asleep: Some(false),
            },
        }
    }

    fn announce(&mut self, due: Option<Duration>) -> Option<Due> {
        if due == self.due {
            return None;
        }
        self.due = due;
        self.announced = self.announced.wrapping_add(1);
        due.map(|at| Due { at, announced: self.announced })
    }
}
