//! SIGHUP: a new configuration is served at once, and nobody who is being served notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use crate::support::call::Call;
use crate::support::client::{Piece, Wire, call};
use crate::support::generations::Generations;
use crate::support::kvpin::{Kvpin, config, run};
use crate::support::load::{Load, Refusals};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, fast, start, start_many, steady, streamed, urls};
use crate::support::storyteller::Storyteller;
use crate::support::{full, until};

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
async fn reloads_are_on_the_time_line_the_refused_ones_with_their_reason() {
    let recorder = Recorder::start();
    let good = config(json!({ "m": { "replicas": [recorder.url()] } }));
    let kvpin = Kvpin::start(&good).await;
    assert!(!kvpin.reload_text("listen: here\nmodels: {}\n").await);
    assert!(kvpin.reload(&good).await);
    let history = call(kvpin.admin, &Call::get("/api/v1/history")).await.json();
    let events = history["events"].as_array().expect("events");
    let texts: Vec<_> =
        events.iter().filter(|event| event["kind"] == "reload").map(|event| event["text"].as_str()).collect();
    let [Some(refused), Some("reloaded: no changes")] = texts[..] else { panic!("{history}") };
    assert!(refused.starts_with("reload refused: line 1: listen: `here` ") && refused.contains("; "), "{refused}");
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
        kvpin.until_logged(&format!("line 1: {key}: it can only change with a new process: `kvpin upgrade`")).await;
        assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"never"}"#)).await.status(), 404);
    }
}

/// What a file does to a running kvpin, and what is said of it.
struct Change {
    config: Value,
    /// What the log says of it; the status says the same.
    said: &'static str,
    is_good: bool,
}

/// Files that change something else each, files that change nothing, and files that are refused.
fn changes(kvpin: &Generations, replicas: &[Storyteller]) -> Vec<Change> {
    let urls: Vec<_> = replicas.iter().map(Storyteller::url).collect();
    let plain = kvpin.config(json!({ "m": { "spill_threshold": 1000, "replicas": urls } }));
    let with = |key: &str, value: Value| {
        let mut config = plain.clone();
        config[key] = value;
        config
    };
    let with_model = |key: &str, value: Value| {
        let mut config = plain.clone();
        config["models"]["m"][key] = value;
        config
    };
    let good = |config, said| Change { config, said, is_good: true };
    let bad = |config, said| Change { config, said, is_good: false };
    vec![
        good(with_model("aliases", json!(["other"])), "model m: aliases: [] -> [other]"),
        bad(with("listen", json!("127.0.0.1:1")), "listen: it can only change with a new process"),
        good(with("scrape_interval_ms", json!(200)), "scrape_interval_ms: 50 -> 200"),
        bad(with("no_such_key", json!(1)), "no_such_key"),
        good(with_model("spill_threshold", json!(999)), "model m: spill_threshold: 1000 -> 999"),
        bad(with_model("spill_threshold", json!(0)), "models.m.spill_threshold: 0 is not 1 to 65536"),
        good(with("limits", json!({ "ping_interval_s": 7 })), "limits.ping_interval_s: 15 -> 7"),
        bad(with("models", json!({})), "models: no model is given"),
        good(plain.clone(), "limits.ping_interval_s: 7 -> 15"),
        good(plain.clone(), "no changes"),
    ]
}

#[tokio::test]
async fn reloads_of_good_changed_and_broken_files_under_load_lose_no_turn_and_name_what_they_did() {
    let (conversations, reloads, within) =
        if full() { (64, 200, Duration::from_secs(60)) } else { (24, 40, Duration::ZERO) };
    let replicas = Storyteller::start_many(4);
    let urls: Vec<_> = replicas.iter().map(Storyteller::url).collect();
    let kvpin = Generations::start(json!({ "m": { "spill_threshold": 1000, "replicas": urls } })).await;
    let load = Load::begin(kvpin.address(), "m", conversations, Refusals::Never).await;
    let changes = changes(&kvpin, &replicas);
    let begun = Instant::now();
    let mut refused = 0;
    for number in 0..reloads {
        // A broken file between any two good ones leaves what the one before it has set.
        let change = &changes[number % changes.len()];
        kvpin.configure(&change.config);
        let word = if change.is_good { "reloaded: " } else { "reload refused, nothing has changed: " };
        let before = kvpin.lines_with(word);
        kvpin.signal("HUP");
        let line = until("the reload is told", async || kvpin.newest_line_with(word, before)).await;
        assert!(line.contains(change.said), "reload {number}: {line}");
        refused += usize::from(!change.is_good);
        sleep_until(begun + within.mul_f64((number + 1) as f64 / reloads as f64)).await;
    }
    let took = begun.elapsed();
    let figures = load.end().await;
    println!("{reloads} reloads in {took:?}, {refused} refused, {conversations} conversations: {figures:?}");
    assert_eq!(figures.closes, 0, "no connection was closed");
    let counted = async |outcome: &str| kvpin.metric(&format!("kvpin_reloads_total{{outcome=\"{outcome}\"")).await;
    assert_eq!((counted("applied").await, counted("refused").await), ((reloads - refused) as f64, refused as f64));
}

