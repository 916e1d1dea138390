//! SIGHUP: a new configuration is served at once, and nobody who is being served notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, fast, start, start_many, steady, streamed, urls};
use crate::support::until;

const CONVERSATIONS: usize = 32;
const RELOADS: usize = 50;

fn stream(id: &str, tokens: u32) -> Call {
    Call::post("/v1/chat/completions", streamed("go on", tokens).to_string()).of(id)
}

/// Streams turns of one conversation until told to stop, and says how many they were. Each must come whole from one and the
/// same replica.
async fn converse(mut wire: Wire, id: String, stop: Arc<AtomicBool>) -> usize {
    let first = wire.call(&stream(&id, 10)).await;
    assert_eq!((first.status(), first.decision()), (200, "placed"));
    let mut turns = 1;
    while !stop.load(Ordering::Relaxed) {
        let reply = wire.call(&stream(&id, 10)).await;
        assert_eq!((reply.status(), reply.decision(), reply.replica()), (200, "sticky", first.replica()), "{id}");
        assert!(reply.is_whole && reply.text().ends_with("data: [DONE]\n\n"), "{id}: {}", reply.text());
        turns += 1;
    }
    turns
}

/// Without and with another replica and another model.
fn configurations(kept: &[ReplicaServer], passing: &[ReplicaServer; 2]) -> [Value; 2] {
    let all: Vec<_> = kept.iter().chain(&passing[..1]).map(url).collect();
    // High enough that nothing is spilled.
    let model = |replicas: Value| json!({ "spill_threshold": 100, "replicas": replicas });
    let small = config(json!({ (MODEL): model(urls(kept)) }));
    let large = config(json!({ (MODEL): model(json!(all)), "passing": { "replicas": [url(&passing[1])] } }));
    [small, large]
}

fn url(replica: &ReplicaServer) -> String {
    format!("http://{}", replica.address())
}

#[tokio::test]
async fn fifty_reloads_under_32_streaming_conversations_lose_no_turn_and_no_pin() {
    let kept = start_many(4, fast()).await;
    let passing = [start(fast()).await, start(fast()).await];
    let [small, large] = configurations(&kept, &passing);
    let kvpin = Kvpin::start(&small).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut conversations = JoinSet::new();
    for number in 0..CONVERSATIONS {
        let wire = kvpin.connect().await;
        conversations.spawn(converse(wire, format!("conversation-{number}"), Arc::clone(&stop)));
    }
    until("all are pinned", async || {
        (kvpin.status().await["models"][0]["conversations"] == CONVERSATIONS).then_some(())
    })
    .await;
    for number in 0..RELOADS {
        let (config, models) = if number % 2 == 0 { (&large, 2) } else { (&small, 1) };
        assert!(kvpin.reload(config).await, "reload {number}");
        assert_eq!(kvpin.status().await["models"].as_array().map(Vec::len), Some(models));
    }
    stop.store(true, Ordering::Relaxed);
    let turns: usize = conversations.join_all().await.into_iter().sum();
    assert!(turns > 2 * CONVERSATIONS, "{turns} turns of {CONVERSATIONS} conversations meanwhile");
    assert_eq!(kvpin.status().await["models"][0]["conversations"], CONVERSATIONS);
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(kvpin.reloads().await, (RELOADS as f64, 0.0));
}

#[tokio::test]
async fn a_stream_on_a_replica_that_a_reload_takes_out_runs_to_its_end() {
    let (staying, leaving) = (start(steady()).await, start(steady()).await);
    let both = config(json!({ (MODEL): { "replicas": [url(&staying), url(&leaving)] } }));
    let one = config(json!({ (MODEL): { "replicas": [url(&staying)] } }));
    let kvpin = Kvpin::start(&both).await;
    let (mut wire, id) = stream_at(&kvpin, &leaving).await;
    assert!(kvpin.reload(&one).await);
    assert_eq!(kvpin.replica(&leaving.address().to_string()).await["retired"], true);
    let elsewhere = kvpin.call(&stream(&id, 2)).await;
    assert_eq!((elsewhere.decision(), elsewhere.replica()), ("placed", staying.address().to_string().as_str()));
    assert!(last_of(&mut wire).await.ends_with("data: [DONE]\n\n"));
    until("the retired replica is forgotten", async || {
        (kvpin.status().await["models"][0]["replicas"].as_array().map(Vec::len) == Some(1)).then_some(())
    })
    .await;
}

