//! What one turn costs the balancer, from its arrival to its end: alone, and through the dispatcher with its lock, its
//! clock and the lease.
//!
//! Four questions: does the cost stay flat from 2 to 1,024 replicas and from 1,000 to 1,000,000 pins, what does it cost to
//! recognise a conversation by something else than its id, what does the door cost that holds turns while the house is full, and
//! is one lock a model the limit of anything.

mod filled;
mod house;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use kvpin::balancer::{Decision, Outcome, Recognised, ReplicaId, Ticket, Turn};
use kvpin::conversation::{Chain, ConversationKey};
use kvpin::dispatch::{Clock, Dispatcher};

use filled::{Filled, HOT, PINS, REPLICAS, SPILL_THRESHOLD, after, history, is_measuring, key, turn};
use house::{House, Waiting};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Conversations that have room in the caches of a full house.
const RESIDENTS: u64 = 1_000;

/// Links of a very long conversation's history: four times the median of agents' sessions, which is 43 turns with two
/// messages or more in each (vLLM's figures for its AgentX traces).
const LINKS: u64 = 400;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    for (replicas, pins) in sizes() {
        let size = format!("{replicas}_replicas_{pins}_pins");
        let mut filled = Filled::restored(replicas, pins);
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

fn sizes() -> Vec<(u16, u64)> {
    let (replicas, pins) = if is_measuring() { (&REPLICAS[..], &PINS[..]) } else { (&REPLICAS[..1], &PINS[..1]) };
    pins.iter().flat_map(|pins| replicas.iter().map(|replicas| (*replicas, *pins))).collect()
}

/// Turns of residents of a full house, with what they cost booked, while nobody waits and while others do.
fn admission(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admission");
    for replicas in if is_measuring() { &[4, 64][..] } else { &[4] } {
        for (name, waiting) in [
            ("nobody_waits", Waiting::Nobody),
            ("one_waits", Waiting::New(1)),
            ("1000_wait", Waiting::New(1_000)),
            ("1000_wait_for_their_homes", Waiting::Known(1_000)),
        ] {
            let mut house = House::new(*replicas, RESIDENTS, waiting);
            group.bench_function(BenchmarkId::new(name, format!("{replicas}_replicas")), |bencher| {
                bencher.iter(|| house.resident());
            });
            assert_eq!(house.held(), waiting.count(), "somebody got in");
        }
        let mut house = House::new(*replicas, RESIDENTS, Waiting::Nobody);
        group.bench_function(BenchmarkId::new("comes_and_leaves", format!("{replicas}_replicas")), |bencher| {
            bencher.iter(|| house.come_and_leave());
        });
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
    for pins in if is_measuring() { &PINS[..] } else { &PINS[..1] }.iter().copied() {
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

/// Nothing but decisions on one thread, or on two: the most that can be asked of one lock.
fn dispatched(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dispatched");
    for pins in if is_measuring() { &PINS[..] } else { &PINS[..1] }.iter().copied() {
        let balancer = Filled::restored(64, pins).balancer;
        let dispatcher = Arc::new(Dispatcher::new("m", Clock::start(), Arc::default(), balancer));
        for (name, others) in [("one_thread", 0), ("one_of_two_threads", 1)] {
            for (what, first, count) in [("sticky", 0, pins), ("placed", u64::MAX / 2, u64::MAX / 4)] {
                group.bench_function(BenchmarkId::new(format!("{what}_{name}"), pins), |bencher| {
                    bencher.iter_custom(|turns| beside(others, &dispatcher, first, count, turns));
                });
            }
        }
    }
    group.finish();
}

/// What so many turns take of `count` conversations, beside `others` who do the same with the same ones.
fn beside(others: usize, dispatcher: &Arc<Dispatcher>, first: u64, count: u64, turns: u64) -> Duration {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for other in 1..=others as u64 {
            let ended = &ended;
            scope.spawn(move || {
                let mut number = first + other * (count / 2);
                while !ended.load(Ordering::Relaxed) {
                    number = first + after(number - first, count);
                    serve_one(dispatcher, number);
                }
            });
        }
        let mut number = first;
        let begin = Instant::now();
        for _ in 0..turns {
            number = first + after(number - first, count);
            serve_one(dispatcher, number);
        }
        let elapsed = begin.elapsed();
        ended.store(true, Ordering::Relaxed);
        elapsed
    })
}

fn serve_one(dispatcher: &Arc<Dispatcher>, number: u64) {
    let mut lease = dispatcher.acquire(black_box(&turn(Some(key(number))))).expect("a replica is up");
    lease.served();
    lease.note(Outcome::Completed);
}

criterion_group!(decision, decisions, recognised, admission, dispatched);
criterion_main!(decision);
