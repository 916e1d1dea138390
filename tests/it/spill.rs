//! A turn leaves its replica only where that is over-full, and the next one goes home.

use kvpin::sim::config::EngineConfig;
use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::kvpin::Kvpin;
use crate::support::replicas::{MODEL, chat, fast, start, start_many, steady, streamed, urls};
use crate::support::until;

/// Two replicas with a threshold of two turns, behind kvpin.
async fn two_small_replicas() -> (Vec<ReplicaServer>, Kvpin) {
    let replicas = start_many(2, steady()).await;
    let models = json!({ (MODEL): { "max_num_seqs": 8, "replicas": urls(&replicas) } });
    let kvpin = Kvpin::serve(models).await;
    (replicas, kvpin)
}

/// A turn that holds its slot until its connection is dropped.
fn long(id: &str) -> Call {
    Call::post("/v1/chat/completions", streamed("a long story", 20_000).to_string()).of(id)
}

/// Begins a long turn, and says why it went where.
async fn hold(kvpin: &Kvpin, id: &str) -> (Wire, String, String) {
    let mut wire = kvpin.connect().await;
    let head = wire.begin(&long(id)).await;
    assert_eq!(head.status, 200);
    assert!(matches!(wire.piece().await, Piece::Data(_)));
    let (decision, replica) = (head.decision().to_owned(), head.replica().to_owned());
    (wire, decision, replica)
}

async fn until_idle(kvpin: &Kvpin) {
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_turn_over_the_threshold_is_spilled_and_the_next_one_goes_home() {
    let (_replicas, kvpin) = two_small_replicas().await;
    let (first, placed, home) = hold(&kvpin, "busy").await;
    assert_eq!(placed, "placed");
    let (second, decision, at) = hold(&kvpin, "busy").await;
    assert_eq!((decision.as_str(), &at), ("sticky", &home), "one turn is under the threshold of two");
    let (third, decision, elsewhere) = hold(&kvpin, "busy").await;
    assert_eq!(decision, "spilled");
    assert_ne!(elsewhere, home);
    assert_eq!(kvpin.replica(&elsewhere).await["spilled_in"], 1);
    drop((first, second, third));
    until_idle(&kvpin).await;
    let (_back, decision, at) = hold(&kvpin, "busy").await;
    assert_eq!((decision.as_str(), &at), ("sticky", &home), "the pin had stayed");
}

#[tokio::test]
async fn a_turn_stays_at_a_full_home_while_nobody_is_clearly_less_loaded() {
    let (_replicas, kvpin) = two_small_replicas().await;
    let mut held = Vec::new();
    for id in ["one", "two", "one", "two"] {
        held.push(hold(&kvpin, id).await);
    }
    let home = held[0].2.clone();
    assert_ne!(home, held[1].2);
    let (_wire, decision, at) = hold(&kvpin, "one").await;
    assert_eq!((decision.as_str(), at), ("sticky", home), "the other one is at its threshold too");
}

#[tokio::test]
async fn a_fixed_threshold_holds_as_configured() {
    let replicas = start_many(2, steady()).await;
    let models = json!({ (MODEL): { "spill_threshold": 1, "replicas": urls(&replicas) } });
    let kvpin = Kvpin::serve(models).await;
    let (_first, _, home) = hold(&kvpin, "busy").await;
    let (_second, decision, at) = hold(&kvpin, "busy").await;
    assert_eq!(decision, "spilled");
    assert_ne!(at, home);
}

#[tokio::test]
async fn the_threshold_is_a_quarter_of_what_the_engine_tells_and_of_32_where_it_tells_nothing() {
    let engine = EngineConfig { max_num_seqs: 12, ..EngineConfig::default() };
    let telling = start(ReplicaOptions { dev_mode: true, engine, ..fast() }).await;
    let silent = start(ReplicaOptions { dev_mode: false, ..fast() }).await;
    let name = |replica: &ReplicaServer| replica.address().to_string();
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": [
        format!("http://{}", telling.address()), format!("http://{}", silent.address()),
    ] } }))
    .await;
    until("the engine's figure is known", async || {
        let told = kvpin.replica(&name(&telling)).await;
        (told["max_num_seqs_source"] == "engine" && told["spill_threshold"] == 3).then_some(())
    })
    .await;
    let assumed = kvpin.replica(&name(&silent)).await;
    assert_eq!((&assumed["spill_threshold"], &assumed["max_num_seqs_source"]), (&json!(8), &json!("assumed")));
    kvpin.until_logged("max_num_seqs is not configured: 32 is assumed").await;
    let notes = &kvpin.status().await["models"][0]["notes"];
    assert!(notes.to_string().contains("32 is assumed"), "{notes}");
}

#[tokio::test]
async fn requests_that_reach_a_replica_past_kvpin_count_as_its_load() {
    let replicas = start_many(2, steady()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&replicas) } })).await;
    let busy = replicas[0].address();
    let mut direct = Vec::new();
    for _ in 0..3 {
        let mut wire = Wire::connect(busy).await;
        wire.begin(&long("direct")).await;
        direct.push(wire);
    }
    until("the scrape shows them", async || {
        let engine: Value = kvpin.replica(&busy.to_string()).await["engine"].clone();
        (engine["running"] == 3).then_some(())
    })
    .await;
    for turn in 0..3 {
        let reply = kvpin.call(&Call::post("/v1/chat/completions", chat("hello").to_string())).await;
        assert_eq!(reply.replica(), replicas[1].address().to_string(), "turn {turn}");
    }
}
