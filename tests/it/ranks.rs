//! The ranks of one server are replicas of their own.

use std::collections::BTreeMap;

use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::Reply;
use crate::support::kvpin::Kvpin;
use crate::support::replicas::{MODEL, chat, fast, start, turns};

async fn ranked_server(ranks: usize) -> ReplicaServer {
    start(ReplicaOptions { data_parallel_size: ranks, ..fast() }).await
}

fn ranked(server: &ReplicaServer, ranks: usize) -> Value {
    json!({ "url": format!("http://{}", server.address()), "data_parallel_size": ranks, "name": "ranked" })
}

fn turn(id: &str) -> Call {
    Call::post("/v1/chat/completions", chat("hello").to_string()).of(id)
}

/// The rank in `ranked/RANK`.
fn rank_of(reply: &Reply) -> usize {
    let rank = reply.replica().strip_prefix("ranked/").unwrap_or_else(|| panic!("a rank, not {}", reply.replica()));
    rank.parse().expect("a number")
}

#[tokio::test]
async fn conversations_spread_over_ranks_and_each_turn_arrives_at_its_rank() {
    let server = ranked_server(4).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": [ranked(&server, 4)] } })).await;
    let mut homes: BTreeMap<usize, usize> = BTreeMap::new();
    for conversation in 0..8 {
        let id = format!("conversation-{conversation}");
        let home = rank_of(&kvpin.call(&turn(&id)).await);
        *homes.entry(home).or_default() += 1;
        for path in ["/v1/chat/completions", "/v1/messages"] {
            let reply = kvpin.call(&Call::post(path, chat("hello").to_string()).of(&id)).await;
            assert_eq!((reply.status(), reply.decision()), (200, "sticky"));
            let arrived = turns(&server).pop().expect("it arrived");
            assert_eq!((rank_of(&reply), arrived.rank), (home, Some(home)));
            let header = arrived.headers.iter().find(|(name, _)| name == "x-data-parallel-rank");
            assert_eq!(header.map(|(_, value)| value.clone()), Some(home.to_string()));
        }
    }
    assert_eq!(homes, BTreeMap::from([(0, 2), (1, 2), (2, 2), (3, 2)]));
}

#[tokio::test]
async fn a_client_may_name_a_rank_and_one_that_does_not_exist_is_refused() {
    let server = ranked_server(2).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": [ranked(&server, 2)] } })).await;
    for rank in [1, 0, 1] {
        let reply = kvpin.call(&turn("named").header("X-data-parallel-rank", rank.to_string())).await;
        assert_eq!((reply.status(), reply.decision(), rank_of(&reply)), (200, "client_pinned", rank));
        assert_eq!(turns(&server).pop().and_then(|arrival| arrival.rank), Some(rank));
    }
    for rank in ["2", "-1", "one", ""] {
        let reply = kvpin.call(&turn("named").header("X-data-parallel-rank", rank)).await;
        assert_eq!(reply.status(), 400, "{rank:?}");
        let message = reply.openai_error();
        assert!(message.contains("ranked/0, ranked/1"), "{message}");
    }
    let reply = kvpin.call(&turn("named").header("x-kvpin-replica", "ranked/1")).await;
    assert_eq!((reply.decision(), rank_of(&reply)), ("client_pinned", 1));
    assert_eq!(turns(&server).len(), 4);
}

#[tokio::test]
async fn responses_on_ranks_are_unpinned_because_the_engine_ignores_their_rank() {
    let server = ranked_server(2).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": [ranked(&server, 2)] } })).await;
    let respond =
        Call::post("/v1/responses", json!({"model": MODEL, "input": "hello", "max_output_tokens": 2}).to_string());
    for turn in 0..3 {
        let reply = kvpin.call(&respond.clone().of("codex")).await;
        assert_eq!((reply.status(), reply.decision()), (200, "unpinned"), "turn {turn}: {}", reply.text());
    }
    let notes = kvpin.status().await["models"][0]["notes"].to_string();
    assert!(notes.contains("/v1/responses can't be pinned"), "{notes}");
}

#[tokio::test]
async fn responses_on_separate_servers_are_pinned() {
    let (one, two) = (start(fast()).await, start(fast()).await);
    let urls = json!([format!("http://{}", one.address()), format!("http://{}", two.address())]);
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls } })).await;
    let respond =
        Call::post("/v1/responses", json!({"model": MODEL, "input": "hello", "max_output_tokens": 2}).to_string());
    let home = kvpin.call(&respond.clone().of("codex")).await.replica().to_owned();
    for _ in 0..3 {
        let reply = kvpin.call(&respond.clone().of("codex")).await;
        assert_eq!((reply.status(), reply.decision(), reply.replica()), (200, "sticky", home.as_str()));
    }
}

#[tokio::test]
async fn ranks_and_separate_servers_share_one_model() {
    let (server, spare) = (ranked_server(2).await, start(fast()).await);
    let configured = json!([ranked(&server, 2), { "url": format!("http://{}", spare.address()), "name": "spare" }]);
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": configured } })).await;
    let mut homes: BTreeMap<String, usize> = BTreeMap::new();
    for conversation in 0..6 {
        let id = format!("conversation-{conversation}");
        let home = kvpin.call(&turn(&id)).await.replica().to_owned();
        assert_eq!(kvpin.call(&turn(&id)).await.replica(), home);
        *homes.entry(home).or_default() += 1;
    }
    assert_eq!(homes, BTreeMap::from([("ranked/0".into(), 2), ("ranked/1".into(), 2), ("spare".into(), 2)]));
    let mut at_spare = turns(&spare).into_iter().flat_map(|arrival| arrival.headers);
    assert!(at_spare.all(|(name, _)| name != "x-data-parallel-rank"), "it has no ranks");
    // A rank is ambiguous only where two servers have it.
    let reply = kvpin.call(&turn("named").header("x-data-parallel-rank", "1")).await;
    assert_eq!((reply.decision(), reply.replica()), ("client_pinned", "ranked/1"));
}

#[tokio::test]
async fn without_affinity_the_engines_own_balancer_may_choose_the_rank() {
    let server = ranked_server(2).await;
    let model = json!({ "affinity": false, "balancing": "engine", "replicas": [ranked(&server, 2)] });
    let kvpin = Kvpin::serve(json!({ (MODEL): model })).await;
    for _ in 0..4 {
        let reply = kvpin.call(&turn("free")).await;
        assert_eq!((reply.status(), reply.decision(), reply.replica()), (200, "unpinned", "ranked"));
    }
    let arrived = turns(&server);
    let mut headers = arrived.iter().flat_map(|arrival| &arrival.headers);
    assert!(headers.all(|(name, _)| name != "x-data-parallel-rank"), "the engine chooses");
    assert!(arrived.iter().all(|arrival| arrival.rank.is_some()));
    // A client may still name one, which only the engine knows.
    let reply = kvpin.call(&turn("free").header("x-data-parallel-rank", "1")).await;
    assert_eq!((reply.status(), turns(&server).last().and_then(|arrival| arrival.rank)), (200, Some(1)));
}

#[tokio::test]
async fn without_affinity_kvpin_chooses_ranks_by_load() {
    let server = ranked_server(2).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "affinity": false, "replicas": [ranked(&server, 2)] } })).await;
    for _ in 0..4 {
        assert_eq!(kvpin.call(&turn("free")).await.decision(), "unpinned");
    }
    let ranks: Vec<_> = turns(&server).into_iter().map(|arrival| arrival.rank.expect("a rank")).collect();
    assert_eq!(ranks.iter().filter(|rank| **rank == 0).count(), 2, "{ranks:?}");
}
