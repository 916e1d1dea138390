//! One look at a server: its figures, its health and, once, its `max_num_seqs`.

use std::collections::BTreeMap;
use std::time::Duration;

use log::{info, warn};
use serde_json::Value;

use crate::balancer::{DownReason, Health, Scrape};

use super::client::{Client, Failure, Patience};
use super::series::{self, EngineSeries};
use super::server::Server;

/// So many looks in a row may fail before a server that accepts connections counts as down. A busy API server of vLLM
/// can be late with one answer, and the price of a wrong verdict is every cache of that server.
const MISSES_MAX: u32 = 3;

/// Far more requests than an engine can hold, and few enough that the balancer's sums stay far from overflowing.
const REQUESTS_MAX: u32 = 1_000_000;

const METRICS_PATH: &str = "/metrics";
const HEALTH_PATH: &str = "/health";
/// vLLM collects the facts of its whole system for the answer: 1.7 s on an idle machine, several times that on a busy one.
const SERVER_INFO_MAX: Duration = Duration::from_secs(30);
/// Served only in vLLM's development mode.
const SERVER_INFO_PATH: &str = "/server_info?config_format=json";

/// What is remembered of a server between two looks.
#[derive(Debug, Default)]
pub struct Memory {
    /// Looks that failed in a row.
    misses: u32,
    /// Whether it is to be asked for its `max_num_seqs`: once each time it comes up.
    question: Question,
}

/// Whether a server was asked what it was started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Question {
    /// It is down, or was not looked at yet.
    #[default]
    NotYet,
    Due,
    Asked,
}

impl Memory {
    /// Whether the server is to be asked what it was started with. From here on it counts as asked.
    pub fn is_to_be_asked(&mut self) -> bool {
        let due = self.question == Question::Due;
        if due {
            self.question = Question::Asked;
        }
        due
    }

    /// There was no answer: the question stands.
    pub fn ask_again(&mut self) {
        if self.question == Question::Asked {
            self.question = Question::Due;
        }
    }
}

/// What a look has shown.
enum Sight {
    /// The series of each engine.
    Figures(BTreeMap<u16, EngineSeries>),
    /// It answers, but has no figures to give.
    Bare,
    Refused,
    Missed,
}

/// Looks at a server and tells its balancers what was seen.
pub async fn visit(client: &Client, server: &Server, memory: &mut Memory, patience: Patience) {
    for replica in &server.replicas {
        replica.with(|balancer, _| balancer.scrape_begins(replica.id));
    }
    let sight = look(client, server, patience).await;
    match sight {
        Sight::Figures(engines) => {
            record_figures(server, &engines);
            record_up(server, memory);
        }
        Sight::Bare => record_up(server, memory),
        Sight::Refused => record_down(server, memory, DownReason::ConnectRefused),
        Sight::Missed => {
            memory.misses = memory.misses.saturating_add(1);
            if memory.misses >= MISSES_MAX {
                record_down(server, memory, DownReason::ProbeFailed);
            }
        }
    }
}

async fn look(client: &Client, server: &Server, patience: Patience) -> Sight {
    match client.get(server, METRICS_PATH, patience).await {
        Ok(page) => Sight::Figures(series::parse(&String::from_utf8_lossy(&page))),
        Err(Failure::Status(_) | Failure::TooLarge) => probe(client, server, patience).await,
        Err(Failure::Refused) => Sight::Refused,
        Err(Failure::TimedOut | Failure::Broken) => Sight::Missed,
    }
}

/// Whether a server without usable metrics is alive. One that has no health page either has shown that it answers.
async fn probe(client: &Client, server: &Server, patience: Patience) -> Sight {
    match client.get(server, HEALTH_PATH, patience).await {
        Ok(_) | Err(Failure::Status(..500) | Failure::TooLarge) => Sight::Bare,
        Err(Failure::Refused) => Sight::Refused,
        Err(Failure::Status(_) | Failure::TimedOut | Failure::Broken) => Sight::Missed,
    }
}

fn record_figures(server: &Server, engines: &BTreeMap<u16, EngineSeries>) {
    for replica in &server.replicas {
        if let Some(figures) = figures_of(replica.spec.rank, engines) {
            replica.with(|balancer, now| balancer.scraped(replica.id, Scrape { at: now, ..figures }));
        }
    }
}

