//! How much clients may have at a time.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::Wire;
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};
use crate::support::until;

const PATH: &str = "/v1/messages";

async fn limited(limits: Value) -> (Hand, Kvpin, Value) {
    let hand = Hand::start();
    let mut config = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["limits"] = limits;
    let kvpin = Kvpin::start(&config).await;
    (hand, kvpin, config)
}

fn turn() -> Call {
    Call::post(PATH, r#"{"model":"m"}"#)
}

async fn refused(kvpin: &Kvpin, reason: &str) -> f64 {
    kvpin.metric(&format!("kvpin_connections_refused_total{{reason=\"{reason}\"}}")).await
}

/// So many connections that have all been served once, so that they have been let in.
async fn let_in(kvpin: &Kvpin, count: usize) -> Vec<Wire> {
    let mut wires = Vec::new();
    for _ in 0..count {
        let mut wire = kvpin.connect().await;
        assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
        wires.push(wire);
    }
    wires
}

#[tokio::test]
async fn connections_over_a_limit_are_closed_at_once_and_those_that_are_there_go_on() {
    for limit in ["connections_max", "connections_per_address_max"] {
        let (_hand, kvpin, mut config) = limited(json!({ limit: 5 })).await;
        let mut wires = let_in(&kvpin, 5).await;
        assert_eq!(kvpin.metric("kvpin_connections ").await, 5.0);
        for _ in 0..3 {
            let mut wire = kvpin.connect().await;
            assert!(wire.ends().await, "{limit}");
        }
        assert_eq!(refused(&kvpin, limit).await, 3.0);
        for wire in &mut wires {
            assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
        }
        // One that ends makes room.
        drop(wires.pop());
        until("there is room", async || (kvpin.metric("kvpin_connections ").await == 4.0).then_some(())).await;
        wires.extend(let_in(&kvpin, 1).await);
        // So does a reload, and a proxy that is trusted has the addresses of all of its clients.
        config["limits"] = json!({ limit: 6 });
        assert!(kvpin.reload(&config).await);
        wires.extend(let_in(&kvpin, 1).await);
        config["trusted_proxies"] = json!(["127.0.0.1"]);
        assert!(kvpin.reload(&config).await);
        if limit == "connections_per_address_max" {
            wires.extend(let_in(&kvpin, 3).await);
        } else {
            assert!(kvpin.connect().await.ends().await, "all are all");
        }
    }
}

#[tokio::test]
async fn requests_over_the_limit_are_told_to_come_back_in_their_dialect_and_health_is_still_answered() {
    let (mut hand, kvpin, _) = limited(json!({ "streams_max": 2 })).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut wire = kvpin.connect().await;
        wire.send(&turn().bytes()).await;
        let mut at_replica = hand.turn().await;
        at_replica.write(STREAM_HEAD).await;
        at_replica.write_chunk("data: {\"content\":1}\n\n").await;
        assert_eq!(wire.head("POST").await.status, 200);
        streams.push((wire, at_replica));
    }
    let mut wire = kvpin.connect().await;
    for _ in 0..3 {
        let reply = wire.call(&turn()).await;
        assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("1")));
        assert_eq!(reply.anthropic_error().0, "overloaded_error");
        let reply = wire.call(&Call::post("/v1/chat/completions", r#"{"model":"m"}"#)).await;
        assert_eq!(reply.status(), 503);
        assert_eq!(reply.json()["error"]["code"], "too_many_streams");
        assert_eq!(wire.call(&Call::get("/health")).await.status(), 200);
        assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
    }
    assert!(!hand.has_turn());
    // One that ends makes room, and so does one whose client leaves.
    let (_, mut ended) = streams.pop().expect("a stream");
    ended.write("0\r\n\r\n").await;
    // Its connection too: kvpin may use it again, and the next turn is to come on one that the test accepts.
    drop((ended, streams));
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    for _ in 0..3 {
        wire.send(&turn().bytes()).await;
        hand.turn().await.answer("{}").await;
        assert_eq!(wire.reply("POST").await.expect("an answer").status(), 200);
    }
}
