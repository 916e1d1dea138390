//! SIGTERM: what runs ends in peace, and then the process does.

use serde_json::json;
use tokio::net::TcpStream;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::hand::{Hand, HandTurn, STREAM_HEAD};
use crate::support::kvpin::{Kvpin, config};
use crate::support::until;

/// A kvpin with one stream in the middle of it.
async fn streaming(grace_s: u32) -> (Kvpin, HandTurn, Wire, Hand) {
    let mut hand = Hand::start();
    let mut config = config(json!({ "m": { "replicas": [hand.url()] } }));
    config["shutdown_grace_s"] = json!(grace_s);
    let kvpin = Kvpin::start(&config).await;
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post("/v1/messages", r#"{"model":"m"}"#).bytes()).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk("data: 1\n\n").await;
    wire.head("POST").await;
    assert_eq!(wire.piece().await, Piece::Data("data: 1\n\n".into()));
    (kvpin, turn, wire, hand)
}

async fn until_refused(kvpin: &Kvpin) {
    until("new connections are refused", async || TcpStream::connect(kvpin.address).await.err()).await;
}

#[tokio::test]
async fn a_stream_ends_in_peace_while_new_connections_are_refused() {
    let (mut kvpin, mut turn, mut wire, _hand) = streaming(60).await;
    kvpin.signal("TERM");
    until_refused(&kvpin).await;
    turn.write_chunk("data: 2\n\n").await;
    assert_eq!(wire.piece().await, Piece::Data("data: 2\n\n".into()));
    turn.write("0\r\n\r\n").await;
    assert_eq!(wire.piece().await, Piece::End);
    assert_eq!(kvpin.exit().await.code(), Some(0));
    assert!(kvpin.log().contains("every request has ended"));
}

#[tokio::test]
async fn a_request_whose_body_is_still_coming_is_served() {
    let mut hand = Hand::start();
    let mut kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let call = Call::post("/v1/messages", r#"{"text":"half of it","model":"m"}"#);
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    wire.send(&call.body[..9]).await;
    until("kvpin has the head", async || (kvpin.metric("kvpin_open_requests").await == 1.0).then_some(())).await;
    kvpin.signal("TERM");
    until_refused(&kvpin).await;
    wire.send(&call.body[9..]).await;
    let mut turn = hand.turn().await;
    assert_eq!(turn.body, call.body);
    turn.answer("{}").await;
    assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(200));
    assert!(wire.ends().await);
    assert_eq!(kvpin.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_cuts_what_still_runs() {
    let (mut kvpin, _turn, mut wire, _hand) = streaming(60).await;
    kvpin.signal("TERM");
    until_refused(&kvpin).await;
    kvpin.signal("TERM");
    assert_eq!(wire.piece().await, Piece::Cut);
    assert_eq!(kvpin.exit().await.code(), Some(0));
}

#[tokio::test]
async fn the_end_of_the_grace_period_cuts_what_still_runs() {
    let (mut kvpin, _turn, mut wire, _hand) = streaming(1).await;
    kvpin.signal("TERM");
    assert_eq!(wire.piece().await, Piece::Cut);
    assert_eq!(kvpin.exit().await.code(), Some(0));
    assert!(kvpin.log().contains("1 requests were still open"), "{}", kvpin.log());
}

#[tokio::test]
async fn without_open_requests_it_ends_at_once_even_with_an_idle_connection() {
    for signal in ["TERM", "INT"] {
        let hand = Hand::start();
        let mut kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
        let mut idle = kvpin.connect().await;
        assert_eq!(idle.call(&Call::get("/health")).await.status(), 200);
        kvpin.signal(signal);
        assert_eq!(kvpin.exit().await.code(), Some(0));
        assert!(idle.ends().await);
    }
}
