//! Whatever replicas and clients do at once, no turn is lost that could have been saved, no byte is made up, and nothing of
//! it stays behind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::support::call::Call;
use crate::support::client::{Piece, Reply, Wire};
use crate::support::kvpin::{Kvpin, config};
use crate::support::replicas::{MODEL, busy, start_many, steady, streamed, urls};
use crate::support::rogue::{LIES, Manner, Rogue, good_events};
use crate::support::{until, within};

const CHAT: &str = "/v1/chat/completions";

// --- One of four is killed ----------------------------------------------------------------------------------------------

const CONVERSATIONS: usize = 64;

/// What became of a turn.
#[derive(Debug)]
struct Served {
    conversation: usize,
    began: Instant,
    reply: Option<Reply>,
}

impl Served {
    fn is_whole(&self) -> bool {
        self.reply
            .as_ref()
            .is_some_and(|reply| reply.status() == 200 && reply.is_whole && reply.text().contains("[DONE]"))
    }

    /// Whether any of the answer itself had come.
    fn had_begun(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.status() == 200 && reply.text().contains("\"content\":"))
    }

    fn replica(&self) -> &str {
        self.reply.as_ref().map_or("none", Reply::replica)
    }
}

/// Closed-loop conversations, until they are told to stop.
struct Load {
    running: JoinSet<Vec<Served>>,
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
}

impl Load {
    fn start(kvpin: &Kvpin, conversations: Range<usize>) -> Self {
        let mut load = Load { running: JoinSet::new(), stop: Arc::default(), ended: Arc::default() };
        for conversation in conversations {
            let (address, stop, ended) = (kvpin.address, Arc::clone(&load.stop), Arc::clone(&load.ended));
            load.running.spawn(async move {
                let mut turns = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let mut wire = Wire::connect(address).await;
                    wire.send(&stream(&format!("conversation-{conversation}"), 40).bytes()).await;
                    turns.push(Served { conversation, began, reply: wire.reply("POST").await });
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                turns
            });
        }
        load
    }

    /// Waits until so many more turns have ended.
    async fn goes_on(&self, turns: usize) {
        let enough = self.ended.load(Ordering::Relaxed) + turns;
        until("turns end", async || (self.ended.load(Ordering::Relaxed) >= enough).then_some(())).await;
    }

    async fn stop(self) -> Vec<Served> {
        self.stop.store(true, Ordering::Relaxed);
        within("the last turns", self.running.join_all()).await.into_iter().flatten().collect()
    }
}

fn stream(id: &str, tokens: u32) -> Call {
    Call::post(CHAT, streamed(id, tokens).to_string()).of(id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_one_of_four_replicas_under_load_costs_no_turn_that_had_not_begun() {
    let mut servers = start_many(4, steady()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&servers), "max_num_seqs": 1000 } })).await;
    let load = Load::start(&kvpin, 0..CONVERSATIONS);
    load.goes_on(2 * CONVERSATIONS).await;
    until("the victim has work", async || (busy(&servers[0]) > 4).then_some(())).await;
    let victim = servers.remove(0);
    let address = victim.address();
    let killed = Instant::now();
    victim.shutdown().await;
    kvpin.until_health("down", |name| name == address.to_string()).await;
    let seen = killed.elapsed();
    load.goes_on(2 * CONVERSATIONS).await;
    let back = Instant::now();
    let again = ReplicaServer::start(ReplicaOptions { listen: address, ..steady() }).await.expect("the port is free");
    kvpin.until_health("up", |_| true).await;
    // Those that moved have their cache elsewhere by then.
    let newcomers = Load::start(&kvpin, CONVERSATIONS..2 * CONVERSATIONS);
    until("it gets work again", async || (busy(&again) > 0).then_some(())).await;
    let mut turns = load.stop().await;
    turns.extend(newcomers.stop().await);
    let failed: Vec<_> = turns.iter().filter(|turn| !turn.is_whole() && !turn.had_begun()).collect();
    let cut: Vec<_> = turns.iter().filter(|turn| !turn.is_whole() && turn.had_begun()).collect();
    eprintln!("{} turns, {} failed, {} cut, down after {seen:?}", turns.len(), failed.len(), cut.len());
    assert!(failed.is_empty(), "{failed:?}");
    assert!(cut.iter().all(|turn| turn.replica() == address.to_string() && turn.began < killed), "{cut:?}");
    assert_continued_elsewhere(&turns, &address.to_string(), killed..back);
    assert_nothing_is_left(&kvpin).await;
    assert_eq!(servers.iter().chain([&again]).map(busy).sum::<usize>(), 0);
}

