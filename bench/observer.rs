//! What every chunk of an answer pays for the reading of its usage, in passing.
//!
//! The events are vLLM 0.32's, one a chunk, as it sends them. A stream's observer is fed the same one over and over; a
//! document gets a new observer each time. The allocator is kvpin's.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvpin::usage::Observer;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHUNK: usize = 64 * 1024;

const CHAT: &str = "data: {\"id\":\"chatcmpl-ab8d6103f51fccc0\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" status\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

const CHAT_ESCAPED: &str = "data: {\"id\":\"chatcmpl-ab8d6103f51fccc0\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\\");\\n\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

const CHAT_TOOL: &str = "data: {\"id\":\"chatcmpl-834c430123629235\",\"object\":\"chat.completion.chunk\",\"created\":1795995380,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":null,\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"command\"}}]},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

const CHAT_USAGE: &str = "data: {\"id\":\"chatcmpl-a2892cad70af9e45\",\"object\":\"chat.completion.chunk\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"itecture\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}],\"usage\":{\"prompt_tokens\":740,\"total_tokens\":742,\"completion_tokens\":2,\"completion_tokens_details\":null}}\n\n";

const COMPLETIONS: &str = "data: {\"id\":\"cmpl-94fdb15487fe1bd7\",\"object\":\"text_completion\",\"created\":1795964617,\"model\":\"tiny-agent\",\"choices\":[{\"index\":0,\"text\":\" render\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}]}\n\n";

const MESSAGES: &str = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\" keep\"},\"index\":0}\n\n";

const RESPONSES: &str = "event: response.output_text.delta\ndata: {\"content_index\":0,\"delta\":\"lement\",\"item_id\":\"msg_89d2e8633aeaf239\",\"logprobs\":[],\"output_index\":0,\"sequence_number\":4,\"type\":\"response.output_text.delta\"}\n\n";

const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// An item of the output, as code in a tool's input has its escapes.
const ITEM: &str = r#"{"arguments":"{\"command\": \"cargo test --quiet 2>&1 | tail -20\\n\", \"description\": \"Run tests\"}","call_id":"call_1","name":"Bash","type":"function_call","id":"fc_1","status":"completed"}"#;

const TEXT: &str = "The function prints a greeting and the number of arguments. I will now look at the tests.\\n";

/// One event a chunk.
fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event");
    for (name, event) in [
        ("chat", CHAT),
        ("chat_escaped", CHAT_ESCAPED),
        ("chat_tool_call", CHAT_TOOL),
        ("chat_with_usage", CHAT_USAGE),
        ("completions", COMPLETIONS),
        ("messages", MESSAGES),
        ("responses", RESPONSES),
        ("keep_alive", KEEP_ALIVE),
    ] {
        let mut observer = Observer::of_stream();
        group.throughput(Throughput::Bytes(event.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| observer.observe(black_box(event.as_bytes()))));
    }
    group.finish();
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

criterion_group!(benches, events, answers);
criterion_main!(benches);
