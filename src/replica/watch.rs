//! Looks at every server of the current routing table, again and again.
//!
//! A server has at most one look going on at a time, and each is a task of its own: a slow server is looked at less
//! often and delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::{info, warn};
use pingora::server::ShutdownWatch;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::balancer::{Health, MaxNumSeqsSource, ReplicaSnapshot, SpillThreshold};
use crate::dispatch::{Routing, Table};

use super::client::{Client, Patience};
use super::server::{Server, servers};
use super::visit::{Memory, visit};

/// Looks that go on at the same time, over all servers. A look at a healthy server takes milliseconds, so this many keep
/// a thousand servers fresh, and a burst of connections stays small.
const LOOKS_MAX: usize = 64;

/// How long a look may take. An API server of vLLM that tokenizes long prompts answers late, and must not be taken for
/// dead for it.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What goes on, and what is remembered between two rounds.
struct Watcher {
    client: Arc<Client>,
    slots: Arc<Semaphore>,
    /// A server's memory is locked while it is being looked at.
    memories: BTreeMap<SocketAddr, Arc<Mutex<Memory>>>,
    looks: JoinSet<()>,
    /// Models of which it was said that their `max_num_seqs` is assumed.
    assumed: BTreeSet<String>,
}

/// Keeps the figures and the health of every replica current until the process shuts down.
pub async fn watch(routing: Arc<Routing>, mut shutdown: ShutdownWatch) {
    let mut watcher = Watcher::new();
    loop {
        let table = routing.table();
        let next = Instant::now() + table.config.scrape_interval;
        watcher.round(&table);
        drop(table);
        tokio::select! {
            () = sleep_until(next) => {}
            // Dropping the watcher ends the looks that go on.
            _ = shutdown.changed() => return,
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
            assumed: BTreeSet::new(),
        }
    }

    /// Begins a look at every server that has none going on.
    fn round(&mut self, table: &Table) {
        self.clear_ended();
        self.tell_assumptions(table);
        let patience = Patience { connect: table.config.limits.connect_timeout, total: LOOK_MAX };
        let servers = servers(table);
        self.memories.retain(|address, _| servers.contains_key(address));
        for server in servers.into_values() {
            self.begin_look(server, patience);
        }
    }

    fn begin_look(&mut self, server: Server, patience: Patience) {
        let memory = Arc::clone(self.memories.entry(server.address).or_default());
        let Ok(mut memory) = memory.try_lock_owned() else { return };
        let client = Arc::clone(&self.client);
        let slots = Arc::clone(&self.slots);
        self.looks.spawn(async move {
            // The semaphore is never closed.
            let Ok(_slot) = slots.acquire().await else { return };
            visit(&client, &server, &mut memory, patience).await;
        });
    }

    fn clear_ended(&mut self) {
        while let Some(ended) = self.looks.try_join_next() {
            if let Err(error) = ended {
                warn!("a look at a replica's server was lost: {error}");
            }
        }
    }

    /// Says once a model that its `max_num_seqs` is a guess. A replica that is up has been asked for it.
    fn tell_assumptions(&mut self, table: &Table) {
        for model in &table.models {
            if self.assumed.contains(&model.name) {
                continue;
            }
            let snapshot = model.dispatcher.with(|balancer, now| balancer.snapshot(now));
            if snapshot.spill_threshold != SpillThreshold::Auto {
                continue;
            }
            if let Some(replica) = snapshot.replicas.iter().find(|replica| rests_on_a_guess(replica)) {
                info!(
                    "model={} max_num_seqs is not configured and the engine doesn't tell it: assuming {}, so the spill \
                     threshold is {}",
                    model.name, replica.max_num_seqs, replica.spill_threshold
                );
                self.assumed.insert(model.name.clone());
            }
        }
    }
}

fn rests_on_a_guess(replica: &ReplicaSnapshot) -> bool {
    replica.health == Health::Up && replica.max_num_seqs_source == MaxNumSeqsSource::Assumed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::tests::routing;

    #[test]
    fn an_assumption_is_told_once_a_model_and_only_of_a_replica_that_is_up() {
        let routing = routing(&["127.0.0.1:9".parse().unwrap()]);
        let table = routing.table();
        let mut watcher = Watcher::new();
        watcher.tell_assumptions(&table);
        assert!(watcher.assumed.is_empty(), "nothing has answered yet");
        let replica = &servers(&table).into_values().next().unwrap().replicas[0];
        replica.with(|balancer, now| balancer.set_health(replica.id, Health::Up, now));
        watcher.tell_assumptions(&table);
        assert!(watcher.assumed.contains("tiny"));
    }

    #[test]
    fn an_engine_that_told_its_figure_leaves_nothing_to_assume() {
        let routing = routing(&["127.0.0.1:9".parse().unwrap()]);
        let table = routing.table();
        let replica = &servers(&table).into_values().next().unwrap().replicas[0];
        replica.with(|balancer, now| {
            balancer.set_max_num_seqs(replica.id, 64);
            balancer.set_health(replica.id, Health::Up, now);
        });
        let mut watcher = Watcher::new();
        watcher.tell_assumptions(&table);
        assert!(watcher.assumed.is_empty());
    }
}