#[tokio::test]
async fn the_status_and_the_metrics_say_what_came_of_the_last_reload() {
    let recorder = Recorder::start();
    let models = |aliases: Value| config(json!({ "m": { "replicas": [recorder.url()], "aliases": aliases } }));
    let kvpin = Kvpin::start(&models(json!([]))).await;
    let last = async || {
        let status = kvpin.status().await["kvpin"]["last_reload"].clone();
        let success = kvpin.metric("kvpin_last_reload_success ").await;
        (status, success, kvpin.metric("kvpin_last_reload_success_timestamp_seconds").await)
    };
    let (status, success, begun_at) = last().await;
    assert_eq!((status, success), (Value::Null, 1.0));
    assert!(begun_at > 1.7e9, "{begun_at}");

    assert!(kvpin.reload(&models(json!(["other"]))).await);
    let (status, success, applied_at) = last().await;
    assert_eq!((&status["outcome"], &status["problems"]), (&json!("applied"), &json!([])));
    assert_eq!(status["changes"], json!(["model m: aliases: [] -> [other]"]));
    assert_eq!(success, 1.0);
    assert!(applied_at > begun_at && status["at_unix_s"].as_f64().is_some_and(|at| (at - applied_at).abs() < 1.0));

    assert!(!kvpin.reload_text("models:\n  m:\n    replicas: [http://127.0.0.1:1]\n    spill_threshold: 0\n").await);
    let (status, success, still_applied_at) = last().await;
    let problem = json!({ "line": 4, "path": "models.m.spill_threshold", "reason": "0 is not 1 to 65536" });
    assert_eq!((&status["outcome"], &status["problems"]), (&json!("refused"), &json!([problem])));
    assert_eq!((success, still_applied_at), (0.0, applied_at));
}

#[tokio::test]
async fn of_many_signals_at_once_the_last_file_is_what_counts() {
    let recorder = Recorder::start();
    let models = |alias: String| config(json!({ "m": { "replicas": [recorder.url()], "aliases": [alias] } }));
    let kvpin = Kvpin::start(&models("alias-0".to_owned())).await;
    for number in 1..=50 {
        kvpin.configure(&models(format!("alias-{number}")));
        kvpin.signal("HUP");
    }
    until("the last file is served", async || {
        let reply = kvpin.call(&Call::post("/v1/messages", r#"{"model":"alias-50"}"#)).await;
        (reply.status() == 200).then_some(())
    })
    .await;
    let (applied, refused) = kvpin.reloads().await;
    assert!((1.0..=50.0).contains(&applied) && refused == 0.0, "{applied} applied, {refused} refused");
}

#[tokio::test]
async fn a_file_can_be_held_against_what_runs_before_it_is_reloaded() {
    let recorder = Recorder::start();
    let models = |aliases: Value| json!({ "m": { "replicas": [recorder.url()], "aliases": aliases } });
    let kvpin = Kvpin::start(&config(models(json!([])))).await;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("new.yaml");
    let admin = kvpin.admin.to_string();
    let check = async |text: String, more: &[&str]| {
        std::fs::write(&file, text).expect("writes the file");
        let file = file.to_str().expect("a path of text").to_owned();
        let mut arguments = vec!["check".to_owned(), "--config".into(), file, "--against".into(), "running".into()];
        arguments.extend(more.iter().map(|argument| (*argument).to_owned()));
        let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let output = spawn_blocking(run).await.expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let admin_arguments = ["--admin", admin.as_str()];
    let same = config(models(json!([]))).to_string();
    let (exit, stdout, stderr) = check(same.clone(), &admin_arguments).await;
    assert_eq!((exit, stdout.as_str(), stderr.as_str()), (Some(0), "a reload would change nothing\n", ""));

    let (exit, stdout, _) = check(config(models(json!(["other"]))).to_string(), &admin_arguments).await;
    assert_eq!((exit, stdout.as_str()), (Some(0), "model m: aliases: [] -> [other]\n"));

    let mut moved = config(models(json!(["other"])));
    moved["listen"] = json!("127.0.0.1:1");
    let (exit, stdout, stderr) = check(moved.to_string(), &admin_arguments).await;
    assert_eq!(exit, Some(1));
    assert!(stdout.contains("listen: [127.0.0.1:0] -> [127.0.0.1:1]\nmodel m: aliases"), "{stdout}");
    assert!(stderr.contains("a reload would be refused:\nline 1: listen: it can only change"), "{stderr}");
    let (exit, stdout, _) = check(moved.to_string(), &["--admin", &admin, "--json"]).await;
    let answer: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((exit, &answer["ok"], &answer["problems"][0]["path"]), (Some(1), &json!(false), &json!("listen")));

    let (exit, stdout, stderr) = check("models: {}\n".to_owned(), &admin_arguments).await;
    assert_eq!((exit, stdout.as_str()), (Some(78), ""));
    assert!(stderr.contains("no model is given"), "{stderr}");

    let (exit, _, stderr) = check(same, &["--admin", "http://127.0.0.1:9"]).await;
    assert_eq!(exit, Some(1));
    assert!(stderr.contains("no kvpin answers at http://127.0.0.1:9"), "{stderr}");
    assert_eq!(kvpin.reloads().await, (0.0, 0.0), "nothing was reloaded");
}
