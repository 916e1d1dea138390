//! Bytes a pin, as the system sees them: what a million pins add to the resident memory of a process with kvpin's own
//! allocator. While they come, while all are active, and after all have gone to rest, which is the worst, because the
//! table keeps room for both. More than 200 fails. And bytes a known history, and an alias.

mod filled;

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use filled::{Filled, history, key, turn};
use kvpin::balancer::Turn;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The promise of the configuration's documentation for `conversations_max`.
const BYTES_MAX: f64 = 200.0;

/// How many of each. Without `--bench` (`cargo test --benches`) a quarter: tables that double their size are as full then.
fn count() -> u64 {
    if std::env::args().any(|argument| argument == "--bench") { 1_000_000 } else { 250_000 }
}

/// Each in a process of its own, so that none is counted in memory that another gave back.
const PARTS: [(&str, Measure); 3] = [("pins", pins), ("histories", histories), ("aliases", aliases)];

type Measure = fn() -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    if let Some((_, measure)) = PARTS.iter().find(|(name, _)| std::env::args().any(|argument| argument == *name)) {
        return measure();
    }
    for (name, _) in PARTS {
        let status = Command::new(std::env::current_exe()?).arg(name).args(std::env::args().skip(1)).status()?;
        anyhow::ensure!(status.success(), "{name}: {status}");
    }
    Ok(())
}

fn pins() -> anyhow::Result<()> {
    let count = count();
    let before = memory_bytes("VmRSS")?;
    let mut filled = Filled::new(4, count);
    println!("{count} pins over 4 replicas, bytes each");
    println!("  new ones over {} s           {:6.1}", filled.now.as_secs(), each("VmRSS", before)?);

    // Every one speaks within a minute, so all are active at once.
    let begin = filled.now;
    for number in 0..count {
        filled.serve(&turn(Some(key(number))));
        filled.now = begin;
    }
    println!("  all active                   {:6.1}", each("VmRSS", before)?);

    // Then they are silent, and other turns sweep them to rest.
    filled.now += Duration::from_secs(3600);
    for _ in 0..count / 16 {
        filled.serve(&turn(None));
    }
    println!("  all idle                     {:6.1}", each("VmRSS", before)?);

    let peak = each("VmHWM", before)?;
    println!("  at most, while tables grew   {peak:6.1}");
    anyhow::ensure!(peak < BYTES_MAX, "a pin takes {BYTES_MAX} bytes or more");
    Ok(())
}

/// One conversation tells so many histories.
fn histories() -> anyhow::Result<()> {
    let count = count();
    let mut filled = Filled::with_room(4, count);
    let before = memory_bytes("VmRSS")?;
    for number in 0..count {
        let chain = history(number, 1);
        filled.serve(&Turn { chain: Some(&chain), ..turn(Some(key(0))) });
    }
    anyhow::ensure!(filled.balancer.snapshot(filled.now).histories as u64 == count, "not as many histories");
    report("histories", before)
}

/// One conversation has so many names.
fn aliases() -> anyhow::Result<()> {
    let count = count();
    let mut filled = Filled::with_room(4, count);
    let before = memory_bytes("VmRSS")?;
    for number in 0..count / 4 {
        let aliases = [1, 2, 3, 4].map(|index| key(number * 4 + index));
        filled.serve(&Turn { aliases: &aliases, ..turn(Some(key(0))) });
    }
    anyhow::ensure!(filled.balancer.snapshot(filled.now).conversation_aliases as u64 == count, "not as many aliases");
    report("aliases", before)
}

fn report(what: &str, before: u64) -> anyhow::Result<()> {
    let count = count();
    println!("{count} {what}, bytes each");
    println!("  all                          {:6.1}", each("VmRSS", before)?);
    println!("  at most, while tables grew   {:6.1}", each("VmHWM", before)?);
    Ok(())
}

fn each(field: &str, before: u64) -> anyhow::Result<f64> {
    Ok(memory_bytes(field)?.saturating_sub(before) as f64 / count() as f64)
}

/// A figure of /proc/self/status.
fn memory_bytes(field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let kilobytes = line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>()?;
    Ok(kilobytes * 1024)
}
