//! A connection that says nothing, or too slowly, is not kept for ever.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};

/// A second for whatever `key` limits.
async fn with_a_second_for(key: &str) -> (Kvpin, Hand) {
    let hand = Hand::start();
    let mut config: Value = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["limits"] = json!({ key: 1 });
    (Kvpin::start(&config).await, hand)
}

#[tokio::test]
async fn a_connection_without_a_whole_head_is_closed() {
    let (kvpin, _hand) = with_a_second_for("head_timeout_s").await;
    for begun in ["", "POST /v1/messages HT", "POST /v1/messages HTTP/1.1\r\nHost: m\r\nX-Slow: "] {
        let mut wire = kvpin.connect().await;
        wire.send(begun.as_bytes()).await;
        assert!(wire.ends().await, "{begun:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_idle_after_a_request_is_closed() {
    let (kvpin, _hand) = with_a_second_for("keepalive_timeout_s").await;
    for next in ["", "GET /health HT"] {
        let mut wire = kvpin.connect().await;
        assert_eq!(wire.call(&Call::get("/v1/models")).await.status(), 200);
        wire.send(next.as_bytes()).await;
        assert!(wire.ends().await, "{next:?}");
    }
}

#[tokio::test]
async fn a_stream_outlives_the_limits_of_heads_and_idle_connections() {
    let mut hand = Hand::start();
    let mut config: Value = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["limits"] =
        json!({ "head_timeout_s": 1, "keepalive_timeout_s": 1, "body_timeout_s": 1, "write_timeout_s": 1 });
    let kvpin = Kvpin::start(&config).await;
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post("/v1/messages", r#"{"model":"m"}"#).bytes()).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk("data: early\n\n").await;
    wire.head("POST").await;
    // The limits have passed when one that was connected later has been closed for one of them.
    let mut idle = kvpin.connect().await;
    assert!(idle.ends().await);
    turn.write_chunk("data: late\n\n").await;
    turn.write("0\r\n\r\n").await;
    let mut rest = Vec::new();
    while let crate::support::client::Piece::Data(data) = wire.piece().await {
        rest.extend_from_slice(&data);
    }
    assert_eq!(rest, b"data: early\n\ndata: late\n\n");
}

#[tokio::test]
async fn a_replica_that_does_not_let_itself_be_connected_to_is_given_up_for_another() {
    // A full backlog: the kernel answers no further connection.
    let port = crate::support::reserved::ReservedPort::new();
    let _full = port.listen_without_accepting().await;
    let mut hand = Hand::start();
    let mut config: Value = config(json!({ "m": { "replicas": [
        { "url": format!("http://{}", port.address()), "name": "stuck" }, { "url": hand.url(), "name": "good" },
    ] } }));
    config["limits"] = json!({ "connect_timeout_ms": 100 });
    let kvpin = Kvpin::launch(&config).await;
    kvpin.until_health("up", |name| name == "good").await;
    for id in ["one", "two"] {
        let mut wire = kvpin.connect().await;
        wire.send(&Call::post("/v1/messages", r#"{"model":"m"}"#).of(id).bytes()).await;
        hand.turn().await.answer("{}").await;
        let reply = wire.reply("POST").await.expect("a response");
        assert_eq!((reply.status(), reply.replica()), (200, "good"));
    }
}
