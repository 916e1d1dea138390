//! What one turn costs the balancer, from its arrival to its end: alone, and through the dispatcher with its lock, its
//! clock and the lease.
//!
//! Three questions: does the cost stay flat from 2 to 64 replicas and from 1,000 to 1,000,000 pins, what does it cost to
//! recognise a conversation by something else than its id, and is one lock a model the limit of anything.

mod filled;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use kvpin::balancer::{Decision, Outcome, Recognised, ReplicaId, Ticket, Turn};
use kvpin::conversation::{Chain, ConversationKey};
use kvpin::dispatch::{Clock, Dispatcher};

use filled::{Filled, SPILL_THRESHOLD, history, key, turn};

/// Replicas and pins. One of the two grows, the other stays.
const SIZES: [(u16, u64); 6] = [(2, 1_000), (4, 1_000), (16, 1_000), (64, 1_000), (4, 100_000), (4, 1_000_000)];

/// Conversations that are spoken with while the others only are remembered: as many as a busy box has at once.
const HOT: u64 = 1_000;

/// Links of a very long conversation's history: four times the median of agents' sessions, which is 43 turns with two
/// messages or more in each (vLLM's figures for its AgentX traces).
const LINKS: u64 = 400;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for (replicas, pins) in SIZES {
        let size = format!("{replicas}_replicas_{pins}_pins");
        let mut filled = Filled::new(replicas, pins);
        sticky(&mut group, "sticky", &size, &mut filled, pins);
        sticky(&mut group, "sticky_hot", &size, &mut filled, HOT);
        group.bench_function(BenchmarkId::new("unpinned", &size), |bencher| {
            bencher.iter(|| filled.serve(black_box(&turn(None))));
        });
        spilled(&mut group, &size, &mut filled);
        placed(&mut group, &size, &mut filled);
    }
    group.finish();
}

/// Turns of `spoken_with` conversations in an order without a pattern: with a million of them, nearly every turn finds its
/// pin outside the CPU's caches.
fn sticky(group: &mut Group<'_>, name: &str, size: &str, filled: &mut Filled, spoken_with: u64) {
    let mut number = 0;
    group.bench_function(BenchmarkId::new(name, size), |bencher| {
        bencher.iter(|| {
            number = after(number, spoken_with);
            filled.serve(black_box(&turn(Some(key(number)))));
        });
    });
}

/// Turns whose home is over its threshold, so that every other replica is weighed.
fn spilled(group: &mut Group<'_>, size: &str, filled: &mut Filled) {
    let home = filled.balancer.specs().map(|(id, _)| id).next().expect("a replica");
    let at_home = conversations_of(filled, home);
    let held = occupy(filled, home);
    let mut next = 0;
    group.bench_function(BenchmarkId::new("spilled", size), |bencher| {
        bencher.iter(|| {
            next = (next + 1) % at_home.len();
            filled.serve(black_box(&turn(Some(at_home[next]))));
        });
    });
    let probe = filled.balancer.arrive(&turn(Some(at_home[0])), filled.now).expect("a replica is up");
    assert_eq!(probe.decision, Decision::Spilled { from: home });
    for ticket in held.into_iter().chain([probe]) {
        filled.balancer.finish(ticket, Outcome::Completed, filled.now);
    }
}

/// Conversations nobody has seen. The table is full, so each one pushes out the oldest.
fn placed(group: &mut Group<'_>, size: &str, filled: &mut Filled) {
    let mut number = u64::MAX / 2;
    group.bench_function(BenchmarkId::new("placed", size), |bencher| {
        bencher.iter(|| {
            number += 1;
            filled.serve(black_box(&turn(Some(key(number)))));
        });
    });
}

/// Those of the first conversations that are pinned to `home`.
fn conversations_of(filled: &mut Filled, home: ReplicaId) -> Vec<ConversationKey> {
    let mut found = Vec::new();
    for number in 0..HOT {
        let ticket = filled.balancer.arrive(&turn(Some(key(number))), filled.now).expect("a replica is up");
        if ticket.replica == home && ticket.decision == Decision::Sticky {
            found.push(key(number));
        }
        filled.balancer.finish(ticket, Outcome::Completed, filled.now);
    }
    found
}

/// Turns that clients have sent to `home` by name, as many as make it over-full.
fn occupy(filled: &mut Filled, home: ReplicaId) -> Vec<Ticket> {
    let pinned = Turn { client_pin: Some(home), ..turn(None) };
    (0..SPILL_THRESHOLD).map(|_| filled.balancer.arrive(&pinned, filled.now).expect("a replica is up")).collect()
}

