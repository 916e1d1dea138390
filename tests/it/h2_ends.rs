//! HTTP/2: how requests, connections and the process end. A stream that its client gives up stops its engine at once, and
//! whoever else is on the connection notices nothing.

use h2::Reason;
use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::call::Call;
use crate::support::client::Piece;
use crate::support::edge::Edge;
use crate::support::h2::{Client, Ending, Stream};
use crate::support::hand::{Hand, HandTurn, STREAM_HEAD};
use crate::support::kvpin::replicas;
use crate::support::replicas::{MODEL, busy, start, steady, streamed, stuck};
use crate::support::until;

async fn in_front_of(replica: &ReplicaServer) -> Edge {
    Edge::serve(json!({ (MODEL): { "replicas": [format!("http://{}", replica.address())] } })).await
}

fn stream(id: &str) -> Call {
    Call::post("/v1/chat/completions", streamed("a long story", 20_000).to_string()).of(id)
}

async fn until_busy(replica: &ReplicaServer, count: usize) {
    until("the engine has so many requests", async || (busy(replica) == count).then_some(())).await;
}

/// The engine has stopped, the slots are free, and `count` turns were abandoned.
async fn assert_freed(edge: &Edge, replica: &ReplicaServer, count: u64) {
    until_busy(replica, 0).await;
    until("no turn is in flight", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
    let status = edge.kvpin.status().await;
    let abandoned: Vec<_> = replicas(&status).map(|replica| replica["outcomes"]["abandoned"].clone()).collect();
    assert_eq!(abandoned, [count]);
    until("nothing is open", async || (edge.kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
    assert_eq!(edge.kvpin.metric("kvpin_panics_total").await, 0.0);
}

#[tokio::test]
async fn a_stream_that_is_reset_during_a_silent_prefill_stops_the_engine() {
    let replica = start(stuck()).await;
    let edge = in_front_of(&replica).await;
    let mut client = edge.h2().await;
    let whole = |text: String| json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }] });
    for (count, (body, reason)) in [
        (streamed("hello", 10), Reason::CANCEL),
        (whole("hello".to_owned()), Reason::CANCEL),
        (whole("x".repeat(100_000)), Reason::NO_ERROR),
    ]
    .into_iter()
    .enumerate()
    {
        let call = Call::post("/v1/chat/completions", body.to_string()).of("leaver");
        let mut stream = client.send(&call, Ending::Empty).await;
        until_busy(&replica, 1).await;
        assert_eq!(edge.kvpin.in_flight().await, 1);
        stream.reset(reason);
        assert_freed(&edge, &replica, count as u64 + 1).await;
    }
    assert_eq!(client.call(&Call::get("/health")).await.status(), 200, "the connection is none the worse");
}

#[tokio::test]
async fn a_stream_that_is_reset_in_its_middle_stops_the_engine_and_harms_no_other() {
    let replica = start(steady()).await;
    let edge = in_front_of(&replica).await;
    let mut client = edge.h2().await;
    let mut staying = client.send(&stream("stayer"), Ending::WithLast).await;
    let mut leaving = client.send(&stream("leaver"), Ending::WithLast).await;
    for stream in [&mut staying, &mut leaving] {
        assert_eq!(stream.head().await.status, 200);
        assert!(matches!(stream.piece().await, Piece::Data(_)));
    }
    until_busy(&replica, 2).await;
    leaving.reset(Reason::CANCEL);
    until_busy(&replica, 1).await;
    until("one of two is in flight", async || (edge.kvpin.in_flight().await == 1).then_some(())).await;
    for _ in 0..50 {
        assert!(matches!(staying.piece().await, Piece::Data(_)));
    }
    assert_eq!(busy(&replica), 1);
}

