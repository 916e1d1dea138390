//! A turn that has shown nothing of an answer goes to another replica, whatever was wrong with the first; one that has, never.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::call::{Call, chunk_of};
use crate::support::client::{Piece, Reply, Wire};
use crate::support::hand::{Hand, HandTurn, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};
use crate::support::reserved::ReservedPort;
use crate::support::stage::Stage;
use crate::support::{DEADLINE, until};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const KIB: usize = 1024;

/// As vLLM 0.32.0 writes them.
const BUSY_EVENT: &str = "data: {\"error\": {\"message\": \"The engine is currently busy and cannot accept new requests.\", \"type\": \"Service Unavailable\", \"param\": null, \"code\": 503}}\n\n";
const DEAD_EVENT: &str = "data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\n";
const DEAD_MESSAGE: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"2 validation errors for ChatCompletionStreamResponse\"}}\n\n";
const DONE_EVENT: &str = "data: [DONE]\n\n";
const BUSY: &str =
    r#"{"error":{"message":"The engine is currently busy.","type":"Service Unavailable","param":null,"code":503}}"#;
const ENDING: &str = r#"{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}"#;

/// What a replica that fails before its first event does, and the word for it.
struct Failure {
    what: &'static str,
    reason: &'static str,
    answer: String,
    /// Whether its connection ends then.
    closes: bool,
}