/// The choice alone, without its effects, so that the same turn can be asked for again and again. So many conversations
/// with an id and an alias each are known, and as many without an id.
fn recognised(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("recognised");
    for pins in [1_000, 100_000, 1_000_000] {
        let mut filled = Filled::with_room(4, 2 * pins);
        for number in 0..pins {
            let (aliases, chain) = ([alias(number)], history(number, 1));
            filled.serve(&Turn { aliases: &aliases, ..turn(Some(key(number))) });
            filled.serve(&Turn { chain: Some(&chain), ..turn(None) });
        }
        check_recognition(&filled);
        foreseen(&mut group, "by_id", &filled, pins, |number| (Some(key(number)), history(number, 0)));
        foreseen(&mut group, "by_alias", &filled, pins, |number| (Some(alias(number)), history(number, 0)));
        foreseen(&mut group, "by_history", &filled, pins, |number| (None, history(number, 3)));
        foreseen(&mut group, "by_the_first_of_400_links", &filled, pins, |number| (None, history(number, LINKS)));
        foreseen(&mut group, "by_none_of_400_links", &filled, pins, |number| (None, history(pins + number, LINKS)));
    }
    group.finish();
}

/// `turn` tells the id and the history of a conversation's turn.
fn foreseen(
    group: &mut Group<'_>,
    name: &str,
    filled: &Filled,
    pins: u64,
    of: impl Fn(u64) -> (Option<ConversationKey>, Chain),
) {
    let turns: Vec<_> = (0..HOT).map(|index| of(index * (pins / HOT))).collect();
    let mut next = 0;
    group.bench_function(BenchmarkId::new(name, pins), |bencher| {
        bencher.iter(|| {
            next = after(next, HOT);
            let (conversation, chain) = &turns[next as usize];
            let turn = Turn { chain: Some(chain), ..turn(*conversation) };
            filled.balancer.foresee(black_box(&turn), filled.now).expect("a replica is up")
        });
    });
}

/// Panics unless what is measured is what its name says.
fn check_recognition(filled: &Filled) {
    let recognised = |turn: &Turn<'_>| filled.balancer.foresee(turn, filled.now).ok().and_then(|turn| turn.recognised);
    assert_eq!(recognised(&turn(Some(alias(7)))), Some(Recognised::Alias));
    let chain = history(7, LINKS);
    let by_history = filled.balancer.foresee(&Turn { chain: Some(&chain), ..turn(None) }, filled.now);
    assert_eq!(by_history.map(|turn| turn.conversation), Ok(Some(ConversationKey(chain.links[0].key.0))));
}

fn alias(number: u64) -> ConversationKey {
    key(number | 1 << 62)
}

fn dispatched(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatched");
    let dispatcher = Arc::new(Dispatcher::new("m", Clock::start(), Arc::default(), Filled::new(4, 100_000).balancer));
    group.bench_function("one_thread", |bencher| {
        bencher.iter_custom(|turns| serve(&dispatcher, turns));
    });
    // Nothing but decisions on both threads: the most that can be asked of one lock.
    group.bench_function("one_of_two_threads", |bencher| {
        bencher.iter_custom(|turns| serve_beside_another(&dispatcher, turns));
    });
    group.finish();
}

fn serve(dispatcher: &Arc<Dispatcher>, turns: u64) -> Duration {
    let begin = Instant::now();
    let mut number = 0;
    for _ in 0..turns {
        number = after(number, HOT);
        serve_one(dispatcher, number);
    }
    begin.elapsed()
}

fn serve_beside_another(dispatcher: &Arc<Dispatcher>, turns: u64) -> Duration {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = HOT;
            while !ended.load(Ordering::Relaxed) {
                number = HOT + after(number - HOT, HOT);
                serve_one(dispatcher, number);
            }
        });
        let elapsed = serve(dispatcher, turns);
        ended.store(true, Ordering::Relaxed);
        elapsed
    })
}

fn serve_one(dispatcher: &Arc<Dispatcher>, number: u64) {
    let mut lease = dispatcher.acquire(black_box(&turn(Some(key(number))))).expect("a replica is up");
    lease.served();
    lease.note(Outcome::Completed);
}

/// The next of `count` numbers, far from the one before: each is visited once before any is visited again, because the
/// step is a prime that divides none of the counts.
fn after(number: u64, count: u64) -> u64 {
    (number + 611_953) % count
}

criterion_group!(decision, decisions, recognised, dispatched);
criterion_main!(decision);
