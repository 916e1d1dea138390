//! A stream whose engine is silent is kept alive by pings; nothing else is put into it, and nothing made up ends it.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::hand::{HandTurn, STREAM_HEAD};
use crate::support::stage::Stage;
use crate::support::until;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const COMMENT: &str = ": kvpin\n\n";
const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";
const CONTENT: &str = "data: {\"choices\":[]}\n\n";

/// A stream whose head has come.
async fn stream(stage: &mut Stage, path: &str) -> (Wire, HandTurn) {
    let wire = stage.send(&Call::post(path, r#"{"model":"m","stream":true}"#)).await;
    let (_, mut turn) = stage.arrives().await;
    turn.write(STREAM_HEAD).await;
    (wire, turn)
}

/// Pings a second after each event.
async fn pinging(replicas: usize) -> Stage {
    Stage::with(replicas, json!({ "ping_interval_s": 1 })).await
}

fn data(text: &str) -> Piece {
    Piece::Data(text.to_owned().into())
}

/// All that comes until the end, without pings; and whether there was a proper end.
async fn rest_without(wire: &mut Wire, ping: &str) -> (String, bool) {
    let mut text = String::new();
    loop {
        match wire.piece().await {
            Piece::Data(data) => text.push_str(std::str::from_utf8(&data).expect("text")),
            Piece::End => return (text.replace(ping, ""), true),
            Piece::Cut => return (text.replace(ping, ""), false),
        }
    }
}

#[tokio::test]
async fn a_silent_prefill_is_pinged_in_the_clients_dialect_and_a_ping_is_no_first_byte() {
    for (path, ping, content) in [
        (CHAT, COMMENT, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"),
        (
            MESSAGES,
            PING,
            "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
        ),
        ("/v1/responses", COMMENT, "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n"),
    ] {
        let mut stage = pinging(1).await;
        let (mut wire, mut turn) = stream(&mut stage, path).await;
        assert_eq!(wire.head("POST").await.status, 200);
        for _ in 0..2 {
            assert_eq!(wire.piece().await, data(ping));
        }
        assert_eq!(stage.kvpin.metric("kvpin_time_to_first_byte_seconds_count").await, 0.0);
        turn.write_chunk(content).await;
        while wire.piece().await != data(content) {}
        assert_eq!(stage.kvpin.metric("kvpin_time_to_first_byte_seconds_count").await, 1.0);
        assert_eq!(wire.piece().await, data(ping), "a stream that falls silent later is pinged too");
        turn.write("0\r\n\r\n").await;
        assert_eq!(rest_without(&mut wire, ping).await, (String::new(), true));
        assert!(stage.kvpin.metric("kvpin_pings_total").await >= 3.0);
    }
}

#[tokio::test]
async fn no_ping_goes_into_an_event() {
    let mut stage = pinging(1).await;
    let (mut clock, mut pinged) = stream(&mut stage, CHAT).await;
    let (mut wire, mut turn) = stream(&mut stage, CHAT).await;
    for stream in [&mut pinged, &mut turn] {
        stream.write_chunk(CONTENT).await;
    }
    for stream in [&mut clock, &mut wire] {
        assert_eq!(stream.head("POST").await.status, 200);
        assert_eq!(stream.piece().await, data(CONTENT));
    }
    // What comes together goes on together, so this comes when the rest has gone.
    turn.write_chunk("data: {\"half\":").await;
    assert_eq!(wire.piece().await, data("data: {\"half\":"));
    for _ in 0..3 {
        assert_eq!(clock.piece().await, data(COMMENT), "meanwhile, another stream is pinged");
    }
    turn.write_chunk("1}\n\n").await;
    assert_eq!(wire.piece().await, data("1}\n\n"), "nothing came between");
    assert_eq!(wire.piece().await, data(COMMENT));
}

#[tokio::test]
async fn an_engine_that_keeps_its_streams_alive_itself_is_left_to_do_so() {
    let mut stage = pinging(1).await;
    let (mut clock, _pinged) = stream(&mut stage, CHAT).await;
    let (mut wire, mut turn) = stream(&mut stage, CHAT).await;
    turn.write_chunk(": keep-alive\n\n").await;
    clock.head("POST").await;
    for _ in 0..3 {
        assert_eq!(clock.piece().await, data(COMMENT));
    }
    assert_eq!(wire.head("POST").await.status, 200);
    turn.write_chunk(": keep-alive\n\n").await;
    turn.write_chunk(CONTENT).await;
    turn.write("0\r\n\r\n").await;
    let expected = format!(": keep-alive\n\n: keep-alive\n\n{CONTENT}");
    assert_eq!(rest_without(&mut wire, "-").await, (expected.replace('-', ""), true));
}

#[tokio::test]
async fn with_pings_off_nothing_is_put_into_a_stream() {
    let mut pinging = pinging(1).await;
    let mut off = Stage::with(1, json!({ "ping_interval_s": 0 })).await;
    let (mut clock, _pinged) = stream(&mut pinging, MESSAGES).await;
    let (mut wire, mut turn) = stream(&mut off, MESSAGES).await;
    turn.write_chunk(CONTENT).await;
    clock.head("POST").await;
    for _ in 0..3 {
        assert_eq!(clock.piece().await, data(PING));
    }
    turn.write_chunk(CONTENT).await;
    turn.write("0\r\n\r\n").await;
    wire.head("POST").await;
    assert_eq!(rest_without(&mut wire, "nothing").await, (CONTENT.repeat(2), true));
    assert_eq!(off.kvpin.metric("kvpin_pings_total").await, 0.0);
}

#[tokio::test]
async fn a_response_that_is_no_stream_is_never_pinged() {
    let mut stage = pinging(1).await;
    let (mut clock, _pinged) = stream(&mut stage, CHAT).await;
    let mut wire = stage.kvpin.connect().await;
    wire.send(&Call::post(CHAT, r#"{"model":"m"}"#).bytes()).await;
    let (_, mut turn) = stage.arrives().await;
    turn.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    assert_eq!(wire.head("POST").await.status, 200);
    clock.head("POST").await;
    for _ in 0..3 {
        assert_eq!(clock.piece().await, data(COMMENT));
    }
    turn.write_chunk("{}").await;
    assert_eq!(wire.piece().await, data("{}"));
}

#[tokio::test]
async fn a_replica_that_dies_after_pings_alone_is_replaced_within_the_same_response() {
    for (path, ping) in [(CHAT, COMMENT), (MESSAGES, PING)] {
        let mut stage = pinging(2).await;
        let (mut wire, first) = stream(&mut stage, path).await;
        assert_eq!(wire.head("POST").await.status, 200);
        assert_eq!(wire.piece().await, data(ping));
        drop(first);
        let (_, mut second) = stage.arrives().await;
        assert_eq!(wire.piece().await, data(ping), "pings go on while the other one is silent");
        second.write(STREAM_HEAD).await;
        second.write_chunk(CONTENT).await;
        second.write("0\r\n\r\n").await;
        assert_eq!(rest_without(&mut wire, ping).await, (CONTENT.to_owned(), true));
        assert_eq!(stage.kvpin.metric("kvpin_retried_turns_total{reason=\"broke_off\"}").await, 1.0);
    }
}

#[tokio::test]
async fn with_no_replica_left_after_pings_the_failure_is_an_event_that_clients_understand() {
    for path in [CHAT, MESSAGES] {
        let ping = if path == MESSAGES { PING } else { COMMENT };
        for last_words in
            ["", "HTTP/1.1 503 Full\r\nContent-Length: 34\r\n\r\n{\"error\":{\"message\":\"full of it\"}}"]
        {
            let mut stage = pinging(2).await;
            let (mut wire, first) = stream(&mut stage, path).await;
            assert_eq!(wire.head("POST").await.status, 200);
            assert_eq!(wire.piece().await, data(ping));
            drop(first);
            let (_, mut second) = stage.arrives().await;
            second.write(last_words).await;
            drop(second);
            let (text, is_whole) = rest_without(&mut wire, ping).await;
            assert!(is_whole, "{text}");
            let message = if last_words.is_empty() { "broke off before it answered" } else { "full of it" };
            assert!(text.contains(message), "{text}");
            if path == MESSAGES {
                assert!(text.starts_with("event: error\ndata: {"), "{text}");
                assert!(text.contains(r#""type":"overloaded_error""#) && text.ends_with("}\n\n"), "{text}");
            } else {
                assert!(text.starts_with(r#"data: {"error":{"#) && text.ends_with("}\n\ndata: [DONE]\n\n"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_after_content_and_pings_is_cut_for_the_client() {
    let mut stage = pinging(2).await;
    let (mut wire, mut turn) = stream(&mut stage, MESSAGES).await;
    turn.write_chunk(CONTENT).await;
    assert_eq!(wire.head("POST").await.status, 200);
    assert_eq!(wire.piece().await, data(CONTENT));
    assert_eq!(wire.piece().await, data(PING));
    drop(turn);
    assert_eq!(rest_without(&mut wire, PING).await, (String::new(), false));
}

#[tokio::test]
async fn a_client_that_leaves_between_pings_frees_its_slot() {
    let mut stage = pinging(1).await;
    let (mut wire, mut turn) = stream(&mut stage, CHAT).await;
    assert_eq!(wire.head("POST").await.status, 200);
    assert_eq!(wire.piece().await, data(COMMENT));
    drop(wire);
    turn.rest().await;
    until("the slot is free", async || (stage.kvpin.in_flight().await == 0).then_some(())).await;
}
