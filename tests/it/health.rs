//! What takes a replica out of service and back: not a busy one's late answers, but an engine that hangs or sleeps.

use std::time::Duration;

use kvpin::sim::server::{Failure, ReplicaServer};
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::Piece;
use crate::support::kvpin::{Kvpin, config};
use crate::support::replicas::{MODEL, busy, chat, fast, start, start_many, steady, streamed, urls};
use crate::support::until;

fn turn(id: &str) -> Call {
    Call::post("/v1/chat/completions", chat("go on").to_string()).of(id)
}

fn one_model(servers: &[ReplicaServer]) -> Value {
    config(json!({ (MODEL): { "replicas": urls(servers) } }))
}

fn name(server: &ReplicaServer) -> String {
    server.address().to_string()
}

/// Has a conversation of its own at a replica, and says its id.
async fn conversation_at(kvpin: &Kvpin, server: &ReplicaServer) -> String {
    for number in 0..16 {
        let id = format!("at-{}-{number}", name(server));
        if kvpin.call(&turn(&id)).await.replica() == name(server) {
            return id;
        }
    }
    panic!("none of 16 conversations was placed at {}", name(server))
}

#[tokio::test]
async fn an_engine_that_hangs_is_found_out_though_its_health_is_good_and_comes_back_when_it_goes_on() {
    let servers = start_many(2, fast()).await;
    let mut config = one_model(&servers);
    config["health"]["hung_s"] = json!(1);
    let kvpin = Kvpin::start(&config).await;
    let id = conversation_at(&kvpin, &servers[0]).await;
    servers[0].set_failure(Failure::Frozen);
    let mut stuck = kvpin.connect().await;
    stuck.send(&turn(&id).bytes()).await;
    kvpin.until_health("down", |replica| replica == name(&servers[0])).await;
    assert_eq!(kvpin.replica(&name(&servers[0])).await["health_reason"], "hung");
    let moved = kvpin.call(&turn(&id)).await;
    assert_eq!((moved.status(), moved.decision(), moved.replica()), (200, "placed", name(&servers[1]).as_str()));
    // The turn that hung goes on elsewhere as well: its client has seen nothing of an answer.
    let freed = stuck.reply("POST").await.expect("a response");
    assert_eq!((freed.status(), freed.replica()), (200, name(&servers[1]).as_str()));
    assert_eq!(kvpin.metric("kvpin_retried_turns_total{reason=\"went_down\"}").await, 1.0);
    servers[0].set_failure(Failure::None);
    kvpin.until_health("up", |_| true).await;
    assert_eq!(kvpin.metric("kvpin_replica_restarts_total").await, 0.0);
    kvpin.until_logged("is down reason=hung was=suspect").await;
}

#[tokio::test]
async fn an_answer_that_has_begun_is_cut_when_its_engine_has_hung_for_long_and_so_lets_the_server_end() {
    let server = start(steady()).await;
    let mut config = one_model(std::slice::from_ref(&server));
    config["health"]["hung_s"] = json!(1);
    let kvpin = Kvpin::start(&config).await;
    let whole = Call::post("/v1/chat/completions", streamed("a long answer", 2_000).to_string()).of("long");
    let mut wire = kvpin.connect().await;
    wire.begin(&whole).await;
    server.set_failure(Failure::Frozen);
    kvpin.until_health("down", |_| true).await;
    let last = loop {
        match wire.piece().await {
            Piece::Data(_) => {}
            last => break last,
        }
    };
    assert_eq!(last, Piece::Cut, "no end is made up");
    until("the replica has lost its client", async || (busy(&server) == 0).then_some(())).await;
    assert_eq!(kvpin.metric("kvpin_in_flight_turns").await, 0.0);
    kvpin.until_logged("outcome=failed status=200").await;
}

#[tokio::test]
async fn a_saturated_replica_whose_health_page_is_late_is_not_taken_down_while_it_makes_progress() {
    let server = start(steady()).await;
    let mut config = one_model(std::slice::from_ref(&server));
    config["health"]["timeout_ms"] = json!(100);
    let kvpin = Kvpin::start(&config).await;
    let mut wire = kvpin.connect().await;
    let call = Call::post("/v1/chat/completions", streamed("a long answer", 2_000).to_string()).of("long");
    wire.begin(&call).await;
    server.set_health_delay(Duration::from_secs(5));
    kvpin.until_health("suspect", |_| true).await;
    // Enough for the three failures that would take it down, three times over: each takes its timeout.
    let mut looks = 0;
    until("it was late ten times", async || {
        let replica = kvpin.replica(&name(&server)).await;
        assert_eq!((&replica["health"], &replica["health_reason"]), (&json!("suspect"), &json!("probe_failed")));
        looks += 1;
        (replica["health_age_s"].as_f64() > Some(1.5) && looks > 3).then_some(())
    })
    .await;
    assert_eq!(busy(&server), 1, "it was at work all the time");
    drop(wire);
    kvpin.until_health("down", |_| true).await;
    assert_eq!(kvpin.replica(&name(&server)).await["health_reason"], "probe_failed", "idle, it has no excuse");
    server.set_health_delay(Duration::ZERO);
    kvpin.until_health("up", |_| true).await;
}

#[tokio::test]
async fn an_engine_that_sleeps_is_given_nothing_until_it_wakes() {
    let servers = start_many(2, fast()).await;
    let kvpin = Kvpin::start(&one_model(&servers)).await;
    let id = conversation_at(&kvpin, &servers[0]).await;
    servers[0].set_asleep(true);
    kvpin.until_health("sleeping", |replica| replica == name(&servers[0])).await;
    let moved = kvpin.call(&turn(&id)).await;
    assert_eq!((moved.decision(), moved.replica()), ("placed", name(&servers[1]).as_str()));
    assert_eq!(kvpin.metric("kvpin_replica_health{health=\"sleeping\"").await, 1.0);
    servers[0].set_asleep(false);
    kvpin.until_health("up", |_| true).await;
}
