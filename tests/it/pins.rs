//! A client may name the replica itself.

use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, fast, start_many, turns};

/// Replicas named `left` and `right`.
async fn two_named_replicas() -> (Vec<ReplicaServer>, Value) {
    let replicas = start_many(2, fast()).await;
    let named =
        |replica: &ReplicaServer, name: &str| json!({ "url": format!("http://{}", replica.address()), "name": name });
    let configured = json!([named(&replicas[0], "left"), named(&replicas[1], "right")]);
    (replicas, configured)
}

fn turn() -> Call {
    Call::post("/v1/chat/completions", chat("hello").to_string())
}

#[tokio::test]
async fn a_named_replica_serves_and_the_conversations_own_pin_stays() {
    let (replicas, configured) = two_named_replicas().await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": configured } })).await;
    let home = kvpin.call(&turn().of("pinned")).await.replica().to_owned();
    for name in ["left", "right", "right"] {
        let reply = kvpin.call(&turn().of("pinned").header("x-kvpin-replica", name)).await;
        assert_eq!((reply.status(), reply.decision(), reply.replica()), (200, "client_pinned", name));
    }
    let reply = kvpin.call(&turn().of("pinned")).await;
    assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()));
    let arrived = replicas.iter().flat_map(turns).flat_map(|arrival| arrival.headers);
    assert!(arrived.map(|(name, _)| name).all(|name| name != "x-kvpin-replica"), "the header was meant for kvpin");
    assert_eq!(replicas.iter().map(|replica| turns(replica).len()).sum::<usize>(), 5);
}

#[tokio::test]
async fn an_unknown_replica_is_refused_with_the_names_of_those_that_exist() {
    let (replicas, configured) = two_named_replicas().await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": configured } })).await;
    let reply = kvpin.call(&turn().header("x-kvpin-replica", "middle")).await;
    assert_eq!(reply.status(), 400);
    let message = reply.openai_error();
    assert!(["`middle`", "left", "right"].iter().all(|name| message.contains(name)), "{message}");
    let reply =
        kvpin.call(&Call::post("/v1/messages", chat("hello").to_string()).header("x-kvpin-replica", "middle")).await;
    assert_eq!(reply.status(), 400);
    let (kind, message) = reply.anthropic_error();
    assert_eq!(kind, "invalid_request_error");
    assert!(message.contains("left, right"), "{message}");
    assert!(replicas.iter().all(|replica| turns(replica).is_empty()), "no replica was bothered");
}

#[tokio::test]
async fn a_named_replica_that_is_down_is_not_replaced_by_another() {
    let (here, away) = (Recorder::start(), Recorder::away());
    let replicas = json!([{ "url": here.url(), "name": "here" }, { "url": away.url(), "name": "away" }]);
    let kvpin = Kvpin::launch(&crate::support::kvpin::config(json!({ "m": { "replicas": replicas } }))).await;
    kvpin.until_health("down", |name| name == "away").await;
    let reply = kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#).header("x-kvpin-replica", "away")).await;
    assert_eq!(reply.status(), 503);
    assert_eq!(reply.anthropic_error().0, "overloaded_error");
    assert!(reply.header("retry-after").is_some());
    assert_eq!(here.count(), 0);
}

#[tokio::test]
async fn where_the_configuration_forbids_it_a_named_replica_is_not_looked_at() {
    let (_replicas, configured) = two_named_replicas().await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "client_pins": false, "replicas": configured } })).await;
    for name in ["left", "right", "middle"] {
        let reply = kvpin.call(&turn().of("forbidden").header("x-kvpin-replica", name)).await;
        assert_eq!(reply.status(), 200);
        assert_ne!(reply.decision(), "client_pinned");
    }
}

#[tokio::test]
async fn a_rank_means_nothing_to_a_model_without_ranks() {
    let (replicas, configured) = two_named_replicas().await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": configured } })).await;
    let reply = kvpin.call(&turn().of("rankless").header("x-data-parallel-rank", "7")).await;
    assert_eq!((reply.status(), reply.decision()), (200, "placed"));
    let mut arrived = replicas.iter().flat_map(turns).flat_map(|arrival| arrival.headers);
    assert!(arrived.all(|(name, _)| name != "x-data-parallel-rank"), "a server without ranks would refuse it");
}
