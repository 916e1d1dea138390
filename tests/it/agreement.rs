//! The status, what the page is sent, the terminal's card and Prometheus say the same: every number of the one has its pair in
//! the other, and each pair is equal after turns of every kind.

use std::collections::{BTreeMap, BTreeSet};

use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::keys::{KEYS_FILE, guarded, keys_file};
use crate::support::kvpin::{Kvpin, replicas, run};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, start, start_many, steady, streamed, urls};
use crate::support::scrape::Scrape;
use crate::support::{until, within};

/// What a number of the status is elsewhere.
enum Pair {
    /// The sum of these families' series; with the labels.
    Of(&'static [(&'static str, &'static [(&'static str, &'static str)])]),
    /// The series whose label is the key of the status's map.
    ByKey { family: &'static str, label: &'static str },
    /// A share, a time or a setting: derived, or no count.
    NoCount,
}

use Pair::{ByKey, NoCount, Of};

/// Of a replica, and under `tokens`, `turns_*` and `cold` of a model too. `*` is a key of a map.
const REPLICA: &[(&str, Pair)] = &[
    ("sticky", Of(&[("kvpin_turns_total", &[("decision", "sticky")])])),
    ("placed", Of(&[("kvpin_turns_total", &[("decision", "placed")])])),
    ("spilled_in", Of(&[("kvpin_turns_total", &[("decision", "spilled")])])),
    ("client_pinned", Of(&[("kvpin_turns_total", &[("decision", "client_pinned")])])),
    ("unpinned", Of(&[("kvpin_turns_total", &[("decision", "unpinned")])])),
    ("side", Of(&[("kvpin_turns_total", &[("decision", "side")])])),
    ("replaced", Of(&[("kvpin_replaced_conversations_total", &[])])),
    ("forked", Of(&[("kvpin_forked_conversations_total", &[])])),
    ("restarts", Of(&[("kvpin_replica_restarts_total", &[])])),
    ("in_flight", Of(&[("kvpin_in_flight_turns", &[])])),
    ("outcomes.*", ByKey { family: "kvpin_turn_outcomes_total", label: "outcome" }),
    ("conversations.active", Of(&[("kvpin_conversations", &[("state", "active")])])),
    ("conversations.idle", Of(&[("kvpin_conversations", &[("state", "idle")])])),
    ("conversations.lost", Of(&[("kvpin_conversations", &[("state", "lost")])])),
    ("conversations.relatives", Of(&[("kvpin_related_conversations", &[])])),
    ("working_set_tokens", Of(&[("kvpin_working_set_tokens", &[])])),
    ("residents", Of(&[("kvpin_resident_conversations", &[])])),
    ("resident_tokens", Of(&[("kvpin_resident_tokens", &[])])),
    ("admission_limit_tokens", Of(&[("kvpin_admission_limit_tokens", &[])])),
    ("spill_threshold", Of(&[("kvpin_spill_threshold_turns", &[])])),
    ("engine.running", Of(&[("kvpin_engine_requests", &[("state", "running")])])),
    ("engine.waiting", Of(&[("kvpin_engine_requests", &[("state", "waiting")])])),
    ("engine.kv_capacity_tokens", Of(&[("kvpin_engine_kv_capacity_tokens", &[])])),
    ("engine.prefix_queries_tokens", Of(&[("kvpin_engine_prefix_queries_tokens_total", &[])])),
    ("engine.prefix_hits_tokens", Of(&[("kvpin_engine_prefix_hits_tokens_total", &[])])),
    ("engine.prompt_tokens", Of(&[("kvpin_engine_prompt_tokens_total", &[])])),
    ("engine.generation_tokens", Of(&[("kvpin_engine_generation_tokens_total", &[])])),
    ("engine.scrape_age_s", NoCount),
    ("engine.kv_use_percent", NoCount),
    ("engine.prefix_hit_percent", NoCount),
    ("rank", NoCount),
    ("health_age_s", NoCount),
    ("ramp_percent", NoCount),
    ("max_num_seqs", NoCount),
];

/// Of a replica and of a model.
const BOOKS: &[(&str, Pair)] = &[
    ("tokens.completion", Of(&[("kvpin_completion_tokens_total", &[])])),
    ("tokens.*", ByKey { family: "kvpin_prompt_tokens_total", label: "source" }),
    (
        "turns_measured",
        Of(&[
            ("kvpin_booked_turns_total", &[("measure", "whole")]),
            ("kvpin_booked_turns_total", &[("measure", "untold")]),
        ]),
    ),
    ("turns_unmeasured", Of(&[("kvpin_booked_turns_total", &[("measure", "unmeasured")])])),
    ("turns_untold", Of(&[("kvpin_booked_turns_total", &[("measure", "untold")])])),
    ("cold.*.turns", ByKey { family: "kvpin_cold_turns_total", label: "reason" }),
    ("cold.*.tokens", ByKey { family: "kvpin_cold_tokens_total", label: "reason" }),
    ("cold.*.survived", ByKey { family: "kvpin_cold_survived_tokens_total", label: "reason" }),
    ("cached_percent", NoCount),
];

const OF_MODEL: &[(&str, Pair)] = &[
    (
        "conversations",
        Of(&[("kvpin_conversations", &[("state", "active")]), ("kvpin_conversations", &[("state", "idle")])]),
    ),
    ("in_flight", Of(&[("kvpin_in_flight_turns", &[])])),
    ("refused.*", ByKey { family: "kvpin_refused_turns_total", label: "reason" }),
    // Without side calls, which would blur it.
    (
        "first_byte.count",
        Of(&[
            ("kvpin_time_to_first_byte_seconds_count", &[("decision", "sticky")]),
            ("kvpin_time_to_first_byte_seconds_count", &[("decision", "placed")]),
            ("kvpin_time_to_first_byte_seconds_count", &[("decision", "spilled")]),
            ("kvpin_time_to_first_byte_seconds_count", &[("decision", "client_pinned")]),
            ("kvpin_time_to_first_byte_seconds_count", &[("decision", "unpinned")]),
        ]),
    ),
    ("working_set.conversations", Of(&[("kvpin_conversations", &[("state", "active")])])),
    ("working_set.tokens", Of(&[("kvpin_working_set_tokens", &[])])),
    ("working_set.capacity_tokens", Of(&[("kvpin_engine_kv_capacity_tokens", &[])])),
    ("admission.held_turns", Of(&[("kvpin_held_turns", &[])])),
    ("admission.longest_hold_s", NoCount),
    ("admission.needed_tokens", Of(&[("kvpin_held_needed_tokens", &[])])),
    ("admission.held_turns_total", Of(&[("kvpin_held_turns_total", &[])])),
    ("admission.forced_turns_total", Of(&[("kvpin_forced_turns_total", &[])])),
    ("admission.left_turns_total", Of(&[("kvpin_left_while_held_turns_total", &[])])),
    ("admission.refused_turns_total", Of(&[("kvpin_refused_turns_total", &[("reason", "line_full")])])),
    ("admission.parked_conversations_total", Of(&[("kvpin_parked_conversations_total", &[])])),
    ("admission.hold.count", Of(&[("kvpin_hold_seconds_count", &[])])),
    ("admission.hold.p50_s", NoCount),
    ("admission.hold.p95_s", NoCount),
    ("first_byte.p50_s", NoCount),
    ("first_byte.p95_s", NoCount),
    ("sticky_percent", NoCount),
    ("prefix_hit_percent", NoCount),
    ("spill_threshold.configured", NoCount),
];

const KEY: &[(&str, Pair)] = &[
    ("requests.*", ByKey { family: "kvpin_key_requests_total", label: "outcome" }),
    ("in_flight", Of(&[("kvpin_key_in_flight_requests", &[])])),
    ("in_flight_max", NoCount),
    ("requests_per_minute_max", NoCount),
];

/// Distributions of times: what the status has of them is quantiles of its own.
const TIMES: [&str; 4] = [
    "kvpin_hold_seconds",
    "kvpin_overhead_seconds",
    "kvpin_time_between_tokens_seconds",
    "kvpin_time_to_first_byte_seconds",
];

/// Numbers of an object by their path, and `null`, which may be one.
fn numbers(at: &str, value: &Value, found: &mut BTreeMap<String, Option<f64>>) {
    match value {
        Value::Number(number) => drop(found.insert(at.to_owned(), number.as_f64())),
        Value::Null => drop(found.insert(at.to_owned(), None)),
        Value::Object(fields) => {
            for (key, value) in fields {
                numbers(&if at.is_empty() { key.clone() } else { format!("{at}.{key}") }, value, found);
            }
        }
        Value::Array(_) | Value::String(_) | Value::Bool(_) => {}
    }
}

/// The key that the `*` of a pattern stands for in a path; empty where it has none. `None` if they don't match.
fn matches<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, after)) = pattern.split_once('*') else { return (pattern == path).then_some("") };
    let key = path.strip_prefix(before)?.strip_suffix(after)?;
    (!key.contains('.')).then_some(key)
}

