//! Turns of a conversation go where its history is.

use std::collections::{BTreeMap, BTreeSet};

use kvpin::sim::config::EngineConfig;
use kvpin::sim::server::{ReplicaOptions, ReplicaServer};
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::claude;
use crate::support::kvpin::Kvpin;
use crate::support::replicas::{MODEL, chat, fast, start_many, turns, urls};

async fn in_front_of(replicas: &[ReplicaServer]) -> Kvpin {
    Kvpin::serve(json!({ (MODEL): { "replicas": urls(replicas) } })).await
}

/// Whose cache holds several of Claude Code's prompts.
fn large() -> ReplicaOptions {
    let engine = EngineConfig { kv_tokens: 1 << 20, max_model_len: 1 << 17, ..EngineConfig::default() };
    ReplicaOptions { engine, ..fast() }
}

/// The conversations of which turns arrived at a replica, by their `session-id`.
fn seen_at(replica: &ReplicaServer) -> BTreeSet<String> {
    let headers = turns(replica).into_iter().flat_map(|arrival| arrival.headers);
    headers.filter(|(name, _)| name == "session-id").map(|(_, value)| value).collect()
}

#[tokio::test]
async fn a_conversation_stays_where_it_was_placed_and_conversations_spread_evenly() {
    let replicas = start_many(4, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let mut homes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for turn in 0..4 {
        for conversation in 0..12 {
            let id = format!("conversation-{conversation}");
            let reply = kvpin
                .call(&Call::post("/v1/chat/completions", chat(&"hello ".repeat(turn + 1)).to_string()).of(&id))
                .await;
            assert_eq!(reply.status(), 200, "{}", reply.text());
            assert_eq!(reply.decision(), if turn == 0 { "placed" } else { "sticky" });
            homes.entry(reply.replica().to_owned()).or_default().insert(id);
        }
    }
    let counts: Vec<_> = homes.values().map(BTreeSet::len).collect();
    assert_eq!(counts, [3, 3, 3, 3], "each of 12 conversations is in one place");
    for replica in &replicas {
        assert_eq!(seen_at(replica), homes[&replica.address().to_string()]);
        assert_eq!(turns(replica).len(), 12);
    }
}

#[tokio::test]
async fn an_id_names_its_conversation_from_any_of_its_places() {
    let replicas = start_many(3, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let with_body = |field: &str, value: &str| {
        let mut body = chat("hello");
        body[field] = json!(value);
        Call::post("/v1/chat/completions", body.to_string())
    };
    let plain = || Call::post("/v1/chat/completions", chat("hello").to_string());
    for id in ["one", "two", "three", "four"] {
        let home = kvpin.call(&plain().header("session-id", id)).await.replica().to_owned();
        for name in ["session_id", "x-session-id", "x-session-affinity", "X-Claude-Code-Session-Id"] {
            let reply = kvpin.call(&plain().header(name, id)).await;
            assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()), "{name}");
        }
        for field in ["session_id", "prompt_cache_key"] {
            let reply = kvpin.call(&with_body(field, id)).await;
            assert_eq!((reply.decision(), reply.replica()), ("sticky", home.as_str()), "{field}");
        }
    }
}

#[tokio::test]
async fn a_turn_without_an_id_and_without_messages_is_unpinned() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let body = json!({"model": MODEL, "prompt": "hello", "max_tokens": 2, "user": "somebody"});
    for _ in 0..4 {
        let reply = kvpin.call(&Call::post("/v1/completions", body.to_string())).await;
        assert_eq!((reply.status(), reply.decision()), (200, "unpinned"));
    }
    let counts: Vec<_> = replicas.iter().map(|replica| turns(replica).len()).collect();
    assert_eq!(counts, [2, 2], "equals take turns");
}

