//! Looks at every server of the current routing table, again and again.
//!
//! A server has at most one scrape and one probe going on at a time, and each is a task of its own: a slow server is looked
//! at less often and delays no other, and a slow answer to one question delays no other question.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use pingora::server::ShutdownWatch;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::balancer::Evidence;
use crate::config::Config;
use crate::dispatch::{Routing, Table};

use super::client::{Client, Patience};
use super::pace::{Pace, Rhythm};
use super::probe::{Question, learn_max_num_seqs, probe};
use super::scrape::{Scraped, scrape};
use super::server::{Server, servers};

/// Looks that go on at the same time, over all servers. A look at a healthy server takes milliseconds, so this many keep
/// a thousand servers fresh, and a burst of connections stays small.
const LOOKS_MAX: usize = 64;

/// What goes on, and what is remembered between two rounds.
struct Watcher {
    client: Arc<Client>,
    slots: Arc<Semaphore>,
    memories: BTreeMap<SocketAddr, Memory>,
    looks: JoinSet<()>,
}

/// What is remembered of a server. Each part is locked while that is being asked which it is about.
#[derive(Clone, Default)]
struct Memory {
    scrapes: Arc<Mutex<Pace>>,
    probes: Arc<Mutex<Pace>>,
    question: Arc<Mutex<Question>>,
}

/// When and for how long servers are asked, as the configuration has it.
#[derive(Clone, Copy)]
struct Manners {
    patience: Patience,
    scrapes: Rhythm,
    probes: Rhythm,
    /// Between two rounds.
    round: Duration,
}

/// Keeps the figures and the health of every replica current until the process shuts down.
pub async fn watch(routing: Arc<Routing>, mut shutdown: ShutdownWatch) {
    let mut watcher = Watcher::new();
    loop {
        let table = routing.table();
        let manners = Manners::of(&table.config);
        let next = Instant::now() + manners.round;
        watcher.round(&table, manners);
        drop(table);
        tokio::select! {
            () = sleep_until(next) => {}
            // Dropping the watcher ends the looks that go on.
            _ = shutdown.changed() => return,
        }
    }
}

impl Manners {
    fn of(config: &Config) -> Self {
        let health = &config.health;
        let rhythm = |interval| Rhythm { interval, misses_max: health.failures, backoff_max: health.backoff_max };
        Manners {
            patience: Patience { connect: config.limits.connect_timeout, total: health.timeout },
            scrapes: rhythm(config.scrape_interval),
            probes: rhythm(health.interval),
            round: config.scrape_interval.min(health.interval),
        }
    }
}

impl Watcher {
    fn new() -> Self {
        Watcher {
            client: Arc::new(Client::new()),
            slots: Arc::new(Semaphore::new(LOOKS_MAX)),
            memories: BTreeMap::new(),
            looks: JoinSet::new(),
        }
    }

    /// Begins what is due at every server and not going on there.
    fn round(&mut self, table: &Table, manners: Manners) {
        self.clear_ended();
        let servers = servers(table);
        self.memories.retain(|address, _| servers.contains_key(address));
        for server in servers.into_values() {
            let server = Arc::new(server);
            self.begin_scrape(&server, manners);
            self.begin_probe(server, manners);
        }
    }

    fn begin_scrape(&mut self, server: &Arc<Server>, manners: Manners) {
        let memory = self.memories.entry(server.address).or_default();
        let Ok(mut pace) = Arc::clone(&memory.scrapes).try_lock_owned() else { return };
        if !pace.is_due(Instant::now(), manners.round / 2) {
            return;
        }
        let (client, slots, server) = (Arc::clone(&self.client), Arc::clone(&self.slots), Arc::clone(server));
        self.looks.spawn(async move {
            // The semaphore is never closed.
            let Ok(_slot) = slots.acquire().await else { return };
            pace.begin(Instant::now(), manners.scrapes);
            match scrape(&client, &server, manners.patience).await {
                Scraped::Answered => pace.answered(),
                Scraped::Missed => {
                    pace.missed();
                }
            }
        });
    }

    fn begin_probe(&mut self, server: Arc<Server>, manners: Manners) {
        let memory = self.memories.entry(server.address).or_default();
        let Ok(mut pace) = Arc::clone(&memory.probes).try_lock_owned() else { return };
        if !pace.is_due(Instant::now(), manners.round / 2) {
            return;
        }
        let (client, slots, question) =
            (Arc::clone(&self.client), Arc::clone(&self.slots), Arc::clone(&memory.question));
        self.looks.spawn(async move {
            let Ok(slot) = slots.acquire().await else { return };
            pace.begin(Instant::now(), manners.probes);
            let evidence = probe(&client, &server, manners.patience).await;
            let misses = if evidence == Evidence::Answered { 0 } else { pace.missed() };
            if misses == 0 {
                pace.answered();
            }
            drop((pace, slot));
            question.lock().await.note(evidence, misses);
            // It may take its time over the answer, and is looked at meanwhile.
            let is_to_be_asked = question.lock().await.is_to_be_asked();
            if is_to_be_asked && !learn_max_num_seqs(&client, &server, manners.patience.connect).await {
                question.lock().await.ask_again();
            }
        });
    }

    fn clear_ended(&mut self) {
        while let Some(ended) = self.looks.try_join_next() {
            if let Err(error) = ended {
                warn!("a look at a replica's server was lost: {error}");
            }
        }
    }
}
