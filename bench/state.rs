//! What it takes to keep a million conversations over a restart: bytes, time to write and to load, and how long decisions wait
//! meanwhile.
//!
//! Pins alone, and pins of which each has a history and another name.

mod filled;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use filled::{Filled, history, key, turn};
use kvpin::balancer::{Outcome, Turn};
use kvpin::dispatch::{Clock, Dispatcher};
use kvpin::state::file::{self, Found};
use kvpin::state::{Frame, Head, SLICE_MAX, SLICE_PAUSE};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many conversations. Without `--bench` (`cargo test --benches`) few: enough to see that it works.
fn count() -> u64 {
    if std::env::args().any(|argument| argument == "--bench") { 1_000_000 } else { 50_000 }
}

fn main() -> anyhow::Result<()> {
    let count = count();
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("state");
    measure(&format!("{count} pins"), &path, Filled::new(4, count))?;
    let mut filled = Filled::with_room(4, count);
    for number in 0..count {
        let chain = history(number, 1);
        filled.serve(&Turn { chain: Some(&chain), aliases: &[key(number + 2 * count)], ..turn(Some(key(number))) });
    }
    measure(&format!("{count} pins, each with a history and another name"), &path, filled)
}

fn measure(what: &str, path: &Path, filled: Filled) -> anyhow::Result<()> {
    let dispatcher = Arc::new(Dispatcher::new("m", Clock::start(), Arc::default(), filled.balancer));
    println!("{what}, over 4 replicas");
    let quiet = write(&dispatcher, path)?;
    println!("  bytes                                  {:8.1} MB", quiet.bytes as f64 / 1e6);
    println!("  written and on the disk, nobody else   {:8.0} ms", quiet.took.as_secs_f64() * 1e3);
    println!("  longest hold of the lock               {:8.2} ms", quiet.longest_hold.as_secs_f64() * 1e3);

    let stop = Arc::new(AtomicBool::new(false));
    let alone = waits(&dispatcher, &Arc::clone(&stop), || sleep(quiet.took))?;
    let mut busy = None;
    let beside = waits(&dispatcher, &stop, || busy = Some(write(&dispatcher, path)))?;
    let Some(Ok(busy)) = busy else { bail!("it could not be written beside turns") };
    println!("  the same beside turns at full speed    {:8.0} ms", busy.took.as_secs_f64() * 1e3);
    println!(
        "  slowest of {:9} turns meanwhile   {:8.2} ms, without a write {:.2} ms",
        beside.0,
        ms(beside.1),
        ms(alone.1)
    );

    let begun = Instant::now();
    let Found::State(stored) = file::find(path) else { bail!("no state") };
    let checked = begun.elapsed();
    let mut new = Filled::with_room(4, count());
    // Later than everything that is restored.
    new.now = Duration::from_secs(10 * 365 * 24 * 3600);
    let (mut restore, now) = (None, new.now);
    stored.read(|frame| match frame {
        Frame::Model { replicas, .. } => restore = Some(new.balancer.begin_restore(&replicas, Duration::ZERO, now)),
        Frame::Records(records) => {
            if let Some(restore) = &restore {
                new.balancer.restore(restore, &records, now);
            }
        }
        Frame::Head(_) | Frame::End { .. } => {}
    })?;
    let loaded = begun.elapsed();
    anyhow::ensure!(new.balancer.snapshot(now).conversations as u64 == count(), "not as many conversations");
    println!("  read and checked                       {:8.0} ms", ms(checked));
    println!("  that, and all restored                 {:8.0} ms", ms(loaded));
    Ok(())
}

/// How a write went.
struct Written {
    bytes: u64,
    took: Duration,
    longest_hold: Duration,
}

/// Writes as the server does.
fn write(dispatcher: &Dispatcher, path: &Path) -> anyhow::Result<Written> {
    let begun = Instant::now();
    let mut longest_hold = Duration::ZERO;
    let head = Head { saved_at_ms: 0, key_secret: [0; 16], kvpin: String::new() };
    let bytes = file::save(path, head, |writer| {
        let (replicas, mut export) =
            dispatcher.with(|balancer, now| (balancer.replica_records(), balancer.begin_export(now)));
        writer.model("m", replicas)?;
        loop {
            let (records, held) = dispatcher.with(|balancer, _| {
                let taken = Instant::now();
                (balancer.export(&mut export, SLICE_MAX), taken.elapsed())
            });
            longest_hold = longest_hold.max(held);
            let Some(records) = records else { return Ok(()) };
            let is_large = records.len() == SLICE_MAX;
            writer.records(records)?;
            if is_large {
                sleep(SLICE_PAUSE);
            }
        }
    })?;
    Ok(Written { bytes, took: begun.elapsed(), longest_hold })
}

/// Serves turns on a thread of its own while `what` goes on, and says how many they were and how long the slowest took.
fn waits(dispatcher: &Arc<Dispatcher>, stop: &AtomicBool, what: impl FnOnce()) -> anyhow::Result<(u64, Duration)> {
    stop.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let (mut turns, mut slowest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let Ok(mut lease) = dispatcher.acquire(&turn(Some(key(turns % 1_000)))) else { break };
                lease.served();
                lease.note(Outcome::Completed);
                drop(lease);
                slowest = slowest.max(begun.elapsed());
                turns += 1;
            }
            (turns, slowest)
        });
        what();
        stop.store(true, Ordering::Relaxed);
        serving.join().map_err(|_| anyhow::anyhow!("the turns failed"))
    })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
