//! A replica that fails costs a turn nothing before the response has begun, and is never asked twice after.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Piece, Reply, Wire};
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config, replicas};
use crate::support::recorder::{Recorder, sha256};
use crate::support::{until, until_within};

const KIB: usize = 1024;

/// A turn of conversation `id` with a body of about so many bytes.
fn turn(id: &str, bytes: usize) -> Call {
    let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(bytes));
    Call::post("/v1/chat/completions", body).of(id)
}

fn one_model(urls: &[String]) -> Value {
    json!({ "m": { "replicas": urls } })
}

/// Has a conversation of its own at the replica of that name.
async fn conversation_at(kvpin: &Kvpin, name: &str) -> String {
    for number in 0..16 {
        let id = format!("at-{name}-{number}");
        if kvpin.call(&turn(&id, 10)).await.replica() == name {
            return id;
        }
    }
    panic!("none of 16 conversations was placed at {name}")
}

fn assert_served_by(reply: &Reply, recorder: &Recorder, call: &Call) {
    assert_eq!(reply.status(), 200, "{}", reply.text());
    assert_eq!(reply.replica(), recorder.name());
    assert_eq!(reply.json()["sha256"], sha256(&call.body), "the whole body arrived");
}

#[tokio::test]
async fn a_turn_whose_replica_refuses_connections_goes_to_another_with_its_whole_body() {
    for bytes in [200, 64 * KIB, 300 * KIB, 2048 * KIB] {
        for chunked in [false, true] {
            let (mut first, second) = (Recorder::start(), Recorder::start());
            let mut config = config(one_model(&[first.url(), second.url()]));
            // So that a turn and no look at the replicas finds out.
            config["scrape_interval_ms"] = json!(60_000);
            config["health"] = json!({ "interval_ms": 60_000, "backoff_max_ms": 60_000 });
            let kvpin = Kvpin::start(&config).await;
            let id = conversation_at(&kvpin, &first.name()).await;
            first.go_away().await;
            let call = turn(&id, bytes);
            let call = if chunked { call.chunked(16 * KIB) } else { call };
            let reply = kvpin.call(&call).await;
            assert_served_by(&reply, &second, &call);
            assert_eq!(reply.decision(), "placed");
            let down = kvpin.replica(&first.name()).await;
            assert_eq!((&down["health"], &down["health_reason"]), (&json!("down"), &json!("connect_refused")));
            assert_eq!(kvpin.metric("kvpin_retried_turns_total").await, 1.0);
            assert_eq!(kvpin.call(&turn(&id, bytes)).await.decision(), "sticky", "it stays where it was served");
        }
    }
}

#[tokio::test]
async fn a_replica_that_comes_back_is_given_turns_again() {
    let (mut first, second) = (Recorder::start(), Recorder::start());
    let kvpin = Kvpin::serve(one_model(&[first.url(), second.url()])).await;
    let id = conversation_at(&kvpin, &first.name()).await;
    first.go_away().await;
    kvpin.until_health("down", |name| name == first.name()).await;
    for number in 0..4 {
        let reply = kvpin.call(&turn(&format!("meanwhile-{number}"), 10)).await;
        assert_eq!((reply.status(), reply.replica()), (200, second.name().as_str()));
    }
    let moved = kvpin.call(&turn(&id, 10)).await;
    assert_eq!((moved.decision(), moved.replica()), ("placed", second.name().as_str()));
    assert_eq!(kvpin.metric("kvpin_retried_turns_total").await, 0.0, "nobody had to find out for himself");
    first.come_back();
    kvpin.until_health("up", |_| true).await;
    conversation_at(&kvpin, &first.name()).await;
}

