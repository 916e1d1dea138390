//! A replica that lies about where its response ends harms its own turn at most: no other one, and no connection of a client.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::Reply;
use crate::support::hand::{Hand, HandTurn};
use crate::support::kvpin::{Kvpin, config};
use crate::support::until;

/// One replica, which is asked again however often it fails.
async fn stage() -> (Hand, Kvpin) {
    let hand = Hand::start();
    let mut config = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["health"]["failures"] = json!(100);
    config["limits"] = json!({ "response_timeout_s": 5 });
    (hand, Kvpin::start(&config).await)
}

fn turn() -> Call {
    Call::post("/v1/chat/completions", r#"{"model":"m"}"#)
}

/// What the client gets when the replica writes these bytes, and the turn as the replica still has it.
async fn answered(hand: &mut Hand, kvpin: &Kvpin, bytes: &[u8]) -> (Reply, HandTurn) {
    let mut wire = kvpin.connect().await;
    wire.send(&turn().bytes()).await;
    let mut at_replica = hand.turn().await;
    at_replica.write(bytes).await;
    let reply = wire.reply("POST").await.expect("an answer");
    (reply, at_replica)
}

/// The next turns get their own answers, on connections that nothing is left on.
async fn assert_unharmed(hand: &mut Hand, kvpin: &Kvpin) {
    for body in ["first", "second"] {
        let mut wire = kvpin.connect().await;
        wire.send(&turn().bytes()).await;
        hand.turn().await.answer(body).await;
        let reply = wire.reply("POST").await.expect("an answer");
        assert_eq!((reply.status(), &*reply.text()), (200, body));
    }
}

#[tokio::test]
async fn what_comes_behind_a_response_is_nobodys() {
    let (mut hand, kvpin) = stage().await;
    let fake = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake";
    for good in [
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 40\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
    ] {
        let (reply, _turn) = answered(&mut hand, &kvpin, format!("{good}{fake}").as_bytes()).await;
        assert_eq!((reply.status(), &*reply.text(), reply.is_whole), (200, "good", true));
        assert_unharmed(&mut hand, &kvpin).await;
        // Later, when the connection is idle already.
        let (reply, mut turn) = answered(&mut hand, &kvpin, good.as_bytes()).await;
        assert_eq!((reply.status(), &*reply.text(), reply.is_whole), (200, "good", true));
        turn.write(fake).await;
        turn.rest().await;
        assert_unharmed(&mut hand, &kvpin).await;
    }
}

#[tokio::test]
async fn a_response_that_is_shorter_than_it_says_is_cut_for_the_client_too() {
    let (mut hand, kvpin) = stage().await;
    for bytes in [
        "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\ngood",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood!!0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n-1\r\n",
    ] {
        let mut wire = kvpin.connect().await;
        wire.send(&turn().bytes()).await;
        let mut at_replica = hand.turn().await;
        at_replica.write(bytes).await;
        drop(at_replica);
        let reply = wire.reply("POST").await.expect("an answer");
        assert!(!reply.is_whole && "good".starts_with(&reply.text()), "{bytes:?}: {reply:?}");
        assert!(wire.ends().await, "{bytes:?}");
        assert_unharmed(&mut hand, &kvpin).await;
    }
}

#[tokio::test]
async fn what_is_no_response_is_502_and_never_reaches_the_client() {
    let (mut hand, kvpin) = stage().await;
    let large = |bytes: usize| format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 4\r\n\r\nevil", "x".repeat(bytes));
    let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 4\r\n\r\nevil", "X: 1\r\n".repeat(300));
    let storm = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".repeat(1000);
    for bytes in [
        "evil\r\n\r\n",
        "HTTP/1.1\r\n\r\nevil",
        "HTTP/1.1 abc OK\r\n\r\nevil",
        "HTTP/3.0 200 OK\r\n\r\nevil",
        "HTTP/1.1 000 Zero\r\nContent-Length: 4\r\n\r\nevil",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: +4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nevil",
        "HTTP/1.1 200 OK\r\nX: \0\r\nContent-Length: 4\r\n\r\nevil",
        &large(70_000),
        &large(1_100_000),
        &many,
        &storm,
    ] {
        let (reply, _turn) = answered(&mut hand, &kvpin, bytes.as_bytes()).await;
        let shown = &bytes[..bytes.len().min(80)];
        assert!([502, 503].contains(&reply.status()) && reply.is_whole, "{shown:?}: {reply:?}");
        assert!(!reply.text().contains("evil") && !reply.openai_error().is_empty(), "{shown:?}: {reply:?}");
        assert!(reply.header("link").is_none() && reply.header("x").is_none());
        assert_unharmed(&mut hand, &kvpin).await;
    }
}

#[tokio::test]
async fn interim_responses_and_the_replicas_own_connection_stay_between_the_two() {
    let (mut hand, kvpin) = stage().await;
    let bytes = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n\
        HTTP/1.1 200 OK\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=1\r\nTrailer: X-Sum\r\n\
        Transfer-Encoding: chunked\r\n\r\n4;ext=1\r\ngood\r\n0\r\nX-Sum: 1\r\n\r\n";
    let (reply, _turn) = answered(&mut hand, &kvpin, bytes.as_bytes()).await;
    assert_eq!((reply.status(), &*reply.text(), reply.is_whole), (200, "good", true));
    for header in ["link", "x-hop", "keep-alive", "trailer", "x-sum"] {
        assert_eq!(reply.header(header), None, "{header}");
    }
    assert_eq!(reply.header("connection"), Some("keep-alive"));
    assert_unharmed(&mut hand, &kvpin).await;
}

#[tokio::test]
async fn a_line_break_within_a_value_is_no_new_line_for_the_client() {
    let (mut hand, kvpin) = stage().await;
    for head in ["X: a\r\n b: c\r\n", "X: a\nY: b\r\n", "X: a\rY: b\r\n", "X : a\r\n"] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 4\r\n\r\ngood");
        let (reply, turn) = answered(&mut hand, &kvpin, bytes.as_bytes()).await;
        drop(turn);
        // Refused, or read as some lines and written as such: the client's strict reader takes it.
        assert!([200, 502, 503].contains(&reply.status()) && reply.is_whole, "{head:?}: {reply:?}");
        assert_unharmed(&mut hand, &kvpin).await;
    }
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(kvpin.metric("kvpin_panics_total").await, 0.0);
}
