//! A draining replica takes nothing new, finishes what it has, and lets its conversations go one turn at a time.

use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};

use crate::support::call::Call;
use crate::support::client::{Wire, call};
use crate::support::kvpin::{Kvpin, config, replicas, run};
use crate::support::replicas::{MODEL, fast, start_many, streamed, turns, urls};
use crate::support::until;

const CONVERSATIONS: usize = 20;

/// Runs the binary to its end, without holding up the replicas of this process.
async fn kvpin_run(arguments: &[&str]) -> Output {
    let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    spawn_blocking(run).await.expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stream(id: &str) -> Call {
    Call::post("/v1/chat/completions", streamed("go on", 20).to_string()).of(id)
}

/// Streams turns of one conversation until told to stop; says where each was served. Each must come whole.
async fn converse(mut wire: Wire, id: String, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut homes = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let reply = wire.call(&stream(&id)).await;
        assert_eq!(reply.status(), 200, "{id}: {}", reply.text());
        assert!(reply.is_whole && reply.text().ends_with("data: [DONE]\n\n"), "{id}: {}", reply.text());
        homes.push(reply.replica().to_owned());
    }
    homes
}

/// Conversations that go on until they are told to end.
struct Live {
    stop: Arc<AtomicBool>,
    conversations: JoinSet<Vec<String>>,
}

impl Live {
    async fn begin(kvpin: &Kvpin) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut conversations = JoinSet::new();
        for number in 0..CONVERSATIONS {
            conversations.spawn(converse(kvpin.connect().await, format!("live-{number}"), Arc::clone(&stop)));
        }
        until("all are pinned", async || {
            (kvpin.status().await["models"][0]["conversations"] == CONVERSATIONS).then_some(())
        })
        .await;
        Live { stop, conversations }
    }

    /// Half of them were at `replica` at first; these have moved once, the others never, and no turn has failed.
    async fn end_having_left(mut self, replica: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut left = 0;
        while let Some(homes) = self.conversations.join_next().await {
            let homes = homes.expect("no turn failed");
            let moves = homes.windows(2).filter(|pair| pair[0] != pair[1]).count();
            left += usize::from(homes[0] == replica);
            assert_eq!(moves, usize::from(homes[0] == replica), "{homes:?}");
        }
        assert_eq!(left, CONVERSATIONS / 2);
    }
}

#[tokio::test]
async fn twenty_live_conversations_leave_a_draining_replica_at_a_turns_border_and_none_starts_there() {
    let servers = start_many(2, fast()).await;
    let model = json!({ "spill_threshold": 100, "replicas": urls(&servers) });
    let kvpin = Kvpin::start(&config(json!({ (MODEL): model }))).await;
    let admin = format!("http://{}", kvpin.admin);
    let draining = servers[0].address().to_string();
    let live = Live::begin(&kvpin).await;
    let drained = kvpin_run(&["drain", &format!("{MODEL}/{draining}"), "--wait", "--admin", &admin]).await;
    assert!(drained.status.success(), "{}", stderr(&drained));
    assert!(stdout(&drained).contains("drained"), "{}", stdout(&drained));
    let replica = kvpin.replica(&draining).await;
    assert_eq!((&replica["health"], &replica["health_reason"]), (&json!("draining"), &json!("ordered")));
    assert_eq!((&replica["drain"], &replica["in_flight"]), (&json!("ordered"), &json!(0)));
    let until_then = turns(&servers[0]).len();
    until("all have moved", async || {
        let held = kvpin.replica(&draining).await["conversations"].clone();
        (held["active"] == 0 && held["idle"] == 0).then_some(())
    })
    .await;
    for number in 0..4 {
        assert_ne!(kvpin.call(&stream(&format!("new-{number}"))).await.replica(), draining);
    }
    live.end_having_left(&draining).await;
    assert_eq!(turns(&servers[0]).len(), until_then, "nothing arrived there since it was drained");
    kvpin.until_logged(&format!("replica={draining} is drained")).await;

    let back = kvpin_run(&["undrain", &format!("{MODEL}/{draining}"), "--admin", &admin]).await;
    assert!(back.status.success(), "{}", stderr(&back));
    kvpin.until_health("up", |_| true).await;
}