#[tokio::test]
async fn a_turn_whose_replica_closes_without_a_response_goes_to_another_with_its_whole_body() {
    for bytes in [200, 300 * KIB] {
        let (mut hand, recorder) = (Hand::start(), Recorder::start());
        let kvpin = Kvpin::serve(one_model(&[hand.url(), recorder.url()])).await;
        let call = turn("moved", bytes);
        let mut wire = kvpin.connect().await;
        wire.send(&call.bytes()).await;
        let first_try = hand.turn().await;
        assert_eq!(first_try.body, call.body);
        drop(first_try);
        let reply = wire.reply("POST").await.expect("a response");
        assert_served_by(&reply, &recorder, &call);
        let left = kvpin.replica(&hand.name()).await;
        assert_eq!((&left["outcomes"]["moved_on"], &left["in_flight"]), (&json!(1), &json!(0)));
        assert_eq!(recorder.count(), 1);
        assert!(!hand.has_turn(), "the failed replica is not asked again");
    }
}

#[tokio::test]
async fn a_pooled_connection_that_the_replica_has_closed_costs_no_error() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(one_model(&[hand.url()])).await;
    for bytes in [200, 300 * KIB] {
        let mut wire = kvpin.connect().await;
        wire.send(&turn("pooled", 10).bytes()).await;
        let mut served = hand.turn().await;
        served.answer("{}").await;
        assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(200));
        // The connection is in the pool now. It is closed when the next request is on it, as in the race that can't be won.
        let call = turn("pooled", bytes);
        wire.send(&call.bytes()).await;
        served.started_another().await;
        drop(served);
        let mut again = hand.turn().await;
        assert_eq!(again.body, call.body, "the same replica gets the whole turn on a fresh connection");
        again.answer("{}").await;
        let reply = wire.reply("POST").await.expect("a response");
        assert_eq!((reply.status(), reply.decision()), (200, "sticky"));
    }
    assert_eq!(kvpin.replica(&hand.name()).await["outcomes"]["moved_on"], 0);
}

#[tokio::test]
async fn with_every_replica_down_both_dialects_are_told_to_come_back() {
    let (one, two) = (Recorder::away(), Recorder::away());
    let kvpin = Kvpin::launch(&config(one_model(&[one.url(), two.url()]))).await;
    kvpin.until_health("down", |_| true).await;
    let openai = kvpin.call(&turn("hopeless", 10)).await;
    let anthropic = kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await;
    for reply in [&openai, &anthropic] {
        assert_eq!(reply.status(), 503);
        let seconds: u32 = reply.header("retry-after").and_then(|value| value.parse().ok()).expect("whole seconds");
        assert!((1..=30).contains(&seconds));
    }
    assert_eq!(anthropic.anthropic_error().0, "overloaded_error");
    assert_eq!(openai.json()["error"]["code"], "no_replica_up");
}

#[tokio::test]
async fn a_turn_that_breaks_two_replicas_is_not_tried_on_a_third() {
    let mut hands = [Hand::start(), Hand::start(), Hand::start()];
    let urls: Vec<_> = hands.iter().map(Hand::url).collect();
    let kvpin = Kvpin::serve(one_model(&urls)).await;
    let mut wire = kvpin.connect().await;
    wire.send(&turn("cursed", 10).bytes()).await;
    for _ in 0..2 {
        let [one, two, three] = &mut hands;
        tokio::select! {
            turn = one.turn() => drop(turn),
            turn = two.turn() => drop(turn),
            turn = three.turn() => drop(turn),
        }
    }
    let reply = wire.reply("POST").await.expect("a response");
    assert_eq!((reply.status(), reply.json()["error"]["code"].as_str()), (502, Some("replica_failed")));
    assert_eq!(reply.header("connection"), Some("close"), "Pingora closes it, so it must say so");
    let settled = async || {
        let status = kvpin.status().await;
        let sum =
            |outcome: &str| replicas(&status).filter_map(|replica| replica["outcomes"][outcome].as_u64()).sum::<u64>();
        let idle = replicas(&status).all(|replica| replica["in_flight"] == 0);
        (idle && (sum("moved_on"), sum("failed")) == (1, 1)).then_some(())
    };
    until("one replica is left and one has failed", settled).await;
    assert!(hands.iter_mut().all(|hand| !hand.has_turn()));
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_cut_for_the_client_too_and_tried_nowhere_else() {
    let (mut hand, recorder) = (Hand::start(), Recorder::start());
    let kvpin = Kvpin::serve(one_model(&[hand.url(), recorder.url()])).await;
    let mut wire = kvpin.connect().await;
    wire.send(&turn("cut", 10).bytes()).await;
    let mut served = hand.turn().await;
    served.write(STREAM_HEAD).await;
    served.write_chunk("data: 1\n\n").await;
    assert_eq!(wire.head("POST").await.status, 200);
    assert_eq!(wire.piece().await, Piece::Data("data: 1\n\n".into()));
    drop(served);
    assert_eq!(wire.piece().await, Piece::Cut, "the client can tell it from an end");
    until("the turn is counted", async || {
        let replica = kvpin.replica(&hand.name()).await;
        (replica["outcomes"]["failed"] == 1 && replica["in_flight"] == 0).then_some(())
    })
    .await;
    assert_eq!(recorder.count(), 0);
}

#[tokio::test]
async fn a_response_with_a_length_that_breaks_off_is_cut_for_the_client_too() {
    let (mut hand, recorder) = (Hand::start(), Recorder::start());
    let kvpin = Kvpin::serve(one_model(&[hand.url(), recorder.url()])).await;
    let mut wire = kvpin.connect().await;
    wire.send(&turn("cut", 10).bytes()).await;
    let mut served = hand.turn().await;
    served.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":").await;
    assert_eq!(wire.head("POST").await.status, 200);
    assert_eq!(wire.piece().await, Piece::Data("{\"half\":".into()));
    drop(served);
    assert_eq!(wire.piece().await, Piece::Cut);
    assert_eq!(recorder.count(), 0);
}

