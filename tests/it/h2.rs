//! HTTP/2: what a client sends on a stream is what the replica reads, and what the replica writes is what the client reads.

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::call::{Call, Framing};
use crate::support::client::Piece;
use crate::support::edge::Edge;
use crate::support::h2::{Client, Ending};
use crate::support::hand::{Hand, HandTurn, STREAM_HEAD};
use crate::support::recorder::{Recorder, sha256};
use crate::support::until;

/// Around the sizes of a frame, of Pingora's buffers and of the windows, and far over them.
const SIZES: [usize; 14] =
    [1, 2, 100, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 131_073, 300_000, 1_048_576, 1_048_577, 5_000_000];

/// JSON of `size` bytes, or a few more where it is too short to have a model.
fn body(size: usize, model_at_end: bool) -> Vec<u8> {
    let text = "x".repeat(size.saturating_sub(r#"{"model":"m","text":""}"#.len()));
    if model_at_end {
        format!(r#"{{"text":"{text}","model":"m"}}"#).into_bytes()
    } else {
        format!(r#"{{"model":"m","text":"{text}"}}"#).into_bytes()
    }
}

/// A request on its way to a hand, and the client that waits.
async fn begun() -> (Hand, Edge, HandTurn, crate::support::h2::Stream) {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [{ "url": hand.url(), "name": "r" }] } })).await;
    let call = Call::post("/v1/chat/completions", r#"{"model":"m","stream":true}"#);
    let stream = edge.h2().await.send(&call, Ending::WithLast).await;
    let turn = hand.turn().await;
    (hand, edge, turn, stream)
}

fn event(number: usize) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\" token{number}\"}}}}]}}\n\n")
}

#[tokio::test]
async fn bodies_of_every_size_and_framing_reach_the_replica_byte_for_byte_and_once() {
    let recorder = Recorder::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut client = edge.h2().await;
    for size in SIZES {
        for model_at_end in [false, true] {
            let body = body(size, model_at_end);
            let call = Call::post("/v1/completions", body.clone()).of("exact");
            let frame = if size < 1000 { 7 } else { 9_999 };
            for (call, ending) in [
                (call.clone(), Ending::WithLast),
                (call.clone().chunked(frame), Ending::WithLast),
                (call.clone().chunked(frame), Ending::Empty),
                (call.chunked(frame), Ending::Trailers),
            ] {
                let before = recorder.count();
                let what = format!("{size} {model_at_end} {:?} {ending:?}", call.framing);
                let reply = client.send(&call, ending).await.reply().await;
                assert_eq!(reply.status(), 200, "{what}: {}", reply.text());
                assert_eq!(reply.json()["sha256"], sha256(&body), "{what}");
                // A terminator too many would be a request of its own, or the ruin of the next one on that connection.
                assert_eq!(recorder.count(), before + 1, "{what}");
                let arrival = recorder.last();
                let length = arrival.header("content-length").map(|length| length.parse::<usize>().expect("a length"));
                assert_eq!(length, (call.framing == Framing::Length).then_some(body.len()), "{what}");
                assert!(length.is_some() || arrival.header("transfer-encoding") == Some("chunked"), "{what}");
            }
        }
    }
    assert_eq!(edge.kvpin.metric("kvpin_panics_total").await, 0.0);
}

