//! What an engine sees of keys: its own, if it has one, and never one that is kvpin's to judge.

use kvpin::sim::server::ReplicaOptions;
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::keys::{KEYS_FILE, guarded, key_of, keys_file};
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, fast, start, turns};

const ENGINE_KEY: &str = "key-of-the-engine-77d0";

/// Everything that a client may show itself by.
const SHOWN: [&str; 6] = ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"];

fn turn() -> Call {
    Call::post("/v1/messages", r#"{"model":"m"}"#)
}

/// A turn that shows a key of that name wherever one can be shown.
fn telling(name: &str) -> Call {
    let key = key_of(name);
    SHOWN.iter().fold(turn(), |call, header| {
        call.header(header, if *header == "authorization" { format!("Bearer {key}") } else { key.clone() })
    })
}

fn model_of(recorder: &Recorder, has_engine_key: bool) -> Value {
    let mut model = json!({ "replicas": [recorder.url()] });
    if has_engine_key {
        model["upstream_key_file"] = json!("engine-key");
    }
    json!({ "m": model })
}

#[tokio::test]
async fn the_clients_key_ends_at_kvpin_and_the_engine_sees_its_own() {
    for has_engine_key in [false, true] {
        let recorder = Recorder::start();
        let files = [(KEYS_FILE, &*keys_file(&[("alice", json!({}))])), ("engine-key", ENGINE_KEY)];
        let kvpin = Kvpin::launch_with(&guarded(model_of(&recorder, has_engine_key)), &files).await;
        kvpin.until_health("up", |_| true).await;
        assert_eq!(kvpin.call(&telling("alice").header("x-stays", "1")).await.status(), 200);
        let arrived = recorder.last();
        let shown: Vec<_> = SHOWN.iter().filter(|name| arrived.headers.contains_key(**name)).collect();
        let expected: &[&&str] = if has_engine_key { &[&"authorization"] } else { &[] };
        assert_eq!(shown, expected);
        let bearer = format!("Bearer {ENGINE_KEY}");
        assert_eq!(arrived.header("authorization"), has_engine_key.then_some(&*bearer));
        assert_eq!(arrived.header("x-stays"), Some("1"));
        assert!(!format!("{:?}", arrived.headers).contains(&key_of("alice")), "{:?}", arrived.headers);
    }
}

#[tokio::test]
async fn without_a_keys_file_what_clients_send_goes_on_unless_the_engine_has_a_key_of_its_own() {
    for has_engine_key in [false, true] {
        let recorder = Recorder::start();
        let kvpin =
            Kvpin::launch_with(&config(model_of(&recorder, has_engine_key)), &[("engine-key", ENGINE_KEY)]).await;
        kvpin.until_health("up", |_| true).await;
        assert_eq!(kvpin.call(&telling("alice")).await.status(), 200);
        let arrived = recorder.last();
        let key = if has_engine_key { ENGINE_KEY.to_owned() } else { key_of("alice") };
        assert_eq!(arrived.header("authorization"), Some(&*format!("Bearer {key}")));
        assert_eq!(arrived.headers.contains_key("x-api-key"), !has_engine_key);
        assert_eq!(arrived.headers.contains_key("cookie"), !has_engine_key);
    }
}

#[tokio::test]
async fn an_engine_that_asks_for_a_key_is_served_and_a_new_one_is_taken_by_a_reload() {
    let server = start(ReplicaOptions { api_key: Some(ENGINE_KEY.to_owned()), ..fast() }).await;
    let models =
        json!({ (MODEL): { "replicas": [format!("http://{}", server.address())], "upstream_key_file": "engine-key" } });
    let kvpin = Kvpin::launch_with(&config(models), &[("engine-key", "an-old-key-0001\n")]).await;
    // Health and figures are open, as vLLM's are.
    kvpin.until_health("up", |_| true).await;
    let turn = Call::post("/v1/chat/completions", chat("hello").to_string()).header("x-api-key", "a-client");
    let reply = kvpin.call(&turn).await;
    assert_eq!(
        (reply.status(), reply.text()),
        (401, r#"{"error":"Unauthorized"}"#.to_owned()),
        "the engine's own words"
    );
    assert!(kvpin.reload_with("engine-key", &format!("{ENGINE_KEY}\n")).await);
    let line = kvpin.until_logged("reloaded:").await;
    assert!(line.contains("model tiny: upstream key changed"), "{line}");
    assert_eq!(kvpin.call(&turn).await.status(), 200);
    let tokenize = Call::post("/tokenize", json!({ "model": MODEL, "prompt": "a b" }).to_string());
    assert_eq!(kvpin.call(&tokenize).await.status(), 200, "vLLM leaves it open, and takes the key all the same");
    for arrived in turns(&server) {
        assert!(!arrived.headers.iter().any(|(name, _)| name == "x-api-key"), "{:?}", arrived.headers);
    }
    assert!(!kvpin.reload_with("engine-key", "two words\n").await);
    kvpin.until_logged("models.tiny.upstream_key_file").await;
    assert_eq!(kvpin.call(&turn).await.status(), 200, "the key before it holds");
    let log = kvpin.log();
    assert!(!log.contains(ENGINE_KEY) && !log.contains("an-old-key") && !log.contains("two words"), "{log}");
}
