//! Looks at a stub server: figures, health and `max_num_seqs` end up where they belong.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::client::{ANSWER_BYTES_MAX, Client, Failure, Patience};
use super::probe::{Question, learn_max_num_seqs, probe};
use super::scrape::scrape;
use super::server::{Replica, Server};
use super::watch;
use crate::balancer::{
    Admission, Balancer, Bounds, DownReason, Evidence, Health, HealthPolicy, MaxNumSeqsSource, Mode, Policy,
    ReplicaSnapshot, ReplicaSpec, SpillThreshold,
};
use crate::config::Config;
use crate::conversation::KeySecret;
use crate::dispatch::{Clock, Dispatcher, Model, Routing};
use crate::metrics::Metrics;

const PATIENCE: Patience = Patience { connect: Duration::from_secs(5), total: Duration::from_secs(10) };

/// Within this, whatever is waited for has come, or never will.
const DEADLINE: Duration = Duration::from_secs(20);

const TWO_RANKS: &str = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
    vllm:num_requests_waiting{engine=\"1\"} 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\n\
    vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\nvllm:prefix_cache_queries_total{engine=\"0\"} 100\n\
    vllm:prefix_cache_queries_total{engine=\"1\"} 50\n\
    vllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"200\"} 1\n\
    vllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"200\"} 1\n";

/// What a stub does with a request.
#[derive(Clone)]
enum Answer {
    Page(u16, String),
    /// Says nothing, with the connection open.
    Silence,
    /// Closes the connection.
    Close,
}

type Answers = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// A server that answers as it is told, on a port of the kernel's choice.
struct Stub {
    address: SocketAddr,
    /// The heads of what it was asked.
    asked: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

impl Stub {
    async fn start(answers: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Stub {
        Self::start_at("127.0.0.1:0".parse().unwrap(), answers).await
    }

    async fn start_at(address: SocketAddr, answers: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Stub {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn(Self::accept(listener, Arc::new(answers), Arc::clone(&asked)));
        Stub { address, asked, tasks }
    }

    async fn accept(listener: TcpListener, answers: Answers, asked: Arc<Mutex<Vec<String>>>) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(Self::serve(stream, Arc::clone(&answers), Arc::clone(&asked)));
        }
    }

    async fn serve(mut stream: TcpStream, answers: Answers, asked: Arc<Mutex<Vec<String>>>) {
        while let Some(head) = read_head(&mut stream).await {
            let path = path_of(&head).to_owned();
            asked.lock().push(head);
            match answers(&path) {
                Answer::Page(status, body) => {
                    let length = body.len();
                    let page = format!("HTTP/1.1 {status} Whatever\r\ncontent-length: {length}\r\n\r\n{body}");
                    // The client hangs up on an answer that is too large.
                    if stream.write_all(page.as_bytes()).await.is_err() {
                        return;
                    }
                }
                Answer::Silence => pending().await,
                Answer::Close => return,
            }
        }
    }

    /// When this returns, nothing listens at the address any more.
    async fn stop(mut self) {
        self.tasks.shutdown().await;
    }

    fn asked(&self, path: &str) -> usize {
        self.asked.lock().iter().filter(|head| path_of(head) == path).count()
    }
}

fn path_of(head: &str) -> &str {
    head.split_whitespace().nth(1).unwrap()
}

async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

fn page(body: &str) -> Answer {
    Answer::Page(200, body.to_owned())
}

fn not_found() -> Answer {
    Answer::Page(404, r#"{"detail":"Not Found"}"#.to_owned())
}

fn metrics_only(body: &'static str) -> impl Fn(&str) -> Answer + Send + Sync + 'static {
    move |path| if path == "/metrics" { page(body) } else { not_found() }
}

fn policy() -> Policy {
    Policy {
        mode: Mode::Affinity,
        spill_threshold: SpillThreshold::Auto,
        max_num_seqs: None,
        admission: Admission::OFF,
        bounds: Bounds { entries_max: 10, idle_max: Duration::from_secs(60) },
        health: HealthPolicy::default(),
    }
}

/// A scrape and then a probe.
async fn look(client: &Client, server: &Server) -> Evidence {
    scrape(client, server, PATIENCE).await;
    probe(client, server, PATIENCE).await
}

fn server(address: SocketAddr, ranks: &[Option<u16>]) -> Server {
    let specs = ranks.iter().map(|rank| ReplicaSpec {
        name: rank.map_or("only".to_owned(), |rank| format!("rank-{rank}")),
        address,
        authority: address.to_string(),
        is_tls: false,
        rank: *rank,
        drain: false,
    });
    let balancer = Balancer::new(policy(), specs.collect(), Duration::ZERO);
    let specs: Vec<_> = balancer.specs().map(|(id, spec)| (id, Arc::clone(spec))).collect();
    let model = Arc::new(Model {
        name: "tiny".to_owned(),
        aliases: Vec::new(),
        affinity: true,
        affinity_ordered: false,
        client_pins: true,
        engine_balances: false,
        send_session_id: true,
        upstream_authorization: None,
        gpus: Default::default(),
        dispatcher: Arc::new(Dispatcher::new("tiny", Clock::start(), Arc::default(), balancer)),
    });
    let replicas = specs.into_iter().map(|(id, spec)| Replica { model: Arc::clone(&model), id, spec }).collect();
    Server { address, authority: address.to_string(), tls: None, authorization: None, replicas }
}

fn seen(model: &Model) -> Vec<ReplicaSnapshot> {
    model.dispatcher.with(|balancer, now| balancer.snapshot(now)).replicas
}

fn seen_at(server: &Server) -> Vec<ReplicaSnapshot> {
    seen(&server.replicas[0].model)
}

/// Waits until `done`, and fails where it never is.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn each_rank_gets_its_own_figures_from_one_get() {
    let stub = Stub::start(metrics_only(TWO_RANKS)).await;
    let server = server(stub.address, &[Some(1), Some(0), Some(2)]);
    look(&Client::new(), &server).await;
    let replicas = seen_at(&server);
    let figures = |index: usize| replicas[index].scrape.map(|(scrape, _)| scrape);
    let (one, zero) = (figures(0).unwrap(), figures(1).unwrap());
    assert_eq!((zero.running, zero.waiting, zero.kv_use, zero.prefix_queries_tokens), (3, 0, 0.25, 100));
    assert_eq!((one.running, one.waiting, one.kv_use, one.prefix_queries_tokens), (4, 2, 0.75, 50));
    assert_eq!((zero.kv_capacity_tokens, one.kv_capacity_tokens), (1_600, 1_600));
    assert_eq!(figures(2), None, "a rank that the server doesn't speak of");
    assert!(replicas.iter().all(|replica| replica.health == Health::Up));
    assert_eq!(stub.asked("/metrics"), 1);
}

#[tokio::test]
async fn a_server_that_balances_its_own_ranks_is_seen_as_their_sum() {
    let stub = Stub::start(metrics_only(TWO_RANKS)).await;
    let server = server(stub.address, &[None]);
    look(&Client::new(), &server).await;
    let (sum, _) = seen_at(&server)[0].scrape.unwrap();
    assert_eq!((sum.running, sum.waiting, sum.kv_use), (7, 2, 0.5));
    assert_eq!((sum.prefix_queries_tokens, sum.kv_capacity_tokens), (150, 3_200));
}

#[tokio::test]
async fn a_server_where_nothing_listens_is_down_at_once() {
    let stub = Stub::start(|_| Answer::Close).await;
    let address = stub.address;
    stub.stop().await;
    let server = server(address, &[Some(0), Some(1)]);
    look(&Client::new(), &server).await;
    let down = Health::Down(DownReason::ConnectRefused);
    assert_eq!(seen_at(&server).iter().map(|replica| replica.health).collect::<Vec<_>>(), [down, down]);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_down_after_three_looks_in_a_row() {
    let lives = Arc::new(Mutex::new(true));
    let shared = Arc::clone(&lives);
    let stub = Stub::start(move |_| if *shared.lock() { page("") } else { Answer::Close }).await;
    let server = server(stub.address, &[None]);
    let client = Client::new();
    let reason = DownReason::ProbeFailed;
    let (up, suspect, down) = (Health::Up, Health::Suspect(reason), Health::Down(reason));
    let looks = [true, false, false, true, false, false, false, false, true, true];
    let expected = [up, suspect, suspect, up, suspect, suspect, down, down, down, up];
    for (alive, expected) in looks.into_iter().zip(expected) {
        *lives.lock() = alive;
        look(&client, &server).await;
        assert_eq!(seen_at(&server)[0].health, expected);
    }
}

#[tokio::test]
async fn a_server_without_metrics_is_up_without_figures() {
    let stub = Stub::start(|path| if path == "/health" { page("") } else { not_found() }).await;
    let server = server(stub.address, &[None]);
    look(&Client::new(), &server).await;
    let replica = &seen_at(&server)[0];
    assert_eq!((replica.health, replica.scrape), (Health::Up, None));
    assert_eq!(stub.asked("/health"), 1);
}

#[tokio::test]
async fn a_server_whose_engine_is_dead_goes_down_though_it_answers() {
    let stub = Stub::start(|_| Answer::Page(503, String::new())).await;
    let server = server(stub.address, &[None]);
    let client = Client::new();
    for _ in 0..3 {
        look(&client, &server).await;
    }
    assert_eq!(seen_at(&server)[0].health, Health::Down(DownReason::ProbeFailed));
}

#[tokio::test]
async fn an_engine_is_asked_for_its_max_num_seqs_once_and_again_when_it_comes_back() {
    let lives = Arc::new(Mutex::new(true));
    let shared = Arc::clone(&lives);
    let info = r#"{"vllm_config": {"scheduler_config": {"max_num_seqs": 48}}}"#;
    let stub = Stub::start(move |path| match path {
        _ if !*shared.lock() => Answer::Close,
        "/server_info?config_format=json" => page(info),
        _ => page(""),
    })
    .await;
    let server = server(stub.address, &[None]);
    let (client, mut question, mut misses) = (Client::new(), Question::default(), 0);
    assert_eq!(seen_at(&server)[0].max_num_seqs_source, MaxNumSeqsSource::Assumed);
    for (alive, asked) in [(true, 1), (true, 1), (false, 1), (false, 1), (false, 1), (true, 2), (true, 2)] {
        *lives.lock() = alive;
        misses = if alive { 0 } else { misses + 1 };
        question.note(look(&client, &server).await, misses);
        if question.is_to_be_asked() {
            assert!(learn_max_num_seqs(&client, &server, PATIENCE.connect).await);
        }
        assert_eq!(stub.asked("/server_info?config_format=json"), asked);
    }
    let replica = &seen_at(&server)[0];
    assert_eq!((replica.max_num_seqs, replica.max_num_seqs_source), (48, MaxNumSeqsSource::Engine));
    assert_eq!(replica.spill_threshold, 12);
}

#[tokio::test]
async fn a_question_without_an_answer_is_put_again() {
    let stub = Stub::start(|_| Answer::Close).await;
    let server = server(stub.address, &[None]);
    let (client, mut question) = (Client::new(), Question::default());
    question.note(Evidence::Answered, 0);
    assert!(question.is_to_be_asked() && !question.is_to_be_asked());
    assert!(!learn_max_num_seqs(&client, &server, PATIENCE.connect).await);
    question.ask_again();
    assert!(question.is_to_be_asked());
}

#[tokio::test]
async fn figures_do_not_reach_a_replica_that_took_over_the_id() {
    let stub = Stub::start(metrics_only(TWO_RANKS)).await;
    let server = server(stub.address, &[None]);
    let other = ReplicaSpec { address: "127.0.0.1:9".parse().unwrap(), ..(*server.replicas[0].spec).clone() };
    server.replicas[0].model.dispatcher.with(|balancer, now| balancer.reconfigure(policy(), vec![other], now));
    look(&Client::new(), &server).await;
    let replica = &seen_at(&server)[0];
    assert_eq!((replica.id, replica.health, replica.scrape), (server.replicas[0].id, Health::Unknown, None));
}

#[tokio::test]
async fn each_way_to_fail_has_its_own_word() {
    let big = "x".repeat(ANSWER_BYTES_MAX + 1);
    let stub = Stub::start(move |path| match path {
        "/silent" => Answer::Silence,
        "/closed" => Answer::Close,
        "/busy" => Answer::Page(503, "busy".to_owned()),
        "/large" => page(&big),
        _ => page("fine"),
    })
    .await;
    let server = server(stub.address, &[None]);
    let client = Client::new();
    let hasty = Patience { total: Duration::from_millis(50), ..PATIENCE };
    assert_eq!(client.get(&server, "/", PATIENCE).await, Ok(b"fine".to_vec()));
    assert_eq!(client.get(&server, "/silent", hasty).await, Err(Failure::TimedOut));
    assert_eq!(client.get(&server, "/closed", PATIENCE).await, Err(Failure::Broken));
    assert_eq!(client.get(&server, "/busy", PATIENCE).await, Err(Failure::Status(503)));
    assert_eq!(client.get(&server, "/large", PATIENCE).await, Err(Failure::TooLarge));
    stub.stop().await;
    assert_eq!(client.get(&server, "/", PATIENCE).await, Err(Failure::Unreachable(DownReason::ConnectRefused)));
}

#[tokio::test]
async fn a_pooled_connection_that_the_server_has_closed_costs_nothing() {
    let stub = Stub::start(metrics_only("")).await;
    let server = server(stub.address, &[None]);
    let client = Client::new();
    assert!(client.get(&server, "/metrics", PATIENCE).await.is_ok());
    let address = stub.address;
    stub.stop().await;
    let _stub = Stub::start_at(address, metrics_only("")).await;
    assert!(client.get(&server, "/metrics", PATIENCE).await.is_ok());
}

#[tokio::test]
async fn watching_follows_a_server_down_and_up_again() {
    let stub = Stub::start(metrics_only(TWO_RANKS)).await;
    let address = stub.address;
    let routing = routing(&[address]);
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(Arc::clone(&routing), shutdown));
    let health = || seen(&routing.table().models[0])[0].health;
    until("it is up", || health() == Health::Up).await;
    stub.stop().await;
    until("it is down", || health() == Health::Down(DownReason::ConnectRefused)).await;
    let _stub = Stub::start_at(address, metrics_only(TWO_RANKS)).await;
    until("it is up again", || health() == Health::Up).await;
}

#[tokio::test]
async fn a_silent_server_delays_no_other_and_is_not_asked_twice_at_a_time() {
    let silent = Stub::start(|_| Answer::Silence).await;
    let lively = Stub::start(metrics_only(TWO_RANKS)).await;
    let routing = routing(&[silent.address, lively.address]);
    let (_stop, shutdown) = tokio::sync::watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(Arc::clone(&routing), shutdown));
    until("the lively one was asked often", || lively.asked("/metrics") >= 4).await;
    assert_eq!((silent.asked("/metrics"), silent.asked("/health")), (1, 1));
}

#[tokio::test]
async fn watching_ends_with_the_process() {
    let stub = Stub::start(|_| Answer::Silence).await;
    let (stop, shutdown) = tokio::sync::watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(routing(&[stub.address]), shutdown));
    until("a look goes on", || stub.asked("/metrics") == 1).await;
    stop.send(true).unwrap();
    timeout(DEADLINE, tasks.join_next()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn lies_in_the_metrics_take_no_replica_down_and_restart_none() {
    let good = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:iteration_tokens_total_count{engine=\"0\"} 100\n\
        vllm:generation_tokens_total{engine=\"0\"} 50\nprocess_start_time_seconds 12.5\n";
    let large = "x".repeat(10 << 20);
    let nothing_known = "vllm:num_requests_running{engine=\"7\"} 1\nsglang:num_running_reqs 3\n";
    let no_numbers = good.replace("100", "NaN").replace("50", "+Inf").replace("12.5", "NaN");
    let other_types = good.replace("} 1\n", "} -1e308\n").replace("100", "\"many\"").replace("50", "50.5.5");
    let lies = [String::new(), large, nothing_known.to_owned(), no_numbers, other_types, "\u{0}\n".repeat(1000)];
    for lie in lies {
        let says = Arc::new(Mutex::new(good.to_owned()));
        let shared = Arc::clone(&says);
        let stub = Stub::start(move |path| if path == "/metrics" { page(&shared.lock()) } else { page("") }).await;
        let server = server(stub.address, &[None]);
        let client = Client::new();
        look(&client, &server).await;
        for says_now in [&lie, good, &lie, &lie, &lie, &lie, good] {
            *says.lock() = says_now.to_owned();
            look(&client, &server).await;
            let replica = &seen_at(&server)[0];
            let lie = &lie[..lie.len().min(80)];
            assert_eq!((replica.health, replica.counters.restarts), (Health::Up, 0), "after {lie:?}");
        }
    }
}

#[tokio::test]
async fn an_engine_that_sleeps_is_seen_to() {
    let awake = Arc::new(Mutex::new(true));
    let shared = Arc::clone(&awake);
    let stub = Stub::start(move |path| {
        let awake = u8::from(*shared.lock());
        let state = format!("vllm:engine_sleep_state{{engine=\"0\",sleep_state=\"awake\"}} {awake}.0\n");
        if path == "/metrics" { page(&state) } else { page("") }
    })
    .await;
    let server = server(stub.address, &[None]);
    for (is_awake, health) in
        [(true, Health::Up), (false, Health::Sleeping), (false, Health::Sleeping), (true, Health::Up)]
    {
        *awake.lock() = is_awake;
        look(&Client::new(), &server).await;
        assert_eq!(seen_at(&server)[0].health, health);
    }
}

/// The routing of one model on servers of one replica each, looked at as often as a configuration may want.
pub(super) fn routing(addresses: &[SocketAddr]) -> Arc<Routing> {
    let replicas: String = addresses.iter().map(|address| format!("      - url: http://{address}\n")).collect();
    let yaml = format!("listen: [127.0.0.1:0]\nmodels:\n  tiny:\n    replicas:\n{replicas}");
    let mut config = Config::from_yaml(&yaml).unwrap();
    config.scrape_interval = Duration::from_millis(50);
    config.health.interval = Duration::from_millis(50);
    config.health.backoff_max = Duration::from_millis(100);
    Arc::new(Routing::new(config, KeySecret::new([0; 16]), Metrics::new().unwrap()))
}

#[tokio::test]
async fn every_look_shows_the_engine_its_key_and_none_where_it_has_none() {
    for key in [None, Some("engine-key")] {
        let stub = Stub::start(|_| page("{}")).await;
        let authorization = key.map(|key| HeaderValue::try_from(format!("Bearer {key}")).unwrap());
        let server = Server { authorization, ..server(stub.address, &[None]) };
        look(&Client::new(), &server).await;
        learn_max_num_seqs(&Client::new(), &server, Duration::from_secs(5)).await;
        let heads = stub.asked.lock().clone();
        assert_eq!(heads.len(), 3, "{heads:?}");
        for head in heads {
            let shown = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
            assert_eq!(shown, key, "{head}");
        }
    }
}
