//! Servers as the routing table implies them: one address, and the replicas that are reached there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use crate::balancer::{Balancer, ReplicaId, ReplicaSpec};
use crate::dispatch::{Model, Table};
use crate::tls::ReplicaTls;

/// One server. The ranks of a data-parallel server are several replicas behind one address.
pub struct Server {
    pub address: SocketAddr,
    /// `host:port` as configured, for the `Host` header.
    pub authority: String,
    /// How it is spoken to over TLS.
    pub tls: Option<Arc<ReplicaTls>>,
    /// What the engine is shown, if it asks for a key. vLLM does so for what is under `/v1` only, and takes it everywhere.
    pub authorization: Option<HeaderValue>,
    pub replicas: Vec<Replica>,
}

/// A replica of a server, and whose it is.
pub struct Replica {
    pub model: Arc<Model>,
    pub id: ReplicaId,
    pub spec: Arc<ReplicaSpec>,
}

/// The servers of every configured replica.
pub fn servers(table: &Table) -> BTreeMap<SocketAddr, Server> {
    let mut servers = BTreeMap::new();
    for model in &table.models {
        let specs: Vec<_> =
            model.dispatcher.with(|balancer, _| balancer.specs().map(|(id, spec)| (id, Arc::clone(spec))).collect());
        for (id, spec) in specs {
            // One that is being taken out is not looked at any more.
            let Ok(tls) = table.tls_of(&spec) else { continue };
            let server = servers.entry(spec.address).or_insert_with(|| Server {
                address: spec.address,
                authority: spec.authority.clone(),
                tls: tls.cloned(),
                // A server is one model's.
                authorization: model.upstream_authorization.clone(),
                replicas: Vec::new(),
            });
            server.replicas.push(Replica { model: Arc::clone(model), id, spec });
        }
    }
    servers
}

impl Server {
    /// Runs `f` on the balancer of each replica.
    pub fn each(&self, f: impl Fn(&mut Balancer, ReplicaId, Duration)) {
        for replica in &self.replicas {
            replica.with(|balancer, now| f(balancer, replica.id, now));
        }
    }
}

impl Replica {
    /// Runs `f` on the replica's balancer. `None` if a reload has meanwhile given the replica's id to another engine.
    pub fn with<R>(&self, f: impl FnOnce(&mut Balancer, Duration) -> R) -> Option<R> {
        self.model.dispatcher.with(|balancer, now| balancer.is_engine_of(self.id, &self.spec).then(|| f(balancer, now)))
    }
}