/// Begins a stream at `replica`, of some conversation.
async fn stream_at(kvpin: &Kvpin, replica: &ReplicaServer) -> (Wire, String) {
    for number in 0..8 {
        let id = format!("conversation-{number}");
        let mut wire = kvpin.connect().await;
        let head = wire.begin(&stream(&id, 300)).await;
        if head.replica() == replica.address().to_string() {
            return (wire, id);
        }
    }
    panic!("none of 8 conversations was placed at {}", replica.address())
}

/// Reads a response to its proper end, and gives its last piece.
async fn last_of(wire: &mut Wire) -> String {
    let mut last = String::new();
    loop {
        match wire.piece().await {
            Piece::Data(data) => last = String::from_utf8_lossy(&data).into_owned(),
            Piece::End => return last,
            Piece::Cut => panic!("cut after {last:?}"),
        }
    }
}

#[tokio::test]
async fn a_reload_takes_effect_for_aliases_affinity_and_thresholds_and_keeps_pins() {
    let replicas = [Recorder::start(), Recorder::start()];
    let urls: Vec<_> = replicas.iter().map(Recorder::url).collect();
    let model = |change: Value| {
        let mut model = json!({ "replicas": urls });
        model.as_object_mut().expect("an object").extend(change.as_object().cloned().unwrap_or_default());
        config(json!({ "m": model }))
    };
    let kvpin = Kvpin::start(&model(json!({}))).await;
    let turn = |name: &str| Call::post("/v1/messages", json!({ "model": name }).to_string()).of("kept");
    let home = kvpin.call(&turn("m")).await.replica().to_owned();
    assert_eq!(kvpin.call(&turn("other-name")).await.status(), 404);
    assert!(kvpin.reload(&model(json!({ "aliases": ["other-name"], "spill_threshold": 3 }))).await);
    let reply = kvpin.call(&turn("other-name")).await;
    assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()));
    assert_eq!(kvpin.replica(&home).await["spill_threshold"], 3);
    assert!(kvpin.reload(&model(json!({ "affinity": false }))).await);
    assert_eq!(kvpin.call(&turn("m")).await.decision(), "unpinned");
    assert!(kvpin.reload(&model(json!({}))).await);
    let reply = kvpin.call(&turn("m")).await;
    assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()), "the pin outlived it all");
    assert_eq!(kvpin.replica(&home).await["sticky"], 2, "and so did the counters");
}

#[tokio::test]
async fn a_bad_file_changes_nothing_and_says_why() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for (text, said) in [
        ("models: {m: {replicas: [", "reload refused"),
        ("models:\n  m:\n    replicass: [http://127.0.0.1:1]\n", "replicass"),
        ("models: {}\n", "no model is given"),
        ("", "reload refused"),
    ] {
        let (_, refused) = kvpin.reloads().await;
        assert!(!kvpin.reload_text(text).await, "{text:?}");
        assert_eq!(kvpin.reloads().await.1, refused + 1.0);
        kvpin.until_logged(said).await;
        let reply = kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await;
        assert_eq!((reply.status(), reply.replica()), (200, recorder.name().as_str()));
    }
}

#[tokio::test]
async fn a_change_that_takes_a_restart_is_refused_by_name_and_nothing_else_of_it_is_taken() {
    let recorder = Recorder::start();
    let models = json!({ "m": { "replicas": [recorder.url()] } });
    let kvpin = Kvpin::serve(models.clone()).await;
    for key in ["listen", "admin"] {
        let mut changed = config(models.clone());
        changed[key] = json!("127.0.0.1:1");
        changed["models"]["m"]["aliases"] = json!(["never"]);
        assert!(!kvpin.reload(&changed).await);
        kvpin.until_logged(&format!("{key} can only change with a restart")).await;
        assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"never"}"#)).await.status(), 404);
    }
}
