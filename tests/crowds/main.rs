//! Crowds of clients that mean harm cost kvpin little, and the others nothing.
//!
//! Apart from the other facts, which have a machine of their own to be fast on. `KVPIN_CROWD_FACTOR` makes the crowds larger.
//! Each test prints what kvpin's memory came to (`cargo test --test crowds -- --nocapture`).

mod firehose;
// Nobody uses all of what the facts are tried with.
#[allow(dead_code)]
#[path = "../it/support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::interval;

use firehose::Firehose;
use support::call::Call;
use support::client::Wire;
use support::kvpin::{Kvpin, config};
use support::recorder::{Recorder, sha256};
use support::{until, within};

const MIB: usize = 1 << 20;

/// Between two requests of a client that means well. They leave some of the machine to the others.
const PAUSE: Duration = Duration::from_millis(10);

/// Connections that are made at a time.
const AT_ONCE: usize = 100;

/// Crowds need most of the file descriptors, so one comes after the other.
static ONE_CROWD: Mutex<()> = Mutex::const_new(());

/// kvpin in front of a good replica, with clients that mean well at work all the time.
struct Siege {
    kvpin: Kvpin,
    begin: usize,
    firehose: Firehose,
    _recorder: Recorder,
    clients: Meanwhile,
    _alone: MutexGuard<'static, ()>,
}

/// Clients that mean well, one request after the other.
struct Meanwhile {
    running: JoinSet<usize>,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

impl Siege {
    async fn begin(limits: Value) -> Self {
        let alone = ONE_CROWD.lock().await;
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("raises the limit of open files");
        let (recorder, firehose) = (Recorder::start(), Firehose::start());
        let models = json!({ "m": { "replicas": [recorder.url()] }, "endless": { "replicas": [firehose.url()] } });
        let mut config = config(models);
        config["default_model"] = json!("m");
        config["limits"] = limits;
        for limit in ["connections_max", "connections_per_address_max", "streams_max"] {
            config["limits"][limit] = json!(100_000);
        }
        let kvpin = Kvpin::launch(&config).await;
        kvpin.until_health("up", |name| name == recorder.name()).await;
        let clients = Meanwhile::start(kvpin.address);
        clients.go_on(100).await;
        let begin = kvpin.memory().now;
        Siege { kvpin, begin, firehose, _recorder: recorder, clients, _alone: alone }
    }

    /// Ends it. Everybody who meant well has been served, and the memory has never grown by more than that.
    async fn end(self, what: &str, growth_max: usize) {
        self.clients.go_on(100).await;
        let served = self.clients.stop().await;
        let memory = self.kvpin.memory();
        let growth = memory.peak.saturating_sub(self.begin);
        eprintln!(
            "{what}: RSS {} MiB before, {} MiB at its peak, {} MiB after; {served} other requests served",
            self.begin / MIB,
            memory.peak / MIB,
            memory.now / MIB
        );
        assert!(growth <= growth_max, "{what}: grew by {} MiB, over {} MiB", growth / MIB, growth_max / MIB);
        until("no turn is in flight", async || (self.kvpin.in_flight().await == 0).then_some(())).await;
        until("the crowd has gone", async || (self.kvpin.metric("kvpin_connections ").await <= 1.0).then_some(()))
            .await;
        assert_eq!(self.kvpin.metric("kvpin_panics_total").await, 0.0);
    }
}

impl Meanwhile {
    fn start(address: SocketAddr) -> Self {
        let (stop, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut running = JoinSet::new();
        for client in 0..8 {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            running.spawn(async move {
                let mut wire = Wire::connect(address).await;
                let mut pace = interval(PAUSE);
                for turn in 0.. {
                    pace.tick().await;
                    if stop.load(Ordering::Relaxed) {
                        return turn;
                    }
                    let text = format!("{client}-{turn}-").repeat(turn * 37 % 4000);
                    let body = json!({ "model": "m", "text": text }).to_string();
                    let call = Call::post("/v1/messages", body.clone()).of(&format!("client-{client}"));
                    let call = if turn % 3 == 0 { call.chunked(1000) } else { call };
                    let reply = wire.call(&call).await;
                    assert_eq!(reply.status(), 200, "{}", reply.text());
                    assert_eq!(reply.json()["sha256"], sha256(body.as_bytes()));
                    answered.fetch_add(1, Ordering::Relaxed);
                    if turn % 5 == 4 {
                        wire = Wire::connect(address).await;
                    }
                }
                unreachable!("turns have no end");
            });
        }
        Meanwhile { running, stop, answered }
    }

    /// Waits until so many more requests have been served.
    async fn go_on(&self, requests: usize) {
        let enough = self.answered.load(Ordering::Relaxed) + requests;
        until("others are served", async || (self.answered.load(Ordering::Relaxed) >= enough).then_some(())).await;
    }

    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        within("the last requests", self.running.join_all()).await.into_iter().sum()
    }
}

/// As many as a test names, times the factor.
fn crowd(size: usize) -> usize {
    size * std::env::var("KVPIN_CROWD_FACTOR").map_or(1, |factor| factor.parse().expect("a number"))
}

/// As many connections as can be had on both sides, and no more than that.
fn connections(size: usize) -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
    let size = crowd(size).min(most.saturating_sub(1500));
    assert!(size > 100, "{most} open files are too few for a crowd");
    size
}