#[tokio::test]
async fn claude_code_is_pinned_by_its_header_and_by_each_form_of_its_metadata() {
    let replicas = start_many(3, large()).await;
    let kvpin = in_front_of(&replicas).await;
    let with_header = claude::turn(1, &claude::user_ids(claude::SESSION)[0]);
    let first = kvpin.call(&with_header).await;
    assert_eq!((first.status(), first.decision()), (200, "placed"), "{}", first.text());
    let home = first.replica().to_owned();
    for (turn, user_id) in claude::user_ids(claude::SESSION).iter().enumerate() {
        let call = claude::turn(2 + turn, user_id);
        for call in [call.clone(), call.without("X-Claude-Code-Session-Id")] {
            let reply = kvpin.call(&call).await;
            assert_eq!((reply.status(), reply.decision()), (200, "sticky"), "{user_id}");
            assert_eq!(reply.replica(), home, "{user_id}");
            assert!(reply.text().contains("message_stop"), "the stream came to its end");
        }
    }
    let at_home = replicas.iter().find(|replica| replica.address().to_string() == home).expect("its replica");
    assert_eq!(turns(at_home).len(), 7);
    assert!(
        turns(at_home).iter().skip(1).all(|arrival| arrival.cached_tokens > Some(1000)),
        "the prefix is cached there"
    );
}

#[tokio::test]
async fn a_session_in_metadata_alone_makes_a_pin() {
    let replicas = start_many(3, large()).await;
    let kvpin = in_front_of(&replicas).await;
    for (number, form) in [0, 1, 2].into_iter().enumerate() {
        let session = format!("{number}e1bd76a-8294-49e0-b3d2-e58bc1e620a9");
        let call = claude::turn(1, &claude::user_ids(&session)[form]).without("X-Claude-Code-Session-Id");
        let first = kvpin.call(&call).await;
        let second = kvpin.call(&call).await;
        assert_eq!((first.decision(), second.decision()), ("placed", "sticky"), "form {form}");
        assert_eq!(first.replica(), second.replica());
    }
}

#[tokio::test]
async fn a_subagent_is_a_conversation_of_its_own_beside_its_session() {
    let replicas = start_many(2, large()).await;
    let kvpin = in_front_of(&replicas).await;
    let main = claude::turn(1, &claude::user_ids(claude::SESSION)[0]);
    // An agent has a prompt of its own.
    let agent = claude::turn(0, &claude::user_ids(claude::SESSION)[0]);
    let agent = agent.header("x-claude-code-agent-id", "aab599ff076878530");
    let by_metadata = agent.clone().without("X-Claude-Code-Session-Id");
    let home_of_main = kvpin.call(&main).await.replica().to_owned();
    let placed = kvpin.call(&agent).await;
    assert_eq!(placed.decision(), "placed");
    assert_ne!(placed.replica(), home_of_main, "the idler of two");
    for (call, home) in [(&main, home_of_main.as_str()), (&agent, placed.replica()), (&by_metadata, placed.replica())] {
        let reply = kvpin.call(call).await;
        assert_eq!((reply.decision(), reply.replica()), ("sticky", home));
    }
}

#[tokio::test]
async fn counting_tokens_neither_makes_nor_moves_a_pin() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let count = Call::post("/v1/messages/count_tokens", chat("hello").to_string()).of("counted");
    let turn = Call::post("/v1/messages", chat("hello").to_string()).of("counted");
    let reply = kvpin.call(&count).await;
    assert_eq!((reply.status(), reply.decision()), (200, "side"), "{}", reply.text());
    let home = kvpin.call(&turn).await;
    assert_eq!(home.decision(), "placed", "counting had made no pin");
    for _ in 0..3 {
        assert_eq!(kvpin.call(&count).await.decision(), "side");
        let reply = kvpin.call(&turn).await;
        assert_eq!((reply.decision(), reply.replica()), ("sticky", home.replica()));
    }
}

#[tokio::test]
async fn without_affinity_turns_of_one_conversation_go_by_load_alone() {
    let replicas = start_many(3, fast()).await;
    let models = json!({ (MODEL): { "affinity": false, "replicas": urls(&replicas) } });
    let kvpin = Kvpin::serve(models).await;
    for _ in 0..9 {
        let reply = kvpin.call(&Call::post("/v1/chat/completions", chat("hello").to_string()).of("wanderer")).await;
        assert_eq!((reply.status(), reply.decision()), (200, "unpinned"));
    }
    let counts: Vec<_> = replicas.iter().map(|replica| turns(replica).len()).collect();
    assert_eq!(counts, [3, 3, 3], "equals take turns");
    let status: Value = kvpin.status().await;
    assert_eq!(status["models"][0]["conversations"], 0, "and nothing is remembered");
}