#[tokio::test]
async fn a_conversation_that_was_never_served_keeps_no_pin() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(one_model(&[hand.url()])).await;
    let mut wire = kvpin.connect().await;
    wire.send(&turn("unproven", 10).bytes()).await;
    let served = hand.turn().await;
    assert_eq!(kvpin.status().await["models"][0]["conversations"], 1);
    drop(served);
    assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(503));
    until("the pin is given up", async || (kvpin.status().await["models"][0]["conversations"] == 0).then_some(()))
        .await;
}

/// The head and the first 200 KiB of a turn that has 600.
async fn begin_to_upload(kvpin: &Kvpin) -> (Wire, Call) {
    let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(600 * KIB));
    let call = Call::post("/v1/messages", body).of("uploading");
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    wire.send(&call.body[..200 * KIB]).await;
    (wire, call)
}

#[tokio::test]
async fn a_turn_whose_body_still_comes_is_moved_while_all_of_it_so_far_is_kept() {
    let (mut hand, recorder) = (Hand::start(), Recorder::start());
    let kvpin = Kvpin::serve(one_model(&[hand.url(), recorder.url()])).await;
    let (mut wire, call) = begin_to_upload(&kvpin).await;
    drop(hand.arriving().await);
    let reply = wire.rest(&call.body[200 * KIB..]).await;
    assert_served_by(&reply, &recorder, &call);
}

#[tokio::test]
async fn a_turn_of_whose_body_not_all_is_kept_is_told_that_its_replica_failed() {
    let (mut hand, recorder) = (Hand::start(), Recorder::start());
    let mut config = config(one_model(&[hand.url(), recorder.url()]));
    config["limits"] = json!({ "replay_bytes_max": "300KiB" });
    let kvpin = Kvpin::start(&config).await;
    let (mut wire, call) = begin_to_upload(&kvpin).await;
    let mut served = hand.arriving().await;
    wire.send(&call.body[200 * KIB..400 * KIB]).await;
    served.read_to(350 * KIB).await;
    drop(served);
    let reply = wire.reply("POST").await.expect("a response");
    assert_eq!((reply.status(), reply.anthropic_error().0.as_str()), (502, "api_error"));
    assert!(reply.anthropic_error().1.contains(&hand.name()), "{}", reply.text());
    let free = async || (kvpin.in_flight().await == 0).then_some(());
    until_within(Duration::from_secs(1), "the slot is free while the client is slow to go", free).await;
    assert_eq!(recorder.count(), 0, "half a body goes nowhere");
}
