//! What is wrong with a request is said in the caller's dialect, and nobody else notices.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::{Piece, Reply, Wire};
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::until;

const ANTHROPIC: &str = "/v1/messages";
const OPENAI: &str = "/v1/chat/completions";

/// Behind two models, so that one has to be named.
struct Behind {
    recorder: Recorder,
    _other: Recorder,
    kvpin: Kvpin,
}

async fn behind_two_models() -> Behind {
    let (recorder, other) = (Recorder::start(), Recorder::start());
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] }, "n": { "replicas": [other.url()] } }));
    config["limits"] = json!({ "body_bytes_max": "1MiB", "head_bytes_max": "16KiB", "body_timeout_s": 1 });
    let kvpin = Kvpin::start(&config).await;
    Behind { recorder, _other: other, kvpin }
}

/// Message and type of an error, in the shape that the path's clients read.
fn error_of(path: &str, reply: &Reply) -> (String, String) {
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.is_whole);
    if path == ANTHROPIC {
        let (kind, message) = reply.anthropic_error();
        (message, kind)
    } else {
        (reply.openai_error(), reply.json()["error"]["type"].to_string())
    }
}

#[tokio::test]
async fn a_body_in_which_no_model_can_be_found_is_refused_and_the_connection_stays_usable() {
    let behind = behind_two_models().await;
    let mut wire = behind.kvpin.connect().await;
    for path in [ANTHROPIC, OPENAI] {
        for body in ["", "not JSON", "{", "[]", "{}", r#"{"messages":[{"model":"m"}]}"#, r#"{"model":7}"#, "\0\u{7f}"] {
            for chunked in [false, true] {
                let call = Call::post(path, body);
                let call = if chunked { call.chunked(2) } else { call };
                let reply = wire.call(&call).await;
                assert_eq!(reply.status(), 400, "{body:?}, chunked: {chunked}");
                let (message, _) = error_of(path, &reply);
                assert!(message.contains("No `model`") && message.contains("m, n"), "{message}");
                if chunked {
                    wire = wire.or_anew(&reply, async || behind.kvpin.connect().await).await;
                }
            }
        }
    }
    assert_eq!(wire.call(&Call::post(OPENAI, r#"{"model":"m"}"#)).await.status(), 200);
    assert_eq!(behind.recorder.count(), 1);
}

#[tokio::test]
async fn two_models_in_one_body_are_refused_where_both_are_seen_in_time() {
    let behind = behind_two_models().await;
    for path in [ANTHROPIC, OPENAI] {
        for body in
            [r#"{"model":"m","model":"m"}"#, r#"{"model":"m","a":{},"model":"n"}"#, r#"{"model":1,"mod\u0065l":"m"}"#]
        {
            let reply = behind.kvpin.call(&Call::post(path, body)).await;
            assert_eq!(reply.status(), 400, "{body}");
            assert!(error_of(path, &reply).0.contains("more than once"));
        }
    }
    assert_eq!(behind.recorder.count(), 0);
    // A second one far behind the first is the engine's to judge: the first decides.
    let body = format!(r#"{{"model":"m","text":"{}","model":"n"}}"#, "x".repeat(500_000));
    let reply = behind.kvpin.call(&Call::post(OPENAI, body.clone()).of("named")).await;
    assert_eq!(reply.status(), 200);
    assert_eq!(behind.recorder.last().body, body);
}

#[tokio::test]
async fn a_body_that_is_cut_short_is_refused() {
    let behind = behind_two_models().await;
    for path in [ANTHROPIC, OPENAI] {
        for (front, chunked) in [(r#"{"text":"x"#, false), (r#"{"text":"x"#, true), ("", false)] {
            let call = Call::post(path, r#"{"text":"xxxxxxxx","model":"m"}"#);
            let call = if chunked { call.chunked(5) } else { call };
            let mut wire = behind.kvpin.connect().await;
            wire.send(&call.head_bytes()).await;
            wire.send(&call.body_bytes()[..front.len()]).await;
            wire.half_close().await;
            let reply = wire.reply("POST").await.expect("a response");
            assert_eq!(reply.status(), 400, "{front:?}, chunked: {chunked}");
            error_of(path, &reply);
            assert!(wire.ends().await);
        }
    }
    assert_eq!(behind.recorder.count(), 0);
}

#[tokio::test]
async fn a_body_that_stops_coming_is_refused_after_a_while() {
    let behind = behind_two_models().await;
    let call = Call::post(ANTHROPIC, r#"{"text":"xxxxxxxx","model":"m"}"#);
    let mut wire = behind.kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    wire.send(&call.body[..5]).await;
    let reply = wire.reply("POST").await.expect("a response");
    assert_eq!(reply.status(), 408);
    assert_eq!(error_of(ANTHROPIC, &reply).1, "invalid_request_error");
    assert!(wire.ends().await);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_or_while_it_comes() {
    let behind = behind_two_models().await;
    let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(1 << 20));
    for path in [ANTHROPIC, OPENAI] {
        // Announced: before any of it.
        let announced = Call::post(path, body.clone());
        let mut wire = behind.kvpin.connect().await;
        wire.send(&announced.head_bytes()).await;
        let reply = wire.reply("POST").await.expect("a response");
        assert_eq!(reply.status(), 413);
        let (message, _) = error_of(path, &reply);
        assert!(message.contains("1048576"), "{message}");
        // Not even asked for.
        let mut wire = behind.kvpin.connect().await;
        wire.send(&announced.header("Expect", "100-continue").head_bytes()).await;
        assert_eq!(wire.head("POST").await.status, 413);
        // Chunked: as soon as it is over, wherever the model stands.
        let model_last = format!(r#"{{"text":"{}","model":"m"}}"#, "x".repeat(1 << 20));
        let reply = behind.kvpin.call(&Call::post(path, model_last).chunked(4096)).await;
        assert_eq!(reply.status(), 413);
        error_of(path, &reply);
    }
    let kinds = behind.kvpin.call(&Call::post(ANTHROPIC, body)).await.anthropic_error();
    assert_eq!(kinds.0, "request_too_large");
    assert_eq!(behind.recorder.count(), 0);
}

#[tokio::test]
async fn a_chunked_body_that_goes_over_the_limit_while_it_streams_is_refused_and_reaches_no_engine_whole() {
    let mut hand = Hand::start();
    let mut config = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["limits"] = json!({ "body_bytes_max": "1MiB" });
    let kvpin = Kvpin::start(&config).await;
    for path in [ANTHROPIC, OPENAI] {
        let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(1 << 20));
        let call = Call::post(path, body).of("growing").chunked(4096);
        let mut wire = kvpin.connect().await;
        wire.send(&call.head_bytes()).await;
        let sent = call.body_bytes();
        let (front, back) = sent.split_at(200_000);
        wire.send(front).await;
        // The decision was made, and the rest streams.
        let mut turn = hand.arriving().await;
        let reply = wire.rest(back).await;
        assert_eq!(reply.status(), 413);
        error_of(path, &reply);
        assert!(!turn.rest().await.ends_with(b"0\r\n\r\n"), "the replica can't take it for whole");
    }
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused() {
    let behind = behind_two_models().await;
    for path in [ANTHROPIC, OPENAI] {
        for call in [
            Call::post(path, "{}").header("X-Long", "x".repeat(17_000)),
            Call::post(&format!("{path}?{}", "x".repeat(17_000)), "{}"),
            (0..200).fold(Call::post(path, "{}"), |call, number| call.header(&format!("X-{number}"), "x".repeat(90))),
        ] {
            let reply = behind.kvpin.call(&call).await;
            assert_eq!(reply.status(), 431);
            assert!(error_of(path, &reply).0.contains("16384"));
        }
    }
    let fits = Call::post(OPENAI, r#"{"model":"m"}"#).header("X-Long", "x".repeat(15_000));
    assert_eq!(behind.kvpin.call(&fits).await.status(), 200);
}

#[tokio::test]
async fn an_absurd_content_length_is_refused_at_once() {
    let behind = behind_two_models().await;
    for (length, status) in [
        ("18446744073709551615", 413),
        ("9223372036854775808", 413),
        ("99999999999999999999999999", 400),
        ("-1", 400),
        ("1e3", 400),
        ("five", 400),
        ("", 400),
        ("5\r\nContent-Length: 6", 400),
    ] {
        let mut wire = behind.kvpin.connect().await;
        let head = format!("POST {ANTHROPIC} HTTP/1.1\r\nHost: kvpin.test\r\nContent-Length: {length}\r\n\r\n");
        wire.send(head.as_bytes()).await;
        let reply = wire.reply("POST").await.expect("a response");
        assert_eq!(reply.status(), status, "{length:?}");
        assert!(wire.ends().await);
    }
    assert_eq!(behind.recorder.count(), 0);
}

#[tokio::test]
async fn a_header_that_is_no_text_names_no_conversation_and_disturbs_nothing() {
    let behind = behind_two_models().await;
    let body = r#"{"model":"m"}"#;
    for _ in 0..2 {
        let call = Call::post(ANTHROPIC, body).header("x-session-id", b"\xff\xfe\x80");
        let reply = behind.kvpin.call(&call).await;
        assert_eq!((reply.status(), reply.decision()), (200, "unpinned"));
        assert_eq!(behind.recorder.last().headers["x-session-id"].as_bytes(), b"\xff\xfe\x80");
    }
    let named = behind.kvpin.call(&Call::post(ANTHROPIC, body).header("x-kvpin-replica", b"\xff\xfe")).await;
    assert_eq!(named.status(), 400);
    error_of(ANTHROPIC, &named);
}

#[tokio::test]
async fn framing_that_two_readers_could_read_differently_closes_the_connection() {
    let behind = behind_two_models().await;
    for (framing, status) in [
        ("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nd\r\n{\"model\":\"m\"}\r\n0\r\n\r\n", Some(400)),
        ("Transfer-Encoding: xchunked\r\n\r\n", Some(400)),
        ("Transfer-Encoding: chunked\r\n\r\nzz\r\n", Some(400)),
        ("Content-Length : 2\r\n\r\n{}", Some(400)),
    ] {
        let mut wire = behind.kvpin.connect().await;
        wire.send(format!("POST {OPENAI} HTTP/1.1\r\nHost: kvpin.test\r\n{framing}").as_bytes()).await;
        assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), status, "{framing:?}");
        assert!(wire.ends().await, "{framing:?}");
    }
}

#[tokio::test]
async fn an_http_1_0_client_finds_the_end_of_its_answer_at_the_connections_end() {
    let behind = behind_two_models().await;
    let mut wire = behind.kvpin.connect().await;
    wire.send(b"GET /health HTTP/1.0\r\n\r\n").await;
    let reply = wire.reply("GET").await.expect("a response");
    assert_eq!((reply.status(), reply.header("connection")), (200, Some("close")));
    assert!(wire.ends().await);
}

/// Every kind of nonsense, each on a connection of its own.
async fn nonsense(kvpin: &Kvpin) {
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nContent-Length: 99\r\n\r\n{\"model\"",
        b"POST /v1/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST /v1/messages HTTP/1.1\r\nX: \x00\r\n\r\n",
        b"CONNECT m:1 HTTP/1.1\r\nHost: m\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"GET",
    ] {
        let mut wire = Wire::connect(kvpin.address).await;
        wire.send(bytes).await;
        drop(wire);
        let mut wire = Wire::connect(kvpin.address).await;
        wire.send(bytes).await;
        wire.half_close().await;
        wire.reply("POST").await;
    }
}

#[tokio::test]
async fn nonsense_on_other_connections_leaves_a_running_stream_alone() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post(ANTHROPIC, r#"{"model":"m"}"#).bytes()).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk("data: begun\n\n").await;
    wire.head("POST").await;
    assert_eq!(wire.piece().await, Piece::Data("data: begun\n\n".into()));
    for number in 0..3 {
        nonsense(&kvpin).await;
        let event = format!("data: {number}\n\n");
        turn.write_chunk(&event).await;
        assert_eq!(wire.piece().await, Piece::Data(event.into()));
    }
    turn.write("0\r\n\r\n").await;
    assert_eq!(wire.piece().await, Piece::End);
    assert_eq!(kvpin.metric("kvpin_panics_total").await, 0.0);
}