fn failures() -> Vec<Failure> {
    let failure = |what, reason, answer: String, closes| Failure { what, reason, answer, closes };
    let stream =
        |events: &[&str]| STREAM_HEAD.to_owned() + &events.iter().map(|event| chunked(event)).collect::<String>();
    let ended = |events: &[&str]| stream(events) + "0\r\n\r\n";
    let announced = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n";
    vec![
        failure("closes before the head", "broke_off", String::new(), true),
        failure("closes in the head", "broke_off", "HTTP/1.1 200 OK\r\nContent-Ty".into(), true),
        failure("answers garbage", "broke_off", "\x00\x01\x02 no HTTP\r\n\r\n".into(), false),
        failure("upgrades", "broke_off", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".into(), false),
        failure("closes after the head", "broke_off", stream(&[]), true),
        failure("closes in the first event", "broke_off", stream(&["data: {\"id\":"]), true),
        failure("closes after a comment", "broke_off", stream(&[": keep-alive\n\n"]), true),
        failure("closes after an announcement", "broke_off", stream(&[announced]), true),
        failure("ends without an event", "broke_off", ended(&[]), false),
        failure("breaks its chunks", "broke_off", stream(&[]) + "zz\r\n", false),
        failure("is busy in the stream", "failing", ended(&[BUSY_EVENT, DONE_EVENT]), false),
        failure("is busy after a comment", "failing", ended(&[": keep-alive\n\n", BUSY_EVENT, DONE_EVENT]), false),
        failure("is busy and breaks off", "failing", stream(&[BUSY_EVENT]), true),
        failure("dies in the stream", "engine_error", ended(&[DEAD_EVENT, DONE_EVENT]), false),
        failure("dies in a stream of messages", "engine_error", ended(&[DEAD_MESSAGE]), false),
        failure("ends in the stream", "draining", ended(&[&BUSY_EVENT.replace("busy", ENDING_WORDS)]), false),
        failure("answers 502", "failing", response("502 Bad Gateway", "<html>"), false),
        failure("answers 503", "failing", response("503 Service Unavailable", BUSY), false),
        failure("answers 503 in part", "failing", "HTTP/1.1 503 No\r\nContent-Length: 99999999\r\n\r\n{".into(), true),
        failure("answers 500 because it ends", "draining", response("500 Internal Server Error", ENDING), false),
        failure("answers 500 because it has died", "engine_error", response("500 Oh", DEAD_EVENT), false),
    ]
}

const ENDING_WORDS: &str = "cannot schedule new futures after shutdown";

fn chunked(data: &str) -> String {
    String::from_utf8(chunk_of(data.as_bytes())).expect("text")
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn turn(path: &str, id: &str, bytes: usize) -> Call {
    let body = format!(r#"{{"model":"m","stream":true,"text":"{}"}}"#, "x".repeat(bytes));
    Call::post(path, body).of(id)
}

/// A good stream in pieces, and all of it.
fn good_stream() -> (Vec<String>, String) {
    let event = |number: usize| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\" t{number}\"}}}}]}}\n\n");
    let mut events: Vec<_> = (0..5).map(event).collect();
    events.push(DONE_EVENT.to_owned());
    let whole = events.concat();
    (events, whole)
}

async fn answer_well(turn: &mut HandTurn) -> String {
    let (events, whole) = good_stream();
    turn.write(STREAM_HEAD).await;
    for event in events {
        turn.write_chunk(event).await;
    }
    turn.write("0\r\n\r\n").await;
    whole
}

async fn reply(mut wire: Wire) -> Reply {
    wire.reply("POST").await.expect("a response")
}

#[tokio::test]
async fn a_turn_that_fails_before_its_first_event_goes_to_another_replica_and_the_client_sees_one_good_stream() {
    for path in [CHAT, MESSAGES] {
        for failure in failures() {
            for bytes in [KIB, 2048 * KIB] {
                // A new kvpin each time, since what was seen of a replica counts later.
                let mut stage = Stage::of(2).await;
                let call = turn(path, &format!("{bytes}"), bytes);
                let wire = stage.send(&call).await;
                eprintln!("{path}, {bytes} bytes: {}", failure.what);
                let (first, mut bad) = stage.arrives().await;
                assert_eq!(bad.body.len(), call.body.len(), "{}", failure.what);
                bad.write(&failure.answer).await;
                let bad = (!failure.closes).then_some(bad);
                let (second, mut good) = stage.arrives().await;
                assert_ne!(first, second, "{}", failure.what);
                assert!(good.body == call.body, "{}: the whole body, bit for bit", failure.what);
                let whole = answer_well(&mut good).await;
                let reply = reply(wire).await;
                assert_eq!((reply.status(), reply.text()), (200, whole), "{}", failure.what);
                assert!(reply.is_whole, "{}", failure.what);
                assert_eq!((reply.replica(), reply.header("retry-after")), (second.as_str(), None));
                drop(bad);
                let series = format!("kvpin_retried_turns_total{{reason=\"{}\"}}", failure.reason);
                let retried = stage.kvpin.metric(&series).await;
                assert_eq!(retried, 1.0, "{}", failure.what);
                assert!(stage.nobody_has_more());
                stage.until_idle().await;
            }
        }
    }
}

#[tokio::test]
async fn a_response_that_is_no_stream_is_moved_as_well_as_long_as_nothing_of_it_was_passed_on() {
    for failure in failures().into_iter().filter(|failure| !failure.answer.contains("event-stream")) {
        let mut stage = Stage::of(2).await;
        let call = turn(CHAT, "plain", 300 * KIB);
        let wire = stage.send(&call).await;
        let (_, mut bad) = stage.arrives().await;
        bad.write(&failure.answer).await;
        let bad = (!failure.closes).then_some(bad);
        let (second, mut good) = stage.arrives().await;
        assert!(good.body == call.body);
        good.answer(r#"{"good":true}"#).await;
        let reply = reply(wire).await;
        assert_eq!((reply.status(), reply.replica(), reply.text().as_str()), (200, &*second, r#"{"good":true}"#));
        drop(bad);
    }
}

#[tokio::test]
async fn what_fails_after_content_is_passed_on_byte_for_byte_and_tried_nowhere_else() {
    let content = "data: {\"choices\":[]}\n\n";
    for (events, is_whole) in [
        (vec![content, DEAD_EVENT, DONE_EVENT], true),
        (vec![content, BUSY_EVENT], false),
        (vec![content, "data: {\"half\":"], false),
    ] {
        let mut stage = Stage::of(2).await;
        let wire = stage.send(&turn(CHAT, "begun", KIB)).await;
        let (_, mut bad) = stage.arrives().await;
        bad.write(STREAM_HEAD).await;
        for event in &events {
            bad.write_chunk(event).await;
        }
        if is_whole {
            bad.write("0\r\n\r\n").await;
        }
        drop(bad);
        let reply = reply(wire).await;
        assert_eq!((reply.status(), reply.text(), reply.is_whole), (200, events.concat(), is_whole));
        stage.until_idle().await;
        assert!(stage.nobody_has_more());
    }
}

#[tokio::test]
async fn errors_that_are_the_requests_own_are_passed_on_and_tried_nowhere_else() {
    let refused = BUSY_EVENT.replace("503", "400");
    let in_stream = STREAM_HEAD.to_owned() + &chunked(&refused) + "0\r\n\r\n";
    let plain = |status: &str| (response(status, BUSY), status[..3].parse().expect("a status"), BUSY.to_owned());
    for (answer, status, body) in [
        (in_stream, 200, refused),
        plain("400 Bad Request"),
        plain("404 Not Found"),
        plain("429 Too Many Requests"),
        plain("500 Internal Server Error"),
        plain("501 Not Implemented"),
        plain("504 Gateway Timeout"),
    ] {
        let mut stage = Stage::of(2).await;
        let wire = stage.send(&turn(CHAT, "own", KIB)).await;
        let (_, mut turn) = stage.arrives().await;
        turn.write(answer).await;
        let reply = reply(wire).await;
        assert_eq!((reply.status(), reply.text()), (status, body));
        assert_eq!(reply.header("retry-after"), None);
        assert!(stage.nobody_has_more());
        stage.until_idle().await;
    }
}

#[tokio::test]
async fn with_no_other_replica_left_the_client_gets_the_engines_own_error_unchanged() {
    let stream = STREAM_HEAD.to_owned() + &chunked(BUSY_EVENT) + &chunked(DONE_EVENT) + "0\r\n\r\n";
    for (answer, status, body) in [
        (response("503 Service Unavailable", BUSY), 503, BUSY.to_owned()),
        (response("502 Bad Gateway", "<html>"), 502, "<html>".to_owned()),
        (response("500 Internal Server Error", ENDING), 500, ENDING.to_owned()),
        (stream, 200, format!("{BUSY_EVENT}{DONE_EVENT}")),
    ] {
        for replicas in [1, 3] {
            let mut stage = Stage::of(replicas).await;
            let wire = stage.send(&turn(CHAT, "full", KIB)).await;
            let mut last = String::new();
            let mut turns = Vec::new();
            for _ in 0..replicas {
                let (name, mut turn) = stage.arrives().await;
                turn.write(&answer).await;
                last = name;
                turns.push(turn);
            }
            let reply = reply(wire).await;
            assert_eq!((reply.status(), reply.text(), reply.replica()), (status, body.clone(), &*last));
            assert!(reply.is_whole);
            assert_eq!(reply.header("retry-after"), (status == 503).then_some("1"));
            assert!(stage.nobody_has_more());
            stage.until_idle().await;
        }
    }
}

#[tokio::test]
async fn an_engines_own_error_is_told_rather_than_that_the_next_replica_broke_off() {
    let mut stage = Stage::of(2).await;
    let wire = stage.send(&turn(CHAT, "full", KIB)).await;
    let (_, mut full) = stage.arrives().await;
    full.write(response("503 Service Unavailable", BUSY)).await;
    let (_, broken) = stage.arrives().await;
    drop(broken);
    let reply = reply(wire).await;
    assert_eq!((reply.status(), reply.text().as_str(), reply.header("retry-after")), (503, BUSY, Some("1")));
}

#[tokio::test]
async fn with_every_stream_cut_before_its_first_event_kvpin_refuses_in_both_dialects() {
    for path in [CHAT, MESSAGES] {
        let mut stage = Stage::of(2).await;
        let wire = stage.send(&turn(path, "cut", KIB)).await;
        for _ in 0..2 {
            let (_, mut turn) = stage.arrives().await;
            turn.write(STREAM_HEAD).await;
        }
        let reply = reply(wire).await;
        assert_eq!(reply.status(), 502);
        if path == MESSAGES {
            assert_eq!(reply.anthropic_error().0, "api_error");
        } else {
            assert_eq!(reply.json()["error"]["code"], "replica_failed");
        }
        stage.until_idle().await;
    }
}

#[tokio::test]
async fn refusals_are_not_counted_as_breaks_and_both_limits_hold() {
    // Each limit, and on how many of four replicas a turn is then tried that breaks, and one that is refused.
    for (limits, broken, refused) in [
        (json!({}), 2, 4),
        (json!({ "breaks_max": 3 }), 3, 4),
        (json!({ "tries_max": 3 }), 2, 3),
        (json!({ "tries_max": 1 }), 1, 1),
    ] {
        let mut stage = Stage::with(4, limits.clone()).await;
        let wire = stage.send(&turn(CHAT, "broken", KIB)).await;
        for _ in 0..broken {
            drop(stage.arrives().await);
        }
        assert_eq!(reply(wire).await.status(), 502, "{limits}");
        let wire = stage.send(&turn(CHAT, "refused", KIB)).await;
        for _ in 0..refused {
            stage.arrives().await.1.write(response("503 Full", BUSY)).await;
        }
        assert_eq!(reply(wire).await.text(), BUSY, "{limits}");
        assert!(stage.nobody_has_more(), "{limits}");
    }
}

#[tokio::test]
async fn a_long_first_event_is_held_only_so_far() {
    let mut stage = Stage::of(2).await;
    let mut wire = stage.send(&turn(CHAT, "long", KIB)).await;
    let (_, mut turn) = stage.arrives().await;
    turn.write(STREAM_HEAD).await;
    let piece = "x".repeat(65 * KIB);
    turn.write_chunk(&piece).await;
    assert_eq!(wire.head("POST").await.status, 200);
    let mut came = Vec::new();
    while came.len() < piece.len() {
        let Piece::Data(data) = wire.piece().await else { panic!("cut after {} bytes", came.len()) };
        came.extend_from_slice(&data);
    }
    assert_eq!(Bytes::from(came), piece);
}

#[tokio::test]
async fn a_moved_conversation_stays_where_it_was_served() {
    let mut stage = Stage::of(2).await;
    let wire = stage.send(&turn(CHAT, "moved", KIB)).await;
    let (_, mut bad) = stage.arrives().await;
    bad.write(STREAM_HEAD).await;
    drop(bad);
    let (home, mut good) = stage.arrives().await;
    answer_well(&mut good).await;
    assert_eq!(reply(wire).await.decision(), "placed");
    let wire = stage.send(&turn(CHAT, "moved", KIB)).await;
    // On the connection of the turn before.
    good.started_another().await;
    good.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await;
    let reply = reply(wire).await;
    assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()));
}

#[tokio::test]
async fn a_replica_that_sends_no_head_in_time_costs_504_in_both_dialects() {
    for path in [CHAT, MESSAGES] {
        let mut stage = Stage::with(2, json!({ "response_timeout_s": 1 })).await;
        let wire = stage.send(&turn(path, "silent", KIB)).await;
        let (_, mut turn) = stage.arrives().await;
        let reply = reply(wire).await;
        assert_eq!(reply.status(), 504);
        if path == MESSAGES {
            assert_eq!(reply.anthropic_error().0, "timeout_error");
        } else {
            assert_eq!(reply.json()["error"]["code"], "response_timed_out");
        }
        turn.rest().await;
        stage.until_idle().await;
        assert!(stage.nobody_has_more());
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_a_stream_is_held_frees_its_slot_and_its_replica() {
    for begun in ["", ": keep-alive\n\n", "data: {\"half\":"] {
        let mut stage = Stage::of(2).await;
        let wire = stage.send(&turn(CHAT, "leaver", KIB)).await;
        let (_, mut turn) = stage.arrives().await;
        turn.write(STREAM_HEAD).await;
        if !begun.is_empty() {
            turn.write_chunk(begun).await;
        }
        drop(wire);
        turn.rest().await;
        stage.until_idle().await;
        assert!(stage.nobody_has_more());
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_replica_does_not_take_the_body_frees_its_slot() {
    // So that kvpin has all of the body and can see its client leave. What it hasn't read yet hides that.
    let mut stage = Stage::with(2, json!({ "history_wait_ms": 1000 })).await;
    // More than all buffers on the way hold.
    let call = turn(CHAT, "leaver", 7 << 20);
    let wire = stage.send(&call).await;
    until("the turn is in flight", async || (stage.kvpin.in_flight().await == 1).then_some(())).await;
    drop(wire);
    stage.until_idle().await;
    assert!(stage.hands.iter_mut().map(|hand| usize::from(hand.has_turn())).sum::<usize>() <= 1);
}

#[tokio::test]
async fn a_replica_that_closes_its_idle_connections_just_when_the_next_turn_comes_costs_no_error() {
    let port = ReservedPort::new();
    let listener = port.listen();
    let replica = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        for patience in (0..20).cycle() {
            let (stream, _) = listener.accept().await.expect("accepts");
            connections.spawn(serve_impatiently(stream, Duration::from_micros(patience * 100)));
        }
    });
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [format!("http://{}", port.address())] } })).await;
    for round in 0..2_000_u64 {
        let call = turn(CHAT, "racing", if round % 8 == 0 { 200 * KIB } else { KIB });
        let reply = kvpin.call(&call).await;
        assert_eq!((reply.status(), reply.text()), (200, call.body.len().to_string()), "round {round}");
        // Around the moment at which the replica closes: that is what is raced with.
        tokio::time::sleep(Duration::from_micros(round * 7 % 20 * 100)).await;
    }
    replica.abort();
}

#[tokio::test]
async fn a_replica_that_takes_no_body_is_given_up_long_before_the_response_timeout() {
    let port = ReservedPort::new();
    let listener = port.listen();
    let replica = tokio::spawn(async move {
        let mut connections = Vec::new();
        loop {
            connections.push(listener.accept().await.expect("accepts"));
        }
    });
    let mut file = config(json!({ "m": { "replicas": [format!("http://{}", port.address())] } }));
    file["limits"] = json!({ "write_timeout_s": 1, "response_timeout_s": 600 });
    let kvpin = Kvpin::launch(&file).await;
    let reply = kvpin.call(&turn(CHAT, "stuck", 24 * 1024 * KIB)).await;
    // Its probes are not answered either; what is found out first decides.
    assert!(matches!(reply.status(), 502 | 503), "{}", reply.status());
    replica.abort();
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_reaches_a_client_that_sends_all_of_it_first() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let call = turn(CHAT, "early", 4 * 1024 * KIB);
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    wire.send(&call.body[..1000]).await;
    let mut at_replica = hand.arriving().await;
    at_replica.write("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}").await;
    wire.send(&call.body[1000..]).await;
    assert_eq!(wire.reply("POST").await.map(|reply| (reply.status(), reply.text())), Some((400, "{}".to_owned())));
}

/// Answers requests with the length of their body, and closes a connection that is idle for so long after one.
async fn serve_impatiently(mut stream: TcpStream, patience: Duration) {
    let (mut bytes, mut answered) = (Vec::new(), false);
    loop {
        let whole = bytes.windows(4).position(|window| window == b"\r\n\r\n").and_then(|at| {
            let head = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            (bytes.len() >= at + 4 + length).then_some(length)
        });
        if let Some(length) = whole {
            bytes.clear();
            answered = true;
            let answer = response("200 OK", &length.to_string());
            // kvpin may have given the connection up.
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
        let patience = if answered && bytes.is_empty() { patience } else { DEADLINE };
        match timeout(patience, stream.read_buf(&mut bytes)).await {
            Ok(Ok(read)) if read > 0 => {}
            _ => return,
        }
    }
}