/// Whose last turn before the replica's end was there had the next one elsewhere, and stayed where that was.
fn assert_continued_elsewhere(turns: &[Served], dead: &str, away: Range<Instant>) {
    let mut moved = 0;
    for conversation in 0..CONVERSATIONS {
        let own: Vec<_> = turns.iter().filter(|turn| turn.conversation == conversation).collect();
        let before = own.iter().rfind(|turn| turn.began < away.start && turn.is_whole()).expect("turns before");
        let meanwhile: Vec<_> =
            own.iter().filter(|turn| away.contains(&turn.began)).map(|turn| turn.replica()).collect();
        assert!(!meanwhile.is_empty() && !meanwhile.contains(&dead), "conversation {conversation}: {meanwhile:?}");
        assert!(meanwhile.iter().all(|replica| *replica == meanwhile[0]), "conversation {conversation}: {meanwhile:?}");
        moved += usize::from(before.replica() == dead);
    }
    eprintln!("{moved} conversations of the dead replica went on elsewhere");
    assert!(moved > 0);
}

/// Every slot is free, nothing is open, and nothing has panicked.
async fn assert_nothing_is_left(kvpin: &Kvpin) {
    until("nothing is open", async || (kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(kvpin.metric("kvpin_in_flight_turns").await, 0.0);
    assert_eq!(kvpin.metric("kvpin_panics_total").await, 0.0);
}

// --- Everything at once -------------------------------------------------------------------------------------------------

const ROGUES: usize = 6;
const AGENTS: usize = 24;
const CHAOS: Duration = Duration::from_secs(12);
const CHANGE_EVERY: Duration = Duration::from_millis(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_chaos_every_byte_is_a_replicas_own_and_every_slot_is_given_back() {
    let mut rng = seeded();
    let mut rogues: Vec<_> = (0..ROGUES).map(|_| Rogue::start()).collect();
    let urls: Vec<_> = rogues.iter().map(Rogue::url).collect();
    let mut config = config(json!({ "m": { "replicas": urls } }));
    config["health"]["hung_s"] = json!(1);
    config["health"]["timeout_ms"] = json!(300);
    let kvpin = Kvpin::start(&config).await;
    let stop: Arc<AtomicBool> = Arc::default();
    let mut agents = JoinSet::new();
    for number in 0..AGENTS {
        let (rng, stop) = (ChaCha8Rng::from_rng(&mut rng), Arc::clone(&stop));
        agents.spawn(agent(kvpin.address, number, rng, stop));
    }
    let (end, mut change) = (Instant::now() + CHAOS, interval(CHANGE_EVERY));
    while Instant::now() < end {
        change.tick().await;
        rogues[rng.random_range(0..ROGUES)].tell(any_manner(&mut rng)).await;
    }
    for rogue in &mut rogues {
        rogue.tell(Manner::Good).await;
    }
    stop.store(true, Ordering::Relaxed);
    let taken = within("the last turns", agents.join_all()).await.into_iter().flatten();
    let mut counts = BTreeMap::new();
    for (id, reply) in taken {
        *counts.entry(judged(&rogues, &id, reply)).or_insert(0) += 1;
    }
    let begun: usize = rogues.iter().map(|rogue| rogue.record().begun).sum();
    eprintln!("{counts:?}; {begun} tries arrived");
    assert!(counts["whole"] > counts.values().sum::<usize>() / 2, "{counts:?}");
    assert_nothing_is_left(&kvpin).await;
    until("no replica has a turn", async || rogues.iter().all(|rogue| rogue.record().in_flight == 0).then_some(()))
        .await;
    kvpin.until_health("up", |_| true).await;
    assert_all_work(&kvpin, &rogues).await;
}

/// Chosen by `KVPIN_CHAOS_SEED`, or new in each run. What the kernel and the scheduler do is not in it.
fn seeded() -> ChaCha8Rng {
    let given = std::env::var("KVPIN_CHAOS_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()) ^ Instant::now().elapsed().as_nanos() as u64);
    eprintln!("KVPIN_CHAOS_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

/// Half of them good, so that replicas come back.
fn any_manner(rng: &mut ChaCha8Rng) -> Manner {
    match rng.random_range(0..26) {
        0 | 1 => Manner::Refuses,
        2 => Manner::ResetsBeforeHead,
        3 => Manner::ResetsMidBody,
        4 => Manner::StallsBeforeHead,
        5 => Manner::StallsMidStream,
        6..=8 => Manner::Answers([500, 502, 503][rng.random_range(0..3)]),
        9 => Manner::Garbage,
        10 => Manner::HealthHangs,
        11 => Manner::Lies(rng.random_range(0..LIES.len())),
        12 => Manner::Sleeps,
        13 => Manner::Restarted,
        _ => Manner::Good,
    }
}

/// A conversation without pauses; one turn in ten is left before its end. Says what came of each of the others.
async fn agent(
    address: SocketAddr,
    number: usize,
    mut rng: ChaCha8Rng,
    stop: Arc<AtomicBool>,
) -> Vec<(String, Option<Reply>)> {
    let mut replies = Vec::new();
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("agent-{number}-turn-{turn}");
        let mut wire = Wire::connect(address).await;
        wire.send(&named(&id, number, rng.random_range(0..40_000)).bytes()).await;
        if rng.random_bool(0.1) {
            leave(wire, rng.random_range(0..4)).await;
        } else {
            replies.push((id, wire.reply("POST").await));
        }
    }
    replies
}

fn named(id: &str, conversation: usize, bytes: usize) -> Call {
    let body = format!(r#"{{"model":"m","stream":true,"text":"{}"}}"#, "x".repeat(bytes));
    Call::post(CHAT, body).of(&format!("conversation-{conversation}")).header("x-request-id", id)
}

/// Reads so many pieces, if so many come soon, and leaves.
async fn leave(mut wire: Wire, pieces: usize) {
    let reading = async {
        if pieces > 0 {
            wire.head("POST").await;
        }
        for _ in 1..pieces {
            wire.piece().await;
        }
    };
    // A stalled replica would keep it for as long as it likes.
    tokio::time::timeout(Duration::from_millis(50), reading).await.ok();
}

/// What became of a turn, after its bytes were held against what the replica sent.
fn judged(rogues: &[Rogue], id: &str, reply: Option<Reply>) -> &'static str {
    let reply = reply.unwrap_or_else(|| panic!("{id}: the connection ended without an answer"));
    let body = reply.pieces.concat();
    let Some(name) = reply.header("x-kvpin-replica") else {
        assert!(matches!(reply.status(), 502 | 503) && reply.is_whole, "{id}: {reply:?}");
        assert!(!reply.openai_error().is_empty(), "{reply:?}");
        return "refused";
    };
    let rogue = rogues.iter().find(|rogue| rogue.address().to_string() == name).expect("a known replica");
    let record = rogue.record();
    let Some((sent, was_ended)) = record.sent.get(id) else {
        assert!(reply.status() >= 500 && reply.is_whole, "{id}: nothing was sent, and {reply:?} came");
        return "broken off";
    };
    if reply.is_whole {
        assert!(*was_ended && body == *sent, "{id}: {reply:?}, of {:?}", String::from_utf8_lossy(sent));
        let good = reply.status() == 200;
        assert!(!good || body == good_events(id).concat().as_bytes(), "{id}: {reply:?}");
        return if good { "whole" } else { "failed by the engine" };
    }
    // A replica that goes away takes with it what it had written and not yet delivered.
    assert!(body.len() < sent.len() || !*was_ended, "{id}: all of the answer came, but not its end");
    assert!(!body.is_empty() && sent.starts_with(&body), "{id}: {reply:?} is no part of what was sent");
    "cut"
}

/// Each replica serves again.
async fn assert_all_work(kvpin: &Kvpin, rogues: &[Rogue]) {
    for (number, rogue) in rogues.iter().enumerate() {
        until("a new conversation gets there", async || {
            let call = named("after", number, 10).without("session-id");
            (kvpin.call(&call).await.replica() == rogue.address().to_string()).then_some(())
        })
        .await;
    }
}

// --- Clients that leave -------------------------------------------------------------------------------------------------

const LEAVERS_AT_ONCE: usize = 32;

/// Where a client leaves.
const POINTS: [&str; 4] = ["in the body", "right after the body", "in the silent prefill", "amid the stream"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_leave_at_any_point_leave_nothing_behind_and_the_replicas_see_it() {
    let leavers = std::env::var("KVPIN_CHAOS_LEAVERS").map_or(2_000, |count| count.parse().expect("a number"));
    let mut rng = seeded();
    let mut rogues: Vec<_> = (0..2).map(|_| Rogue::start()).collect();
    rogues[0].tell(Manner::StallsBeforeHead).await;
    rogues[1].tell(Manner::StallsMidStream).await;
    let names: Vec<_> = rogues.iter().map(|rogue| rogue.address().to_string()).collect();
    let urls: Vec<_> = rogues.iter().map(Rogue::url).collect();
    let mut config = config(json!({ "m": { "replicas": urls, "max_num_seqs": 1000 } }));
    // Neither silence nor a busy machine may take a replica away: clients name theirs.
    config["health"]["hung_s"] = json!(3600);
    config["limits"] = json!({ "connect_timeout_ms": 30_000 });
    let kvpin = Kvpin::start(&config).await;
    let rogues = Arc::new(rogues);
    let mut counts = BTreeMap::new();
    let mut leaving = JoinSet::new();
    for number in 0..leavers {
        if leaving.len() == LEAVERS_AT_ONCE {
            leaving.join_next().await.expect("one that leaves").expect("it left");
        }
        let point = rng.random_range(0..POINTS.len());
        *counts.entry(POINTS[point]).or_insert(0_usize) += 1;
        let silent = Arc::clone(&rogues);
        let call = named(&format!("leaver-{number}"), number, rng.random_range(0..100_000))
            .header("x-kvpin-replica", &names[usize::from(point == 3)]);
        let cut = rng.random_range(0..call.body.len());
        let address = kvpin.address;
        leaving.spawn(async move { leaves(address, call, point, cut, silent).await });
    }
    within("the last clients", leaving.join_all()).await;
    assert_nothing_is_left(&kvpin).await;
    until("no replica has a turn", async || rogues.iter().all(|rogue| rogue.record().in_flight == 0).then_some(()))
        .await;
    let [silent, streaming] = [rogues[0].record(), rogues[1].record()];
    eprintln!("{counts:?}; at the replicas: {} and {} begun", silent.begun, streaming.begun);
    assert_eq!((silent.cancelled, streaming.cancelled), (silent.begun, streaming.begun), "each was seen");
    assert_eq!(streaming.cancelled, counts["amid the stream"]);
    assert!(silent.cancelled >= counts["in the silent prefill"]);
    assert!([silent, streaming].iter().all(|record| record.sent.values().all(|(_, ended)| !ended)));
}

async fn leaves(address: SocketAddr, call: Call, point: usize, cut: usize, rogues: Arc<Vec<Rogue>>) {
    let mut wire = Wire::connect(address).await;
    match POINTS[point] {
        "in the body" => {
            wire.send(&call.head_bytes()).await;
            wire.send(&call.body[..cut]).await;
        }
        "amid the stream" => {
            let head = wire.begin(&call).await;
            let piece = wire.piece().await;
            assert!(head.status == 200 && matches!(piece, Piece::Data(_)), "{head:?} {piece:?}");
        }
        "in the silent prefill" => {
            let before = rogues[0].record().whole;
            wire.send(&call.bytes()).await;
            while rogues[0].record().whole == before {
                tokio::task::yield_now().await;
            }
        }
        _ => wire.send(&call.bytes()).await,
    }
}
