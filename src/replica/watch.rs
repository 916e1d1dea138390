//! Looks at every server of the current routing table, again and again.
//!
//! A server has at most one look going on at a time, and each is a task of its own: a slow server is looked at less
//! often and delays no other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use log::warn;
use pingora::server::ShutdownWatch;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::dispatch::{Routing, Table};

use super::client::{Client, Patience};
use super::server::{Server, servers};
use super::visit::{Memory, learn_max_num_seqs, visit};

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
        }
    }

    /// Begins a look at every server that has none going on.
    fn round(&mut self, table: &Table) {
        self.clear_ended();
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
        let memories = Arc::clone(&self.memories[&server.address]);
        self.looks.spawn(async move {
            // The semaphore is never closed.
            let Ok(slot) = slots.acquire().await else { return };
            visit(&client, &server, &mut memory, patience).await;
            let may_tell = memory.is_to_be_asked();
            drop((memory, slot));
            // It may take its time over the answer, and is looked at meanwhile.
            if may_tell && !learn_max_num_seqs(&client, &server, patience.connect).await {
                memories.lock().await.ask_again();
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