/// What holds for one part of a status.
struct Comparison<'a> {
    scrape: &'a Scrape,
    used: BTreeSet<&'static str>,
    /// What the counts came to over all parts, by pattern.
    sums: BTreeMap<&'static str, f64>,
}

impl Comparison<'_> {
    /// Each number of the part is equal to its pair. One without a pair fails.
    fn compare(&mut self, part: &Value, labels: &[(&str, &str)], tables: &[&'static [(&'static str, Pair)]]) {
        let mut found = BTreeMap::new();
        numbers("", part, &mut found);
        for (path, number) in found {
            // Words that may be absent.
            if ["health_reason", "drain", "engine"].contains(&path.as_str()) {
                continue;
            }
            let rows = tables.iter().copied().flatten();
            let row = rows.filter_map(|(pattern, pair)| Some((*pattern, pair, matches(pattern, &path)?))).next();
            let (pattern, pair, key) =
                row.unwrap_or_else(|| panic!("{path} of the status has no pair: add it to the table"));
            let shown = match pair {
                NoCount => continue,
                Of(series) => {
                    series.iter().filter_map(|(name, of)| self.sum(name, &[labels, of].concat())).reduce(|a, b| a + b)
                }
                ByKey { family, label } => self.sum(family, &[labels, &[(label, key)]].concat()),
            };
            assert_eq!(number, shown, "{path} of {labels:?}, in the status and in the scrape");
            *self.sums.entry(pattern).or_default() += number.unwrap_or_default();
        }
    }

    fn sum(&mut self, name: &'static str, labels: &[(&str, &str)]) -> Option<f64> {
        self.used.insert(name);
        // A distribution begins with its first turn.
        let absent = name.ends_with("_count").then_some(0.0);
        self.scrape.sum(name, labels).or(absent)
    }
}