#[tokio::test]
async fn a_connection_that_is_lost_stops_the_engines_of_all_its_streams() {
    for manner in [stuck(), steady()] {
        let replica = start(manner).await;
        let edge = in_front_of(&replica).await;
        let (mut leaver, mut stayer) = (edge.h2().await, edge.h2().await);
        let mut streams = Vec::new();
        for number in 0..20 {
            streams.push(leaver.send(&stream(&format!("leaver-{number}")), Ending::WithLast).await);
        }
        let _other = stayer.send(&stream("stayer"), Ending::WithLast).await;
        until_busy(&replica, 21).await;
        leaver.leave().await;
        until_busy(&replica, 1).await;
        until("one is in flight", async || (edge.kvpin.in_flight().await == 1).then_some(())).await;
        drop(stayer);
        drop(_other);
        assert_freed(&edge, &replica, 21).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind() {
    let replica = start(steady()).await;
    let edge = in_front_of(&replica).await;
    let mut client = edge.h2().await;
    for bytes in [1_000, 200_000] {
        for model_first in [true, false] {
            let text = "x".repeat(bytes);
            let body = if model_first {
                format!(r#"{{"model":"{MODEL}","text":"{text}"#)
            } else {
                format!(r#"{{"text":"{text}"#)
            };
            let mut stream = client.begin(&Call::post("/v1/chat/completions", "").chunked(1).of("leaver")).await;
            stream.send(body.as_bytes(), false);
            until("kvpin has it", async || (edge.kvpin.metric("kvpin_open_requests").await == 1.0).then_some(())).await;
            stream.reset(Reason::CANCEL);
            until("nothing is open", async || {
                let open = edge.kvpin.metric("kvpin_open_requests").await;
                (open == 0.0 && edge.kvpin.in_flight().await == 0).then_some(())
            })
            .await;
        }
    }
    assert_eq!(busy(&replica), 0);
    assert_eq!(edge.kvpin.metric("kvpin_panics_total").await, 0.0);
    assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
}

#[tokio::test]
async fn a_client_that_leaves_while_nobody_takes_its_body_is_noticed() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    // More than sockets and windows hold, to a replica that doesn't read.
    let mut stream = client.begin(&Call::post("/v1/completions", vec![b' '; 30 << 20]).of("leaver")).await;
    stream.send(br#"{"model":"m","text":""#, false);
    let turn = hand.arriving().await;
    stream.send(&vec![b'x'; 29 << 20], false);
    until("bytes are under way", async || {
        (edge.kvpin.metric("kvpin_request_held_bytes").await > 1_000_000.0).then_some(())
    })
    .await;
    stream.reset(Reason::CANCEL);
    until("the slot is free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
    drop(turn);
}

#[tokio::test]
async fn a_response_that_a_replica_breaks_off_is_a_broken_stream_and_no_end() {
    let mut hand = Hand::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    let mut other = client.send(&Call::post("/v1/messages", r#"{"model":"m"}"#), Ending::WithLast).await;
    let mut staying = hand.turn().await;
    for begun in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it".to_owned(),
        format!("{STREAM_HEAD}a\r\ndata: 12\n\n\r\n"),
    ] {
        let mut stream = client.send(&Call::post("/v1/messages", r#"{"model":"m"}"#), Ending::WithLast).await;
        let mut turn = hand.turn().await;
        turn.write(&begun).await;
        assert_eq!(stream.head().await.status, 200);
        assert!(matches!(stream.piece().await, Piece::Data(_)));
        drop(turn);
        assert!(stream.error().await.is_reset(), "{begun:?}");
    }
    staying.answer("{}").await;
    assert_eq!(other.head().await.status, 200);
    assert_eq!(other.piece().await, Piece::Data("{}".into()));
}

/// A kvpin with a stream in its middle.
async fn streaming(change: Value) -> (Edge, HandTurn, Client, Stream, Hand) {
    let mut hand = Hand::start();
    let models = json!({ "m": { "replicas": [hand.url()] } });
    let edge = Edge::launch(models, |config| {
        for (key, value) in change.as_object().expect("an object") {
            config[key] = value.clone();
        }
    })
    .await;
    edge.kvpin.until_health("up", |_| true).await;
    let mut client = edge.h2().await;
    let mut stream = client.send(&Call::post("/v1/messages", r#"{"model":"m"}"#), Ending::WithLast).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk("data: 1\n\n").await;
    stream.head().await;
    assert_eq!(stream.piece().await, Piece::Data("data: 1\n\n".into()));
    (edge, turn, client, stream, hand)
}

async fn until_refused(edge: &Edge) {
    until("new connections are refused", async || TcpStream::connect(edge.address()).await.err()).await;
}

#[tokio::test]
async fn a_stop_says_goodbye_and_lets_streams_end() {
    let (mut edge, mut turn, mut client, mut stream, _hand) = streaming(json!({})).await;
    edge.kvpin.signal("TERM");
    until_refused(&edge).await;
    until("no more streams are taken", async || (!client.takes_more().await).then_some(())).await;
    turn.write_chunk("data: 2\n\n").await;
    assert_eq!(stream.piece().await, Piece::Data("data: 2\n\n".into()));
    turn.write("0\r\n\r\n").await;
    assert_eq!(stream.piece().await, Piece::End);
    drop(stream);
    assert_eq!(client.ended().await, None);
    assert_eq!(edge.kvpin.exit().await.code(), Some(0));
    assert!(edge.kvpin.log().contains("every request has ended"));
}

#[tokio::test]
async fn a_stop_waits_until_a_slow_client_has_all_of_its_response() {
    let mut hand = Hand::start();
    let mut edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    // Room for everything, and a client that doesn't read: more than its socket holds is in kvpin's hands then, which has
    // nothing more to ask the replica.
    let mut settings = h2::client::Builder::new();
    settings.initial_connection_window_size(100 << 20);
    let mut client = Client::with(edge.address(), edge.authority.client(&["h2"]), settings).await;
    let (mut streams, mut turns) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        streams.push(client.send(&Call::post("/v1/messages", r#"{"model":"m"}"#), Ending::WithLast).await);
        turns.push(hand.turn().await);
    }
    let go_on = client.pause().await;
    let body = "x".repeat(60_000);
    for turn in &mut turns {
        turn.answer(&body).await;
    }
    until("the slots are free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
    edge.kvpin.signal("TERM");
    until_refused(&edge).await;
    edge.kvpin.until_logged("shutting down").await;
    // Nothing can be waited for that would show that it doesn't end; it looks every 20 ms.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let client = go_on();
    for stream in streams {
        let reply = stream.reply().await;
        assert_eq!((reply.is_whole, reply.text().len()), (true, body.len()));
    }
    assert_eq!(client.ended().await, None);
    assert_eq!(edge.kvpin.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_stop_takes_no_time_where_connections_are_idle() {
    let hand = Hand::start();
    let mut edge = Edge::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut client = edge.h2().await;
    assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
    edge.kvpin.signal("TERM");
    assert_eq!(client.ended().await, None);
    assert_eq!(edge.kvpin.exit().await.code(), Some(0));
}

#[tokio::test]
async fn the_end_of_the_grace_period_cuts_what_still_runs() {
    let (mut edge, _turn, _client, mut stream, _hand) = streaming(json!({ "shutdown_grace_s": 1 })).await;
    edge.kvpin.signal("TERM");
    assert_eq!(stream.piece().await, Piece::Cut);
    assert_eq!(edge.kvpin.exit().await.code(), Some(0));
    assert!(edge.kvpin.log().contains("1 requests were still open"), "{}", edge.kvpin.log());
}
