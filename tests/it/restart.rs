//! An engine that was restarted has lost every history: its conversations are placed anew, and it warms up slowly.

use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use serde_json::json;

use crate::support::call::Call;
use crate::support::kvpin::{Kvpin, config};
use crate::support::replicas::{MODEL, chat, fast, start_many, urls};
use crate::support::until;

const CONVERSATIONS: usize = 24;

fn turn(number: usize) -> Call {
    Call::post("/v1/chat/completions", chat("go on").to_string()).of(&format!("conversation-{number}"))
}

/// Ends a server and starts it on the same port.
async fn restarted(server: ReplicaServer) -> ReplicaServer {
    let listen = server.address();
    server.shutdown().await;
    until("the port can be had again", async || ReplicaServer::start(ReplicaOptions { listen, ..fast() }).await.ok())
        .await
}

#[tokio::test]
async fn conversations_of_a_restarted_replica_are_placed_anew_with_their_next_turn() {
    let mut servers = start_many(2, fast()).await;
    let kvpin = Kvpin::start(&config(json!({ (MODEL): { "replicas": urls(&servers) } }))).await;
    let mut homes = Vec::new();
    for number in 0..CONVERSATIONS {
        homes.push(kvpin.call(&turn(number)).await.replica().to_owned());
    }
    let restarting = servers.remove(0);
    let name = restarting.address().to_string();
    let _restarted = restarted(restarting).await;
    let before = until("the restart is seen", async || {
        let replica = kvpin.replica(&name).await;
        (replica["restarts"] == 1 && replica["health"] == "up").then_some(replica)
    })
    .await;
    let lost = homes.iter().filter(|home| **home == name).count();
    assert_eq!((&before["conversations"]["lost"], &before["conversations"]["active"]), (&json!(lost), &json!(0)));
    for (number, home) in homes.iter().enumerate() {
        let decision = if *home == name { "placed" } else { "sticky" };
        let reply = kvpin.call(&turn(number)).await;
        assert_eq!((reply.status(), reply.decision()), (200, decision), "conversation {number}");
        assert_eq!(kvpin.call(&turn(number)).await.decision(), "sticky");
    }
    assert_eq!(kvpin.metric("kvpin_replica_restarts_total").await, 1.0);
    assert_eq!(kvpin.replica(&name).await["conversations"]["lost"], 0);
    let line = kvpin.until_logged("was restarted").await;
    assert!(line.contains(&format!("replica={name}")), "{line}");
}
