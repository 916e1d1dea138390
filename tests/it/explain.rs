//! `kvpin explain` on requests of real clients: their heads as recorded on the wire, with bodies of our own in their shape.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::kvpin::{BINARY, Kvpin, config};
use crate::support::recorder::Recorder;

/// What is expected of one fixture. `None` for a rule: the request has no conversation.
struct Expected {
    fixture: &'static str,
    kind: &'static str,
    rule: Option<&'static str>,
    is_agent: bool,
    has_parent: bool,
}

const fn turn(fixture: &'static str, rule: &'static str) -> Expected {
    Expected { fixture, kind: "turn", rule: Some(rule), is_agent: false, has_parent: false }
}

const fn child(fixture: &'static str, rule: &'static str) -> Expected {
    Expected { has_parent: true, ..turn(fixture, rule) }
}

const fn subagent(fixture: &'static str, rule: &'static str) -> Expected {
    Expected { is_agent: true, ..child(fixture, rule) }
}

const fn other(fixture: &'static str, kind: &'static str) -> Expected {
    Expected { fixture, kind, rule: None, is_agent: false, has_parent: false }
}

const CLAUDE_CODE: &str = "x-claude-code-session-id";
const METADATA: &str = "body.metadata.user_id";
const PROMPT_CACHE_KEY: &str = "body.prompt_cache_key";
const FINGERPRINT: &str = "fingerprint";

static EXPECTED: [Expected; 48] = [
    turn("claude-code-turn", CLAUDE_CODE),
    turn("claude-code-turn-with-hints", CLAUDE_CODE),
    turn("claude-code-compaction", CLAUDE_CODE),
    turn("claude-code-compacted", CLAUDE_CODE),
    subagent("claude-code-subagent", CLAUDE_CODE),
    subagent("claude-code-subagent-with-hints", CLAUDE_CODE),
    turn("claude-code-without-its-header", METADATA),
    turn("claude-code-legacy-metadata", METADATA),
    other("claude-code-title", "side"),
    other("claude-code-title-with-hints", "side"),
    other("claude-code-count-tokens", "side"),
    other("claude-code-warm-up", "local"),
    other("claude-code-models", "local"),
    turn("codex-turn", "thread-id"),
    child("codex-subagent", "thread-id"),
    turn("codex-underscores", "thread_id"),
    turn("codex-conversation-id", "conversation_id"),
    turn("codex-compressed", "thread-id"),
    turn("opencode-turn", "x-session-id"),
    child("opencode-subagent", "x-session-id"),
    turn("opencode-to-its-own-provider", "x-opencode-session"),
    other("opencode-title", "side"),
    turn("pi-responses", "session-id"),
    turn("pi-completions-with-affinity", "session_id"),
    turn("pi-messages-with-affinity", "x-session-affinity"),
    turn("pi-completions", FINGERPRINT),
    turn("pi-messages", FINGERPRINT),
    turn("qwen-code-completions", FINGERPRINT),
    turn("qwen-code-messages", FINGERPRINT),
    turn("cline", FINGERPRINT),
    turn("continue", FINGERPRINT),
    child("kilo-code", "x-kilocode-taskid"),
    turn("crush", "x-session-id"),
    turn("goose", "agent-session-id"),
    turn("goose-old", "goose-session-id"),
    turn("openhands", "x-litellm-session-id"),
    turn("hermes", "x-session-affinity"),
    turn("kimi-cli", PROMPT_CACHE_KEY),
    turn("open-webui", "x-openwebui-chat-id"),
    turn("librechat", "x-conversation-id"),
    turn("librechat-untemplated", FINGERPRINT),
    turn("dynamo-client", "x-dynamo-session-id"),
    turn("mistral-vibe", "x-affinity"),
    turn("oh-my-pi", "x-grok-conv-id"),
    turn("roo-code", "x-roo-task-id"),
    turn("openai-sdk", FINGERPRINT),
    turn("conversations-api", "body.conversation"),
    turn("conversation-id-in-the-body", "body.conversation_id"),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire")
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(format!("{name}.http"))).expect(name)
}