/// Models of every kind of end: one that works, one whose replica goes away in the middle, one that isn't there.
struct Varied {
    kvpin: Kvpin,
    _servers: Vec<ReplicaServer>,
    _away: Recorder,
}

fn turn(body: Value) -> Call {
    Call::post("/v1/chat/completions", body.to_string()).by("alice")
}

/// Begins a long turn whose slot is held until its connection is dropped.
async fn hold(kvpin: &Kvpin, id: &str, model: &str) -> (Wire, String) {
    let mut body = streamed("a long story", 20_000);
    body["model"] = json!(model);
    let mut wire = kvpin.connect().await;
    let head = wire.begin(&turn(body).of(id)).await;
    assert_eq!(head.status, 200);
    assert!(matches!(wire.piece().await, Piece::Data(_)));
    (wire, head.decision().to_owned())
}

/// Turns of every kind, until none is in flight.
async fn varied() -> Varied {
    let servers = start_many(2, steady()).await;
    let brittle = start(ReplicaOptions { model: "brittle".into(), ..steady() }).await;
    let narrow = start(ReplicaOptions { model: "narrow".into(), ..steady() }).await;
    let away = Recorder::away();
    let models = json!({
        (MODEL): { "max_num_seqs": 4, "replicas": urls(&servers) },
        "narrow": { "kv_cache_tokens": 1000, "held_max": 1, "hold_max_s": 1, "replicas": [format!("http://{}", narrow.address())] },
        "brittle": { "replicas": [format!("http://{}", brittle.address())] }, "gone": { "replicas": [away.url()] },
    });
    let config = guarded(models);
    let files = [(KEYS_FILE, &*keys_file(&[("alice", json!({ "may_pin": true })), ("bob", json!({}))]))];
    let kvpin = Kvpin::launch_with(&config, &files).await;
    kvpin.until_health("up", |name| name != away.name()).await;
    kvpin.until_health("down", |name| name == away.name()).await;
    let text = |word: &str| format!("{word} ").repeat(400);
    for (id, words) in [("grows", ["one", "one", "one"]), ("changes", ["two", "three", "two"])] {
        for (at, word) in words.iter().enumerate() {
            let call = turn(chat(&(text(word) + &text("and on").repeat(at)))).of(id);
            assert_eq!(kvpin.call(&call).await.status(), 200);
        }
    }
    let name = servers[1].address().to_string();
    assert_eq!(kvpin.call(&turn(chat("pinned")).header("x-kvpin-replica", &name)).await.status(), 200);
    assert_eq!(kvpin.call(&turn(json!({ "model": MODEL, "prompt": "of another API" }))).await.status(), 400);
    let count = Call::post(
        "/v1/messages/count_tokens",
        json!({ "model": MODEL, "messages": [{ "role": "user", "content": "x" }] }).to_string(),
    );
    assert_eq!(kvpin.call(&count.by("alice")).await.status(), 200);
    let completion =
        Call::post("/v1/completions", json!({ "model": MODEL, "prompt": "no session", "max_tokens": 2 }).to_string());
    assert_eq!(kvpin.call(&completion.by("alice")).await.status(), 200);
    let (first, _) = hold(&kvpin, "busy", MODEL).await;
    let (second, decision) = hold(&kvpin, "busy", MODEL).await;
    assert_eq!(decision, "spilled");
    drop((first, second));
    let (mut broken, _) = hold(&kvpin, "broken", "brittle").await;
    drop(brittle);
    within("the stream breaks off", async { while matches!(broken.piece().await, Piece::Data(_)) {} }).await;
    wait_at_the_door(&kvpin).await;
    assert_eq!(kvpin.call(&turn(json!({ "model": "gone" }))).await.status(), 503);
    assert_eq!(kvpin.call(&turn(json!({ "model": "unknown" }))).await.status(), 404);
    until("the streams that were left have ended", async || (kvpin.in_flight().await == 0).then_some(())).await;
    settle(&kvpin).await;
    let mut servers = servers;
    servers.push(narrow);
    Varied { kvpin, _servers: servers, _away: away }
}

