//! Keys, their hashes, the engine's key and the admin token: used by everything, shown by nothing.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::{Reply, call};
use crate::support::keys::{KEYS_FILE, guarded, hash_of, key_of, keys_file};
use crate::support::kvpin::{Kvpin, run};
use crate::support::recorder::Recorder;
use crate::support::until;

const ENGINE_KEY: &str = "key-of-the-engine-77d0";
const TOKEN: &str = "token-of-the-admin-2b8e61";

/// What may be seen nowhere: of hashes and keys also their beginnings.
fn secrets() -> Vec<String> {
    let known = ["alice", "limited"].into_iter().flat_map(|name| [key_of(name), hash_of(name)[..20].to_owned()]);
    let wrong = [key_of("nobody"), ENGINE_KEY.to_owned(), TOKEN.to_owned(), "token-that-is-wrong".to_owned()];
    known.chain(wrong).collect()
}

fn authorized(path: &str) -> Call {
    Call::get(path).header("Authorization", format!("Bearer {TOKEN}"))
}

#[tokio::test]
async fn no_key_hash_or_token_is_in_any_log_page_answer_or_output() {
    let (recorder, away) = (Recorder::start(), Recorder::away());
    let mut config = guarded(json!({
        "m": { "replicas": [recorder.url()], "upstream_key_file": "engine-key" },
        "down": { "replicas": [away.url()], "upstream_key_file": "engine-key" },
    }));
    config["admin_token_file"] = json!("token");
    let keys =
        keys_file(&[("alice", json!({})), ("limited", json!({ "models": ["m"], "requests_per_minute_max": 4 }))]);
    let mut kvpin =
        Kvpin::launch_with(&config, &[(KEYS_FILE, &keys), ("engine-key", ENGINE_KEY), ("token", TOKEN)]).await;
    let status = async || call(kvpin.admin, &authorized("/api/v1/status")).await.text();
    until("it is up", async || status().await.contains(r#""health":"up""#).then_some(())).await;
    until("the other is down", async || status().await.contains(r#""health":"down""#).then_some(())).await;
    let mut seen = Vec::new();
    for key in ["alice", "limited", "nobody"] {
        for body in
            [r#"{"model":"m"}"#, r#"{"model":"down"}"#, r#"{"model":"none"}"#, r#"{"model":"m","model":"m"}"#, "{"]
        {
            for path in ["/v1/messages", "/v1/chat/completions"] {
                let turn = Call::post(path, body).by(key).header("x-kvpin-replica", "none");
                seen.push(kvpin.call(&turn).await.text());
                let raw =
                    Call::post("/api/v1/explain", turn.bytes()).header("Authorization", format!("Bearer {TOKEN}"));
                seen.push(call(kvpin.admin, &raw).await.text());
            }
        }
        seen.push(kvpin.call(&Call::get("/v1/models").by(key).header("x-api-key", key_of("nobody"))).await.text());
    }
    let mut wire = kvpin.connect().await;
    wire.send(
        format!("POST /v1/messages HTTP/1.1\r\nAuthorization: Bearer {}\x01\r\n\r\n", key_of("alice")).as_bytes(),
    )
    .await;
    seen.push(wire.reply("POST").await.as_ref().map(Reply::text).unwrap_or_default());
    for path in ["/", "/metrics", "/api/v1/status", "/api/v1/conversations", "/nothing"] {
        seen.push(call(kvpin.admin, &authorized(path)).await.text());
        let wrong = Call::get(path).header("Authorization", "Bearer token-that-is-wrong");
        seen.push(call(kvpin.admin, &wrong).await.text());
    }
    // Another key, token and engine's key, by a reload that is refused and one that is not.
    for (text, file) in [("", "token"), (ENGINE_KEY, "token"), (TOKEN, "engine-key")] {
        std::fs::write(kvpin.file(file), text).expect("writes");
        kvpin.signal("HUP");
        kvpin.until_logged(if text.is_empty() { "reload refused" } else { "token changed" }).await;
    }
    for arguments in [&["check"][..], &["check", "--json"], &["keys", "list"], &["keys", "list", "--json"]] {
        let config = kvpin.file("kvpin.yaml");
        let output = run(&[arguments, &["--config", &config]].concat());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        seen.extend([output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    }
    kvpin.signal("TERM");
    assert_eq!(kvpin.exit().await.code(), Some(0));
    let log = kvpin.log();
    for part in
        ["key=alice", "key=limited", "key=- ", "reason=unknown_key", "reason=key_per_minute", "reason=two_models"]
    {
        assert!(log.contains(part), "{part} in {log}");
    }
    seen.push(log);
    for text in &seen {
        for secret in secrets() {
            assert!(!text.contains(&secret), "{secret} in {text}");
        }
    }
}
