//! Bytes a pin, as the system sees them: what a million pins add to the resident memory of a process with kvpin's own
//! allocator. While they come, while all are active, and after all have gone to rest, which is the worst, because the
//! table keeps room for both. More than 200 fails.

mod filled;

use std::time::Duration;

use anyhow::Context as _;
use filled::{Filled, key, turn};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The promise of the configuration's documentation for `conversations_max`.
const BYTES_MAX: f64 = 200.0;

const PINS: u64 = 1_000_000;

fn main() -> anyhow::Result<()> {
    let before = memory_bytes("VmRSS")?;
    let mut filled = Filled::new(4, PINS);
    println!("{PINS} pins over 4 replicas, bytes each");
    println!("  new ones over {} s           {:6.1}", filled.now.as_secs(), per_pin("VmRSS", before)?);

    // Every one speaks within a minute, so all are active at once.
    let begin = filled.now;
    for number in 0..PINS {
        filled.serve(&turn(Some(key(number))));
        filled.now = begin;
    }
    println!("  all active                   {:6.1}", per_pin("VmRSS", before)?);

    // Then they are silent, and other turns sweep them to rest.
    filled.now += Duration::from_secs(3600);
    for _ in 0..PINS / 16 {
        filled.serve(&turn(None));
    }
    println!("  all idle                     {:6.1}", per_pin("VmRSS", before)?);

    let peak = per_pin("VmHWM", before)?;
    println!("  at most, while tables grew   {peak:6.1}");
    anyhow::ensure!(peak < BYTES_MAX, "a pin takes {BYTES_MAX} bytes or more");
    Ok(())
}

fn per_pin(field: &str, before: u64) -> anyhow::Result<f64> {
    Ok(memory_bytes(field)?.saturating_sub(before) as f64 / PINS as f64)
}

/// A figure of /proc/self/status.
fn memory_bytes(field: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let kilobytes = line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<u64>()?;
    Ok(kilobytes * 1024)
}
