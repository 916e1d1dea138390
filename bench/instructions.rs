//! Instructions, and lines of memory that were not in the caches, of what kvpin does for every request, chunk and scrape. They
//! hardly depend on the machine and not at all on what else it does, so that two versions can be held against each other.
//!
//! Each case runs in a process of its own under valgrind's callgrind, which counts only inside [`counted`]. The caches are those
//! of a common server core. `cargo bench --bench instructions [-- PART ...]` prints those whose names begin so. Without `--bench`
//! (`cargo test --benches`) each case runs once, small, and without valgrind.

mod bodies;
mod events;
mod farm;
mod filled;
mod house;

use std::hint::black_box;
use std::process::Command;

use anyhow::Context as _;
use kvpin::conversation::{IdentityRules, KeySecret, Scanner, Wanted};
use kvpin::usage::Observer;

use bodies::{MODEL, TAIL, TURN, body, head, named_head, read, search};
use events::{EVENTS, unlike};
use farm::Farm;
use filled::{Filled, PINS, REPLICAS, after, is_measuring, key, turn};
use house::{House, Waiting};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// 32 KB for data, 2 MB behind it: what a core has for itself. What is shared behind that depends on who else is there.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64"];

/// Runs that nobody counts, so that tables and buffers are there.
const WARM_UP: u64 = 100;

/// Something that is done over and over.
type Work = Box<dyn FnMut()>;

/// A case: its name, how often it is done, and how it is set up.
struct Case {
    name: String,
    times: u64,
    set_up: Box<dyn Fn() -> Work>,
}

/// What callgrind counted, for one time.
struct Counts {
    instructions: f64,
    /// Reads and writes that were not in the first cache, and in none.
    missed_near: f64,
    missed_all: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..]
        && flag == "--case"
    {
        let case = cases().into_iter().find(|case| case.name == *name).context("no such case")?;
        run(&case, case.times);
        return Ok(());
    }
    if !is_measuring() {
        small_cases().iter().for_each(|case| run(case, 1));
        return Ok(());
    }
    let wanted: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    println!("{:<44} {:>14} {:>12} {:>12}", "one time of", "instructions", "not in 32 KB", "nor in 2 MB");
    for case in cases() {
        if wanted.is_empty() || wanted.iter().any(|part| case.name.starts_with(*part)) {
            let counts = count(&case)?;
            let Counts { instructions, missed_near, missed_all } = counts;
            println!("{:<44} {instructions:>14.0} {missed_near:>12.1} {missed_all:>12.1}", case.name);
        }
    }
    Ok(())
}

fn run(case: &Case, times: u64) {
    let mut work = (case.set_up)();
    (0..WARM_UP.min(times)).for_each(|_| work());
    counted(times, &mut work);
}

/// Callgrind is told to count what happens in here.
#[inline(never)]
fn counted(times: u64, work: &mut Work) {
    for _ in 0..times {
        work();
    }
}

fn count(case: &Case) -> anyhow::Result<Counts> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*instructions*counted*", "--cache-sim=yes"])
        .args(CACHES)
        .arg("--callgrind-out-file=/dev/null")
        .arg(std::env::current_exe()?)
        .args(["--case", &case.name])
        .output()
        .context("valgrind can't be run; it is in the package of that name")?;
    let told = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {told}", case.name);
    let each = |line: &str| Ok::<_, anyhow::Error>(figure(&told, line).context(told.to_string())? / case.times as f64);
    Ok(Counts { instructions: each("I   refs:")?, missed_near: each("D1  misses:")?, missed_all: each("LLd misses:")? })
}

/// The first number on a line of valgrind's summary.
fn figure(told: &str, line: &str) -> Option<f64> {
    let (_, rest) = told.split_once(line)?;
    rest.split_whitespace().next()?.replace(',', "").parse().ok()
}

fn cases() -> Vec<Case> {
    let mut cases = of_bodies(&[1_000, 64_000, 300_000, 1_000_000, 4_000_000]);
    cases.extend(of_heads());
    cases.extend(of_decisions(&REPLICAS, &PINS));
    cases.extend(of_the_door(&[4, 64]));
    cases.extend(of_events());
    cases.extend(of_looks(&[(1, 64), (20, 64)]));
    cases
}

/// One of each kind.
fn small_cases() -> Vec<Case> {
    let mut cases = of_bodies(&[1_000]);
    cases.extend(of_heads());
    cases.extend(of_decisions(&REPLICAS[..1], &PINS[..1]));
    cases.extend(of_the_door(&[4]));
    cases.extend(of_events());
    cases.extend(of_looks(&[(1, 4)]));
    cases
}

fn case(name: impl Into<String>, times: u64, set_up: impl Fn() -> Work + 'static) -> Case {
    Case { name: name.into(), times, set_up: Box::new(set_up) }
}

/// Where the head names the session the search ends at the model; else all is read.
fn of_bodies(sizes: &[usize]) -> Vec<Case> {
    let of_size = |bytes: usize| {
        let times = (40_000_000 / bytes as u64).clamp(10, 1_000);
        let model_only = case(format!("body/model_only/{bytes}"), 1_000, move || {
            let body = body(bytes);
            Box::new(move || assert!(search(black_box(body.as_bytes()), Wanted::Model)))
        });
        let everything = case(format!("body/everything/{bytes}"), times, move || {
            let body = body(bytes);
            Box::new(move || assert!(read(black_box(body.as_bytes()))))
        });
        [model_only, everything]
    };
    sizes.iter().copied().flat_map(of_size).collect()
}