/// Has turns wait at a model with little room and a line of one: one leaves, one is refused, one is let in at last.
async fn wait_at_the_door(kvpin: &Kvpin) {
    let call = |id: &str, tokens: u32| {
        let mut body = streamed(&format!("{id} ").repeat(600), tokens);
        body["model"] = json!("narrow");
        turn(body).of(id)
    };
    let held = async |count: f64| {
        until("so many are held", async || {
            (kvpin.metric("kvpin_held_turns{model=\"narrow\"").await == count).then_some(())
        })
        .await;
    };
    let mut resident = kvpin.connect().await;
    assert_eq!(resident.begin(&call("resident", 20_000)).await.status, 200);
    let mut leaves = kvpin.connect().await;
    leaves.send(&call("leaves", 2).bytes()).await;
    held(1.0).await;
    assert_eq!(kvpin.call(&call("refused", 2)).await.status(), 503);
    drop(leaves);
    held(0.0).await;
    assert_eq!(kvpin.call(&call("waits", 2)).await.status(), 200);
}

/// Waits until what is gone is known to be, and the figures of the engines that are there are newer than their last turn.
async fn settle(kvpin: &Kvpin) {
    let quiet = Instant::now();
    until("the engines' figures are new", async || {
        let since_s = quiet.elapsed().as_secs_f64();
        let status = kvpin.status().await;
        let is_settled = |replica: &Value| {
            let engine = &replica["engine"];
            replica["health"] == "down"
                || replica["health"] == "up"
                    && engine["running"] == 0
                    && engine["scrape_age_s"].as_f64().is_some_and(|age| age < since_s)
        };
        let gone = replicas(&status).filter(|replica| replica["health"] == "down").count();
        (gone == 2 && replicas(&status).all(is_settled)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_number_of_the_status_is_the_one_that_prometheus_gets_and_the_other_way_round() {
    let Varied { kvpin, .. } = &varied().await;
    let (status, scrape) = (kvpin.status().await, Scrape::parse(&kvpin.metrics().await));
    let mut comparison = Comparison { scrape: &scrape, used: BTreeSet::new(), sums: BTreeMap::new() };
    for model in status["models"].as_array().expect("models") {
        let name = model["name"].as_str().expect("a name");
        comparison.compare(model, &[("model", name)], &[BOOKS, OF_MODEL]);
        for replica in model["replicas"].as_array().expect("replicas") {
            let labels = [("model", name), ("replica", replica["name"].as_str().expect("a name"))];
            comparison.compare(replica, &labels, &[BOOKS, REPLICA]);
        }
    }
    for key in status["keys"].as_array().expect("keys") {
        comparison.compare(key, &[("key", key["name"].as_str().expect("a name"))], &[KEY]);
    }
    for counted in [
        "sticky",
        "placed",
        "spilled_in",
        "client_pinned",
        "unpinned",
        "side",
        "outcomes.*",
        "refused.*",
        "tokens.*",
        "tokens.completion",
        "turns_measured",
        "turns_unmeasured",
        "cold.*.turns",
        "cold.*.tokens",
        "requests.*",
        "first_byte.count",
        "residents",
        "resident_tokens",
        "admission_limit_tokens",
        "admission.held_turns_total",
        "admission.forced_turns_total",
        "admission.left_turns_total",
        "admission.refused_turns_total",
        "admission.hold.count",
        "engine.prefix_queries_tokens",
        "engine.prompt_tokens",
    ] {
        assert!(comparison.sums[counted] > 0.0, "the run has none of {counted}");
    }
    for outcome in ["completed", "rejected", "failed", "abandoned"] {
        assert!(scrape.sum("kvpin_turn_outcomes_total", &[("outcome", outcome)]) > Some(0.0), "none was {outcome}");
    }
    for model in [MODEL, "brittle"] {
        let sent = scrape.sum("kvpin_overhead_seconds_count", &[("model", model)]);
        let ended = scrape.sum("kvpin_turn_outcomes_total", &[("model", model)]);
        assert_eq!(sent, ended, "each turn of {model} was measured once");
    }
    let used = &comparison.used;
    for label in ["model", "replica", "key"] {
        for family in scrape.families_with("counter", label) {
            assert!(used.contains(family), "{family} is in no status");
        }
    }
    assert_eq!(scrape.families_with("histogram", "model"), BTreeSet::from(TIMES));
}

#[tokio::test]
async fn the_page_and_the_terminal_show_the_same_status() {
    let Varied { kvpin, .. } = &varied().await;
    let mut live = Wire::connect(kvpin.admin).await;
    live.begin(&Call::get("/api/v1/live")).await;
    let mut text = String::new();
    while !text.contains("\n\n") {
        let Piece::Data(data) = live.piece().await else { panic!("the stream goes on") };
        text.push_str(std::str::from_utf8(&data).expect("text"));
    }
    let event = text.split("\n\n").next().and_then(|event| event.strip_prefix("data: ")).expect("an event");
    let page: Value = serde_json::from_str(event).expect("JSON");
    assert_eq!(timeless(page.clone()), timeless(kvpin.status().await));
    let admin = kvpin.admin.to_string();
    let run = move |json: bool| {
        let arguments: &[&str] =
            if json { &["status", "--json", "--admin", &admin] } else { &["status", "--admin", &admin] };
        let output = run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let (json, card) = spawn_blocking(move || (run(true), run(false))).await.expect("they run");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(timeless(json), timeless(page.clone()));
    for replica in replicas(&page) {
        let name = replica["name"].as_str().expect("a name");
        let line = card.lines().find(|line| line.trim_start().starts_with(name)).expect("a line of the replica");
        let cells: Vec<_> = line.trim().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let count = |field: &str| replica[field].as_u64().expect("a count");
        let other = count("placed") + count("unpinned") + count("side");
        let shown = [count("in_flight"), count("sticky"), count("spilled_in"), count("client_pinned"), other];
        assert_eq!(cells[2..7], shown.map(|count| count.to_string()), "{card}");
    }
}

#[tokio::test]
async fn every_metric_that_an_alert_or_the_dashboard_names_is_in_a_scrape() {
    let Varied { kvpin, .. } = &varied().await;
    let page = kvpin.metrics().await;
    let scrape = Scrape::parse(&page);
    let mut named = BTreeSet::new();
    for text in [include_str!("../../conf/monitoring/alerts.yaml"), include_str!("../../conf/monitoring/grafana.json")]
    {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        named.extend(words.filter(|word| word.starts_with("kvpin_") || word.starts_with("process_")));
    }
    assert!(named.len() > 20, "{named:?}");
    // There is none without TLS, or without a GPU.
    named.remove("kvpin_certificate_expiry_timestamp_seconds");
    let (of_gpus, named): (BTreeSet<_>, BTreeSet<_>) =
        named.into_iter().partition(|name| name.starts_with("kvpin_gpu_"));
    for name in of_gpus {
        let declared = include_str!("../../src/admin/metrics/gpus.rs");
        assert!(declared.contains(&format!("\"{name}\"")), "{name} is no family of GPUs");
    }
    for name in named {
        let family = ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        assert!(scrape.families.contains_key(family), "{name} is in no scrape");
    }
}

/// Without what is otherwise at every look.
fn timeless(mut status: Value) -> Value {
    for passing in ["uptime_s", "open_requests"] {
        status["kvpin"][passing] = Value::Null;
    }
    status["nvml"]["age_s"] = Value::Null;
    for model in status["models"].as_array_mut().into_iter().flatten() {
        for replica in model["replicas"].as_array_mut().into_iter().flatten() {
            replica["health_age_s"] = Value::Null;
            replica["ramp_percent"] = Value::Null;
            if replica["engine"].is_object() {
                replica["engine"]["scrape_age_s"] = Value::Null;
            }
        }
    }
    status
}
