//! Any bytes, in any chunks: the scanner doesn't panic, says the same whatever the cuts, and of a JSON object it says what
//! a full parse does.
//!
//! The first four bytes give the lengths of the chunks, used over and over; the rest is the body. The seeds begin with
//! `ACH'`, which is 1, 3, 8 and 39 bytes.

#![no_main]
// The module is made for more than one of its scanners.
#![allow(dead_code, unused_imports)]

#[path = "../../src/conversation/mod.rs"]
mod conversation;
#[path = "../../src/json/mod.rs"]
mod json;

use conversation::{Fields, History, Progress, Scanner, Wanted, reference};
use libfuzzer_sys::fuzz_target;

/// What a scanner says in the end.
#[derive(Debug, PartialEq)]
struct Said {
    progress: Progress,
    fields: Fields,
    history: Option<History>,
}

fn said(scanner: &Scanner) -> Said {
    let history = scanner.history().cloned();
    Said { progress: scanner.progress(), fields: scanner.fields().clone(), history }
}

fn whole(wanted: Wanted, body: &[u8]) -> Said {
    let mut scanner = Scanner::new(wanted);
    scanner.feed(body);
    said(&scanner)
}

fn in_chunks(wanted: Wanted, body: &[u8], lengths: &[u8]) -> Said {
    let mut scanner = Scanner::new(wanted);
    let mut lengths = lengths.iter().cycle();
    let mut rest = body;
    while !rest.is_empty() {
        let length = usize::from(*lengths.next().unwrap_or(&1) % 64);
        let (chunk, after) = rest.split_at(length.clamp(1, rest.len()));
        // A chunk may be searched first and fed from there on.
        let used = if length.is_multiple_of(2) { scanner.search(chunk) } else { 0 };
        scanner.feed(&chunk[used..]);
        rest = after;
    }
    said(&scanner)
}

fn check(body: &[u8], lengths: &[u8]) {
    let expected = reference::read(body);
    for wanted in [Wanted::Model, Wanted::ModelFirst, Wanted::ModelAndSession] {
        let whole = whole(wanted, body);
        assert_eq!(in_chunks(wanted, body, lengths), whole, "{wanted:?} in chunks of {lengths:?}");
        let Some((fields, history)) = &expected else { continue };
        assert_eq!(whole.progress, Progress::Closed);
        if wanted == Wanted::Model {
            assert_eq!((&whole.fields.model, &whole.fields.model_span), (&fields.model, &fields.model_span));
        } else {
            assert_eq!((&whole.fields, &whole.history), (fields, history), "{wanted:?}");
        }
        if let (Some(name), Some(span)) = (fields.model.name(), whole.fields.model_span) {
            assert_eq!(serde_json::from_slice::<String>(&body[span]).ok().as_deref(), Some(name));
        }
    }
}

fuzz_target!(|input: &[u8]| {
    if let Some((lengths, body)) = input.split_at_checked(4) {
        check(body, lengths);
    }
});
