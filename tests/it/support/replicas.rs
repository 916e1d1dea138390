//! Simulated replicas, fast enough for a test or slow enough never to end by themselves.

use std::time::Duration;

use kvpin::sim::config::EngineConfig;
use kvpin::sim::server::{Arrival, ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};

/// The model that they serve.
pub const MODEL: &str = "tiny";

/// Answers within milliseconds.
pub fn fast() -> ReplicaOptions {
    ReplicaOptions { model: MODEL.into(), time_scale: 1000.0, ..ReplicaOptions::default() }
}

/// Accepts everything and makes no step within a test: a silent prefill.
pub fn stuck() -> ReplicaOptions {
    let engine = EngineConfig { step: Duration::from_secs(3600), ..EngineConfig::default() };
    ReplicaOptions { engine, time_scale: 1.0, ..fast() }
}

/// A token every few milliseconds.
pub fn steady() -> ReplicaOptions {
    ReplicaOptions { time_scale: 10.0, ..fast() }
}

pub async fn start(options: ReplicaOptions) -> ReplicaServer {
    ReplicaServer::start(options).await.expect("a simulated replica starts")
}

pub async fn start_many(count: usize, options: ReplicaOptions) -> Vec<ReplicaServer> {
    let mut servers = Vec::new();
    for _ in 0..count {
        servers.push(start(options.clone()).await);
    }
    servers
}

/// As the configuration has them.
pub fn urls(servers: &[ReplicaServer]) -> Value {
    servers.iter().map(|server| json!(format!("http://{}", server.address()))).collect()
}

/// Turns that arrived, without what kvpin asks for itself.
pub fn turns(server: &ReplicaServer) -> Vec<Arrival> {
    server.arrivals().into_iter().filter(|arrival| arrival.method == "POST").collect()
}

/// Requests in all ranks, running or waiting.
pub fn busy(server: &ReplicaServer) -> usize {
    server.loads().iter().map(|(running, waiting)| running + waiting).sum()
}

/// A turn of a chat that says `text`.
pub fn chat(text: &str) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2})
}

/// A streamed one of `tokens` tokens.
pub fn streamed(text: &str, tokens: u32) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": true})
}
