//! Any bytes, in any chunks: the observer doesn't panic, allocates nothing, says the same whatever the cuts, and says of an
//! answer what a full parse does.
//!
//! The first four bytes give the lengths of the chunks, used over and over; the rest is the body. The seeds begin with
//! `ACH'`, which is 1, 3, 8 and 39 bytes.

#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../src/json/mod.rs"]
mod json;
#[path = "../../src/usage/mod.rs"]
mod usage;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use libfuzzer_sys::fuzz_target;
use usage::{Observer, Report, reference};

/// The system's allocator, with a count of what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn whole(mut observer: Observer, body: &[u8]) -> Report {
    let content_events = observer.observe(body);
    assert_eq!(observer.report().content_events, content_events);
    observer.report()
}

fn in_chunks(mut observer: Observer, body: &[u8], lengths: &[u8]) -> Report {
    let mut lengths = lengths.iter().cycle();
    let mut rest = body;
    let mut content_events = 0;
    while !rest.is_empty() {
        let length = usize::from(*lengths.next().unwrap_or(&1) % 64);
        let (chunk, after) = rest.split_at(length.clamp(1, rest.len()));
        content_events += observer.observe(chunk);
        rest = after;
    }
    assert_eq!(observer.report().content_events, content_events);
    observer.report()
}

fn check(new: fn() -> Observer, expected: Option<Report>, body: &[u8], lengths: &[u8]) {
    // What an observer needs it has from the beginning.
    let (one, other) = (new(), new());
    let before = allocations();
    let whole = whole(one, body);
    let in_chunks = in_chunks(other, body, lengths);
    assert_eq!(allocations(), before, "it allocates");
    assert_eq!(in_chunks, whole, "in chunks of {lengths:?}");
    if let Some(expected) = expected {
        assert_eq!(whole, expected);
    }
}

fuzz_target!(|input: &[u8]| {
    if let Some((lengths, body)) = input.split_at_checked(4) {
        check(Observer::of_stream, reference::of_stream(body), body, lengths);
        check(Observer::of_document, reference::of_document(body), body, lengths);
    }
});
