//! Conversations belong to the key that they come with: nobody reaches, moves or finds another tenant's.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::keys::{KEYS_FILE, hash_of, key_of};
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, chat, fast, start_many, urls};

const TURN: &str = r#"{"model":"m"}"#;

fn turn(id: &str) -> Call {
    Call::post("/v1/messages", TURN).of(id)
}

async fn recorders(count: usize, entries: &[(&str, Value)]) -> (Vec<Recorder>, Kvpin) {
    let recorders: Vec<_> = (0..count).map(|_| Recorder::start()).collect();
    let urls: Vec<_> = recorders.iter().map(Recorder::url).collect();
    let kvpin = Kvpin::guard(json!({ "m": { "replicas": urls } }), entries).await;
    (recorders, kvpin)
}

#[tokio::test]
async fn two_tenants_with_one_session_id_have_two_conversations_on_two_replicas() {
    let (_recorders, kvpin) = recorders(2, &[("alice", json!({})), ("bob", json!({}))]).await;
    let alice = kvpin.call(&turn("the-same").by("alice")).await;
    let bob = kvpin.call(&turn("the-same").by("bob")).await;
    assert_eq!((alice.decision(), bob.decision()), ("placed", "placed"));
    assert_ne!(alice.replica(), bob.replica(), "each is placed by load");
    for _ in 0..5 {
        for (name, home) in [("alice", &alice), ("bob", &bob)] {
            let reply = kvpin.call(&turn("the-same").by(name)).await;
            assert_eq!((reply.decision(), reply.replica()), ("sticky", home.replica()), "{name}");
        }
    }
    assert_eq!(kvpin.status().await["models"][0]["conversations"], 2);
    let line = kvpin.until_logged("key=bob").await;
    assert!(line.contains("decision=placed"), "{line}");
}

#[tokio::test]
async fn neither_an_alias_nor_a_history_nor_a_parent_leads_into_another_tenants_conversation() {
    let replicas = start_many(2, fast()).await;
    let entries = [("alice", json!({})), ("bob", json!({}))];
    let kvpin = Kvpin::guard(json!({ (MODEL): { "replicas": urls(&replicas) } }), &entries).await;
    // An alias: alice's turn teaches that the two ids are one.
    let both =
        Call::post("/v1/chat/completions", chat("hello").to_string()).of("first").header("x-session-id", "second");
    let second = Call::post("/v1/chat/completions", chat("hello").to_string()).header("x-session-id", "second");
    assert_eq!(kvpin.call(&both.by("alice")).await.decision(), "placed");
    assert_eq!(kvpin.call(&second.clone().by("alice")).await.decision(), "sticky");
    assert_eq!(kvpin.call(&second.by("bob")).await.decision(), "placed");
    // A history: long enough that its continuation would be a fork, and then a turn of it.
    let shared = "A long beginning that both of them have sent. ".repeat(200);
    let history = |last: &str| {
        let body = json!({ "model": MODEL, "max_tokens": 2, "messages": [
            { "role": "user", "content": shared }, { "role": "assistant", "content": "Yes." },
            { "role": "user", "content": last },
        ] });
        Call::post("/v1/chat/completions", body.to_string())
    };
    assert_eq!(kvpin.call(&history("Go on.").by("alice")).await.decision(), "placed");
    assert_eq!(kvpin.call(&history("Go on.").by("alice")).await.decision(), "sticky");
    assert_eq!(kvpin.call(&history("Go on.").by("bob")).await.decision(), "placed");
    let forked = "kvpin_forked_conversations_total";
    assert_eq!(kvpin.metric(forked).await, 0.0);
    assert_eq!(kvpin.call(&history("Or rather not.").by("alice")).await.decision(), "placed");
    assert_eq!(kvpin.metric(forked).await, 1.0, "within a tenant it is one");
    // A parent: bob's child of alice's session is nobody's child.
    let child = Call::post("/v1/chat/completions", chat("hello").to_string())
        .of("child")
        .header("x-parent-session-id", "first");
    assert_eq!(kvpin.call(&child.by("bob")).await.status(), 200);
    let conversations = crate::support::client::call(kvpin.admin, &Call::get("/api/v1/conversations")).await.json();
    let all = conversations["models"][0]["conversations"].as_array().cloned().unwrap_or_default();
    let parents: Vec<_> = all.iter().filter_map(|conversation| conversation["parent"].as_str()).collect();
    let known = |key: &str| all.iter().any(|conversation| conversation["key"] == key);
    assert!(parents.iter().filter(|parent| known(parent)).count() <= 1, "only alice's fork: {all:?}");
}