async fn connect(address: SocketAddr) -> TcpStream {
    within("a connection", TcpStream::connect(address)).await.expect("connects")
}

/// All that comes before the connection's end, which has to come.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset is an end too.
    within("the connection's end", stream.read_to_end(&mut rest)).await.ok();
    rest
}

async fn assert_served(stream: &mut TcpStream, request: &[u8]) {
    stream.write_all(request).await.expect("sends");
    let mut answer = [0; 1024];
    let bytes = within("an answer", stream.read(&mut answer)).await.expect("reads");
    assert!(answer[..bytes].starts_with(b"HTTP/1.1 200 "));
}

/// One of each of a crowd, all at once.
async fn each<F: Future<Output = ()> + Send + 'static>(size: usize, one: impl Fn(usize) -> F) {
    let mut running = JoinSet::new();
    for number in 0..size {
        running.spawn(one(number));
    }
    within("the crowd", running.join_all()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_never_end_are_cut_in_time_and_cost_little_memory() {
    let siege = Siege::begin(json!({ "head_timeout_s": 2 })).await;
    let (address, size) = (siege.kvpin.address, connections(2000));
    each(size, move |_| async move {
        let mut stream = connect(address).await;
        let (mut reader, mut writer) = stream.split();
        let trickling = async {
            let mut pace = interval(Duration::from_millis(300));
            writer.write_all(b"POST /v1/messages HTTP/1.1\r\nHost: kvpin.test\r\n").await.ok();
            while writer.write_all(b"X-Slow: 1\r\n").await.is_ok() {
                pace.tick().await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            () = trickling => {}
            _ = reader.read_to_end(&mut answer) => {}
        }
        assert!(answer.is_empty(), "{:?}", String::from_utf8_lossy(&answer));
    })
    .await;
    assert_eq!(siege.kvpin.metric("kvpin_connections_refused_total{reason=\"head_timed_out\"}").await, size as f64);
    siege.end(&format!("slow heads of {size} clients"), 100 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_without_end_are_cut_before_they_cost_memory() {
    let siege = Siege::begin(json!({})).await;
    let (address, size) = (siege.kvpin.address, connections(300));
    each(size, move |number| async move {
        let mut stream = connect(address).await;
        let (mut reader, mut writer) = stream.split();
        let begin: &[u8] = [
            &b"POST /v1/messages?"[..],
            b"POST /v1/messages HTTP/1.1\r\nX: ",
            b"POST /v1/messages HTTP/1.1\r\nHost: kvpin.test\r\nX-Y: \r\nCookie: ",
        ][number % 3];
        let mut sent = 0;
        let pouring = async {
            writer.write_all(begin).await.ok();
            while sent < 64 * MIB && writer.write_all(&[b'x'; 16 * 1024]).await.is_ok() {
                sent += 16 * 1024;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            () = pouring => {}
            _ = reader.read_to_end(&mut answer) => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(sent < 16 * MIB, "{sent} bytes were taken");
    })
    .await;
    // A connection is counted when it is closed, so perhaps after its client has seen that.
    let refused = async || siege.kvpin.metric("kvpin_connections_refused_total{reason=\"head_too_large\"}").await;
    until("all of them are counted", async || (refused().await >= size as f64).then_some(())).await;
    assert_eq!(refused().await, size as f64);
    siege.end(&format!("endless heads of {size} clients"), 150 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_are_kept_and_disturb_nobody() {
    let siege = Siege::begin(json!({ "head_timeout_s": 300, "keepalive_timeout_s": 300 })).await;
    let (address, size) = (siege.kvpin.address, connections(10_000));
    // Without a body, an answer comes in one piece.
    let ask = Call::head("/health").bytes();
    let (mut idle, mut connecting) = (Vec::new(), JoinSet::new());
    for number in 0..size {
        let ask = ask.clone();
        if connecting.len() == AT_ONCE {
            idle.push(connecting.join_next().await.expect("one that connects").expect("it has"));
        }
        connecting.spawn(async move {
            let mut stream = connect(address).await;
            // Every second one is served before it idles.
            if number % 2 == 0 {
                assert_served(&mut stream, &ask).await;
            }
            stream
        });
    }
    idle.extend(within("the last", connecting.join_all()).await);
    until("all are there", async || (siege.kvpin.metric("kvpin_connections ").await >= size as f64).then_some(()))
        .await;
    siege.clients.go_on(500).await;
    let grown = siege.kvpin.memory().now.saturating_sub(siege.begin);
    eprintln!("an idle connection costs {:.1} KiB", grown as f64 / size as f64 / 1024.0);
    // Each still works.
    for stream in idle.iter_mut().step_by(997) {
        assert_served(stream, &ask).await;
    }
    drop(idle);
    siege.end(&format!("{size} idle connections"), size * 24 * 1024 + 50 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_trickle_are_cut_and_hold_no_memory() {
    let siege = Siege::begin(json!({ "body_timeout_s": 2 })).await;
    let (address, size) = (siege.kvpin.address, connections(500));
    each(size, move |number| async move {
        let mut stream = connect(address).await;
        let model = if number % 2 == 0 { r#"{"model":"m","#.to_owned() } else { "{".to_owned() };
        let head = Call::post("/v1/messages", "x".repeat(20 * MIB)).of("slow").head_bytes();
        stream.write_all(&[head, model.into_bytes()].concat()).await.expect("sends");
        let (mut reader, mut writer) = stream.split();
        let trickling = async {
            let mut pace = interval(Duration::from_millis(200));
            while writer.write_all(b" ").await.is_ok() {
                pace.tick().await;
            }
            std::future::pending::<()>().await;
        };
        let mut answer = Vec::new();
        tokio::select! {
            () = trickling => {}
            _ = reader.read_to_end(&mut answer) => {}
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    })
    .await;
    assert_eq!(siege.kvpin.metric("kvpin_refused_requests_total{reason=\"body_timed_out\"}").await, size as f64);
    // Room for what is announced is made before it comes, but not more than a megabyte a request, and untouched.
    siege.end(&format!("slow bodies of {size} clients"), 150 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_hold_their_replicas_back_and_are_cut() {
    let siege = Siege::begin(json!({ "write_timeout_s": 3 })).await;
    let (address, size) = (siege.kvpin.address, connections(200));
    let call = Call::post("/v1/chat/completions", r#"{"model":"endless","stream":true}"#).bytes();
    let mut readers = Vec::new();
    for _ in 0..size {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("sets SO_RCVBUF");
        let mut stream = within("a connection", socket.connect(address)).await.expect("connects");
        stream.write_all(&call).await.expect("sends");
        readers.push(stream);
    }
    until("every stream has begun", async || (siege.firehose.begun() == size).then_some(())).await;
    until("every stream is cut", async || (siege.firehose.streams() == 0).then_some(())).await;
    eprintln!("{} KiB of each stream were taken", siege.firehose.taken() / size / 1024);
    for stream in &mut readers {
        assert!(!rest(stream).await.ends_with(b"0\r\n\r\n"), "it does not look whole");
    }
    siege.end(&format!("{size} streams that nobody reads"), size * 512 * 1024 + 50 * MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_body_is_passed_on_as_it_is_and_never_unpacked() {
    let siege = Siege::begin(json!({})).await;
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    std::io::Write::write_all(&mut member, &vec![0; 64 * MIB]).expect("packs");
    // Members follow each other: 6 GiB in all.
    let bomb = Arc::new(member.finish().expect("packs").repeat(100));
    let (address, size) = (siege.kvpin.address, crowd(4));
    let packed = bomb.len();
    each(size, move |number| {
        let bomb = Arc::clone(&bomb);
        async move {
            // With a conversation and without one: the body of an unknown one would be looked into if it could be read.
            let call = Call::post("/v1/messages", bomb.to_vec()).header("Content-Encoding", "gzip");
            for call in [call.clone(), call.of(&format!("bomber-{number}"))] {
                let reply = Wire::connect(address).await.call(&call).await;
                assert_eq!(reply.status(), 200, "{}", reply.text());
                assert_eq!(reply.json()["sha256"], sha256(&bomb));
            }
        }
    })
    .await;
    let unpacked = 100 * 64 * MIB;
    eprintln!("{} KiB that would be {} MiB", packed / 1024, unpacked / MIB);
    siege.end(&format!("{size} bombs"), size * 4 * packed + 50 * MIB).await;
}
