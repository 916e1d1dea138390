//! What one turn costs the balancer, from its arrival to its end: alone, and through the dispatcher with its lock, its
//! clock and the lease.
//!
//! Two questions: does the cost stay flat from 2 to 64 replicas and from 1,000 to 1,000,000 pins, and is one lock a model
//! the limit of anything.

mod filled;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use kvpin::balancer::{Decision, Outcome, ReplicaId, Ticket, Turn};
use kvpin::conversation::ConversationKey;
use kvpin::dispatch::{Clock, Dispatcher};

use filled::{Filled, SPILL_THRESHOLD, key, turn};

/// Replicas and pins. One of the two grows, the other stays.
const SIZES: [(u16, u64); 6] = [(2, 1_000), (4, 1_000), (16, 1_000), (64, 1_000), (4, 100_000), (4, 1_000_000)];

/// Conversations that are spoken with while the others only are remembered: as many as a busy box has at once.
const HOT: u64 = 1_000;

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

fn dispatched(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatched");
    let dispatcher = Arc::new(Dispatcher::new(Clock::start(), Filled::new(4, 100_000).balancer));
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

criterion_group!(decision, decisions, dispatched);
criterion_main!(decision);