#[tokio::test]
async fn a_key_that_is_replaced_keeps_its_conversations_and_a_name_without_a_key_has_none() {
    let (_recorders, kvpin) = recorders(2, &[("alice", json!({}))]).await;
    let home = kvpin.call(&turn("kept").by("alice")).await;
    let both = json!({ "alice": { "hash": [hash_of("alice"), hash_of("alice-anew")] } });
    assert!(kvpin.reload_with(KEYS_FILE, &both.to_string()).await);
    for key in ["alice", "alice-anew"] {
        let reply = kvpin.call(&turn("kept").by(key)).await;
        assert_eq!((reply.decision(), reply.replica()), ("sticky", home.replica()), "{key}");
    }
    let new = json!({ "alice": { "hash": hash_of("alice-anew") } });
    assert!(kvpin.reload_with(KEYS_FILE, &new.to_string()).await);
    assert_eq!(kvpin.call(&turn("kept").by("alice")).await.status(), 401);
    let reply = kvpin.call(&turn("kept").by("alice-anew")).await;
    assert_eq!((reply.decision(), reply.replica()), ("sticky", home.replica()));
}

#[tokio::test]
async fn only_a_key_that_may_pin_chooses_its_replica_and_no_engine_hears_of_it() {
    let entries = [("pins", json!({ "may_pin": true })), ("plain", json!({}))];
    let (recorders, kvpin) = recorders(2, &entries).await;
    for recorder in &recorders {
        let call = turn("by-hand").header("x-kvpin-replica", recorder.name()).by("pins");
        let reply = kvpin.call(&call).await;
        assert_eq!((reply.decision(), reply.replica()), ("client_pinned", &*recorder.name()));
    }
    let home = kvpin.call(&turn("by-load").by("plain")).await.replica().to_owned();
    for name in [recorders[0].name(), recorders[1].name(), "unheard-of".to_owned()] {
        let call = turn("by-load").header("x-kvpin-replica", &name).header("x-data-parallel-rank", "1").by("plain");
        let reply = kvpin.call(&call).await;
        assert_eq!(
            (reply.status(), reply.decision(), reply.replica()),
            (200, "sticky", &*home),
            "{name} is passed over"
        );
        let at_home = recorders.iter().find(|recorder| recorder.name() == home).expect("its home").last();
        assert!(at_home.header("x-kvpin-replica").is_none() && at_home.header("x-data-parallel-rank").is_none());
    }
}

#[tokio::test]
async fn where_the_engine_balances_its_ranks_it_hears_of_one_only_from_a_key_that_may_pin() {
    let recorder = Recorder::start();
    let replicas = json!([{ "url": recorder.url(), "data_parallel_size": 2 }]);
    let models = json!({ "m": { "affinity": false, "balancing": "engine", "replicas": replicas } });
    let kvpin = Kvpin::guard(models, &[("pins", json!({ "may_pin": true })), ("plain", json!({}))]).await;
    for (key, heard) in [("pins", Some("1")), ("plain", None)] {
        let call = turn("ranked").header("x-data-parallel-rank", "1").by(key);
        assert_eq!(kvpin.call(&call).await.status(), 200);
        assert_eq!(recorder.last().header("x-data-parallel-rank"), heard, "{key}");
    }
}

#[tokio::test]
async fn explain_says_whose_request_it_is_and_what_the_key_may_not() {
    let (_recorders, kvpin) = recorders(2, &[("alice", json!({ "models": ["m"] })), ("bob", json!({}))]).await;
    let explained = async |call: Call| {
        let post = Call::post("/api/v1/explain", call.bytes()).at_localhost();
        crate::support::client::call(kvpin.admin, &post).await.json()
    };
    let home = kvpin.call(&turn("explained").by("alice")).await.replica().to_owned();
    let said = explained(turn("explained").header("x-kvpin-replica", "unheard-of").by("alice")).await;
    assert_eq!(
        (&said["key_name"], &said["decision"], &said["replica"]),
        (&json!("alice"), &json!("sticky"), &json!(home))
    );
    let note = said["notes"][0].as_str().unwrap_or_default();
    assert!(note.starts_with("x-kvpin-replica is passed over"), "{said}");
    let said = explained(turn("explained").by("bob")).await;
    assert_eq!((&said["key_name"], &said["decision"]), (&json!("bob"), &json!("placed")));
    for (call, status) in [
        (turn("explained"), 401),
        (turn("explained").by("nobody"), 401),
        (Call::post("/v1/messages", r#"{"model":"m","model":"m"}"#).by("alice"), 400),
        (Call::post("/v1/messages", "{").by("alice"), 400),
    ] {
        let said = explained(call).await;
        assert_eq!(said["refusal"]["status"], status, "{said}");
        assert!(!said.to_string().contains(&key_of("")[..7]), "{said}");
    }
}
