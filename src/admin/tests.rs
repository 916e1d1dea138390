//! The pages of a balancer that the test drives by hand.

mod live;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::server::ShutdownWatch;
use pingora::services::listening::Service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::Proxied;
use super::status::{Auto, ConfiguredThreshold};
use super::{Admin, Status, View, metrics};
use crate::balancer::{
    Admission, Balancer, Bounds, DownReason, Health, HealthPolicy, Mode, Outcome, Policy, ReplicaId, ReplicaSpec,
    Scrape, Signs, SpillThreshold, Turn,
};
use crate::config::{Config, KeyConfig, KeyHash};
use crate::conversation::{ConversationKey, KeySecret};
use crate::dispatch::{Clock, Dispatcher, Model, Routing};
use crate::gpu::{Board, Gpus};
use crate::keys::{KeyRing, KeySnapshot, Verdict};
use crate::metrics::Metrics;

const POLICY: Policy = Policy {
    mode: Mode::Affinity,
    spill_threshold: SpillThreshold::Auto,
    max_num_seqs: None,
    admission: Admission::OFF,
    bounds: Bounds { entries_max: 100, idle_max: Duration::from_secs(3_600) },
    health: HealthPolicy { failures: 3, successes: 2, hung: Duration::from_secs(30), ramp: Duration::from_secs(30) },
};

fn spec(name: &str, port: u16, rank: Option<u16>) -> ReplicaSpec {
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    ReplicaSpec { name: name.to_owned(), address, authority: address.to_string(), is_tls: false, rank, drain: false }
}

fn turn(key: u64) -> Turn<'static> {
    Turn::of(Some(ConversationKey(key)))
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A key that was used and one that was not.
fn keys() -> Vec<KeySnapshot> {
    let config = [("alice", Some(2)), ("bob", None)]
        .map(|(name, in_flight_max)| KeyConfig { in_flight_max, ..KeyConfig::new(name, KeyHash::of(name.as_bytes())) });
    let ring = KeyRing::new(&config, None);
    let alice = ring.find(b"alice").unwrap();
    let _slot = alice.enter(at(1)).unwrap();
    [Verdict::Passed, Verdict::Passed, Verdict::Limited].into_iter().for_each(|verdict| alice.count(verdict));
    ring.snapshot()
}

/// Serves a turn to its end.
fn serve(balancer: &mut Balancer, turn: &Turn<'_>, now: Duration) -> ReplicaId {
    let mut ticket = balancer.arrive(turn, now).unwrap();
    let replica = ticket.replica;
    balancer.served(&mut ticket, now);
    balancer.finish(ticket, Outcome::Completed, now);
    replica
}

fn model(name: &str) -> Arc<Model> {
    let balancer = Balancer::new(POLICY, Vec::new(), Duration::ZERO);
    Arc::new(Model {
        name: name.to_owned(),
        aliases: vec![format!("{name}-alias")],
        affinity: true,
        affinity_ordered: false,
        client_pins: true,
        engine_balances: false,
        send_session_id: true,
        upstream_authorization: None,
        gpus: HashMap::new(),
        dispatcher: Arc::new(Dispatcher::new(name, Clock::start(), Arc::default(), balancer)),
    })
}

/// Two ranks: one conversation of four turns, all in one place, one of which still runs; one rank has been scraped.
fn ranked() -> Balancer {
    let specs = vec![spec("gpu/0", 8000, Some(0)), spec("gpu/1", 8000, Some(1))];
    let mut balancer = Balancer::new(POLICY, specs, Duration::ZERO);
    let ids: Vec<_> = balancer.specs().map(|(id, _)| id).collect();
    for id in &ids {
        balancer.set_health(*id, Health::Up, at(1));
    }
    for second in 2..5 {
        assert_eq!(serve(&mut balancer, &turn(1), at(second)), ids[0]);
    }
    let mut running = balancer.arrive(&turn(1), at(5)).unwrap();
    balancer.served(&mut running, at(5));
    let scrape = Scrape {
        at: at(6),
        running: 1,
        waiting: 2,
        kv_use: 0.29,
        kv_capacity_tokens: 32_960,
        prefix_queries_tokens: 1_000,
        prefix_hits_tokens: 999,
        prompt_tokens: 1_000,
        generation_tokens: 70,
        signs: Signs::default(),
    };
    balancer.scraped(ids[0], scrape);
    balancer
}

