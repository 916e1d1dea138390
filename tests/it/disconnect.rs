//! A client that leaves frees its slot and stops its engine at once.

use std::time::Duration;

use kvpin::sim::server::ReplicaServer;
use serde_json::json;

use crate::support::call::Call;
use crate::support::client::{Piece, Wire};
use crate::support::kvpin::{Kvpin, replicas};
use crate::support::replicas::{MODEL, busy, start_many, steady, streamed, stuck, urls};
use crate::support::{until, until_within};

/// What the issue promises.
const A_SECOND: Duration = Duration::from_secs(1);

async fn in_front_of(replicas: &[ReplicaServer]) -> Kvpin {
    Kvpin::serve(json!({ (MODEL): { "replicas": urls(replicas) } })).await
}

fn stream(id: &str) -> Call {
    Call::post("/v1/chat/completions", streamed("a long story", 20_000).to_string()).of(id)
}

async fn until_busy(replica: &ReplicaServer, count: usize) {
    until("the engine has the request", async || (busy(replica) == count).then_some(())).await;
}

/// The engine stops within a second, and the slot is free.
async fn assert_freed(kvpin: &Kvpin, replica: &ReplicaServer) {
    until_within(A_SECOND, "the engine is idle", async || (busy(replica) == 0).then_some(())).await;
    until_within(A_SECOND, "no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    let status = kvpin.status().await;
    assert_eq!(replicas(&status).map(|replica| replica["outcomes"]["abandoned"].clone()).collect::<Vec<_>>(), [1]);
    until_within(A_SECOND, "nothing is open", async || {
        (kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_during_a_silent_prefill_stops_the_engine() {
    for body in [
        streamed("hello", 10),
        json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}),
        json!({"model": MODEL, "messages": [{"role": "user", "content": "x".repeat(100_000)}], "max_tokens": 10}),
    ] {
        let server = start_many(1, stuck()).await;
        let kvpin = in_front_of(&server).await;
        let mut wire = kvpin.connect().await;
        wire.send(&Call::post("/v1/chat/completions", body.to_string()).of("leaver").bytes()).await;
        until_busy(&server[0], 1).await;
        assert_eq!(kvpin.in_flight().await, 1);
        drop(wire);
        assert_freed(&kvpin, &server[0]).await;
    }
}

#[tokio::test]
async fn a_client_that_closes_its_half_has_left_as_well() {
    let server = start_many(1, stuck()).await;
    let kvpin = in_front_of(&server).await;
    let mut wire = kvpin.connect().await;
    wire.send(&stream("leaver").bytes()).await;
    until_busy(&server[0], 1).await;
    wire.half_close().await;
    assert_freed(&kvpin, &server[0]).await;
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_stops_the_engine_and_harms_no_other_stream() {
    let server = start_many(1, steady()).await;
    let kvpin = in_front_of(&server).await;
    let mut staying = kvpin.connect().await;
    let mut leaving = kvpin.connect().await;
    for (wire, id) in [(&mut staying, "stayer"), (&mut leaving, "leaver")] {
        assert_eq!(wire.begin(&stream(id)).await.status, 200);
        assert!(matches!(wire.piece().await, Piece::Data(_)));
    }
    until_busy(&server[0], 2).await;
    drop(leaving);
    until_within(A_SECOND, "one of two runs", async || (busy(&server[0]) == 1).then_some(())).await;
    until_within(A_SECOND, "one of two is in flight", async || (kvpin.in_flight().await == 1).then_some(())).await;
    assert_goes_on(&mut staying, 50).await;
    assert_eq!(busy(&server[0]), 1);
}

async fn assert_goes_on(wire: &mut Wire, pieces: usize) {
    for _ in 0..pieces {
        assert!(matches!(wire.piece().await, Piece::Data(_)));
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind() {
    let server = start_many(1, steady()).await;
    let kvpin = in_front_of(&server).await;
    for bytes in [1_000, 200_000] {
        for front in [true, false] {
            let text = "x".repeat(bytes);
            let body = if front {
                format!(r#"{{"model":"{MODEL}","text":"{text}"}}"#)
            } else {
                format!(r#"{{"text":"{text}","model":"{MODEL}"}}"#)
            };
            let call = Call::post("/v1/chat/completions", body).of("leaver");
            let mut wire = kvpin.connect().await;
            wire.send(&call.head_bytes()).await;
            wire.send(&call.body[..bytes / 2]).await;
            until("kvpin has it", async || (kvpin.metric("kvpin_open_requests").await == 1.0).then_some(())).await;
            drop(wire);
            until_within(A_SECOND, "nothing is open", async || {
                let open = kvpin.metric("kvpin_open_requests").await;
                (open == 0.0 && kvpin.in_flight().await == 0).then_some(())
            })
            .await;
        }
    }
    assert_eq!(busy(&server[0]), 0);
    assert_eq!(kvpin.metric("kvpin_panics_total").await, 0.0);
}
