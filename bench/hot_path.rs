//! What every request pays before it is forwarded: the check of its API key, the search through its body,
//! and the name of its conversation.
//!
//! Bodies are fed in chunks of 64 KiB. The allocator is kvpin's.

mod bodies;

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::HeaderValue;
use kvpin::config::{KeyConfig, KeyHash};
use kvpin::conversation::{FormScanner, IdentityRules, KeySecret, Scanner, Wanted};
use kvpin::keys::{KeyRing, Presented, made_of, presented};

use bodies::{CHUNK, MODEL, TAIL, TURN, array, body, head, history, named_head, read, search};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Where the history is not read: the model is all that is wanted.
fn skipped(criterion: &mut Criterion) {
    let text = "a line of prose without anything to escape; ".repeat(1 << 20 >> 5);
    let cases = [
        ("50_kb", format!("{{{},{TAIL},{MODEL}}}", history(50_000))),
        ("1_mb", format!("{{{},{TAIL},{MODEL}}}", history(1_000_000))),
        ("long_string", format!(r#"{{"prompt":"{text}",{MODEL}}}"#)),
        ("nested_10000_deep", format!(r#"{{"a":{},{MODEL}}}"#, nested())),
    ];
    let mut group = criterion.benchmark_group("model_last");
    for (name, body) in cases {
        assert!(search(body.as_bytes(), Wanted::Model), "{name}");
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| search(black_box(body.as_bytes()), Wanted::Model));
        });
    }
    group.finish();

    // Without a throughput: the rest of the body is not looked at.
    let body = format!("{{{MODEL},{},{TAIL}}}", history(1_000_000));
    criterion.bench_function("model_first", |bencher| {
        bencher.iter(|| search(black_box(body.as_bytes()), Wanted::Model));
    });
}

/// Nested deeper than any message, and deeper than a stack would bear.
fn nested() -> String {
    format!("{}{}", "[".repeat(10_000), "]".repeat(10_000))
}

/// A body whose messages are one of the user and one of these, which is a JSON value.
fn holding(message: &str) -> String {
    format!(r#"{{{MODEL},"messages":[{{"role":"user","content":"hi"}},{message}],{TAIL}}}"#)
}

/// Everything is read: session, shape and history.
fn whole(criterion: &mut Criterion) {
    let said = |text: &str| holding(&format!(r#"{{"role":"user","content":"{}"}}"#, text.repeat(300_000 / text.len())));
    let cases = [
        ("1_kb", body(1_000)),
        ("50_kb", body(50_000)),
        ("64_kb", body(64_000)),
        ("300_kb", body(300_000)),
        ("1_mb", body(1_000_000)),
        ("4_mb", body(4_000_000)),
        ("32_mb", body(32_000_000)),
        ("plain_300_kb", said("a line of prose without anything to escape; ")),
        ("code_300_kb", said(r#"     5\t    println!(\"{greeting}, {}\", std::env::args().count());\n"#)),
        ("escapes_300_kb", said(r#"\u00e9\n\"\\"#)),
        ("short_strings_300_kb", holding(&array(r#"{"type":"text","text":"Run tests"}"#, 300_000))),
        ("nested_10000_deep", holding(&nested())),
    ];
    let mut group = criterion.benchmark_group("history");
    for (name, body) in cases {
        assert!(read(body.as_bytes()), "{name}");
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| read(black_box(body.as_bytes())));
        });
    }
    group.finish();
}

fn form(criterion: &mut Criterion) {
    // Every byte value as often as any other, as in compressed audio.
    let audio: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let head = b"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\n\r\n";
    let model = b"\r\n--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--X--\r\n";
    let body = [&head[..], &audio[..], &model[..]].concat();
    let mut group = criterion.benchmark_group("form");
    group.throughput(Throughput::Bytes(body.len() as u64));
    group.bench_function("model_behind_1_mb_of_audio", |bencher| {
        bencher.iter(|| {
            let mut scanner = FormScanner::new("multipart/form-data; boundary=X")?;
            for chunk in body.chunks(CHUNK) {
                scanner.feed(black_box(chunk));
            }
            scanner.fields().model.name().map(str::len)
        });
    });
    group.finish();
}

fn identity(criterion: &mut Criterion) {
    let secret = KeySecret::new([7; 16]);
    let named = named_head();
    let mut scanner = Scanner::new(Wanted::ModelAndSession);
    scanner.feed(format!("{{{MODEL},{TAIL}}}").as_bytes());
    let fields = scanner.fields();

    let rules = IdentityRules::default();
    let key = |conversation| secret.key(b"", "qwen3-4b", &conversation);

    let mut group = criterion.benchmark_group("identity_and_key");
    // What a turn of a known conversation costs, and then what a new one does.
    group.bench_function("of_the_head", |bencher| {
        bencher.iter(|| rules.headers_name_session(black_box(&named)).map(key));
    });
    for (name, headers) in [("of_head_and_body", named.clone()), ("of_the_body", head())] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| rules.identify(black_box(&headers), black_box(fields)).conversation.map(key));
        });
    }
    group.finish();

    let mut scanner = Scanner::new(Wanted::ModelAndSession);
    scanner.feed(format!(r#"{{{MODEL},"messages":[{}]}}"#, [TURN; 200].join(",")).as_bytes());
    criterion.bench_function("chain_of_400_messages", |bencher| {
        bencher.iter(|| Some(secret.chain(b"", "qwen3-4b", black_box(scanner.history()?))));
    });
}

/// A ring of so many keys, one of which it gives too.
fn ring(keys: u32) -> (KeyRing, String) {
    let key = |number: u32| made_of(&std::array::from_fn(|at| (number >> (8 * (at % 4))) as u8));
    let config = |number: u32| KeyConfig {
        in_flight_max: Some(100),
        requests_per_minute_max: Some(1_000_000),
        ..KeyConfig::new(&format!("key-{number}"), KeyHash::of(key(number).expose().as_bytes()))
    };
    (KeyRing::new(&(0..keys).map(config).collect::<Vec<_>>(), None), key(keys / 2).expose().to_owned())
}

/// A key whose hash begins as that of another one does, for so many bytes as can be found by trying.
fn with_a_hash_alike(key: &str) -> String {
    let beginning = &KeyHash::of(key.as_bytes()).to_text()[.."kvpin1-".len() + 4];
    let is_alike = |other: &String| KeyHash::of(other.as_bytes()).to_text().starts_with(beginning);
    (0..).map(|number| format!("{number:0width$}", width = key.len())).find(is_alike).unwrap_or_default()
}

/// From the head to the caller with a place among his requests, and to nothing for who has no right. That a wrong key takes
/// the same time whether or not its hash begins right is to be seen here, and asserted nowhere: a machine's noise is larger.
fn api_key(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("api_key");
    for (name, keys) in [("1_key", 1), ("4096_keys", 4096)] {
        let (ring, key) = ring(keys);
        let alike = with_a_hash_alike(&key);
        let unlike = "0".repeat(key.len());
        for (which, key) in [("right", key), ("wrong", unlike), ("wrong_with_a_hash_alike", alike)] {
            let mut headers = head();
            let value = HeaderValue::try_from(format!("Bearer {key}"));
            headers.insert("authorization", value.unwrap_or(HeaderValue::from_static("")));
            group.bench_function(format!("{name}_{which}"), |bencher| {
                bencher.iter(|| {
                    let Ok(Presented::Key(key)) = presented(black_box(&headers)) else { return false };
                    let caller = ring.find(key);
                    caller.is_some_and(|caller| caller.enter(std::time::Duration::ZERO).is_ok())
                });
            });
        }
    }
    group.finish();
}

criterion_group!(hot_path, api_key, skipped, whole, form, identity);
criterion_main!(hot_path);