/// One server, which is down and refuses a turn.
fn down() -> Balancer {
    let policy = Policy { mode: Mode::LeastLoaded, spill_threshold: SpillThreshold::Fixed(3), ..POLICY };
    let mut balancer = Balancer::new(policy, vec![spec("only", 8001, None)], Duration::ZERO);
    let id = balancer.replica_named("only").unwrap();
    balancer.set_health(id, Health::Down(DownReason::ConnectRefused), at(3));
    assert!(balancer.arrive(&turn(1), at(4)).is_err());
    balancer
}

fn view() -> View {
    View {
        keys: keys(),
        uptime: Duration::from_millis(8_500),
        open_requests: 1,
        last_reload: None,
        last_failed_upgrade: None,
        gpus: Gpus::none(),
        models: vec![(model("big"), ranked().snapshot(at(8))), (model("small"), down().snapshot(at(8)))],
    }
}

fn text(view: &View) -> String {
    String::from_utf8(metrics::render(view, &Metrics::new().unwrap().registry).unwrap()).unwrap()
}

/// The series of a page, which must each stand there once, under a family that was described once.
fn series(text: &str) -> BTreeMap<String, String> {
    let mut described = BTreeSet::new();
    let mut typed = BTreeSet::new();
    let mut series = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next().unwrap(), words.next().unwrap()) {
            ("#", "HELP") => assert!(described.insert(words.next().unwrap().to_owned()), "twice: {line}"),
            ("#", "TYPE") => assert!(typed.insert(words.next().unwrap().to_owned()), "twice: {line}"),
            _ => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(series.insert(name.to_owned(), value.to_owned()).is_none(), "twice: {line}");
                let family = name.split('{').next().unwrap();
                assert!(described.contains(family) && typed.contains(family), "not described: {line}");
                assert!(family.starts_with("kvpin_") || family.starts_with("process_"), "{family}");
            }
        }
    }
    series
}

