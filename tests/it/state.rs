//! What is remembered outlives the process, and nothing that stands in its file is in the way of a start.

use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::Reply;
use crate::support::generations::Generations;
use crate::support::load::{Load, Refusals};
use crate::support::storyteller::{Storyteller, told_to};
use crate::support::{full, until};

const MODEL: &str = "m";

fn models(replicas: &[Storyteller]) -> Value {
    let urls: Vec<_> = replicas.iter().map(Storyteller::url).collect();
    json!({ (MODEL): { "spill_threshold": 1000, "replicas": urls } })
}

fn turn(messages: &[&str]) -> Call {
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages: Vec<_> = roles.zip(messages).map(|(role, said)| json!({ "role": role, "content": said })).collect();
    let body = json!({ "model": MODEL, "stream": true, "messages": messages });
    Call::post("/v1/chat/completions", body.to_string())
}

/// Where and why a turn was served.
fn served(reply: &Reply) -> (String, String) {
    assert_eq!(reply.status(), 200, "{}", reply.text());
    (reply.decision().to_owned(), reply.replica().to_owned())
}

/// A turn of each of these conversations.
async fn turns(kvpin: &Generations, conversations: usize) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for number in 0..conversations {
        all.push(served(&kvpin.call(&turn(&["hello"]).of(&format!("conversation-{number}"))).await));
    }
    all
}

fn homes(turns: &[(String, String)]) -> Vec<&str> {
    turns.iter().map(|(_, home)| home.as_str()).collect()
}

#[tokio::test]
async fn conversations_with_and_without_ids_drains_and_keys_outlive_a_restart() {
    let replicas = Storyteller::start_many(4);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let before = turns(&kvpin, 12).await;
    let unnamed = served(&kvpin.call(&turn(&["who are you?"])).await);
    let alias = turn(&["hello"]).of("conversation-3").header("x-litellm-session-id", "another-name");
    assert_eq!(served(&kvpin.call(&alias).await).0, "sticky");
    let drained = replicas[3].address().to_string();
    let order = ["drain", &format!("{MODEL}/{drained}"), "--admin", &kvpin.admin().to_string()];
    assert!(kvpin.run(&order).await.status.success());
    let keys = conversation_keys(&kvpin).await;

    kvpin.stop().await;
    kvpin.begin().await;
    kvpin.until_logged("13 conversations are known from 0 s ago, 0 are forgotten").await;
    assert_eq!(conversation_keys(&kvpin).await, keys, "the same ids have the same keys");
    let status = kvpin.status().await;
    let drains = status["models"][0]["replicas"].as_array().expect("replicas").iter().map(|replica| &replica["drain"]);
    assert_eq!(drains.collect::<Vec<_>>(), [&Value::Null, &Value::Null, &Value::Null, &json!("ordered")]);
    let undrain = ["undrain", &format!("{MODEL}/{drained}"), "--admin", &kvpin.admin().to_string()];
    assert!(kvpin.run(&undrain).await.status.success());

    let after = turns(&kvpin, 12).await;
    assert_eq!(homes(&after), homes(&before));
    assert!(after.iter().all(|(decision, _)| decision == "sticky"), "{after:?}");
    let by_alias = turn(&["hello"]).header("x-litellm-session-id", "another-name");
    assert_eq!(served(&kvpin.call(&by_alias).await), after[3]);
    let goes_on = turn(&["who are you?", "a replica", "which one?"]);
    assert_eq!(served(&kvpin.call(&goes_on).await), ("sticky".to_owned(), unnamed.1));
}

async fn conversation_keys(kvpin: &Generations) -> Vec<String> {
    let page = crate::support::client::call(kvpin.admin(), &Call::get("/api/v1/conversations")).await.json();
    let conversations = page["models"][0]["conversations"].as_array().expect("conversations").clone();
    let mut keys: Vec<_> = conversations.iter().map(|one| one["key"].to_string()).collect();
    keys.sort();
    assert!(keys.len() > 10 && keys[0].len() == 18, "{page}");
    keys
}

#[tokio::test]
async fn a_crash_costs_no_more_than_what_came_since_the_last_write() {
    let replicas = Storyteller::start_many(2);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut config = kvpin.config(models(&replicas));
    config["state_interval_s"] = json!(1);
    kvpin.configure(&config);
    kvpin.stop().await;
    kvpin.begin().await;
    let before = turns(&kvpin, 6).await;
    let written = kvpin.metric("kvpin_state_writes_total{outcome=\"written\"}").await;
    until("it is written again", async || {
        (kvpin.metric("kvpin_state_writes_total{outcome=\"written\"}").await > written).then_some(())
    })
    .await;
    assert_eq!(kvpin.metric("kvpin_state_bytes").await as u64, std::fs::metadata(kvpin.state_file()).unwrap().len());
    kvpin.kill().await;
    kvpin.begin().await;
    let after = turns(&kvpin, 6).await;
    assert_eq!(homes(&after), homes(&before));
    assert!(after.iter().all(|(decision, _)| decision == "sticky"), "{after:?}");
}