#[tokio::test]
async fn a_body_that_ends_with_an_empty_frame_has_one_terminator_at_the_replica() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    for round in 0..3 {
        let call = Call::post("/v1/completions", r#"{"model":"m"}"#).chunked(5);
        let stream = client.send(&call, Ending::Empty).await;
        let mut turn = hand.arriving().await;
        assert!(turn.head.to_ascii_lowercase().contains("transfer-encoding: chunked"), "{}", turn.head);
        while !turn.body.ends_with(b"0\r\n\r\n") {
            turn.read_to(turn.body.len() + 1).await;
        }
        turn.answer("{}").await;
        assert_eq!(stream.reply().await.status(), 200);
        if round == 2 {
            // What would have come too much has had the time of the answer, and of another request, to come.
            assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
            edge.kvpin.signal("KILL");
            let rest = turn.rest().await;
            assert_eq!(rest.windows(5).filter(|window| window == b"0\r\n\r\n").count(), 1, "{rest:?}");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_body_is_a_request_without_a_body() {
    let recorder = Recorder::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut client = edge.h2().await;
    let empty = Call::post("/v1/messages", "");
    let mut absent = empty.clone();
    absent.framing = Framing::Absent;
    for (call, ending) in
        [(absent, Ending::WithLast), (empty.clone(), Ending::WithLast), (empty.chunked(1), Ending::Empty)]
    {
        let before = recorder.count();
        let reply = client.send(&call, ending).await.reply().await;
        assert_eq!((reply.status(), recorder.count()), (200, before + 1), "{:?}: {}", call.framing, reply.text());
        assert_eq!(recorder.last().body, "", "{:?}", call.framing);
    }
}

#[tokio::test]
async fn a_request_head_reaches_the_replica_as_one_of_http_1() {
    let recorder = Recorder::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let call = Call::post("/v1/messages?beta=true", "{}")
        .header("cookie", "a=1")
        .header("cookie", "b=2; c=3")
        .header("te", "trailers")
        .header("x-twice", "one")
        .header("x-twice", "two")
        .header("x-raw", b"caf\xc3\xa9 \xff");
    assert_eq!(edge.h2().await.call(&call).await.status(), 200);
    let arrival = recorder.last();
    assert_eq!(arrival.path, "/v1/messages?beta=true");
    let all = |name| arrival.headers.get_all(name).iter().map(|value| value.as_bytes()).collect::<Vec<_>>();
    assert_eq!(all("host"), [b"kvpin.test"]);
    assert_eq!(all("cookie"), [b"a=1; b=2; c=3"]);
    assert_eq!(all("x-twice"), [b"one", b"two"]);
    assert_eq!(all("x-raw"), [b"caf\xc3\xa9 \xff"]);
    assert_eq!((all("te").len(), all("connection").len()), (0, 0));
    assert!(arrival.headers.keys().all(|name| !name.as_str().starts_with(':')));
}

#[tokio::test]
async fn a_response_reaches_the_client_byte_for_byte_with_a_head_that_http_2_allows() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [{ "url": hand.url(), "name": "r" }] } })).await;
    let mut client = edge.h2().await;
    let body: Vec<u8> = (0..=255).cycle().take(700_000).collect();
    for status in ["200 OK", "400 Bad Request", "404 Not Found", "429 Too Many Requests", "500 Internal Server Error"] {
        let stream = client.send(&Call::post("/v1/messages", "{}"), Ending::WithLast).await;
        let mut turn = hand.turn().await;
        let length = body.len();
        turn.write(format!(
            "HTTP/1.1 {status}\r\nX-Own: a\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\n\
             Upgrade: h2c\r\nProxy-Connection: keep-alive\r\nTrailer: x-sum\r\nRetry-After: 7\r\nContent-Length: {length}\r\n\r\n"
        ))
        .await;
        turn.write(&body).await;
        let reply = stream.reply().await;
        assert_eq!(reply.status().to_string(), status[..3]);
        assert_eq!((reply.header("x-own"), reply.header("retry-after")), (Some("a"), Some("7")));
        assert_eq!(reply.header("content-length"), Some("700000"));
        for name in ["connection", "keep-alive", "x-hop", "upgrade", "proxy-connection", "trailer", "transfer-encoding"]
        {
            assert_eq!(reply.header(name), None, "{name}");
        }
        assert_eq!(reply.pieces.concat(), body);
        assert_eq!((reply.replica(), reply.decision()), ("r", "unpinned"));
    }
}

#[tokio::test]
async fn responses_of_every_framing_come_to_their_end() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    for (written, status, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, ""),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        ("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n", 304, ""),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, ""),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, ""),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Sum: 1\r\n\r\n", 200, "{}"),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", 200, "{}"),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}"),
    ] {
        let stream = client.send(&Call::post("/v1/messages", "{}"), Ending::WithLast).await;
        let mut turn = hand.turn().await;
        turn.write(written).await;
        if written.contains("Connection: close") {
            drop(turn);
        }
        let reply = stream.reply().await;
        assert_eq!((reply.status(), reply.text().as_str(), reply.is_whole), (status, body, true), "{written:?}");
    }
    let head = client.call(&Call::head("/")).await;
    assert_eq!((head.status(), head.text().as_str()), (200, ""));
    assert!(head.header("content-length").is_some_and(|length| length != "0"));
}

