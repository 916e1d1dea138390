//! Bodies that come too slowly, go nowhere, or are answered before they have come.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::{Recorder, sha256};
use crate::support::{until, within};

const PATH: &str = "/v1/messages";

async fn in_front_of(hand: &Hand, limits: Value) -> Kvpin {
    let mut config = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["limits"] = limits;
    Kvpin::start(&config).await
}

/// A body of so many bytes whose model comes first.
fn body(bytes: usize) -> String {
    format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(bytes))
}

async fn until_idle(kvpin: &Kvpin) {
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    until("nothing is open", async || (kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
}

#[tokio::test]
async fn a_replica_that_answers_before_it_has_read_the_body_is_heard_at_once() {
    // What a minute's patience for the writing would not let pass in time.
    let mut hand = Hand::start();
    let kvpin = in_front_of(&hand, json!({ "body_bytes_max": "64MiB" })).await;
    for chunked in [false, true] {
        for (status, is_stream) in [("400 Bad Request", false), ("200 OK", true)] {
            let call = Call::post(PATH, body(40 << 20)).of("uploader");
            let call = if chunked { call.chunked(100_000) } else { call };
            let address = kvpin.address;
            let client = tokio::spawn(async move { Wire::connect(address).await.call(&call).await });
            let mut turn = hand.arriving().await;
            if is_stream {
                turn.write(STREAM_HEAD).await;
                turn.write_chunk("data: {\"content\":\"early\"}\n\n").await;
                turn.write("0\r\n\r\n").await;
            } else {
                turn.write(format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\nearly")).await;
            }
            let reply = within("the early answer", client).await.expect("the client ends");
            assert_eq!(reply.status().to_string(), status[..3]);
            assert!(reply.is_whole && reply.text().contains("early"), "{reply:?}");
            until_idle(&kvpin).await;
            // The connection has half a request on it.
            assert!(turn.rest().await.len() < 40 << 20);
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_body_is_stuck_is_noticed() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(&hand, json!({})).await;
    for bytes in [1_000, 100_000, 300_000, 1_000_000] {
        for is_whole in [true, false] {
            let call = Call::post(PATH, body(bytes)).of("leaver");
            let mut wire = kvpin.connect().await;
            wire.send(&call.head_bytes()).await;
            let sent = if is_whole { call.body.len() } else { call.body.len() - 10 };
            wire.send(&call.body[..sent]).await;
            // It takes the head and what came with it, and no more.
            let turn = hand.arriving().await;
            drop(wire);
            until_idle(&kvpin).await;
            drop(turn);
        }
    }
}

#[tokio::test]
async fn a_body_that_trickles_is_cut_with_408_wherever_it_goes() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(&hand, json!({ "body_timeout_s": 1, "body_rate_min_bytes_per_s": 1000 })).await;
    let model_last = r#"{"text":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","model":"m"}"#;
    for (text, is_forwarded) in [(model_last.to_owned(), false), (body(100_000), true)] {
        for chunked in [false, true] {
            let call = Call::post(PATH, text.clone()).of("slow");
            let call = if chunked { call.chunked(1) } else { call };
            let (bytes, mut wire) = (call.body_bytes(), kvpin.connect().await);
            wire.send(&call.head_bytes()).await;
            let begun = bytes.len().min(if is_forwarded { 200 } else { 5 });
            wire.send(&bytes[..begun]).await;
            let trickle = async {
                for byte in &bytes[begun..] {
                    if !wire.try_send(&[*byte]).await {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            let turn = async { if is_forwarded { Some(hand.arriving().await) } else { None } };
            // Well before the body's end: that is half an hour away for the long one, and for the short one 1.7 s.
            let (turn, ()) = tokio::join!(turn, async {
                tokio::time::timeout(Duration::from_millis(1500), trickle).await.ok();
            });
            let reply = wire.reply("POST").await.expect("an answer");
            assert_eq!(reply.status(), 408, "forwarded: {is_forwarded}, chunked: {chunked}");
            assert!(reply.anthropic_error().1.contains("too slowly"));
            assert!(wire.ends().await);
            if let Some(mut turn) = turn {
                assert!(turn.rest().await.len() < text.len(), "the replica can't take it for whole");
            }
        }
    }
    until_idle(&kvpin).await;
}

#[tokio::test]
async fn a_body_that_keeps_the_rate_may_take_longer_than_the_timeout() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["limits"] = json!({ "body_timeout_s": 1, "body_rate_min_bytes_per_s": 1000 });
    let kvpin = Kvpin::start(&config).await;
    let call = Call::post(PATH, body(30_000)).of("steady");
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    for piece in call.body.chunks(1000) {
        wire.send(piece).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let reply = wire.reply("POST").await.expect("an answer");
    assert_eq!((reply.status(), &reply.json()["sha256"]), (200, &json!(sha256(&call.body))));
}

#[tokio::test]
async fn an_http_1_0_client_gets_a_stream_without_chunks_and_its_end_with_the_connection() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(&hand, json!({})).await;
    for keep_alive in ["", "Connection: keep-alive\r\n"] {
        let mut wire = kvpin.connect().await;
        let head = format!("POST {PATH} HTTP/1.0\r\n{keep_alive}Expect: 100-continue\r\nContent-Length: 13\r\n\r\n");
        wire.send(format!("{head}{{\"model\":\"m\"}}").as_bytes()).await;
        let mut turn = hand.turn().await;
        assert!(turn.head.to_ascii_lowercase().contains("\r\nhost: "), "HTTP/1.1 wants one: {}", turn.head);
        turn.write(STREAM_HEAD).await;
        turn.write_chunk("data: {\"content\":\"a\"}\n\n").await;
        let head = wire.head("POST").await;
        assert_eq!((head.status, head.header("transfer-encoding"), head.header("content-length")), (200, None, None));
        assert_eq!(head.header("connection"), Some("close"));
        assert_eq!(wire.piece().await, Piece::Data("data: {\"content\":\"a\"}\n\n".into()));
        turn.write_chunk("data: {\"content\":\"b\"}\n\n").await;
        assert_eq!(wire.piece().await, Piece::Data("data: {\"content\":\"b\"}\n\n".into()));
        turn.write("0\r\n\r\n").await;
        assert_eq!(wire.piece().await, Piece::End);
    }
    // With a length, the connection can stay.
    let mut wire = kvpin.connect().await;
    for _ in 0..2 {
        let head = format!("POST {PATH} HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n");
        wire.send(format!("{head}{{\"model\":\"m\"}}").as_bytes()).await;
        hand.turn().await.answer("whole").await;
        let reply = wire.reply("POST").await.expect("an answer");
        assert_eq!((&*reply.text(), reply.header("connection")), ("whole", Some("keep-alive")));
    }
}

#[tokio::test]
async fn a_body_that_is_only_announced_costs_no_memory() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(&hand, json!({})).await;
    let before = kvpin.memory().now;
    let announced = Call::post(PATH, body(30 << 20)).head_bytes();
    let mut wires = Vec::new();
    for _ in 0..100 {
        let mut wire = kvpin.connect().await;
        wire.send(&announced).await;
        wires.push(wire);
    }
    until("all are there", async || (kvpin.metric("kvpin_open_requests").await == 100.0).then_some(())).await;
    let grown = kvpin.memory().peak.saturating_sub(before);
    eprintln!("{} KiB for each of 100 bodies of 30 MiB that were announced", grown / 100 / 1024);
    assert!(grown < 40 << 20, "{grown}");
    drop(wires);
    until_idle(&kvpin).await;
    assert!(!hand.has_turn());
}
