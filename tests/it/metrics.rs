//! What kvpin counts is what was sent.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::kvpin::{Kvpin, replicas, sum_of};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, fast, start_many, urls};
use crate::support::until;

/// Sends turns of each kind, and says how many of which decision they were.
async fn send_a_mixture(kvpin: &Kvpin, name: &str) -> [(&'static str, f64); 5] {
    let turn = || Call::post("/v1/chat/completions", r#"{"model":"m"}"#);
    for id in ["a", "b", "c"] {
        for _ in 0..4 {
            kvpin.call(&turn().of(id)).await;
        }
    }
    for _ in 0..5 {
        kvpin.call(&turn()).await;
    }
    for _ in 0..2 {
        kvpin.call(&turn().header("x-kvpin-replica", name)).await;
        kvpin.call(&Call::post("/v1/messages/count_tokens", r#"{"model":"m"}"#)).await;
    }
    [("placed", 3.0), ("sticky", 9.0), ("unpinned", 5.0), ("client_pinned", 2.0), ("side", 2.0)]
}

#[tokio::test]
async fn turns_are_counted_by_decision_in_metrics_status_and_the_first_byte_histogram() {
    let recorders = [Recorder::start(), Recorder::start()];
    let models = json!({ "m": { "replicas": [recorders[0].url(), recorders[1].url()] } });
    let kvpin = Kvpin::serve(models).await;
    let sent = send_a_mixture(&kvpin, &recorders[0].name()).await;
    until("all turns have ended", async || (kvpin.in_flight().await == 0).then_some(())).await;
    let page = kvpin.metrics().await;
    let status = kvpin.status().await;
    for (decision, count) in sent {
        let turns = page.lines().filter(|line| line.starts_with("kvpin_turns_total{"));
        let turns: Vec<_> = turns.filter(|line| line.contains(&format!("decision=\"{decision}\""))).collect();
        assert_eq!(sum_of(&turns.join("\n"), ""), count, "{decision} in {turns:?}");
        let in_status: u64 = replicas(&status).filter_map(|replica| replica[decision].as_u64()).sum();
        assert_eq!(in_status as f64, count, "{decision}");
        let first_bytes = format!("kvpin_time_to_first_byte_seconds_count{{decision=\"{decision}\",model=\"m\"}}");
        assert_eq!(sum_of(&page, &first_bytes), count, "{first_bytes}");
    }
    for recorder in &recorders {
        let up = format!("kvpin_replica_up{{model=\"m\",replica=\"{}\"}}", recorder.name());
        assert_eq!(sum_of(&page, &up), 1.0);
        let all = page.lines().filter(|line| line.starts_with("kvpin_turns_total{") && line.contains(&recorder.name()));
        assert_eq!(sum_of(&all.collect::<Vec<_>>().join("\n"), ""), recorder.count() as f64, "as many as arrived");
    }
    assert_eq!(sum_of(&page, "kvpin_conversations{"), 3.0);
}

#[tokio::test]
async fn counting_tokens_computes_nothing_and_stands_in_no_book() {
    let servers = start_many(1, fast()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&servers) } })).await;
    for path in ["/v1/messages/count_tokens", "/tokenize"] {
        let reply = kvpin.call(&Call::post(path, chat("how many are these").to_string())).await;
        assert_eq!(reply.status(), 200, "{path}");
    }
    assert_eq!(kvpin.call(&Call::post("/v1/chat/completions", chat("a turn").to_string())).await.status(), 200);
    let status = until("the turn is booked", async || {
        let status = kvpin.status().await;
        (status["models"][0]["turns_measured"] == 1).then_some(status)
    })
    .await;
    let model = &status["models"][0];
    assert_eq!((&model["turns_unmeasured"], &model["tokens"]["estimated"]), (&json!(0), &json!(0)), "{model}");
    assert_eq!(model["replicas"][0]["side"], 2);
}

#[tokio::test]
async fn refusals_are_counted_by_reason() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for _ in 0..3 {
        kvpin.call(&Call::post("/v1/messages", r#"{"model":"nope"}"#)).await;
    }
    kvpin.call(&Call::get("/nowhere")).await;
    kvpin.call(&Call::get("/v1/messages")).await;
    for (reason, count) in [("unknown_model", 3.0), ("unknown_path", 1.0), ("wrong_method", 1.0)] {
        let series = format!("kvpin_refused_requests_total{{reason=\"{reason}\"}}");
        assert_eq!(kvpin.metric(&series).await, count, "{reason}");
    }
}

#[tokio::test]
async fn the_status_shows_what_the_engines_say_of_their_caches() {
    let servers = start_many(2, fast()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&servers) } })).await;
    let text = "a history that grows ".repeat(50);
    for turn in 1..=4 {
        let call = Call::post("/v1/chat/completions", chat(&text.repeat(turn)).to_string()).of("cached");
        assert_eq!(kvpin.call(&call).await.status(), 200);
    }
    let hits = until("the hits are scraped", async || {
        let status = kvpin.status().await;
        status["models"][0]["prefix_hit_percent"].as_f64().filter(|percent| *percent > 0.0)
    })
    .await;
    assert!(hits > 30.0 && hits < 100.0, "{hits}");
    let status: Value = kvpin.status().await;
    assert_eq!(status["models"][0]["sticky_percent"], 100.0);
    let capacities: Vec<_> =
        replicas(&status).map(|replica| replica["engine"]["kv_capacity_tokens"].as_u64()).collect();
    assert_eq!(capacities, [Some(33_280), Some(33_280)]);
}

#[tokio::test]
async fn the_admin_page_is_not_on_the_public_listener_nor_the_other_way_round() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for path in ["/metrics", "/api/v1/status"] {
        assert_eq!(kvpin.call(&Call::get(path)).await.status(), 404);
        assert_eq!(call(kvpin.admin, &Call::get(path)).await.status(), 200);
    }
    assert_eq!(call(kvpin.admin, &Call::post("/v1/messages", r#"{"model":"m"}"#).at_localhost()).await.status(), 404);
    assert_eq!(recorder.count(), 0);
}
