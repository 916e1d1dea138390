//! The page for the browser and the live stream behind it, on the admin listener alone.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Piece, Wire, call};
use crate::support::hand::Hand;
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::{until, within};

const TOKEN: &str = "token-of-the-page-7d02c4";

/// Events of the live stream, as they come.
struct Live {
    wire: Wire,
    rest: String,
}

impl Live {
    async fn begin(kvpin: &Kvpin, token: Option<&str>) -> Live {
        let mut wire = Wire::connect(kvpin.admin).await;
        let ask = Call::get("/api/v1/live");
        let ask = token.map_or(ask.clone(), |token| ask.header("Authorization", format!("Bearer {token}")));
        let head = wire.begin(&ask).await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        Live { wire, rest: String::new() }
    }

    /// Waits for the stream's end.
    async fn end(&mut self) {
        within("the stream's end", async { while self.next().await.is_some() {} }).await;
    }

    /// The next status, or `None` at the stream's end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let data = event.strip_prefix("data: ").expect("an event is data");
                let status = serde_json::from_str(data).expect("data is JSON");
                self.rest = rest.to_owned();
                return Some(status);
            }
            match self.wire.piece().await {
                Piece::Data(data) => self.rest.push_str(std::str::from_utf8(&data).expect("text")),
                Piece::End | Piece::Cut => return None,
            }
        }
    }
}

#[tokio::test]
async fn the_page_is_on_the_admin_listener_and_needs_nothing_else() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let page = call(kvpin.admin, &Call::get("/")).await;
    assert_eq!((page.status(), page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let text = page.text();
    let files: Vec<_> = text.split('"').filter(|word| word.starts_with("/page/")).collect();
    assert!(files.len() > 4, "{files:?}");
    for file in files {
        let file = call(kvpin.admin, &Call::get(file)).await;
        assert_eq!(file.status(), 200);
        assert!(file.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
        let known = file.header("etag").expect("a mark");
        let again = Call::get("/page/main.js").header("If-None-Match", known);
        assert!([200, 304].contains(&call(kvpin.admin, &again).await.status()));
        assert_eq!(kvpin.call(&Call::get("/page/main.js")).await.status(), 404, "not on the public listener");
    }
    assert_eq!(kvpin.call(&Call::get("/api/v1/live")).await.status(), 404);
}

#[tokio::test]
async fn the_live_stream_shows_what_changes() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut live = Live::begin(&kvpin, None).await;
    let first = live.next().await.expect("a status");
    assert_eq!(first["models"][0]["replicas"][0]["placed"], 0);
    for _ in 0..3 {
        kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#).of("a")).await;
    }
    let seen = until("the turns are seen", async || {
        let status = live.next().await.expect("a status");
        let replica = status["models"][0]["replicas"][0].clone();
        (replica["sticky"] == 2 && replica["in_flight"] == 0).then_some(replica)
    })
    .await;
    let told = kvpin.replica(&recorder.name()).await;
    for field in ["sticky", "placed", "in_flight", "conversations", "health", "tokens", "turns_measured", "outcomes"] {
        assert!(!seen[field].is_null(), "{field}");
        assert_eq!(seen[field], told[field], "{field}");
    }
}

#[tokio::test]
async fn the_live_stream_ends_with_the_process_and_keeps_it_from_nothing() {
    let mut hand = Hand::start();
    let mut kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut live = Live::begin(&kvpin, None).await;
    live.next().await.expect("a status");
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post("/v1/messages", r#"{"model":"m"}"#).bytes()).await;
    let mut turn = hand.turn().await;
    kvpin.signal("TERM");
    live.end().await;
    turn.answer("{}").await;
    assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(200));
    assert_eq!(kvpin.exit().await.code(), Some(0));
}

#[tokio::test]
async fn readers_of_the_stream_that_sleep_or_leave_keep_nobody_from_the_admin_listener() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut asleep = Vec::new();
    for _ in 0..kvpin::admin::live::READERS_MAX {
        asleep.push(Live::begin(&kvpin, None).await);
    }
    let refused = call(kvpin.admin, &Call::get("/api/v1/live")).await;
    assert_eq!((refused.status(), refused.header("retry-after")), (503, Some("10")));
    assert_eq!(call(kvpin.admin, &Call::get("/metrics")).await.status(), 200);
    drop(asleep);
    until("their places are free", async || {
        let mut wire = Wire::connect(kvpin.admin).await;
        (wire.begin(&Call::get("/api/v1/live")).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_when_its_token_does() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["admin_token_file"] = json!("token");
    let kvpin = Kvpin::launch_with(&config, &[("token", TOKEN)]).await;
    let mut live = Live::begin(&kvpin, Some(TOKEN)).await;
    live.next().await.expect("a status");
    std::fs::write(kvpin.file("token"), "another-token-of-the-page").expect("writes");
    kvpin.signal("HUP");
    kvpin.until_logged("admin token changed").await;
    live.end().await;
    Live::begin(&kvpin, Some("another-token-of-the-page")).await.next().await.expect("a status");
}