#[tokio::test]
async fn a_replica_that_a_reload_takes_out_finishes_its_turns_and_its_conversations_go_on_elsewhere() {
    let servers = start_many(2, fast()).await;
    let with = |urls: Value| config(json!({ (MODEL): { "spill_threshold": 100, "replicas": urls } }));
    let kvpin = Kvpin::start(&with(urls(&servers))).await;
    let removed = servers[0].address().to_string();
    let live = Live::begin(&kvpin).await;
    assert!(kvpin.reload(&with(urls(&servers[1..]))).await);
    until("its turns have ended", async || {
        let status = kvpin.status().await;
        let stays = replicas(&status).any(|replica| replica["name"] == removed.as_str());
        (!stays).then_some(())
    })
    .await;
    let until_then = turns(&servers[0]).len();
    let all_at_the_other = async || {
        let held = kvpin.replica(&servers[1].address().to_string()).await["conversations"].clone();
        (held["active"] == CONVERSATIONS).then_some(())
    };
    until("all have moved", all_at_the_other).await;
    live.end_having_left(&removed).await;
    assert_eq!(turns(&servers[0]).len(), until_then, "nothing arrived there since it was taken out");
}

#[tokio::test]
async fn what_cannot_be_drained_is_told_apart_by_exit_status_and_says_what_there_is() {
    let servers = start_many(2, fast()).await;
    let [first, second] = [&servers[0], &servers[1]].map(|server| server.address().to_string());
    let replicas = json!([{ "url": format!("http://{first}"), "drain": true }, format!("http://{second}")]);
    let config = config(json!({ (MODEL): { "aliases": ["also/this"], "replicas": replicas } }));
    let kvpin = Kvpin::launch(&config).await;
    kvpin.until_health("draining", |name| name == first).await;
    let admin = kvpin.admin.to_string();
    let known = format!("{MODEL}/{second}");
    for (arguments, exit, said) in [
        (vec!["drain", "no-slash", "--admin", &admin], 64, "MODEL/REPLICA"),
        (vec!["drain"], 64, "MODEL/REPLICA"),
        (vec!["drain", &known, "--admin", "ftp://x"], 64, "no URL"),
        (vec!["drain", &known, "--config", "/nowhere.yaml"], 78, "/nowhere.yaml"),
        (vec!["drain", "tiny/gone", "--admin", &admin], 1, &known),
        (vec!["drain", &known, "--admin", "http://127.0.0.1:9"], 1, "no kvpin answers at"),
        (vec!["undrain", &format!("{MODEL}/{first}"), "--admin", &admin], 1, "the configuration says"),
        (vec!["drain", &format!("also/this/{second}"), "--admin", &admin], 0, ""),
    ] {
        let output = kvpin_run(&arguments).await;
        let all = stderr(&output);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {all}");
        assert!(all.contains(said), "{arguments:?}: {all}");
    }
    let refused = kvpin.call(&stream("hopeless")).await;
    assert_eq!(refused.status(), 503, "{}", refused.text());
    let said = format!("no healthy replica of {MODEL}: {first} draining, {second} draining");
    assert_eq!(refused.json()["error"]["message"], said);
    assert_eq!(turns(&servers[0]).len() + turns(&servers[1]).len(), 0);
}

#[tokio::test]
async fn an_order_that_a_browser_could_send_unasked_is_not_taken() {
    let servers = start_many(1, fast()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&servers) } })).await;
    let order = json!({ "model": MODEL, "replica": servers[0].address().to_string() }).to_string();
    let post = Call::post("/api/v1/drain", order).at_localhost().without("content-type");
    assert_eq!(call(kvpin.admin, &post.clone().header("content-type", "text/plain")).await.status(), 415);
    assert_eq!(call(kvpin.admin, &Call::get("/api/v1/drain")).await.status(), 405);
    let unknown = Call::post("/api/v1/drain", r#"{"model":"other","replica":"x"}"#).at_localhost();
    let unknown = call(kvpin.admin, &unknown).await;
    assert_eq!(unknown.status(), 404);
    assert!(unknown.text().contains(MODEL), "{}", unknown.text());
    assert_eq!(call(kvpin.admin, &Call::post("/api/v1/drain", "{}").at_localhost()).await.status(), 400);
    let answer = call(kvpin.admin, &post.header("content-type", "application/json")).await;
    assert_eq!((answer.status(), &answer.json()["draining"]), (200, &json!(true)));
}
