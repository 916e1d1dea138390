//! Keys come and go with SIGHUP, all or nothing, and whoever keeps his notices nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::keys::{KEYS_FILE, guarded, hash_of, key_of, keys_file};
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, fast, start_many, steady, streamed, urls};
use crate::support::until;

const CLIENTS: usize = 8;
const RELOADS: usize = 30;

fn stream(id: &str, tokens: u32, key: &str) -> Call {
    Call::post("/v1/chat/completions", streamed("go on", tokens).to_string()).of(id).by(key)
}

/// Streams turns until told to stop, each whole; says how many.
async fn converse(mut wire: Wire, id: String, stop: Arc<AtomicBool>) -> usize {
    let mut turns = 0;
    while !stop.load(Ordering::Relaxed) {
        let reply = wire.call(&stream(&id, 10, "stays")).await;
        assert_eq!(reply.status(), 200, "{id}: {}", reply.text());
        assert!(reply.is_whole && reply.text().ends_with("data: [DONE]\n\n"), "{id}: {}", reply.text());
        turns += 1;
    }
    turns
}

#[tokio::test]
async fn keys_come_and_go_under_load_and_no_request_of_a_key_that_stays_is_lost() {
    let replicas = start_many(2, fast()).await;
    let models = json!({ (MODEL): { "replicas": urls(&replicas), "spill_threshold": 100 } });
    let stays = ("stays", json!({ "in_flight_max": CLIENTS, "models": [MODEL] }));
    let kvpin = Kvpin::guard(models, std::slice::from_ref(&stays)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(converse(kvpin.connect().await, format!("client-{number}"), Arc::clone(&stop)));
    }
    for number in 0..RELOADS {
        let (comes, goes) = (format!("key-{number}"), format!("key-{}", number.max(1) - 1));
        assert!(kvpin.reload_with(KEYS_FILE, &keys_file(&[stays.clone(), (&comes, json!({}))])).await, "{number}");
        assert_eq!(kvpin.call(&stream("other", 1, &comes)).await.status(), 200, "{comes}");
        if goes != comes {
            assert_eq!(kvpin.call(&stream("other", 1, &goes)).await.status(), 401, "{goes}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let turns: usize = clients.join_all().await.into_iter().sum();
    assert!(turns > 2 * CLIENTS, "{turns} turns of {CLIENTS} clients meanwhile");
    until("nothing is in flight", async || (kvpin.metric("kvpin_key_in_flight_requests").await == 0.0).then_some(()))
        .await;
    assert_eq!(kvpin.metric("kvpin_key_requests_total{key=\"stays\",outcome=\"passed\"}").await, turns as f64);
    assert_eq!(kvpin.metric("kvpin_key_requests_total{key=\"key-0\"").await, 0.0, "what is gone has no series");
    let log = kvpin.log();
    assert!(log.contains("key key-29 added; key key-28 removed"), "{log}");
}

#[tokio::test]
async fn the_stream_of_a_key_that_is_taken_out_runs_to_its_end() {
    let replicas = start_many(1, steady()).await;
    let kvpin = Kvpin::guard(json!({ (MODEL): { "replicas": urls(&replicas) } }), &[("leaves", json!({}))]).await;
    let mut wire = kvpin.connect().await;
    assert_eq!(wire.begin(&stream("long", 300, "leaves")).await.status, 200);
    assert!(kvpin.reload_with(KEYS_FILE, &keys_file(&[("other", json!({}))])).await);
    assert_eq!(kvpin.call(&stream("long", 1, "leaves")).await.status(), 401);
    let mut last = String::new();
    loop {
        match wire.piece().await {
            Piece::Data(data) => last = String::from_utf8_lossy(&data).into_owned(),
            Piece::End => break,
            Piece::Cut => panic!("cut after {last:?}"),
        }
    }
    assert!(last.ends_with("data: [DONE]\n\n"), "{last:?}");
    let reply = wire.call(&stream("long", 1, "leaves")).await;
    assert_eq!(reply.status(), 401, "on the connection that it was let in on, too");
}

#[tokio::test]
async fn a_broken_keys_file_changes_nothing_of_keys_or_configuration_and_says_why() {
    let recorder = Recorder::start();
    let models = |alias: &str| json!({ "m": { "replicas": [recorder.url()], "aliases": [alias] } });
    let kvpin = Kvpin::guard(models("before"), &[("alice", json!({}))]).await;
    let turn = |model: &str| Call::post("/v1/messages", json!({ "model": model }).to_string()).by("alice");
    let key = key_of("alice");
    for (text, said) in [
        ("alice: [".to_owned(), "did not find expected"),
        (format!("alice:\n  hash: {key}\n"), "line 2: alice.hash: this is no hash"),
        (format!("alice:\n  key: {key}\n"), "line 1: alice: it has an unknown field"),
        ("kvp_0123: {}\n".to_owned(), "entry 1: a name doesn't begin with kvp_"),
        (
            json!({ "alice": { "hash": hash_of("alice"), "in_flight_max": 0 } }).to_string(),
            "alice.in_flight_max: 0 is not 1 to",
        ),
        (
            json!({ "a": { "hash": hash_of("x") }, "b": { "hash": hash_of("x") } }).to_string(),
            "b.hash: `a` has the same key",
        ),
    ] {
        // The configuration has changed too, and is not taken either.
        std::fs::write(kvpin.file("kvpin.yaml"), guarded(models("after")).to_string()).expect("writes");
        assert!(!kvpin.reload_with(KEYS_FILE, &text).await, "{text}");
        let line = kvpin.until_logged(said).await;
        assert!(line.contains("reload refused, nothing has changed") && line.contains("keys_file: "), "{line}");
        assert_eq!(kvpin.call(&turn("before")).await.status(), 200, "{text}");
        assert_eq!(kvpin.call(&turn("after")).await.status(), 404, "{text}");
    }
    let log = kvpin.log();
    assert!(!log.contains(&key) && !log.contains("kvpin1-0") && !log.contains(&hash_of("alice")), "{log}");
    std::fs::remove_file(kvpin.file(KEYS_FILE)).expect("removes it");
    assert!(!kvpin.reload(&guarded(models("after"))).await, "a file that is gone lets nobody in");
    assert!(kvpin.reload_with(KEYS_FILE, &keys_file(&[("alice", json!({}))])).await);
    assert_eq!(kvpin.call(&turn("after")).await.status(), 200);
}

#[tokio::test]
async fn keys_may_be_turned_on_and_off_by_a_reload_and_change_by_name_in_the_log() {
    let recorder = Recorder::start();
    let models = json!({ "m": { "replicas": [recorder.url()] } });
    let open = crate::support::kvpin::config(models.clone());
    let alice = |entry: Value| keys_file(&[("alice", entry)]);
    let kvpin = Kvpin::launch_with(&open, &[(KEYS_FILE, &alice(json!({})))]).await;
    kvpin.until_health("up", |_| true).await;
    let turn = Call::post("/v1/messages", r#"{"model":"m"}"#);
    assert_eq!(kvpin.call(&turn).await.status(), 200);
    assert!(kvpin.reload(&guarded(models)).await);
    assert!(kvpin.until_logged("reloaded: keys_file: none -> ").await.ends_with("key alice added"));
    assert_eq!(kvpin.call(&turn).await.status(), 401);
    assert_eq!(kvpin.call(&turn.clone().by("alice")).await.status(), 200);
    assert!(kvpin.reload_with(KEYS_FILE, &alice(json!({ "may_pin": true, "in_flight_max": 3 }))).await);
    kvpin.until_logged("reloaded: key alice: may_pin: false -> true; key alice: in_flight_max: none -> 3").await;
    let other = json!({ "alice": { "hash": hash_of("another"), "may_pin": true, "in_flight_max": 3 } });
    assert!(kvpin.reload_with(KEYS_FILE, &other.to_string()).await);
    kvpin.until_logged("reloaded: key alice: hash changed").await;
    assert!(kvpin.reload(&open).await);
    assert_eq!(kvpin.call(&turn).await.status(), 200);
}
