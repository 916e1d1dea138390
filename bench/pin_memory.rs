//! Bytes a pin, counted at the allocator, with a million pins: while all are active, and after all have gone to rest, the
//! worst of a table that keeps room for both. More than 200 fails.

// An allocator can only be written with it.
#![allow(unsafe_code)]

mod filled;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use filled::{Filled, key, turn};

/// The promise of the configuration's documentation for `conversations_max`.
const BYTES_MAX: usize = 200;

const PINS: u64 = 1_000_000;

/// The system's allocator, which knows how much is taken at the moment and was at most.
struct Counting {
    taken: AtomicUsize,
    peak: AtomicUsize,
}

#[global_allocator]
static ALLOCATOR: Counting = Counting { taken: AtomicUsize::new(0), peak: AtomicUsize::new(0) };

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let taken = self.taken.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        self.peak.fetch_max(taken, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.taken.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

fn main() {
    let before = ALLOCATOR.taken.load(Ordering::Relaxed);
    let per_pin = |bytes: usize| bytes.saturating_sub(before) as f64 / PINS as f64;
    let taken = || per_pin(ALLOCATOR.taken.load(Ordering::Relaxed));

    let mut filled = Filled::new(4, PINS);
    println!("{PINS} pins, bytes each");
    println!("  after {} s of new conversations   {:6.1}", filled.now.as_secs(), taken());

    // Every one speaks within a minute, so all are active at once.
    for number in 0..PINS {
        let mut ticket = filled.balancer.arrive(&turn(Some(key(number))), filled.now).expect("a replica is up");
        filled.balancer.served(&mut ticket, filled.now);
        filled.balancer.finish(ticket, kvpin::balancer::Outcome::Completed, filled.now);
    }
    println!("  all active                          {:6.1}", taken());

    // Then they are silent, and turns without a conversation sweep them to rest.
    filled.now += Duration::from_secs(120);
    for _ in 0..PINS / 16 {
        filled.serve(&turn(None));
    }
    println!("  all idle                            {:6.1}", taken());

    let peak = per_pin(ALLOCATOR.peak.load(Ordering::Relaxed));
    println!("  at most                             {peak:6.1}   (a table that grows stands beside its old self)");
    assert!(peak < BYTES_MAX as f64, "a pin takes more than {BYTES_MAX} bytes");
}