fn record_up(server: &Server, memory: &mut Memory) {
    memory.misses = 0;
    if memory.question == Question::NotYet {
        memory.question = Question::Due;
    }
    set_health(server, Health::Up);
}

fn record_down(server: &Server, memory: &mut Memory, reason: DownReason) {
    // It may come back as another server.
    memory.question = Question::NotYet;
    set_health(server, Health::Down(reason));
}

/// Sets the health of a server's replicas. Only a change is logged.
fn set_health(server: &Server, health: Health) {
    for replica in &server.replicas {
        if replica.with(|balancer, now| balancer.set_health(replica.id, health, now)) != Some(true) {
            continue;
        }
        let (model, name) = (&replica.model.name, &replica.spec.name);
        match health {
            Health::Up => info!("model={model} replica={name} is up"),
            Health::Down(reason) => warn!("model={model} replica={name} is down: {}", reason.as_str()),
            Health::Unknown => {}
        }
    }
}

/// Asks an engine what it was started with, and uses what it tells. Returns whether there was an answer, were it only that
/// it doesn't tell: nearly always, since it does so only in development mode.
pub async fn learn_max_num_seqs(client: &Client, server: &Server, connect: Duration) -> bool {
    let patience = Patience { connect, total: SERVER_INFO_MAX };
    let answer = match client.get(server, SERVER_INFO_PATH, patience).await {
        Ok(answer) => answer,
        Err(Failure::Status(_) | Failure::TooLarge) => return true,
        Err(Failure::Refused | Failure::TimedOut | Failure::Broken) => return false,
    };
    let Some(max_num_seqs) = max_num_seqs_in(&answer) else { return true };
    info!("server={} tells its max_num_seqs: {max_num_seqs}", server.address);
    for replica in &server.replicas {
        replica.with(|balancer, _| balancer.set_max_num_seqs(replica.id, max_num_seqs));
    }
    true
}

fn max_num_seqs_in(answer: &[u8]) -> Option<u32> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let max_num_seqs = answer.pointer("/vllm_config/scheduler_config/max_num_seqs")?.as_u64()?;
    u32::try_from(max_num_seqs).ok().filter(|max_num_seqs| *max_num_seqs > 0)
}

/// What the engines of a server say of one replica: of its rank or, where the engines are balanced by the server itself,
/// of all of them together. `None` where they say nothing of it.
fn figures_of(rank: Option<u16>, engines: &BTreeMap<u16, EngineSeries>) -> Option<Scrape> {
    let count = engines.len();
    match rank {
        Some(rank) => engines.get(&rank).map(|engine| scrape_of(engine, count)),
        None => engines.values().map(|engine| scrape_of(engine, count)).reduce(together).map(|mut sum| {
            // The engines of a server are alike, so their shares weigh the same.
            sum.kv_use /= count as f64;
            sum
        }),
    }
}

fn scrape_of(engine: &EngineSeries, engines: usize) -> Scrape {
    Scrape {
        at: Duration::ZERO,
        running: requests(engine.running),
        waiting: requests(engine.waiting),
        kv_use: engine.kv_use,
        kv_capacity_tokens: engine.kv_capacity_tokens(engines).unwrap_or(0),
        prefix_queries_tokens: engine.prefix_queries_tokens,
        prefix_hits_tokens: engine.prefix_hits_tokens,
        prompt_tokens: engine.prompt_tokens,
        generation_tokens: engine.generation_tokens,
    }
}

fn requests(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(REQUESTS_MAX).min(REQUESTS_MAX)
}

fn together(one: Scrape, other: Scrape) -> Scrape {
    Scrape {
        at: one.at.max(other.at),
        running: requests(u64::from(one.running) + u64::from(other.running)),
        waiting: requests(u64::from(one.waiting) + u64::from(other.waiting)),
        kv_use: one.kv_use + other.kv_use,
        kv_capacity_tokens: one.kv_capacity_tokens.saturating_add(other.kv_capacity_tokens),
        prefix_queries_tokens: one.prefix_queries_tokens.saturating_add(other.prefix_queries_tokens),
        prefix_hits_tokens: one.prefix_hits_tokens.saturating_add(other.prefix_hits_tokens),
        prompt_tokens: one.prompt_tokens.saturating_add(other.prompt_tokens),
        generation_tokens: one.generation_tokens.saturating_add(other.generation_tokens),
    }
}