/// A configuration that no kvpin serves by, in a directory of its own.
fn nowhere() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kvpin.yaml");
    let text = "admin: off\nmodels: {qwen3-4b: {aliases: [{name: sonnet, upstream: qwen3-4b}], \
                replicas: ['http://127.0.0.1:1', 'http://127.0.0.1:2']}}\n";
    std::fs::write(&path, text).expect("writes");
    let path = path.to_str().expect("a path of text").to_owned();
    (directory, path)
}

fn explain(arguments: &[&str], request: &[u8]) -> Output {
    let mut command = Command::new(BINARY);
    command.arg("explain").args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    // An explain that refuses its configuration reads nothing.
    child.stdin.take().expect("its stdin").write_all(request).ok();
    child.wait_with_output().expect("ends")
}

fn explained(arguments: &[&str], request: &[u8]) -> Value {
    let output = explain(&[arguments, &["--json"]].concat(), request);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn every_recorded_request_is_recognised_by_the_rule_that_is_expected() {
    let (_directory, config) = nowhere();
    for expected in &EXPECTED {
        let raw = fixture(expected.fixture);
        let said = &explained(&["--config", &config], &raw)["explanation"];
        let name = expected.fixture;
        assert_eq!((&said["kind"], &said["rule"]), (&json!(expected.kind), &json!(expected.rule)), "{name}: {said}");
        assert_eq!(said["is_agent_of_session"], expected.is_agent, "{name}");
        assert_eq!(said["parent"].is_string(), expected.has_parent, "{name}");
        assert_eq!(said["key"].is_string(), expected.kind == "turn", "{name}");
        let notes = if name == "codex-compressed" { 1 } else { 0 };
        assert_eq!(said["notes"].as_array().map(Vec::len), Some(notes), "{name}: {said}");
        // What a client sent stands in none of the answers, beyond its method, its path and its model.
        let text = said.to_string();
        let head = String::from_utf8_lossy(&raw);
        let values = head.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split_once(": "));
        for (header, value) in values.filter(|(header, value)| header.to_lowercase().contains("id") && value.len() > 8)
        {
            assert!(!text.contains(value), "{name} tells its {header}: {text}");
        }
    }
    let known: BTreeSet<_> = EXPECTED.iter().map(|expected| format!("{}.http", expected.fixture)).collect();
    let there = std::fs::read_dir(fixtures()).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let there: BTreeSet<_> = there
        .filter(|path| path.is_file())
        .map(|path| path.file_name().and_then(|name| name.to_str()).expect("text").to_owned())
        .collect();
    assert_eq!(there, known, "every fixture is expected to be something");
}

#[test]
fn words_say_what_the_json_says() {
    let (_directory, config) = nowhere();
    for (name, parts) in [
        (
            "claude-code-subagent",
            &[
                "x-claude-code-session-id, with x-claude-code-agent-id",
                "started by",
                "placed (new)",
                "127.0.0.1:",
                "as none serves",
            ][..],
        ),
        ("claude-code-title", &["a side call, by its shape", "side"]),
        ("opencode-turn", &["x-session-id", "1 messages", "just begun"]),
        ("claude-code-models", &["answered by kvpin itself"]),
    ] {
        let output = explain(&["--config", &config], &fixture(name));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(parts.iter().all(|part| said.contains(part)), "{name}: {said}");
    }
}

#[test]
fn what_is_refused_is_said_with_its_answer() {
    let (_directory, config) = nowhere();
    for (request, status, reason) in [
        ("POST /v1/chat/completions HTTP/1.1\r\n\r\n{\"model\":\"other\"}", 404, "unknown_model"),
        ("POST /v1/chat/completions HTTP/1.1\n\n{\"model\":\"a\",\"model\":\"b\"}", 400, "two_models"),
        ("GET /v1/chat/completions HTTP/1.1\r\n\r\n", 405, "wrong_method"),
        ("POST /nowhere HTTP/1.1\r\n\r\n", 404, "unknown_path"),
    ] {
        let said = &explained(&["--config", &config], request.as_bytes())["explanation"];
        assert_eq!(said["kind"], "refused");
        assert_eq!((&said["refusal"]["status"], &said["refusal"]["reason"]), (&json!(status), &json!(reason)));
    }
}