#[tokio::test]
async fn what_does_not_change_is_not_written_again() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut config = kvpin.config(models(&replicas));
    config["state_interval_s"] = json!(1);
    kvpin.configure(&config);
    kvpin.stop().await;
    kvpin.begin().await;
    turns(&kvpin, 3).await;
    let writes = async || kvpin.metric("kvpin_state_writes_total{outcome=\"written\"}").await;
    // The one at the start, and one for the turns, or for those of them that had ended.
    until("the turns are written", async || (writes().await >= 2.0).then_some(())).await;
    let modified = || std::fs::metadata(kvpin.state_file()).and_then(|file| file.modified()).unwrap();
    let quiet_since = until("nothing is written for longer than the interval", async || {
        let age = SystemTime::now().duration_since(modified()).unwrap_or_default();
        (age > Duration::from_secs(3)).then(modified)
    })
    .await;
    assert!(writes().await <= 4.0);
    assert_eq!(modified(), quiet_since);
}

#[tokio::test]
async fn a_replica_that_was_restarted_meanwhile_is_known_to_have_an_empty_cache() {
    let mut replicas = Storyteller::start_many(2);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let before = turns(&kvpin, 8).await;
    // Its figures tell when it started, and must have been seen.
    let scraped = async || {
        let status = kvpin.status().await;
        let replicas = status["models"][0]["replicas"].as_array().expect("replicas").clone();
        replicas.iter().all(|replica| !replica["engine"].is_null()).then_some(())
    };
    until("the replicas are scraped", scraped).await;
    kvpin.stop().await;
    replicas[0].restart().await;
    kvpin.begin().await;
    let restarted = replicas[0].address().to_string();
    kvpin.until_logged(&format!("replica={restarted} was restarted cause=start_time")).await;
    let after = turns(&kvpin, 8).await;
    for ((_, home), (decision, _)) in before.iter().zip(&after) {
        assert_eq!(decision, if *home == restarted { "placed" } else { "sticky" }, "of {home}");
    }
}

#[tokio::test]
async fn conversations_of_a_replica_that_is_gone_are_placed_anew_and_the_others_stay() {
    let replicas = Storyteller::start_many(3);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let before = turns(&kvpin, 9).await;
    let gone = replicas[0].address().to_string();
    kvpin.stop().await;
    kvpin.configure(&kvpin.config(models(&replicas[1..])));
    kvpin.begin().await;
    kvpin.until_logged("6 conversations are known from 0 s ago, 3 are forgotten").await;
    for ((_, home), (decision, _)) in before.iter().zip(&turns(&kvpin, 9).await) {
        assert_eq!(decision, if *home == gone { "placed" } else { "sticky" }, "of {home}");
    }
}

#[tokio::test]
async fn a_state_file_that_is_none_is_put_aside_and_the_start_goes_on() {
    let replicas = Storyteller::start_many(2);
    let mut kvpin = Generations::start(models(&replicas)).await;
    turns(&kvpin, 20).await;
    kvpin.stop().await;
    let good = std::fs::read(kvpin.state_file()).expect("a state");
    assert_eq!(std::fs::metadata(kvpin.state_file()).unwrap().permissions().mode() & 0o777, 0o600);
    let turned = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let mut other_version = good.clone();
    other_version[8] = 99;
    let mut huge = good[..20].to_vec();
    huge.splice(12..16, u32::MAX.to_le_bytes());
    let half = good.len() / 2;
    let cases = [
        (good[..good.len() - 1].to_vec(), "it ends in the middle"),
        (good[..half].to_vec(), "it ends in the middle"),
        (Vec::new(), "it ends in the middle"),
        (turned(half), "is damaged"),
        (turned(0), "it is no state of kvpin"),
        (other_version, "it has version 99"),
        (huge, "it is too large"),
        (b"models: {}\n".repeat(100), "it is no state of kvpin"),
    ];
    for (number, (bytes, said)) in cases.iter().enumerate() {
        kvpin.write("state", bytes);
        let before = kvpin.lines_with(said);
        kvpin.begin().await;
        assert_eq!(kvpin.lines_with(said), before + 1, "case {number}: {said}");
        let aside = kvpin.files().into_iter().find(|name| name.starts_with("state.damaged-")).expect("it was kept");
        assert_eq!(std::fs::read(kvpin.path(&aside)).expect("it was kept"), *bytes, "case {number}");
        std::fs::remove_file(kvpin.path(&aside)).expect("it can be removed");
        let (decision, _) = served(&kvpin.call(&turn(&["hello"]).of("conversation-0")).await);
        assert_eq!(decision, "placed", "case {number}");
        kvpin.stop().await;
    }
    assert_eq!(kvpin.files(), ["state"]);
    kvpin.write("state", &good);
    kvpin.begin().await;
    assert_eq!(served(&kvpin.call(&turn(&["hello"]).of("conversation-0")).await).0, "sticky");
}

