//! `kvpin bench` on simulated replicas: what it does, what it counts, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};

use kvpin::sim::server::{Failure, ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use crate::support::call::Call;
use crate::support::client::call;
use crate::support::kvpin::{BINARY, Kvpin, config, run, sum_of};
use crate::support::replicas::{MODEL, fast, start, turns, urls};

/// Sessions so small that many end within a second.
const SMALL: [&str; 10] = [
    "--system-tokens",
    "60",
    "--first-tokens",
    "100-140",
    "--turn-tokens",
    "20",
    "--turns",
    "3",
    "--output-tokens",
    "8",
];

/// The fields of a rung, of which others read no more than they know.
const FIELDS: [&str; 16] = [
    "sessions",
    "arm",
    "sessions_per_hour",
    "output_tokens_per_min",
    "ttfb_p50_s",
    "ttfb_p95_s",
    "ttfb_p99_s",
    "longest_wait_s",
    "replicas_busy",
    "prefix_hit_percent",
    "stayed_percent",
    "held_percent",
    "waiting_at_end",
    "session_p50_s",
    "session_p95_s",
    "errors",
];

/// Runs `kvpin bench` to its end, without holding up the replicas of this process.
async fn bench(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = ["bench"].iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
    let run = move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    spawn_blocking(run).await.expect("it runs")
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn url(server: &ReplicaServer) -> String {
    format!("http://{}", server.address())
}

/// One server with two ranks, and kvpin in front of it.
async fn ranked() -> (ReplicaServer, Kvpin) {
    // So slow that the replica's journal holds all turns of a measurement, however fast the machine is.
    let server = start(ReplicaOptions { data_parallel_size: 2, time_scale: 10.0, ..fast() }).await;
    let replicas = json!([{ "url": url(&server), "name": "n", "data_parallel_size": 2 }]);
    let kvpin = Kvpin::serve(json!({ MODEL: { "replicas": replicas } })).await;
    (server, kvpin)
}

#[tokio::test]
async fn affinity_is_switched_between_the_arms_and_their_order_alternates() {
    let (server, kvpin) = ranked().await;
    let (address, admin) = (kvpin.address.to_string(), kvpin.admin.to_string());
    let ladder = ["--url", &address, "--admin", &admin, "--sessions", "2", "--seconds", "3", "--rounds", "2", "--json"];
    let output = bench(&[&ladder[..], &SMALL].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);

    let cells = report["bench"]["cells"].as_array().expect("cells");
    let order: Vec<_> = cells.iter().map(|cell| (cell["round"].as_u64(), cell["arm"].as_str())).collect();
    let [off, on] = [Some("vllm"), Some("affinity")];
    assert_eq!(order, [(Some(0), off), (Some(0), on), (Some(1), on), (Some(1), off)]);

    let rungs = report["rungs"].as_array().expect("rungs");
    assert_eq!(rungs.iter().map(|rung| rung["arm"].as_str()).collect::<Vec<_>>(), [off, on]);
    for rung in rungs {
        let fields = rung.as_object().expect("an object");
        assert!(FIELDS.iter().all(|field| fields.contains_key(*field)) && fields.len() == FIELDS.len(), "{rung}");
        assert_eq!((&rung["errors"], &rung["sessions"]), (&json!(0), &json!(2)));
        for field in ["sessions_per_hour", "output_tokens_per_min", "ttfb_p50_s", "prefix_hit_percent", "session_p50_s"]
        {
            assert!(rung[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {rung}");
        }
        let waits = ["ttfb_p50_s", "ttfb_p95_s", "ttfb_p99_s", "longest_wait_s"].map(|field| rung[field].as_f64());
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{rung}");
    }
    // The server chose: nobody knows where a turn was.
    assert_eq!((&rungs[0]["stayed_percent"], &rungs[1]["stayed_percent"]), (&Value::Null, &json!(100.0)));
    assert_eq!(rungs[1]["held_percent"], 0.0, "there is room for all");
    let ranges = report["ranges"].as_array().expect("ranges");
    assert!(ranges.iter().all(|range| range["rounds"] == 2), "{ranges:?}");

    // A rank was asked for with affinity, and none without.
    let named = turns(&server)
        .iter()
        .map(|turn| turn.headers.iter().any(|(name, _)| name == "x-data-parallel-rank"))
        .collect::<Vec<_>>();
    assert!(named.contains(&true) && named.contains(&false));
    // And it is as it was.
    let status = kvpin.status().await;
    let model = &status["models"][0];
    assert_eq!((&model["affinity"], model["replicas"].as_array().map(Vec::len)), (&json!(true), Some(2)), "{model}");
}

#[tokio::test]
async fn what_the_agents_do_while_a_measurement_warms_up_is_not_counted() {
    let server = start(fast()).await;
    let ladder = ["--arm", &format!("one={}", url(&server)), "--sessions", "2", "--rounds", "1"];
    let output = bench(&[&ladder[..], &["--warmup", "3", "--seconds", "1", "--json"], &SMALL].concat()).await;
    let report = report(&output);
    assert_eq!((&report["bench"]["warmup_s"], &report["bench"]["seconds"]), (&json!(3), &json!(1)));
    let counted = report["rungs"][0]["output_tokens_per_min"].as_f64().expect("a rate") / 60.0;
    let page = call(server.address(), &Call::get("/metrics")).await.text();
    let computed = sum_of(&page, "vllm:generation_tokens_total");
    assert!(counted > 0.0 && counted < computed / 2.0, "{counted} of {computed} in the last second of four");
}

#[tokio::test]
async fn the_counts_of_a_measurement_are_those_of_the_server() {
    let server = start(fast()).await;
    let ladder =
        ["--url", &url(&server), "--engine", &url(&server), "--sessions", "3", "--seconds", "3", "--rounds", "1"];
    let output = bench(&[&ladder[..], &SMALL, &["--json", "--api", "chat"]].concat()).await;
    let report = report(&output);
    let cell = &report["bench"]["cells"][0];
    let complete = cell["turns_complete"].as_u64().expect("a count");
    // Four questions of what a token is came before, and at the end a turn of each session was cut off or just not.
    let page = call(server.address(), &Call::get("/metrics")).await.text();
    let served = sum_of(&page, "vllm:request_success_total") as u64;
    assert!(
        complete > 0 && (complete + 4..=complete + 4 + 3).contains(&served),
        "{complete} complete, {served} served"
    );
    let tokens = report["rungs"][0]["output_tokens_per_min"].as_f64().expect("a figure");
    let of_complete = complete as f64 * 8.0 * 20.0;
    // One of each session may have ended with the window: before it to the one count, behind it to the other.
    let of_last = 3.0 * 8.0 * 20.0;
    assert!((of_complete - of_last..=of_complete + of_last).contains(&tokens), "{tokens} and {of_complete}");
    assert_eq!((&cell["hits_by_engines"], &cell["caches_emptied"]), (&json!(true), &json!(false)));
    assert_eq!(report["bench"]["api"], "/v1/chat/completions");
    let first = report["bench"]["sizes"]["first_turn_tokens"].as_u64().expect("measured");
    assert!((150..260).contains(&first), "{first}");
}

#[tokio::test]
async fn no_two_measurements_share_a_prompt() {
    let server = start(fast()).await;
    let (one, other) = (format!("one={}", url(&server)), format!("other={}", url(&server)));
    let arms = ["--arm", &one, "--arm", &other, "--sessions", "2", "--seconds", "1", "--rounds", "1", "--json"];
    let output = bench(&[&arms[..], &SMALL].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut bodies: Vec<_> = turns(&server).into_iter().map(|turn| turn.body_sha256).collect();
    let all = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), all, "every request was another one");
    let report = report(&output);
    assert_eq!(report["bench"]["arms"], json!([["one", url(&server)], ["other", url(&server)]]));
}

#[tokio::test]
async fn turns_that_break_off_are_errors_and_their_waits_go_on_to_the_end() {
    let server = start(ReplicaOptions { failure: Failure::CutAfter(3), ..fast() }).await;
    let ladder = ["--url", &url(&server), "--sessions", "2", "--seconds", "2", "--rounds", "1", "--json"];
    let output = bench(&[&ladder[..], &SMALL].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rung = &report(&output)["rungs"][0];
    assert!(rung["errors"].as_u64() >= Some(2), "{rung}");
    assert_eq!((&rung["output_tokens_per_min"], &rung["sessions_per_hour"]), (&json!(0.0), &json!(0.0)));
    assert!(rung["ttfb_p50_s"].as_f64() > Some(0.5), "a broken answer is no quick one: {rung}");
    assert_eq!(rung["session_p50_s"], Value::Null);
}

#[tokio::test]
async fn what_cannot_be_measured_is_said_before_anything_is() {
    let server = start(fast()).await;
    let busy = start(ReplicaOptions { failure: Failure::Busy, ..fast() }).await;
    let gone = {
        let server = start(fast()).await;
        let url = url(&server);
        server.shutdown().await;
        url
    };
    let (good, full) = (url(&server), url(&busy));
    let cases: [(&[&str], &str); 8] = [
        (&["--url", &gone, "--model", MODEL], "nothing answers at"),
        (&["--url", &gone], "/v1/models"),
        (&["--url", &full, "--model", MODEL], "answers 503"),
        (&["--url", &good, "--model", "other"], "answers 404 to a turn for the model `other`"),
        (&["--url", "nowhere at all"], "is no URL like"),
        (&["--url", &good, "--admin", &gone], "no kvpin answers at"),
        (&["--arm", "alone"], "is not NAME=URL"),
        (&[], "say what to measure"),
    ];
    for (arguments, part) in cases {
        let output = bench(&[arguments, &["--seconds", "1", "--sessions", "1"]].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[tokio::test]
async fn an_interrupt_prints_what_has_been_measured() {
    let (_server, kvpin) = ranked().await;
    let (address, admin) = (kvpin.address.to_string(), kvpin.admin.to_string());
    let ladder =
        ["--url", &address, "--admin", &admin, "--sessions", "2", "--seconds", "1", "--rounds", "100", "--json"];
    let mut command = Command::new(BINARY);
    command.arg("bench").args(ladder).args(SMALL).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let interrupted = spawn_blocking(move || {
        let mut child = command.spawn().expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("its stderr")).lines().map_while(Result::ok);
        // The first arm is done, so that the second is on when it ends: affinity is off or on by an order.
        let done = lines.any(|line| line.starts_with("1/200 round 1"));
        let sent = Command::new("sh").args(["-c", "kill -s INT \"$0\"", &child.id().to_string()]).status();
        assert!(done && sent.expect("sh runs").success());
        let mut text = String::new();
        child.stdout.take().expect("its stdout").read_to_string(&mut text).expect("text");
        (child.wait().expect("it ends").code(), text)
    });
    let (code, text) = interrupted.await.expect("it ends");
    assert_eq!(code, Some(130));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["bench"]["broken_off"], "interrupted");
    let cells = report["bench"]["cells"].as_array().map_or(0, Vec::len);
    assert!((1..200).contains(&cells), "{cells}");
    assert_eq!(kvpin.status().await["models"][0]["affinity"], true, "it is as it was");
}

#[tokio::test]
async fn a_log_becomes_a_trace_and_a_trace_is_replayed() {
    let server = start(fast()).await;
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let line = |second: u32, conversation: &str, computed: u32| {
        json!({
            "time": format!("2026-01-01T00:00:0{second}.500Z"), "model": MODEL, "decision": "placed", "total_ms": 500.0,
            "cached": 0, "computed": computed, "completion": 5, "conversation": conversation, "client": "10.0.0.1:1",
        })
        .to_string()
    };
    let lines = [line(0, "feed", 200), line(1, "feed", 300), line(0, "cafe", 150)];
    std::fs::write(&log, lines.join("\n")).expect("writes");
    let recorded = bench(&["--record", log.to_str().expect("a path of text")]).await;
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    assert!(!String::from_utf8_lossy(&recorded.stdout).contains("feed"), "no hash of a conversation is in it");
    let trace = directory.path().join("trace.jsonl");
    std::fs::write(&trace, &recorded.stdout).expect("writes");
    let trace = trace.to_str().expect("a path of text").to_owned();

    let plots = directory.path().join("plots");
    let plots = plots.to_str().expect("a path of text").to_owned();
    let arguments =
        ["--url", &url(&server), "--replay", &trace, "--seconds", "3", "--rounds", "1", "--system-tokens", "50"];
    let output = bench(&[&arguments[..], &["--json", "--plots", &plots]].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = report(&output);
    assert_eq!(
        (&report["rungs"][0]["sessions"], &report["bench"]["cells"][0]["turns_complete"]),
        (&json!(2), &json!(3))
    );
    let svg = std::fs::read_to_string(directory.path().join("plots/ttfb.svg")).expect("a plot");
    assert!(svg.contains("as_is median") && svg.contains("as_is 95th"));
}

#[tokio::test]
async fn the_access_log_that_kvpin_writes_is_what_a_trace_is_made_of() {
    let server = start(fast()).await;
    let mut logged = config(json!({ MODEL: { "replicas": urls(std::slice::from_ref(&server)) } }));
    logged["access_log"] = json!({ "to": "access.log", "format": "json" });
    let kvpin = Kvpin::start(&logged).await;
    let address = kvpin.address.to_string();
    let work = ["--url", &address, "--model", MODEL, "--sessions", "2", "--seconds", "2", "--rounds", "1", "--json"];
    let output = bench(&[&work[..], &SMALL].concat()).await;
    let complete = report(&output)["bench"]["cells"][0]["turns_complete"].as_u64().expect("a count") as usize;
    // The four questions of what a token is are turns too.
    let recorded = crate::support::until("every turn has its line", async || {
        let recorded = bench(&["--record", &kvpin.file("access.log")]).await;
        (String::from_utf8_lossy(&recorded.stdout).lines().count() >= complete + 4).then_some(recorded)
    })
    .await;
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let text = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let turns: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("a turn")).collect();
    assert!(turns.iter().all(|turn| turn["prompt_tokens"].as_u64() > Some(0)), "{text}");
    assert_eq!(turns[0]["at_s"], 0.0);
}

#[tokio::test]
async fn an_order_holds_until_the_next_reload_and_can_be_seen() {
    let (_server, kvpin) = ranked().await;
    let order = |body: &str| Call::post(&format!("/api/v1/models/{MODEL}/affinity"), body).at_localhost();
    let names = |status: &Value| {
        let replicas = status["models"][0]["replicas"].as_array().cloned().unwrap_or_default();
        replicas.iter().map(|replica| replica["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let reply = call(kvpin.admin, &order(r#"{"affinity": false}"#)).await;
    assert_eq!((reply.status(), &reply.json()["affinity"]), (200, &json!(false)));
    let status = kvpin.status().await;
    assert_eq!((&status["models"][0]["affinity"], names(&status)), (&json!(false), vec!["n".to_owned()]));
    let notes = status["models"][0]["notes"].to_string();
    assert!(notes.contains("affinity is off by an order"), "{notes}");
    let history = call(kvpin.admin, &Call::get("/api/v1/history").at_localhost()).await.json();
    let events = history["events"].to_string();
    assert!(events.contains("affinity off, by order"), "{events}");

    let reply = call(kvpin.admin, &order(r#"{"affinity": false, "balancing": "least_loaded"}"#)).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(names(&kvpin.status().await), ["n/0", "n/1"]);

    for (body, status) in [("{}", 400), (r#"{"affinity": 1}"#, 400), (r#"{"affinity": true, "x": 1}"#, 400)] {
        assert_eq!(call(kvpin.admin, &order(body)).await.status(), status, "{body}");
    }
    let nobody = Call::post("/api/v1/models/none/affinity", r#"{"affinity": true}"#).at_localhost();
    let reply = call(kvpin.admin, &nobody).await;
    assert!(reply.status() == 404 && reply.text().contains("no model `none`"), "{}", reply.text());
    let read = call(kvpin.admin, &Call::get(&format!("/api/v1/models/{MODEL}/affinity")).at_localhost()).await;
    assert_eq!(read.status(), 405);

    let before = kvpin.reloads().await;
    kvpin.signal("HUP");
    crate::support::until("it was reloaded", async || (kvpin.reloads().await != before).then_some(())).await;
    let status = kvpin.status().await;
    assert_eq!((&status["models"][0]["affinity"], names(&status).len()), (&json!(true), 2));
    assert!(!status["models"][0]["notes"].to_string().contains("by an order"));
}

#[tokio::test]
async fn an_order_takes_the_admin_token() {
    let server = start(fast()).await;
    let mut with_token = config(json!({ MODEL: { "replicas": urls(std::slice::from_ref(&server)) } }));
    with_token["admin_token_file"] = json!("token");
    let kvpin = Kvpin::launch_with(&with_token, &[("token", "token-for-the-order-51e9c0\n")]).await;
    let order = Call::post(&format!("/api/v1/models/{MODEL}/affinity"), r#"{"affinity": false}"#).at_localhost();
    assert_eq!(call(kvpin.admin, &order).await.status(), 401);
    let shown = order.header("authorization", "Bearer token-for-the-order-51e9c0");
    assert_eq!(call(kvpin.admin, &shown).await.status(), 200);
}
