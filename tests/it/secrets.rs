//! What a client holds secret, and what it says, stays between it and the engine.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::edge::Edge;
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::until;

/// Each at another place of a request.
const SECRETS: [&str; 8] = [
    "bearer-4f1c",
    "apikey-77ab",
    "session-9e02",
    "agent-51d3",
    "prompt-c0de",
    "query-f00d",
    "metadata-1bad",
    "path-0ff5",
];

fn telling_call(path: &str) -> Call {
    let [bearer, key, session, agent, prompt, query, metadata, _] = SECRETS;
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": prompt}],
        "metadata": {"user_id": format!("{{\"session_id\":\"{metadata}\"}}")}, "prompt_cache_key": session,
    });
    Call::post(&format!("{path}?key={query}"), body.to_string())
        .header("Authorization", format!("Bearer {bearer}"))
        .header("x-api-key", key)
        .header("X-Claude-Code-Session-Id", session)
        .header("x-claude-code-agent-id", agent)
}

#[tokio::test]
async fn keys_sessions_prompts_and_paths_reach_no_log_no_metric_and_no_status() {
    let (recorder, away) = (Recorder::start(), Recorder::away());
    let models = json!({ "m": { "replicas": [recorder.url()] }, "down": { "replicas": [away.url()] } });
    let mut kvpin = Kvpin::launch(&config(models)).await;
    kvpin.until_health("up", |name| name == recorder.name()).await;
    kvpin.until_health("down", |name| name == away.name()).await;
    let telling = telling_call("/v1/messages");
    assert_eq!(kvpin.call(&telling).await.status(), 200);
    assert!(recorder.last().headers.contains_key("authorization"), "the engine gets it");
    // Refused ones, abandoned ones, and one that is no HTTP.
    for (path, status) in [("/path-0ff5", 404), ("/v1/messages/path-0ff5", 404)] {
        assert_eq!(kvpin.call(&telling_call(path)).await.status(), status);
    }
    assert_eq!(kvpin.call(&telling.clone().header("x-kvpin-replica", "nobody")).await.status(), 400);
    let mut to_the_down = telling.clone();
    to_the_down.body = String::from_utf8_lossy(&telling.body).replace(r#""m""#, r#""down""#).into_bytes();
    assert_eq!(kvpin.call(&to_the_down).await.status(), 503);
    let mut leaver = kvpin.connect().await;
    leaver.send(&telling.bytes()[..telling.bytes().len() - 10]).await;
    drop(leaver);
    let mut broken = kvpin.connect().await;
    broken.send(b"POST /path-0ff5 HTTP/1.1\r\nAuthorization: bearer-4f1c\x00\r\n\r\n").await;
    assert_eq!(broken.head("POST").await.status, 400);
    until("all is over", async || (kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
    let seen = [kvpin.metrics().await, call(kvpin.admin, &Call::get("/api/v1/status")).await.text()];
    kvpin.signal("TERM");
    assert_eq!(kvpin.exit().await.code(), Some(0));
    let log = kvpin.log();
    assert!(log.lines().filter(|line| line.starts_with("time=")).count() >= 5, "{log}");
    for text in seen.iter().chain([&log]) {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

#[tokio::test]
async fn what_comes_encrypted_stays_secret_and_so_do_the_keys_that_encrypt_it() {
    let recorder = Recorder::start();
    let mut edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let telling = telling_call("/v1/messages");
    let mut client = edge.h2().await;
    assert_eq!(client.call(&telling).await.status(), 200);
    assert_eq!(client.call(&telling_call("/path-0ff5")).await.status(), 404);
    assert_eq!(edge.h1().await.call(&telling).await.status(), 200);
    let mut abandoned = client.begin(&telling).await;
    abandoned.send(&telling.body[..telling.body.len() - 10], false);
    abandoned.reset(h2::Reason::CANCEL);
    until("all is over", async || (edge.kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
    edge.authority.issue(&["kvpin.test"]).write(edge.directory(), "server");
    assert!(edge.kvpin.reload(&edge.config).await);
    let key = std::fs::read_to_string(&edge.files.key).expect("the key");
    let key_line = key.lines().nth(2).expect("what is in it");
    let mut seen = vec![edge.kvpin.metrics().await, call(edge.kvpin.admin, &Call::get("/api/v1/status")).await.text()];
    edge.kvpin.signal("TERM");
    assert_eq!(edge.kvpin.exit().await.code(), Some(0));
    seen.push(edge.kvpin.log());
    for text in seen {
        for secret in SECRETS.iter().chain([&key_line, &"BEGIN"]) {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}
