//! One connection of a client serves requests of every kind, one after the other.

use serde_json::json;

use crate::support::call::{Call, Framing};
use crate::support::client::Wire;
use crate::support::edge::Edge;
use crate::support::kvpin::Kvpin;
use crate::support::recorder::{Recorder, sha256};

/// What one of the requests must be answered with.
struct Case {
    call: Call,
    status: u16,
}

fn cases() -> Vec<Case> {
    let case = |call: Call, status| Case { call, status };
    let large = |model: &str| format!(r#"{{"text":"{}","model":"{model}"}}"#, "x".repeat(300 << 10));
    let messages = "/v1/messages";
    vec![
        case(Call::get("/health"), 200),
        case(Call::post(messages, r#"{"model":"m"}"#), 200),
        case(Call::head("/"), 200),
        case(Call::post(messages, large("m")), 200),
        case(Call::post(messages, large("m")).chunked(1400), 200),
        case(Call::post(messages, r#"{"model":"nope"}"#), 404),
        case(Call::post(messages, large("nope")), 404),
        case(Call::post(messages, large("nope")).chunked(4000), 404),
        case(Call::post("/nowhere", large("m")), 404),
        case(Call::post("/nowhere", large("m")).chunked(999), 404),
        case(Call::get(messages), 405),
        case(Call::post(messages, "").header("x-kvpin-replica", "nope"), 400),
        case(Call::post(messages, r#"{"model":"m","model":"m"}"#), 400),
        case(Call::post(messages, r#"{"model":"m","model":"m"}"#).chunked(3), 400),
        case(Call::post(messages, "not JSON"), 400),
        case(Call::post(messages, "").chunked(1), 400),
        case(Call::post(messages, r#"{"model":"m"}"#).chunked(1), 200),
        case(Call::get("/v1/models"), 200),
    ]
}

/// Says the connection that the next request may use: the same one, but for chunks that were refused.
async fn assert_answered(
    mut wire: Wire,
    connect: impl AsyncFnOnce() -> Wire,
    recorder: &Recorder,
    case: &Case,
) -> Wire {
    let Case { call, status } = case;
    let what = format!("{} {} with {} bytes, {:?}", call.method, call.path, call.body.len(), call.framing);
    let before = recorder.count();
    let reply = wire.call(call).await;
    assert_eq!(reply.status(), *status, "{what}: {}", reply.text());
    assert!(reply.is_whole, "{what}");
    let reached = *status == 200 && call.method == "POST";
    assert_eq!(recorder.count() - before, usize::from(reached), "{what}");
    if reached {
        assert_eq!(reply.json()["sha256"], sha256(&call.body), "{what}");
    }
    match (call.framing, status) {
        (Framing::Chunks(_), 400..) => wire.or_anew(&reply, connect).await,
        _ => {
            assert_eq!(reply.header("connection"), Some("keep-alive"), "{what}");
            wire
        }
    }
}

#[tokio::test]
async fn a_connection_is_used_again_after_a_request_of_any_kind() {
    let (recorder, other) = (Recorder::start(), Recorder::start());
    let models = json!({ "m": { "replicas": [recorder.url()] }, "n": { "replicas": [other.url()] } });
    let kvpin = Kvpin::serve(models).await;
    assert_every_kind(async || kvpin.connect().await, &recorder).await;
}

#[tokio::test]
async fn a_secure_connection_is_used_again_as_well() {
    let (recorder, other) = (Recorder::start(), Recorder::start());
    let models = json!({ "m": { "replicas": [recorder.url()] }, "n": { "replicas": [other.url()] } });
    let edge = Edge::serve(models).await;
    assert_every_kind(async || edge.h1().await, &recorder).await;
}

/// Each kind meets others before and after it.
async fn assert_every_kind(connect: impl AsyncFn() -> Wire, recorder: &Recorder) {
    let (cases, mut wire) = (cases(), connect().await);
    for distance in 1..4 {
        for at in 0..cases.len() {
            wire = assert_answered(wire, &connect, recorder, &cases[at * distance % cases.len()]).await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_client_asks_to_close_is_closed_after_the_answer() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for call in [Call::get("/health"), Call::post("/v1/messages", "{}")] {
        let mut wire = kvpin.connect().await;
        let reply = wire.call(&call.header("Connection", "close")).await;
        assert_eq!(reply.status(), 200);
        assert!(wire.ends().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_again_at_the_last_byte_of_an_answer_is_answered_on_the_same_connection() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    // More clients than cores, so that kvpin is often kept from its next step while a client takes its own.
    let clients = (0..32).map(|client| {
        let address = kvpin.address;
        tokio::spawn(async move {
            let mut wire = Wire::connect(address).await;
            let call = Call::post("/v1/completions", r#"{"model":"m"}"#).of(&format!("client-{client}"));
            for _ in 0..200 {
                assert_eq!(wire.call(&call).await.status(), 200);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.expect("every request was answered");
    }
}

#[tokio::test]
async fn a_connection_serves_any_number_of_requests_that_have_no_body() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut wire = kvpin.connect().await;
    let long = Call::get("/health").header("X-Long", "x".repeat(1000));
    for _ in 0..1500 {
        assert_eq!(wire.call(&long).await.status(), 200);
    }
}
