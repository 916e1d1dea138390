//! With keys, nobody gets in without one, and whoever is refused is told how in the words of his API.

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::call::Call;
use crate::support::client::Reply;
use crate::support::keys::{key_of, keys_file};
use crate::support::kvpin::{Kvpin, run};
use crate::support::recorder::Recorder;

const TURN: &str = r#"{"model":"m"}"#;

/// A kvpin in front of one recorder, for the holders of the keys `alice` and `bob`.
async fn guarded() -> (Recorder, Kvpin) {
    let recorder = Recorder::start();
    let kvpin =
        Kvpin::guard(json!({ "m": { "replicas": [recorder.url()] } }), &[("alice", json!({})), ("bob", json!({}))])
            .await;
    (recorder, kvpin)
}

/// The type of the error, in whichever dialect it is.
fn error_type(reply: &Reply) -> String {
    reply.json()["error"]["type"].as_str().unwrap_or_else(|| panic!("no type in {}", reply.text())).to_owned()
}

#[tokio::test]
async fn every_endpoint_of_an_engine_takes_a_key_and_the_refusal_is_in_the_callers_dialect() {
    let (recorder, kvpin) = guarded().await;
    let stranger = "nobody";
    for path in [
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/tokenize",
    ] {
        let call = Call::post(path, TURN);
        let two = call.clone().by("alice").header("x-api-key", key_of("bob"));
        for (call, challenge) in [
            (call.clone(), "Bearer"),
            (call.clone().by(stranger), "Bearer error=\"invalid_token\""),
            (call.clone().header("x-api-key", key_of(stranger)), "Bearer error=\"invalid_token\""),
            (two, "Bearer error=\"invalid_token\""),
        ] {
            let reply = kvpin.call(&call).await;
            assert_eq!((reply.status(), reply.header("www-authenticate")), (401, Some(challenge)), "{path}");
            assert_eq!(error_type(&reply), "authentication_error");
            let is_anthropics = path.starts_with("/v1/messages");
            assert_eq!(reply.json()["type"] == "error", is_anthropics, "{path}: {}", reply.text());
        }
        assert_eq!(recorder.count(), 0, "{path}");
    }
    for (path, shown) in [("/v1/messages", "x-api-key"), ("/v1/chat/completions", "authorization")] {
        let call = Call::post(path, TURN);
        let call = if shown == "x-api-key" { call.header(shown, key_of("alice")) } else { call.by("alice") };
        assert_eq!(kvpin.call(&call).await.status(), 200, "{path}");
    }
    assert_eq!(kvpin.metric("kvpin_refused_requests_total{reason=\"no_key\"}").await, 7.0);
    assert_eq!(kvpin.metric("kvpin_refused_requests_total{reason=\"unknown_key\"}").await, 14.0);
    assert_eq!(kvpin.metric("kvpin_refused_requests_total{reason=\"two_keys\"}").await, 7.0);
}

