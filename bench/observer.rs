//! What every chunk of an answer pays for the reading of its usage, in passing.
//!
//! A stream's observer is fed an event over and over, which it passes over when it is like the one before it but for its text, or
//! two that are not alike by turns, which it reads. A document gets a new observer each time. The allocator is kvpin's.

mod events;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvpin::usage::Observer;

use events::{CHAT, EVENTS, unlike};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHUNK: usize = 64 * 1024;

/// An item of the output, as code in a tool's input has its escapes.
const ITEM: &str = r#"{"arguments":"{\"command\": \"cargo test --quiet 2>&1 | tail -20\\n\", \"description\": \"Run tests\"}","call_id":"call_1","name":"Bash","type":"function_call","id":"fc_1","status":"completed"}"#;

const TEXT: &str = "The function prints a greeting and the number of arguments. I will now look at the tests.\\n";

/// One event a chunk.
fn one_a_chunk(criterion: &mut Criterion) {
    for (what, other) in [("event_alike", str::to_owned as fn(&str) -> String), ("event_read", unlike)] {
        let mut group = criterion.benchmark_group(what);
        for (name, event) in EVENTS {
            let by_turns = [event.to_owned(), other(event)];
            let (mut observer, mut turn) = (Observer::of_stream(), 0);
            group.throughput(Throughput::Bytes(event.len() as u64));
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    turn ^= 1;
                    observer.observe(black_box(by_turns[turn].as_bytes()))
                });
            });
        }
        group.finish();
    }
}

/// Answers that come in chunks as large as they get.
fn answers(criterion: &mut Criterion) {
    let usage = r#""usage":{"input_tokens":740,"input_tokens_details":{"cached_tokens":640},"output_tokens":4}"#;
    let items = vec![ITEM; 1_000_000 / ITEM.len()].join(",");
    let completed = format!(
        "event: response.completed\ndata: {{\"response\":{{\"output\":[{items}],\"status\":\"completed\",{usage}}},\"type\":\"response.completed\"}}\n\n"
    );
    let text = TEXT.repeat(300_000 / TEXT.len());
    let document = format!(r#"{{"id":"m","content":[{{"type":"text","text":"{text}"}}],{usage}}}"#);
    let mut group = criterion.benchmark_group("answer");
    for (name, new, body) in [
        (
            "chat_chunks_of_64_kb",
            Observer::of_stream as fn() -> Observer,
            CHAT.repeat(1_000_000 / CHAT.len()) + "data: {\"usage\":{\"prompt_tokens\":740}}\n\n",
        ),
        ("response_completed_1_mb", Observer::of_stream, completed),
        ("document_300_kb", Observer::of_document, document),
    ] {
        let read = |body: &[u8]| {
            let mut observer = new();
            for chunk in body.chunks(CHUNK) {
                observer.observe(chunk);
            }
            observer.report()
        };
        assert_eq!(read(body.as_bytes()).usage.map(|usage| usage.prompt), Some(740), "{name}");
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| read(black_box(body.as_bytes()))));
    }
    group.finish();
}

criterion_group!(benches, one_a_chunk, answers);
criterion_main!(benches);
