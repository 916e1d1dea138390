//! The access log: a line for each request, whole and without secrets, in a file that can be put aside, and never in the way.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::keys::{KEYS_FILE, guarded, key_of, keys_file};
use crate::support::kvpin::{Kvpin, config, run};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, fast, start_many, urls};
use crate::support::until;

/// The fields, in their order.
const FIELDS: [&str; 22] = [
    "time",
    "model",
    "replica",
    "decision",
    "reason",
    "outcome",
    "status",
    "held_ms",
    "first_byte_ms",
    "total_ms",
    "cached",
    "computed",
    "completion",
    "estimated",
    "cold",
    "request_bytes",
    "response_bytes",
    "tries",
    "conversation",
    "source",
    "key",
    "client",
];

/// Planted in every place of a request where a client may put something.
const SECRETS: [&str; 6] = ["session-9e02", "agent-51d3", "prompt-c0de", "query-f00d", "metadata-1bad", "path-0ff5"];

fn logging(mut config: Value, to: &str, format: &str) -> Value {
    config["access_log"] = json!({ "to": to, "format": format });
    config
}

/// The lines of a file in the directory of the configuration, when there are as many.
async fn lines(kvpin: &Kvpin, name: &str, count: usize) -> Vec<String> {
    let path = kvpin.file(name);
    until(&format!("{count} lines in {name}"), async || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
    .await
}

fn telling(path: &str) -> Call {
    let [session, agent, prompt, query, metadata, _] = SECRETS;
    let mut body = chat(prompt);
    body["metadata"] = json!({ "user_id": format!("{{\"session_id\":\"{metadata}\"}}") });
    Call::post(&format!("{path}?key={query}"), body.to_string())
        .header("X-Claude-Code-Session-Id", session)
        .header("x-claude-code-agent-id", agent)
        .header("User-Agent", b"quote\" back\\slash \xff\xfe \x09 {\"prompt-c0de\":1}")
        .by("alice")
}

#[tokio::test]
async fn a_line_says_what_became_of_a_request_and_nothing_that_is_secret() {
    let servers = start_many(1, fast()).await;
    let recorder = Recorder::start();
    let strange = "mod\u{e9}l \"a\\b\" = {x}";
    let models = json!({ (MODEL): { "replicas": urls(&servers) }, (strange): { "replicas": [recorder.url()] } });
    let files = [(KEYS_FILE, &*keys_file(&[("alice", json!({}))]))];
    let kvpin = Kvpin::launch_with(&logging(guarded(models.clone()), "access.log", "json"), &files).await;
    kvpin.until_health("up", |_| true).await;
    // A line is written behind its answer, so each is waited for before the next request.
    for line in [1, 2] {
        assert_eq!(kvpin.call(&telling("/v1/chat/completions")).await.status(), 200);
        lines(&kvpin, "access.log", line).await;
    }
    assert_eq!(kvpin.call(&telling("/path-0ff5")).await.status(), 404);
    lines(&kvpin, "access.log", 3).await;
    let mut odd = telling("/v1/chat/completions");
    odd.body = json!({ "model": strange, "messages": [] }).to_string().into_bytes();
    kvpin.call(&odd).await;
    lines(&kvpin, "access.log", 4).await;
    let mut nobody = telling("/v1/chat/completions").without("Authorization");
    nobody = nobody.header("x-api-key", "key-that-nobody-has");
    assert_eq!(kvpin.call(&nobody).await.status(), 401);
    assert_eq!(kvpin.call(&Call::get("/health")).await.status(), 200);

    let lines = lines(&kvpin, "access.log", 5).await;
    assert_eq!(lines.len(), 5, "health checks have none");
    let objects: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (line, object) in lines.iter().zip(&objects) {
        let at: Vec<_> = FIELDS.iter().map(|field| line.find(&format!("\"{field}\":")).expect("a field")).collect();
        assert!(at.is_sorted() && object.as_object().map(serde_json::Map::len) == Some(FIELDS.len()), "{line}");
        assert!(object["client"].as_str().is_some_and(|client| client.starts_with("127.0.0.1:")), "{line}");
        assert!(object["total_ms"].as_f64().is_some_and(|total| total > 0.0), "{line}");
        let time = object["time"].as_str().expect("a time");
        assert!(time.len() == 24 && time.ends_with('Z') && &time[10..11] == "T", "{time}");
    }
    let turn = &objects[1];
    let replica = servers[0].address().to_string();
    for (field, value) in [
        ("model", json!(MODEL)),
        ("replica", json!(replica)),
        ("decision", json!("sticky")),
        ("reason", Value::Null),
        ("outcome", json!("completed")),
        ("status", json!(200)),
        ("key", json!("alice")),
        ("tries", json!(1)),
        ("source", json!("x-claude-code-session-id")),
        ("estimated", json!(false)),
        ("completion", json!(2)),
    ] {
        assert_eq!(turn[field], value, "{field} in {turn}");
    }
    let tokens = |field: &str| turn[field].as_u64().expect("tokens");
    assert!(tokens("cached") + tokens("computed") > 0, "{turn}");
    let hash = turn["conversation"].as_str().expect("a hash");
    assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{turn}");
    assert!(turn["first_byte_ms"].as_f64() <= turn["total_ms"].as_f64(), "{turn}");
    assert_eq!((&objects[0]["decision"], &objects[0]["reason"]), (&json!("placed"), &json!("new")));
    assert_eq!((&objects[2]["status"], &objects[2]["reason"]), (&json!(404), &json!("unknown_path")));
    assert_eq!(objects[3]["model"], strange);
    assert_eq!((&objects[4]["status"], &objects[4]["key"]), (&json!(401), &Value::Null));

    assert!(kvpin.reload(&logging(guarded(models), "access.log", "text")).await, "the format can change");
    assert_eq!(kvpin.call(&telling("/v1/chat/completions")).await.status(), 200);
    let text = until("a line of text", async || {
        let text = std::fs::read_to_string(kvpin.file("access.log")).expect("the file");
        text.lines().nth(5).map(|line| (line.to_owned(), text.clone()))
    });
    let (line, all) = text.await;
    assert!(
        line.starts_with("time=2")
            && line.contains(&format!(" model={MODEL} replica={replica} decision=sticky reason=- ")),
        "{line}"
    );
    assert!(
        line.contains(&format!(" conversation={hash} source=x-claude-code-session-id key=alice client=127.0.0.1:")),
        "{line}"
    );
    for secret in SECRETS.iter().copied().chain([key_of("alice").as_str(), "key-that-nobody-has"]) {
        assert!(!all.contains(secret), "{secret} in {all}");
    }
}

#[tokio::test]
async fn a_file_that_was_put_aside_is_made_anew_at_a_reload_and_no_line_is_lost() {
    let recorder = Recorder::start();
    let config = logging(config(json!({ "m": { "replicas": [recorder.url()] } })), "access.log", "json");
    let kvpin = Kvpin::start(&config).await;
    let turn = || Call::post("/v1/messages", r#"{"model":"m"}"#);
    for _ in 0..3 {
        kvpin.call(&turn()).await;
    }
    lines(&kvpin, "access.log", 3).await;
    std::fs::rename(kvpin.file("access.log"), kvpin.file("access.log.1")).expect("puts it aside");
    kvpin.call(&turn()).await;
    lines(&kvpin, "access.log.1", 4).await;
    assert!(kvpin.reload(&config).await);
    kvpin.call(&turn()).await;
    assert_eq!(lines(&kvpin, "access.log", 1).await.len(), 1);
    assert_eq!(lines(&kvpin, "access.log.1", 4).await.len(), 4);
    assert_eq!(kvpin.metric("kvpin_access_log_dropped_lines_total").await, 0.0);
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_refuses_a_start_and_a_reload_by_its_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kvpin.yaml");
    let models = json!({ "m": { "replicas": ["http://127.0.0.1:1"] } });
    std::fs::create_dir(directory.path().join("taken")).expect("makes a directory");
    // A directory that goes away behind the check can't be made in a test; a link that leads nowhere can.
    std::os::unix::fs::symlink("/nonexistent/file", directory.path().join("link")).expect("makes a link");
    for (to, said) in [
        ("none/access.log", "there is no such directory"),
        ("taken", "is not stderr, off or a file"),
        ("link", "link: No such file"),
    ] {
        std::fs::write(&path, logging(config(models.clone()), to, "json").to_string()).expect("writes");
        let output = run(&["run", "--config", path.to_str().expect("text")]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{to}: {stderr}");
        assert!(stderr.contains("access_log.to: ") && stderr.contains(said), "{to}: {stderr}");
    }

    let recorder = Recorder::start();
    let good = config(json!({ "m": { "replicas": [recorder.url()] } }));
    let kvpin = Kvpin::start(&logging(good.clone(), "access.log", "json")).await;
    std::os::unix::fs::symlink("/nonexistent/file", kvpin.file("link")).expect("makes a link");
    assert!(!kvpin.reload(&logging(good, "link", "text")).await, "it is refused");
    assert!(kvpin.until_logged("reload refused").await.contains("access_log.to: "));
    kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await;
    let line = lines(&kvpin, "access.log", 1).await.remove(0);
    assert!(line.starts_with('{'), "the old one goes on: {line}");
}

#[tokio::test]
async fn a_full_disk_fails_no_request_and_what_it_costs_is_counted() {
    let recorder = Recorder::start();
    let config = logging(config(json!({ "m": { "replicas": [recorder.url()] } })), "/dev/full", "text");
    let kvpin = Kvpin::start(&config).await;
    for _ in 0..20 {
        assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await.status(), 200);
    }
    until("the lines are counted", async || {
        (kvpin.metric("kvpin_access_log_dropped_lines_total").await == 20.0).then_some(())
    })
    .await;
    kvpin.until_logged("the access log can't be written").await;
    assert_eq!(kvpin.log().matches("the access log can't be written").count(), 1);
}

#[tokio::test]
async fn the_last_lines_are_written_before_the_process_ends() {
    let recorder = Recorder::start();
    let config = logging(config(json!({ "m": { "replicas": [recorder.url()] } })), "stderr", "json");
    let mut kvpin = Kvpin::start(&config).await;
    for _ in 0..50 {
        kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await;
    }
    kvpin.signal("TERM");
    assert_eq!(kvpin.exit().await.code(), Some(0));
    let log = kvpin.log();
    let lines = log.lines().filter(|line| line.starts_with("{\"time\":"));
    let whole = lines.filter(|line| serde_json::from_str::<Value>(line).is_ok()).count();
    assert_eq!(whole, 50, "{log}");
}