#[tokio::test]
async fn each_event_of_a_stream_reaches_the_client_before_the_next_one_exists() {
    let (_hand, edge, mut turn, mut stream) = begun().await;
    turn.write(STREAM_HEAD).await;
    for number in 0..100 {
        turn.write_chunk(event(number)).await;
        if number == 0 {
            assert_eq!(stream.head().await.header("content-type"), Some("text/event-stream"));
        }
        assert_eq!(stream.piece().await, Piece::Data(event(number).into()));
    }
    assert_eq!(edge.kvpin.in_flight().await, 1, "the slot is held until the body's end");
    turn.write("0\r\n\r\n").await;
    assert_eq!(stream.piece().await, Piece::End);
    until("the slot is free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_silent_stream_is_pinged_between_its_events() {
    let mut hand = Hand::start();
    let models = json!({ "m": { "replicas": [hand.url()] } });
    let edge = Edge::with(models, json!({ "ping_interval_s": 1 })).await;
    let call = Call::post("/v1/messages", r#"{"model":"m","stream":true}"#);
    let mut stream = edge.h2().await.send(&call, Ending::WithLast).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    stream.head().await;
    let ping = Piece::Data("event: ping\ndata: {\"type\": \"ping\"}\n\n".into());
    assert_eq!(stream.piece().await, ping);
    turn.write_chunk("event: message_start\ndata: {}\n\n").await;
    assert_eq!(stream.piece().await, Piece::Data("event: message_start\ndata: {}\n\n".into()));
    assert_eq!(stream.piece().await, ping);
    turn.write("0\r\n\r\n").await;
    assert_eq!(stream.piece().await, Piece::End);
}

#[tokio::test]
async fn a_turn_that_a_replica_breaks_off_is_sent_whole_to_another_one() {
    let mut hands = [Hand::start(), Hand::start()];
    let urls = hands.each_ref().map(Hand::url);
    let edge = Edge::serve(json!({ "m": { "replicas": urls } })).await;
    let mut client = edge.h2().await;
    for (size, ending) in [(100, Ending::WithLast), (300_000, Ending::Empty), (300_000, Ending::Trailers)] {
        let body = body(size, false);
        let stream = client.send(&Call::post("/v1/messages", body.clone()), ending).await;
        let at = until("a turn", async || hands.iter_mut().position(Hand::has_turn)).await;
        drop(hands[at].turn().await);
        let mut turn = hands[1 - at].turn().await;
        assert_eq!(turn.body, body);
        turn.answer("{}").await;
        let reply = stream.reply().await;
        assert_eq!((reply.status(), reply.replica()), (200, hands[1 - at].name().as_str()));
        edge.kvpin.until_health("up", |_| true).await;
    }
}

#[tokio::test]
async fn refusals_come_in_the_callers_shape_before_the_body_has_and_leave_the_connection_to_others() {
    let recorder = Recorder::start();
    let models = json!({ "m": { "replicas": [recorder.url()] } });
    let edge = Edge::with(models, json!({ "body_bytes_max": "3MiB", "head_bytes_max": "1KiB" })).await;
    let mut client = edge.h2().await;
    let large = body(2_000_000, false);
    let too_large = body(4_000_000, false);
    let unknown = String::from_utf8(large.clone()).expect("text").replacen(r#""m""#, r#""x""#, 1);
    // Far more in all than the connection's window: what nobody reads must not use it up.
    for round in 0..4 {
        for (call, status, code) in [
            (Call::post("/v1/nothing", large.clone()), 404, "unknown_path"),
            (Call::post("/v1/completions", unknown.clone()), 404, "unknown_model"),
            (Call::post("/v1/completions", too_large.clone()), 413, "body_too_large"),
            (Call::post("/v1/completions", too_large.clone()).chunked(9_999), 413, "body_too_large"),
            (Call::post("/v1/completions", large.clone()).header("x-large", "x".repeat(1100)), 431, "head_too_large"),
            (Call::get("/v1/completions"), 405, "wrong_method"),
        ] {
            let before = recorder.count();
            let reply = client.send(&call, Ending::WithLast).await.reply().await;
            assert_eq!(reply.status(), status, "round {round}: {}", reply.text());
            assert_eq!(reply.json()["error"]["code"], code, "round {round}");
            assert_eq!(recorder.count(), before);
        }
    }
    let (kind, _) = client.call(&Call::post("/v1/messages/nothing", "{}")).await.anthropic_error();
    assert_eq!(kind, "not_found_error");
    let reply = client.call(&Call::post("/v1/completions", large.clone())).await;
    assert_eq!((reply.status(), recorder.last().body == large), (200, true));
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_has_not_begun_its_body() {
    let recorder = Recorder::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut client = edge.h2().await;
    let mut stream = client.begin(&Call::post("/v1/nothing", "{}").chunked(1)).await;
    assert_eq!(stream.head().await.status, 404);
    let mut stream = client.begin(&Call::post("/v1/completions", vec![b'x'; 64 << 20])).await;
    assert_eq!(stream.head().await.status, 413, "by the length that it announces");
}

#[tokio::test]
async fn an_answer_that_comes_while_the_body_is_still_coming_reaches_the_client() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    let mut stream = client.begin(&Call::post("/v1/completions", "").chunked(1).of("early")).await;
    stream.send(br#"{"model":"m","text":""#, false);
    let mut turn = hand.arriving().await;
    turn.answer("early").await;
    assert_eq!(stream.head().await.status, 200);
    assert_eq!(stream.piece().await, Piece::Data("early".into()));
    assert_eq!(stream.piece().await, Piece::End);
    until("the slot is free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_streams_at_a_time_get_their_own_answers_and_more_wait_for_room() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    let call = |number: usize| Call::post("/v1/messages", format!(r#"{{"model":"m","number":{number}}}"#));
    let mut streams = Vec::new();
    let mut turns = Vec::new();
    for number in 0..100 {
        streams.push(client.send(&call(number), Ending::WithLast).await);
        turns.push(hand.turn().await);
    }
    assert_eq!(edge.kvpin.in_flight().await, 100);
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let reply = client.call(&call(100)).await;
        (reply.status(), reply.text())
    });
    // In another order than they came in.
    for mut turn in turns.into_iter().rev() {
        let body = String::from_utf8(turn.body.clone()).expect("text");
        turn.answer(&body).await;
    }
    for (number, stream) in streams.into_iter().enumerate() {
        let reply = stream.reply().await;
        assert_eq!((reply.status(), reply.text()), (200, format!(r#"{{"model":"m","number":{number}}}"#)));
    }
    hand.turn().await.answer("the last").await;
    assert_eq!(waiting.join_next().await.expect("one waits").expect("no panic"), (200, "the last".to_owned()));
}

#[tokio::test]
async fn http_2_is_spoken_over_tls_only() {
    let recorder = Recorder::start();
    let kvpin = crate::support::kvpin::Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut wire = kvpin.connect().await;
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let refused = wire.reply("PRI").await;
    assert!(refused.is_none_or(|reply| reply.status() >= 400));
}

#[tokio::test]
async fn a_body_that_is_not_as_long_as_it_says_reaches_no_replica_as_a_whole_one() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client: Client = edge.h2().await;
    for body in [&br#"{"model":"m"}"#[..], br#"{"model":"m"}                                   "#] {
        let call = Call::post("/v1/completions", vec![b' '; 20]);
        let mut stream = client.begin(&call).await;
        stream.send(body, true);
        // Too short, or too long: the protocol has the stream reset.
        assert_eq!(stream.error().await.reason(), Some(h2::Reason::PROTOCOL_ERROR));
    }
    while hand.has_turn() {
        let mut turn = hand.arriving().await;
        let length = turn.rest().await.len();
        assert!(length < 20, "a whole body of {length} bytes");
    }
    until("the slot is free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
}
