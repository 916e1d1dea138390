//! How many requests a key may have in flight, and within a minute.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Reply, Wire};
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::keys::{KEYS_FILE, key_of, keys_file};
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;
use crate::support::until;

const IN_FLIGHT: &str = "kvpin_key_in_flight_requests{key=\"few\"}";

fn turn() -> Call {
    Call::post("/v1/messages", r#"{"model":"m"}"#)
}

async fn in_front_of(url: String, entries: &[(&str, Value)]) -> Kvpin {
    let keys = keys_file(entries);
    let config = crate::support::keys::guarded(json!({ "m": { "replicas": [url] } }));
    Kvpin::launch_with(&config, &[(KEYS_FILE, &keys)]).await
}

async fn begun(kvpin: &Kvpin, call: Call) -> Wire {
    let mut wire = kvpin.connect().await;
    wire.send(&call.bytes()).await;
    wire
}

async fn until_in_flight(kvpin: &Kvpin, count: f64) {
    until("so many are in flight", async || (kvpin.metric(IN_FLIGHT).await == count).then_some(())).await;
}

fn retry_after(reply: &Reply) -> u32 {
    reply.header("retry-after").expect("a Retry-After").parse().expect("whole seconds")
}

#[tokio::test]
async fn over_its_requests_in_flight_a_key_is_told_to_come_back_and_others_are_not_touched() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(hand.url(), &[("few", json!({ "in_flight_max": 2 })), ("other", json!({}))]).await;
    let mut first = begun(&kvpin, turn().by("few")).await;
    let mut at_engine = hand.turn().await;
    let second = begun(&kvpin, turn().by("few")).await;
    let _held = hand.turn().await;
    let mut wire = kvpin.connect().await;
    let refused = wire.call(&turn().by("few")).await;
    assert_eq!(
        (refused.status(), refused.anthropic_error().0, retry_after(&refused)),
        (429, "rate_limit_error".into(), 1)
    );
    let chat = Call::post("/v1/chat/completions", r#"{"model":"m"}"#).by("few");
    let refused = wire.call(&chat).await;
    assert_eq!(
        (refused.status(), refused.json()["error"]["code"].clone()),
        (429, json!("key_in_flight")),
        "on the same connection"
    );
    let other = begun(&kvpin, turn().by("other")).await;
    hand.turn().await.answer("{}").await;
    drop(other);
    // Ended, and left: both give their place back.
    at_engine.answer("{}").await;
    assert_eq!(first.reply("POST").await.map(|reply| reply.status()), Some(200));
    until_in_flight(&kvpin, 1.0).await;
    drop(second);
    until_in_flight(&kvpin, 0.0).await;
    assert_eq!(kvpin.metric("kvpin_key_requests_total{key=\"few\",outcome=\"limited\"}").await, 2.0);
}

#[tokio::test]
async fn every_way_out_of_a_request_gives_its_place_back() {
    let mut hand = Hand::start();
    let kvpin = in_front_of(hand.url(), &[("few", json!({ "in_flight_max": 1, "models": ["m"] }))]).await;
    for (body, status) in [(r#"{"model":"n"}"#, 404), ("{", 400), (r#"{"model":"m","model":"m"}"#, 400)] {
        let call = Call::post("/v1/messages", body).by("few");
        assert_eq!(kvpin.call(&call).await.status(), status, "{body}");
    }
    let large = Call::post("/v1/messages", "").by("few").header("Content-Length", "99999999999");
    let mut wire = kvpin.connect().await;
    wire.send(large.head_bytes().strip_suffix(b"Content-Length: 0\r\n\r\n").expect("its end")).await;
    wire.send(b"\r\n").await;
    assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(413));
    // A client that leaves in its body, before its answer, and in a stream.
    let mut wire = kvpin.connect().await;
    wire.send(&turn().by("few").bytes()[..150]).await;
    until_in_flight(&kvpin, 1.0).await;
    drop(wire);
    until_in_flight(&kvpin, 0.0).await;
    let mut wire = kvpin.connect().await;
    wire.send(&turn().by("few").head_bytes()).await;
    until_in_flight(&kvpin, 1.0).await;
    drop(wire);
    until_in_flight(&kvpin, 0.0).await;
    let wire = begun(&kvpin, turn().by("few")).await;
    let at_engine = hand.turn().await;
    drop(wire);
    until_in_flight(&kvpin, 0.0).await;
    drop(at_engine);
    let mut wire = begun(&kvpin, turn().by("few")).await;
    let mut at_engine = hand.turn().await;
    at_engine.write(STREAM_HEAD).await;
    at_engine.write_chunk("event: message_start\ndata: {\"type\":\"message_start\"}\n\n").await;
    at_engine.write_chunk("event: x\ndata: {\"type\":\"content_block_delta\"}\n\n").await;
    assert_eq!(wire.head("POST").await.status, 200);
    assert_eq!(kvpin.call(&turn().by("few")).await.status(), 429);
    drop(at_engine);
    until_in_flight(&kvpin, 0.0).await;
    drop(wire);
}

#[tokio::test]
async fn over_its_requests_a_minute_a_key_is_told_how_long_to_wait_and_a_reload_forgets_nothing() {
    let recorder = Recorder::start();
    let three = ("few", json!({ "requests_per_minute_max": 3 }));
    let kvpin = in_front_of(recorder.url(), &[three.clone(), ("other", json!({}))]).await;
    kvpin.until_health("up", |_| true).await;
    for _ in 0..3 {
        // What kvpin answers itself is no request of an engine's.
        assert_eq!(kvpin.call(&Call::get("/v1/models").by("few")).await.status(), 200);
        assert_eq!(kvpin.call(&turn().by("few")).await.status(), 200);
    }
    let refused = kvpin.call(&turn().by("few")).await;
    assert_eq!((refused.status(), refused.anthropic_error().0), (429, "rate_limit_error".to_owned()));
    assert!((1..=61).contains(&retry_after(&refused)), "{:?}", refused.head);
    assert_eq!(kvpin.call(&turn().by("other")).await.status(), 200);
    assert!(kvpin.reload_with(KEYS_FILE, &keys_file(&[three, ("new", json!({}))])).await);
    assert_eq!(kvpin.call(&turn().by("few")).await.status(), 429, "the minute goes on");
    assert!(kvpin.reload_with(KEYS_FILE, &keys_file(&[("few", json!({ "requests_per_minute_max": 5 }))])).await);
    assert_eq!(kvpin.call(&turn().by("few")).await.status(), 200, "another limit holds at once");
    assert_eq!(recorder.count(), 5);
}

#[tokio::test]
async fn who_asks_again_at_the_last_byte_of_an_answer_is_not_one_too_many() {
    let recorder = Recorder::start();
    let kvpin = in_front_of(recorder.url(), &[("few", json!({ "in_flight_max": 1 }))]).await;
    kvpin.until_health("up", |_| true).await;
    for number in 0..200 {
        // Each on a connection of its own, and some refused.
        let (body, status) = if number % 4 == 0 { (r#"{"model":"none"}"#, 404) } else { (r#"{"model":"m"}"#, 200) };
        assert_eq!(kvpin.call(&Call::post("/v1/messages", body).by("few")).await.status(), status, "{number}");
    }
}

#[tokio::test]
async fn the_time_to_wait_gets_shorter() {
    let recorder = Recorder::start();
    let kvpin = in_front_of(recorder.url(), &[("few", json!({ "requests_per_minute_max": 1 }))]).await;
    kvpin.until_health("up", |_| true).await;
    assert_eq!(kvpin.call(&turn().header("x-api-key", key_of("few"))).await.status(), 200);
    let first = retry_after(&kvpin.call(&turn().by("few")).await);
    let patience = Duration::from_secs(30);
    crate::support::until_within(patience, "the time is shorter", async || {
        (retry_after(&kvpin.call(&turn().by("few")).await) < first).then_some(())
    })
    .await;
}