#[test]
fn what_is_no_request_and_what_is_no_configuration_is_told() {
    let (_directory, config) = nowhere();
    for (request, part) in [
        ("", "stdin is empty"),
        ("hello", "the head has no end"),
        ("hello there\r\n\r\n", "no HTTP request"),
        ("POST /v1/messages HTTP/1.1\r\nhost: x\r\n", "empty line"),
        ("POST /v1/messages HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "chunked"),
    ] {
        let output = explain(&["--config", &config], request.as_bytes());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{request:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(part), "{request:?}: {said}");
    }
    assert_eq!(explain(&["--config", "/nowhere/kvpin.yaml"], b"").status.code(), Some(78));
}

#[test]
fn an_alias_a_length_and_a_key_given_twice_are_noted() {
    let (_directory, config) = nowhere();
    let request = "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 7\r\n\r\n\
                   {\"model\":\"sonnet\",\"session_id\":\"a\",\"session_id\":\"b\",\"messages\":[]}";
    let said = &explained(&["--config", &config], request.as_bytes())["explanation"];
    assert_eq!(said["model"], json!({"name": "qwen3-4b", "asked_for": "sonnet", "sent_as": "qwen3-4b"}));
    let notes = said["notes"].to_string();
    assert!(notes.contains("announces a body of 7 bytes") && notes.contains("`session_id`"), "{notes}");
}

#[tokio::test]
async fn the_kvpin_that_serves_is_asked_and_tells_where_a_conversation_is() {
    let recorders = [Recorder::start(), Recorder::start(), Recorder::start()];
    let urls: Vec<_> = recorders.iter().map(Recorder::url).collect();
    let mut file = config(json!({ "qwen3-4b": { "replicas": urls } }));
    let kvpin = Kvpin::start(&file).await;
    // Its configuration as an operator would have it, with the port that the kernel chose.
    file["admin"] = json!(kvpin.admin.to_string());
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kvpin.yaml");
    std::fs::write(&path, file.to_string()).expect("writes");
    let path = path.to_str().expect("a path of text").to_owned();

    let raw = fixture("opencode-turn");
    let ask = async |raw: &[u8]| {
        let (path, raw) = (path.clone(), raw.to_vec());
        let asked = tokio::task::spawn_blocking(move || explained(&["--config", &path], &raw)).await;
        asked.expect("explains")
    };
    let before = ask(&raw).await;
    assert_eq!(before["serving"], kvpin.admin.to_string());
    assert_eq!(
        (&before["explanation"]["decision"], &before["explanation"]["reason"]),
        (&json!("placed"), &json!("new"))
    );
    assert_eq!(ask(&raw).await, before, "an explanation leaves no trace");

    let body = raw.split(|byte| *byte == b'\n').next_back().expect("a body").to_vec();
    let turn = Call::post("/v1/chat/completions", body).header("x-session-id", "ses_dd84c6dc0ffeIB5gFrg79nM0Q4");
    let home = kvpin.call(&turn).await.replica().to_owned();
    let after = &ask(&raw).await["explanation"];
    assert_eq!((&after["decision"], &after["replica"]), (&json!("sticky"), &json!(home)));
    let line = kvpin.until_logged("source=x-session-id").await;
    assert!(line.contains(&format!("conversation={}", after["key"].as_str().expect("a key"))), "{line}");
    assert_eq!(recorders.iter().map(Recorder::count).sum::<usize>(), 1, "no replica saw an explanation");

    let refused = call(kvpin.admin, &Call::get("/api/v1/explain")).await;
    assert_eq!((refused.status(), refused.header("allow")), (405, Some("POST")));
}
