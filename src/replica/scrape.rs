//! A scrape: what the engines of a server say of themselves, and what it means for the replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::balancer::{DownReason, Evidence, Scrape, Signs};

use super::client::{Client, Failure, Patience};
use super::series::{self, EngineSeries};
use super::server::Server;

/// Far more requests than an engine can hold, and few enough that the balancer's sums stay far from overflowing.
const REQUESTS_MAX: u32 = 1_000_000;

const METRICS_PATH: &str = "/metrics";

/// How a scrape went, for the time of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scraped {
    /// The server answered, with figures or without any that can be used.
    Answered,
    Missed,
}

/// Asks a server for its figures and tells its balancers. A page that is too large, or isn't there, says nothing of the
/// server's health; one that doesn't come says something only of engines that are silent in every other way too.
pub async fn scrape(client: &Client, server: &Server, patience: Patience) -> Scraped {
    server.each(|balancer, id, _| balancer.scrape_begins(id));
    match client.get(server, METRICS_PATH, patience).await {
        Ok(page) => {
            record(server, &series::parse(&String::from_utf8_lossy(&page)));
            Scraped::Answered
        }
        Err(Failure::Status(_) | Failure::TooLarge) => Scraped::Answered,
        Err(Failure::Unreachable(reason @ (DownReason::ConnectRefused | DownReason::CertificateRefused))) => {
            let unreachable = Evidence::Unreachable(reason);
            server.each(|balancer, id, now| {
                balancer.observe(id, unreachable, now);
            });
            Scraped::Missed
        }
        Err(Failure::Unreachable(_) | Failure::TimedOut | Failure::Broken) => {
            server.each(|balancer, id, now| balancer.scrape_failed(id, now));
            Scraped::Missed
        }
    }
}

fn record(server: &Server, engines: &BTreeMap<u16, EngineSeries>) {
    for replica in &server.replicas {
        if let Some(figures) = figures_of(replica.spec.rank, engines) {
            replica.with(|balancer, now| balancer.scraped(replica.id, Scrape { at: now, ..figures }));
        }
    }
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
        generation_tokens: engine.generation_tokens.unwrap_or(0),
        signs: Signs {
            start_s: engine.process_start_s,
            steps: engine.steps,
            generated: engine.generation_tokens,
            engines: 1,
            is_asleep: engine.is_asleep,
        },
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
        signs: signs_together(one.signs, other.signs),
    }
}

/// The engines of one server share a process, and are put to sleep together.
fn signs_together(one: Signs, other: Signs) -> Signs {
    let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
    Signs {
        start_s: one.start_s,
        steps: sum(one.steps, other.steps),
        generated: sum(one.generated, other.generated),
        engines: one.engines.saturating_add(other.engines),
        is_asleep: one.is_asleep.or(other.is_asleep),
    }
}