#[tokio::test]
async fn a_path_that_cannot_be_written_is_a_warning_at_the_start_and_counted() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    kvpin.stop().await;
    let mut config = kvpin.config(models(&replicas));
    config["state_file"] = json!(kvpin.path("not-there/state"));
    config["state_interval_s"] = json!(1);
    kvpin.configure(&config);
    kvpin.begin().await;
    let line = kvpin.until_logged("can't be written").await;
    assert!(line.contains("WARN") && line.contains("not-there/state"), "{line}");
    turns(&kvpin, 1).await;
    until("each failure is counted", async || {
        (kvpin.metric("kvpin_state_writes_total{outcome=\"failed\"}").await >= 2.0).then_some(())
    })
    .await;
    assert_eq!(kvpin.lines_with("can't be written"), 1, "it is said once");
    std::fs::create_dir(kvpin.path("not-there")).expect("a directory");
    kvpin.until_logged("is written again").await;
}

#[tokio::test]
async fn the_directory_that_systemd_gives_is_used_and_off_is_off() {
    let replicas = Storyteller::start_many(1);
    let state_directory = tempfile::tempdir().expect("a directory");
    let path = state_directory.path().to_str().expect("a path of text");
    let mut kvpin = Generations::start_with(models(&replicas), &[("STATE_DIRECTORY", path)]).await;
    kvpin.stop().await;
    std::fs::remove_file(kvpin.state_file()).expect("it was written");
    let mut config = kvpin.config(models(&replicas));
    config.as_object_mut().expect("an object").remove("state_file");
    kvpin.configure(&config);
    kvpin.begin().await;
    turns(&kvpin, 2).await;
    kvpin.stop().await;
    kvpin.begin().await;
    kvpin.until_logged("2 conversations are known").await;
    kvpin.stop().await;
    let state = state_directory.path().join("state");
    std::fs::remove_file(&state).expect("it was written there");
    config["state_file"] = json!("off");
    kvpin.configure(&config);
    kvpin.begin().await;
    turns(&kvpin, 2).await;
    kvpin.stop().await;
    assert!(!state.exists());
    assert_eq!(kvpin.files(), [""; 0]);
}

#[tokio::test]
async fn restarts_under_load_lose_no_turn_that_was_sent_and_no_pin() {
    let (conversations, restarts) = if full() { (64, 5) } else { (24, 2) };
    let replicas = Storyteller::start_many(4);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let load = Load::begin(kvpin.address(), MODEL, conversations, Refusals::Expected).await;
    for _ in 0..restarts {
        kvpin.stop().await;
        kvpin.begin().await;
        load.until_turns(conversations * 2).await;
    }
    let figures = load.end().await;
    println!("{restarts} restarts, {conversations} conversations: {figures:?}");
    assert_eq!(kvpin.lines_with("every request has ended"), restarts);
    assert_eq!(kvpin.lines_with(" 0 are forgotten"), restarts);
}

#[tokio::test]
async fn a_stream_that_outlasts_the_stop_and_its_clients_next_request_are_both_served() {
    let replicas = Storyteller::start_many(1);
    let mut kvpin = Generations::start(models(&replicas)).await;
    let mut wire = crate::support::client::Wire::connect(kvpin.address()).await;
    let first = turn(&["hello"]).of("one");
    let head = wire.begin(&first).await;
    assert_eq!(head.header("connection"), Some("keep-alive"), "it believes that its connection stays");
    kvpin.signal("TERM");
    until("new connections are refused", async || tokio::net::TcpStream::connect(kvpin.address()).await.err()).await;
    let mut told = Vec::new();
    while let crate::support::client::Piece::Data(data) = wire.piece().await {
        told.extend_from_slice(&data);
    }
    assert_eq!(String::from_utf8_lossy(&told), told_to(&first.body));
    let second = wire.call(&turn(&["hello", "hello", "bye"]).of("one")).await;
    assert_eq!((second.status(), second.decision(), second.header("connection")), (200, "sticky", Some("close")));
    let pid = kvpin.pid;
    kvpin.ends(pid).await;
}