#[test]
fn every_figure_of_the_snapshot_is_a_series_of_its_own() {
    let series = series(&text(&view()));
    let gpu = r#"model="big",replica="gpu/0""#;
    let only = r#"model="small",replica="only""#;
    for (name, value) in [
        (format!("kvpin_turns_total{{decision=\"sticky\",{gpu}}}"), "3"),
        (format!("kvpin_turns_total{{decision=\"placed\",{gpu}}}"), "1"),
        (format!("kvpin_turns_total{{decision=\"spilled\",{gpu}}}"), "0"),
        ("kvpin_turn_outcomes_total{model=\"big\",outcome=\"completed\",replica=\"gpu/0\"}".to_owned(), "3"),
        (format!("kvpin_in_flight_turns{{{gpu}}}"), "1"),
        (format!("kvpin_conversations{{{gpu},state=\"active\"}}"), "1"),
        (format!("kvpin_conversations{{{gpu},state=\"idle\"}}"), "0"),
        (format!("kvpin_replica_up{{{gpu}}}"), "1"),
        (format!("kvpin_replica_up{{{only}}}"), "0"),
        (format!("kvpin_spill_threshold_turns{{{gpu}}}"), "8"),
        (format!("kvpin_spill_threshold_turns{{{only}}}"), "3"),
        (format!("kvpin_scrape_age_seconds{{{gpu}}}"), "2"),
        (format!("kvpin_engine_requests{{{gpu},state=\"running\"}}"), "1"),
        (format!("kvpin_engine_requests{{{gpu},state=\"waiting\"}}"), "2"),
        (format!("kvpin_engine_kv_use_ratio{{{gpu}}}"), "0.29"),
        (format!("kvpin_engine_prefix_queries_tokens_total{{{gpu}}}"), "1000"),
        (format!("kvpin_engine_prefix_hits_tokens_total{{{gpu}}}"), "999"),
        ("kvpin_refused_turns_total{model=\"small\",reason=\"no_replica_up\"}".to_owned(), "1"),
        ("kvpin_key_requests_total{key=\"alice\",outcome=\"passed\"}".to_owned(), "2"),
        ("kvpin_key_requests_total{key=\"alice\",outcome=\"limited\"}".to_owned(), "1"),
        ("kvpin_key_requests_total{key=\"bob\",outcome=\"forbidden\"}".to_owned(), "0"),
        ("kvpin_key_in_flight_requests{key=\"alice\"}".to_owned(), "1"),
        ("kvpin_uptime_seconds".to_owned(), "8.5"),
        ("kvpin_open_requests".to_owned(), "1"),
        (format!("kvpin_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), "1"),
        ("kvpin_panics_total".to_owned(), "0"),
    ] {
        assert_eq!(series.get(&name).map(String::as_str), Some(value), "{name}");
    }
}

#[test]
fn an_engine_that_was_never_scraped_has_no_figures() {
    let series = series(&text(&view()));
    let silent = |name: &&String| name.contains("gpu/1") || name.contains("only");
    let of_engine = |name: &&String| name.starts_with("kvpin_engine") || name.starts_with("kvpin_scrape_age");
    assert!(!series.keys().filter(silent).any(|name| of_engine(&name)));
}

#[test]
fn a_name_that_went_to_another_engine_is_one_series_while_the_old_one_finishes() {
    let mut balancer = ranked();
    balancer.reconfigure(POLICY, vec![spec("gpu/0", 9000, None)], at(7));
    let id = balancer.replica_named("gpu/0").unwrap();
    balancer.set_health(id, Health::Up, at(7));
    assert_eq!(serve(&mut balancer, &turn(2), at(7)), id);
    let mut running = balancer.arrive(&turn(2), at(7)).unwrap();
    balancer.served(&mut running, at(7));
    let view = View { models: vec![(model("big"), balancer.snapshot(at(8)))], ..view() };
    let series = series(&text(&view));
    let gpu = r#"model="big",replica="gpu/0""#;
    assert_eq!(series[&format!("kvpin_in_flight_turns{{{gpu}}}")], "2");
    assert_eq!(series[&format!("kvpin_turns_total{{decision=\"sticky\",{gpu}}}")], "1");
    let replicas = &Status::of(&view).models[0].replicas;
    assert_eq!(replicas.iter().map(|replica| replica.retired).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn the_status_survives_json() {
    let status = Status::of(&view());
    let json = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
}

#[test]
fn the_status_says_how_a_model_does() {
    let status = Status::of(&view());
    let [big, small] = status.models.as_slice() else { panic!("two models") };
    assert_eq!((big.name.as_str(), big.aliases.as_slice()), ("big", ["big-alias".to_owned()].as_slice()));
    assert_eq!((big.conversations, big.in_flight), (1, 1));
    assert_eq!((big.sticky_percent, big.prefix_hit_percent), (Some(100.0), Some(99.9)));
    assert_eq!(big.spill_threshold.configured, ConfiguredThreshold::Word(Auto::Auto));
    assert_eq!(
        big.notes,
        [
            "max_num_seqs is not configured: 32 is assumed",
            "turns on /v1/responses can't be pinned to a rank and count as unpinned"
        ]
    );
    assert_eq!((small.sticky_percent, small.prefix_hit_percent), (None, None));
    assert_eq!(small.spill_threshold.configured, ConfiguredThreshold::Turns(3));
    assert_eq!((small.mode.as_str(), small.refused["no_replica_up"]), ("least_loaded", 1));
}

#[test]
fn the_status_says_how_a_replica_does() {
    let status = Status::of(&view());
    let replica = &status.models[0].replicas[0];
    assert_eq!((replica.name.as_str(), replica.address.as_str(), replica.rank), ("gpu/0", "127.0.0.1:8000", Some(0)));
    assert_eq!((replica.health.as_str(), replica.health_age_s), ("up", 7.0));
    assert_eq!((replica.sticky, replica.placed, replica.replaced, replica.outcomes.completed), (3, 1, 0, 3));
    assert_eq!((replica.max_num_seqs, replica.max_num_seqs_source.as_str()), (32, "assumed"));
    let engine = replica.engine.unwrap();
    assert_eq!((engine.scrape_age_s, engine.running, engine.waiting), (2.0, 1, 2));
    assert_eq!((engine.kv_use_percent, engine.kv_capacity_tokens), (29.0, Some(32_960)));
    let down = &status.models[1].replicas[0];
    assert_eq!((down.health.as_str(), down.health_reason.as_deref()), ("down", Some("connect_refused")));
    assert_eq!(down.engine, None);
}

#[test]
fn a_conversation_that_lost_its_home_was_not_sticky() {
    let mut balancer = ranked();
    let home = balancer.replica_named("gpu/0").unwrap();
    balancer.set_health(home, Health::Down(DownReason::ProbeFailed), at(6));
    serve(&mut balancer, &turn(1), at(7));
    let view = View { models: vec![(model("big"), balancer.snapshot(at(8)))], ..view() };
    let model = &Status::of(&view).models[0];
    assert_eq!((model.sticky_percent, model.replicas[1].replaced), (Some(75.0), 1));
}

#[test]
fn nearly_all_never_reads_as_all() {
    assert_eq!(super::status::percent(99_999, 100_000), Some(99.99));
    assert_eq!(super::status::percent(0, 0), None);
}

/// An admin listener's application that has one model and seven open requests.
fn admin() -> Arc<Admin> {
    let yaml = "listen: [127.0.0.1:0]\nmodels:\n  tiny:\n    replicas:\n      - url: http://127.0.0.1:9\n";
    let config = Config::from_yaml(yaml).unwrap();
    let routing = Routing::new(config, KeySecret::new([0; 16]), Metrics::new().unwrap());
    let proxied = Proxied {
        count_open: Box::new(|| 7),
        explain: Box::new(|raw| Err(format!("{} bytes", raw.len()))),
        lately: Arc::default(),
        upgrade: Box::new(|| Box::pin(async { Err("not today".to_owned()) })),
        gpus: Arc::new(Board::default()),
    };
    Arc::new(Admin::new(Arc::new(routing), proxied, Arc::default()))
}

/// A connection to it, of which the system holds only little that wasn't read.
async fn connect_to(admin: &Arc<Admin>, shutdown: &ShutdownWatch) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(4_096).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let stream: pingora::protocols::Stream = Box::new(pingora::protocols::l4::stream::Stream::from(stream));
    tokio::spawn(Service::handle_event(stream, Arc::clone(admin), shutdown.clone()));
    client
}

async fn connect() -> TcpStream {
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    connect_to(&admin(), &shutdown).await
}

/// The answer to a request after which the listener closes the connection.
async fn ask(client: &mut TcpStream, request: &str) -> (String, String) {
    client.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_lowercase(), body.to_owned())
}

async fn get(path: &str) -> (String, String) {
    ask(&mut connect().await, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await
}

#[tokio::test]
async fn every_page_is_served_with_its_type() {
    for (path, content_type, word) in [
        ("/", "text/html; charset=utf-8", "<title>kvpin</title>"),
        ("/?anything", "text/html; charset=utf-8", "<title>kvpin</title>"),
        ("/page/main.js", "text/javascript; charset=utf-8", "import"),
        ("/page/base.css", "text/css; charset=utf-8", ":root"),
        ("/page/icon.svg", "image/svg+xml", "<svg"),
        ("/api", "text/plain; charset=utf-8", "/api/v1/status"),
        ("/health", "application/json", "ok"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "kvpin_open_requests 7"),
        ("/metrics?x=1", "text/plain; version=0.0.4; charset=utf-8", "kvpin_open_requests 7"),
        ("/api/v1/status", "application/json", r#""open_requests":7"#),
        ("/api/v1/conversations", "application/json", r#"{"models":[{"conversations":[],"name":"tiny"}]}"#),
    ] {
        let (head, body) = get(path).await;
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {content_type}\r\n")), "{path}: {head}");
        assert!(head.contains("x-content-type-options: nosniff\r\n"), "{path}: {head}");
        assert!(body.contains(word), "{path}: {body}");
    }
}

#[tokio::test]
async fn other_pages_are_not_there_and_none_can_be_written() {
    let (head, body) = get("/api/v2/status").await;
    assert!(head.starts_with("http/1.1 404"), "{head}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap()["error"]["code"], 404);
    let post = "POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n\r\nbody";
    let (head, _) = ask(&mut connect().await, post).await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head\r\n"), "{head}");
}

#[tokio::test]
async fn a_raw_request_is_handed_over_to_be_explained() {
    let post = "POST /api/v1/explain HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 4\r\n\r\nbody";
    let (head, body) = ask(&mut connect().await, post).await;
    assert!(head.starts_with("http/1.1 400") && body.contains("4 bytes"), "{head} {body}");
    let (head, _) = get("/api/v1/explain").await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: post\r\n"), "{head}");
}

async fn post(path: &str, content_type: &str, body: &str) -> (String, serde_json::Value) {
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {content_type}\r\n");
    let request = format!("{head}content-length: {length}\r\n\r\n{body}");
    let (head, body) = ask(&mut connect().await, &request).await;
    (head, serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn a_text_is_compared_with_what_runs_and_nothing_changes() {
    let other = "models:\n  tiny:\n    replicas: [http://127.0.0.1:9, http://127.0.0.1:10]\n";
    async fn compared(text: &str) -> (String, serde_json::Value) {
        post(
            "/api/v1/check",
            "application/json",
            &serde_json::json!({ "path": "/etc/kvpin.yaml", "text": text }).to_string(),
        )
        .await
    }
    let (head, answer) = compared(other).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let changes = ["listen: [127.0.0.1:0] -> [127.0.0.1:8080]", "model tiny: replica 127.0.0.1:10 added"];
    assert_eq!((&answer["ok"], &answer["changes"]), (&false.into(), &changes.as_slice().into()));
    assert_eq!(answer["problems"][0]["path"], "listen");
    let (_, answer) = compared(&format!("listen: [127.0.0.1:0]\n{other}")).await;
    assert_eq!((&answer["ok"], answer["changes"].as_array().map(Vec::len)), (&true.into(), Some(1)));
    let (_, answer) = compared("models:\n  m: {}\n").await;
    assert_eq!((&answer["ok"], &answer["problems"][0]["line"]), (&false.into(), &2.into()));
}

#[tokio::test]
async fn an_upgrade_says_what_came_of_it_and_is_not_done_for_a_page_in_a_browser() {
    let (head, answer) = post("/api/v1/upgrade", "application/json", "{}").await;
    assert!(head.starts_with("http/1.1 409") && answer["error"]["message"] == "not today", "{head} {answer}");
    let (head, _) = post("/api/v1/upgrade", "text/plain", "{}").await;
    assert!(head.starts_with("http/1.1 415"), "{head}");
    for path in ["/api/v1/check", "/api/v1/upgrade"] {
        let (head, _) = get(path).await;
        assert!(head.starts_with("http/1.1 405") && head.contains("allow: post\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_head_request_gets_the_head_of_the_page_and_leaves_the_connection_usable() {
    let mut client = connect().await;
    client.write_all(b"HEAD /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut first = Vec::new();
    while !first.ends_with(b"\r\n\r\n") {
        first.push(client.read_u8().await.unwrap());
    }
    let first = String::from_utf8(first).unwrap().to_lowercase();
    assert!(first.starts_with("http/1.1 200") && first.contains("content-length: 15\r\n"), "{first}");
    let (second, body) = ask(&mut client, "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(second.starts_with("http/1.1 200") && second.contains("content-length: 15\r\n"), "{second}");
    assert_eq!(body, r#"{"status":"ok"}"#);
}

#[tokio::test]
async fn the_page_may_load_nothing_from_elsewhere_and_is_asked_for_again_each_time() {
    let (head, _) = get("/").await;
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]
    {
        assert!(head.contains(part), "{part} in {head}");
    }
    assert!(!head.contains("unsafe-inline") && !head.contains("http:") && !head.contains("https:"), "{head}");
    assert!(head.contains("cache-control: no-cache\r\n") && !head.contains("no-store"), "{head}");
    let mark = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a mark");
    let again = format!("GET / HTTP/1.1\r\nhost: localhost\r\nif-none-match: {mark}\r\nconnection: close\r\n\r\n");
    let (head, body) = ask(&mut connect().await, &again).await;
    assert!(head.starts_with("http/1.1 304") && head.contains(&format!("etag: {mark}\r\n")), "{head}");
    assert_eq!(body, "");
    let (head, _) = get("/api/v1/status").await;
    assert!(head.contains("cache-control: no-store\r\n"), "{head}");
}