fn of_heads() -> Vec<Case> {
    let keyed = |secret: &KeySecret, conversation| black_box(secret.key(b"", "qwen3-4b", &conversation));
    let of_the_head = case("identity/of_the_head", 1_000, move || {
        let (rules, secret, head) = (IdentityRules::default(), KeySecret::new([7; 16]), named_head());
        Box::new(move || assert!(rules.headers_name_session(black_box(&head)).map(|it| keyed(&secret, it)).is_some()))
    });
    let of_the_body = case("identity/of_the_body", 1_000, move || {
        let (rules, secret, head) = (IdentityRules::default(), KeySecret::new([7; 16]), head());
        let mut scanner = Scanner::new(Wanted::ModelAndSession);
        scanner.feed(format!("{{{MODEL},{TAIL}}}").as_bytes());
        Box::new(move || {
            let identity = rules.identify(black_box(&head), black_box(scanner.fields()));
            assert!(identity.conversation.map(|it| keyed(&secret, it)).is_some());
        })
    });
    let chain = case("identity/history_of_400_messages", 100, || {
        let secret = KeySecret::new([7; 16]);
        let mut scanner = Scanner::new(Wanted::ModelAndSession);
        scanner.feed(format!(r#"{{{MODEL},"messages":[{}]}}"#, [TURN; 200].join(",")).as_bytes());
        Box::new(move || drop(black_box(scanner.history().map(|it| secret.chain(b"", "qwen3-4b", it)))))
    });
    vec![of_the_head, of_the_body, chain]
}

/// Arrival, first byte and end of a turn: of known conversations in an order without a pattern, and of new ones.
fn of_decisions(replicas: &[u16], pins: &[u64]) -> Vec<Case> {
    let sizes = pins.iter().flat_map(|pins| replicas.iter().map(|replicas| (*replicas, *pins)));
    let of_size = |(replicas, pins): (u16, u64)| {
        let sticky = case(format!("decision/sticky/{replicas}_replicas/{pins}_pins"), 10_000, move || {
            let (mut filled, mut number) = (Filled::restored(replicas, pins), 0);
            Box::new(move || {
                number = after(number, pins);
                filled.serve(black_box(&turn(Some(key(number)))));
            })
        });
        let placed = case(format!("decision/placed/{replicas}_replicas/{pins}_pins"), 10_000, move || {
            let (mut filled, mut number) = (Filled::restored(replicas, pins), u64::MAX / 2);
            Box::new(move || {
                number += 1;
                filled.serve(black_box(&turn(Some(key(number)))));
            })
        });
        [sticky, placed]
    };
    sizes.flat_map(of_size).collect()
}

/// A full house of 1,000 conversations. Half of what is counted is the turn itself: the decision and what it costs.
fn of_the_door(replicas: &[u16]) -> Vec<Case> {
    let mut cases = Vec::new();
    for replicas in replicas.iter().copied() {
        for (name, waiting) in [
            ("nobody_waits", Waiting::Nobody),
            ("one_waits", Waiting::New(1)),
            ("1000_wait", Waiting::New(1_000)),
            ("1000_wait_for_their_homes", Waiting::Known(1_000)),
        ] {
            cases.push(case(format!("admission/{name}/{replicas}_replicas"), 1_000, move || {
                let mut house = House::new(replicas, 1_000, waiting);
                Box::new(move || house.resident())
            }));
        }
        cases.push(case(format!("admission/comes_and_leaves/{replicas}_replicas"), 1_000, move || {
            let mut house = House::new(replicas, 1_000, Waiting::Nobody);
            Box::new(move || house.come_and_leave())
        }));
    }
    cases
}

/// What an answer's observer takes for a chunk with an event that is like the one before it but for its text, or is not.
fn of_events() -> Vec<Case> {
    let of_event = |(name, event): (&str, &'static str)| {
        let observed = |what: &str, other: fn(&str) -> String| {
            case(format!("{what}/{name}"), 1_000, move || {
                let by_turns = [event.to_owned(), other(event)];
                let (mut observer, mut turn) = (Observer::of_stream(), 0);
                Box::new(move || {
                    turn ^= 1;
                    observer.observe(black_box(by_turns[turn].as_bytes()));
                })
            })
        };
        [observed("event_alike", str::to_owned), observed("event_read", unlike)]
    };
    EVENTS.into_iter().flat_map(of_event).collect()
}

/// Somebody looks at so many models with so many replicas each.
fn of_looks(farms: &[(u16, u16)]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (models, replicas) in farms.iter().copied() {
        for (what, look) in [("metrics", Farm::metrics as fn(&Farm) -> _), ("status", Farm::status)] {
            cases.push(case(format!("{what}/{models}_models/{replicas}_replicas"), 10, move || {
                let farm = Farm::new(models, replicas).expect("the configuration is valid");
                Box::new(move || drop(black_box(look(&farm).expect("it can be rendered"))))
            }));
        }
    }
    cases
}