#[tokio::test]
async fn who_only_looks_whether_kvpin_serves_needs_no_key_and_learns_nothing_else() {
    let (_recorder, kvpin) = guarded().await;
    for call in [Call::get("/health"), Call::head("/health"), Call::head("/"), Call::get("/"), Call::head("/api/hello")]
    {
        assert_eq!(kvpin.call(&call).await.status(), 200, "{} {}", call.method, call.path);
    }
    assert_eq!(kvpin.call(&Call::get("/v1/models")).await.status(), 401);
    let reply = kvpin.call(&Call::head("/v1/models")).await;
    assert_eq!((reply.status(), reply.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(kvpin.call(&Call::get("/v1/models").by("bob")).await.status(), 200);
}

#[tokio::test]
async fn a_stranger_is_refused_before_any_of_his_body_is_read() {
    let (recorder, kvpin) = guarded().await;
    let big = Call::post("/v1/messages", vec![b'x'; 4 << 20]).by("nobody");
    let waiting = big.clone().header("Expect", "100-continue");
    for call in [big, waiting] {
        let mut wire = kvpin.connect().await;
        wire.send(&call.head_bytes()).await;
        let reply = wire.reply("POST").await.expect("an answer to the head alone");
        assert_eq!(reply.status(), 401, "and no 100 before it");
        drop(wire);
    }
    // Whoever tries keys connects anew for each.
    let mut wire = kvpin.connect().await;
    assert_eq!(wire.call(&Call::get("/v1/models").by("nobody")).await.header("connection"), Some("close"));
    assert!(wire.ends().await);
    assert_eq!((recorder.count(), kvpin.metric("kvpin_request_held_bytes").await), (0, 0.0));
}

#[tokio::test]
async fn a_key_counts_however_it_is_shown_and_tricks_with_headers_let_nobody_in() {
    let (recorder, kvpin) = guarded().await;
    let key = key_of("alice");
    let turn = || Call::post("/v1/messages", TURN);
    let bearer = format!("Bearer {key}");
    let good = [
        turn().header("Authorization", &bearer),
        turn().header("authorization", format!("bearer {key}")),
        turn().header("AUTHORIZATION", format!("BEARER    {key}  ")),
        turn().header("X-Api-Key", &key),
        turn().header("Authorization", &bearer).header("x-api-key", &key),
        turn().header("Authorization", &bearer).header("Authorization", &bearer),
        turn().header("Authorization", "Basic dTpw").header("x-api-key", &key),
        turn().header("Authorization", "Bearer ").header("x-api-key", &key),
    ];
    for call in &good {
        assert_eq!(kvpin.call(call).await.status(), 200, "{:?}", call.headers);
    }
    let half = &key[..key.len() - 1];
    let bad = [
        turn().header("Authorization", &key),
        turn().header("Authorization", format!("Bearer{key}")),
        turn().header("Authorization", format!("Basic {key}")),
        turn().header("Authorization", format!("Bearer Bearer {key}")),
        turn().header("Authorization", format!("Bearer {key} {key}")),
        turn().header("Authorization", format!("Bearer {half}")),
        turn().header("Authorization", format!("Bearer {key}x")),
        turn().header("Authorization", format!("Bearer {}", key.to_uppercase())),
        turn().header("Authorization", &bearer).header("Authorization", "Bearer other"),
        turn().header("Authorization", "Bearer other").header("Authorization", &bearer),
        turn().header("x-api-key", &key).header("x-api-key", "other"),
        turn().header("Proxy-Authorization", &bearer),
        turn().header("api-key", &key),
        turn().header("Cookie", format!("key={key}")),
        turn().header("Authorization", "Bearer \u{e9}\u{20ac}\u{1f511}"),
        turn().header("x-api-key", [0xff, 0xfe, 0x80]),
        turn().header("Authorization", format!("Bearer {}", "k".repeat(60 << 10))),
        turn().header("Authorization", format!("Bearer {key}{}", "k".repeat(1024))),
        // Hop by hop or not, it is looked at.
        turn().header("Connection", "authorization").header("Authorization", "Bearer other"),
        Call::post(&format!("/v1/messages?key={key}&api_key={key}"), TURN),
    ];
    for call in &bad {
        assert_eq!(kvpin.call(call).await.status(), 401, "{:?} {}", call.headers, call.path);
    }
    let endless = turn().header("Authorization", format!("Bearer {}", "k".repeat(64 << 10)));
    assert_eq!(kvpin.call(&endless).await.status(), 431, "the whole head is too large");
    assert_eq!(recorder.count(), good.len());
}

/// What would have to grow if anything were remembered of each: the metrics, or the memory.
#[tokio::test]
async fn ten_thousand_wrong_keys_leave_nothing_behind() {
    const WORKERS: usize = 8;
    const TRIES: usize = 10_000;
    const KEY_BYTES: usize = 1_000;
    let (_recorder, kvpin) = guarded().await;
    let address = kvpin.address;
    let try_keys = async |from: usize, to: usize| {
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            workers.spawn(async move {
                for number in (from..to).skip(worker).step_by(WORKERS) {
                    let call = Call::get("/v1/models").header("x-api-key", format!("{number:0KEY_BYTES$}"));
                    let reply = crate::support::client::call(address, &call).await;
                    assert_eq!(reply.status(), 401);
                }
            });
        }
        workers.join_all().await;
    };
    try_keys(0, TRIES / 5).await;
    let series = kvpin.metrics().await.lines().count();
    let memory = kvpin.resident_bytes();
    try_keys(TRIES / 5, TRIES).await;
    assert_eq!(kvpin.metrics().await.lines().count(), series);
    let grown = kvpin.resident_bytes().saturating_sub(memory);
    assert!(grown < (TRIES * KEY_BYTES / 4) as u64, "{grown} bytes more");
    assert_eq!(kvpin.metric("kvpin_refused_requests_total{reason=\"unknown_key\"}").await, TRIES as f64);
}

#[test]
fn a_listener_that_others_reach_needs_keys_or_a_word_that_says_it_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("writes");
        path.to_str().expect("a path of text").to_owned()
    };
    let models = "models: {m: {replicas: ['http://127.0.0.1:1']}}\n";
    file("keys.yaml", keys_file(&[("alice", json!({}))]));
    for (text, code, said) in [
        ("listen: 0.0.0.0:0\n", 78, "keys_file"),
        ("listen: ['127.0.0.1:0', '[::]:0']\n", 78, "allow_anonymous: true"),
        ("listen: 0.0.0.0:0\nkeys_file: keys.yaml\nallow_anonymous: true\n", 78, "remove one of them"),
        ("listen: 0.0.0.0:0\nkeys_file: none.yaml\n", 78, "none.yaml: No such file"),
        ("admin: 0.0.0.0:0\n", 78, "admin_token_file"),
        ("listen: 0.0.0.0:0\nkeys_file: keys.yaml\n", 0, ""),
        ("listen: 0.0.0.0:0\nallow_anonymous: true\n", 0, ""),
    ] {
        let config = file("kvpin.yaml", format!("{text}{models}"));
        // What would serve isn't run.
        let commands = if code == 0 { &["check"][..] } else { &["check", "run"] };
        for command in commands {
            let output = run(&[command, "--config", &config]);
            assert_eq!(output.status.code(), Some(code), "{command} {text}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains(said) && (code == 0 || stderr.contains("line ")), "{command} {text}: {stderr}");
        }
    }
}
