//! A response flows as the replica writes it. In lock step: the replica writes a piece only when the client has the one before.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::hand::{Hand, HandTurn, STREAM_HEAD};
use crate::support::kvpin::Kvpin;

/// A turn that has reached a replica, and the client that waits.
async fn begun() -> (Hand, Kvpin, HandTurn, Wire) {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post("/v1/chat/completions", r#"{"model":"m","stream":true}"#).bytes()).await;
    let turn = hand.turn().await;
    (hand, kvpin, turn, wire)
}

/// An event as vLLM writes one.
fn event(number: usize) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\" token{number}\"}}}}]}}\n\n")
}

#[tokio::test]
async fn a_head_reaches_the_client_with_the_first_event_and_before_the_second_exists() {
    let (_hand, _kvpin, mut turn, mut wire) = begun().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk(event(0)).await;
    let head = wire.head("POST").await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(wire.piece().await, Piece::Data(event(0).into()));
    turn.write("0\r\n\r\n").await;
    assert_eq!(wire.piece().await, Piece::End);
}

#[tokio::test]
async fn the_head_of_a_response_that_is_no_stream_reaches_the_client_before_any_of_the_body_exists() {
    let (_hand, _kvpin, mut turn, mut wire) = begun().await;
    turn.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n").await;
    assert_eq!(wire.head("POST").await.status, 200);
    turn.write("{}").await;
    assert_eq!(wire.piece().await, Piece::Data("{}".into()));
}

#[tokio::test]
async fn each_event_of_a_stream_reaches_the_client_before_the_next_one_exists() {
    let (_hand, kvpin, mut turn, mut wire) = begun().await;
    turn.write(STREAM_HEAD).await;
    for number in 0..200 {
        turn.write_chunk(event(number)).await;
        if number == 0 {
            wire.head("POST").await;
        }
        assert_eq!(wire.piece().await, Piece::Data(event(number).into()), "as one chunk, unchanged");
    }
    assert_eq!(kvpin.in_flight().await, 1, "the slot is held until the body's end");
    turn.write("0\r\n\r\n").await;
    assert_eq!(wire.piece().await, Piece::End);
}

#[tokio::test]
async fn pieces_of_a_response_with_a_length_reach_the_client_one_by_one() {
    let (_hand, _kvpin, mut turn, mut wire) = begun().await;
    let length: usize = (0..20).map(|number| event(number).len()).sum();
    turn.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
    wire.head("POST").await;
    for number in 0..20 {
        turn.write(event(number)).await;
        assert_eq!(wire.piece().await, Piece::Data(event(number).into()));
    }
    assert_eq!(wire.piece().await, Piece::End);
}

#[tokio::test]
async fn pieces_of_a_response_that_ends_with_its_connection_reach_the_client_one_by_one() {
    let (_hand, _kvpin, mut turn, mut wire) = begun().await;
    turn.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await;
    wire.head("POST").await;
    for number in 0..20 {
        turn.write(event(number)).await;
        assert_eq!(wire.piece().await, Piece::Data(event(number).into()));
    }
    drop(turn);
    assert_eq!(wire.piece().await, Piece::End);
}

#[tokio::test]
async fn an_event_in_pieces_of_one_byte_arrives_in_order_and_whole() {
    let (_hand, _kvpin, mut turn, mut wire) = begun().await;
    turn.write(STREAM_HEAD).await;
    for byte in event(1).bytes() {
        turn.write_chunk([byte]).await;
    }
    turn.write("0\r\n\r\n").await;
    let reply = wire.reply("POST").await.expect("a response");
    assert!(reply.is_whole);
    assert_eq!(reply.text(), event(1));
}
