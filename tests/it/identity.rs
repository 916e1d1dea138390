//! Which requests belong to one conversation, and which to none.

use std::collections::BTreeSet;

use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::claude;
use crate::support::client::{Reply, call};
use crate::support::hand::Hand;
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, fast, start_many, turns, urls};
use crate::support::until;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

async fn in_front_of(replicas: &[ReplicaServer]) -> Kvpin {
    Kvpin::serve(json!({ (MODEL): { "replicas": urls(replicas), "max_num_seqs": 64 } })).await
}

/// What a decision shows: decision and replica.
fn seen(reply: &Reply) -> (&str, &str) {
    assert_eq!(reply.status(), 200, "{}", reply.text());
    (reply.decision(), reply.replica())
}

/// A chat whose client sends no id, with so many exchanges behind its last question.
fn history(first: &str, exchanges: usize) -> Call {
    let mut messages = vec![json!({"role": "system", "content": "You are an agent."})];
    messages.push(json!({"role": "user", "content": first}));
    for exchange in 0..exchanges {
        messages.push(json!({"role": "assistant", "content": format!("Answer {exchange}.")}));
        messages.push(json!({"role": "user", "content": format!("Question {exchange}.")}));
    }
    chat_of(&messages)
}

fn chat_of(messages: &[Value]) -> Call {
    // With the model first, as clients write it.
    Call::post(CHAT, format!(r#"{{"model":"{MODEL}","messages":{},"max_tokens":2}}"#, json!(messages)))
}

/// The side call of Claude Code that makes a title: the session's header, no tools, no thinking, a schema.
fn title(session: &str) -> Call {
    let body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count the files."}],
        "system": [{"type": "text", "text": "Name this session."}],
        "tools": [], "max_tokens": 2,
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    });
    Call::post("/v1/messages?beta=true", body.to_string()).header("X-Claude-Code-Session-Id", session)
}

fn turn_of_claude_code(session: &str, exchanges: usize) -> Call {
    let call = claude::turn(exchanges, &claude::user_ids(session)[0]).without("X-Claude-Code-Session-Id");
    call.header("X-Claude-Code-Session-Id", session)
}

async fn conversations(kvpin: &Kvpin) -> u64 {
    kvpin.status().await["models"][0]["conversations"].as_u64().expect("a count")
}

#[tokio::test]
async fn a_burst_of_token_counts_leaves_pins_and_sticky_counters_untouched() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let session = claude::SESSION;
    assert_eq!(kvpin.call(&turn_of_claude_code(session, 0)).await.decision(), "placed");
    assert_eq!(kvpin.call(&turn_of_claude_code(session, 1)).await.decision(), "sticky");
    let before = (conversations(&kvpin).await, kvpin.metric("kvpin_turns_total{decision=\"sticky\"").await);
    let count = json!({"model": MODEL, "messages": [{"role": "user", "content": "foo"}]}).to_string();
    let count = Call::post("/v1/messages/count_tokens?beta=true", count).header("X-Claude-Code-Session-Id", session);
    let connections = (0..12).map(|connection| {
        let (address, count) = (kvpin.address, count.clone());
        tokio::spawn(async move {
            let mut wire = crate::support::client::Wire::connect(address).await;
            let calls = if connection == 0 { 3 } else { 2 };
            for _ in 0..calls {
                assert_eq!(seen(&wire.call(&count).await).0, "side");
            }
            calls
        })
    });
    let mut calls = 0;
    for connection in connections.collect::<Vec<_>>() {
        calls += connection.await.expect("its calls were answered");
    }
    assert_eq!(calls, 25);
    let after = (conversations(&kvpin).await, kvpin.metric("kvpin_turns_total{decision=\"sticky\"").await);
    assert_eq!(after, before);
    assert_eq!(kvpin.metric("kvpin_turns_total{decision=\"side\"").await, 25.0);
}

#[tokio::test]
async fn a_title_that_comes_first_pins_nothing() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    for session in ["one", "two", "three"] {
        assert_eq!(seen(&kvpin.call(&title(session)).await).0, "side");
    }
    assert_eq!(conversations(&kvpin).await, 0);
    let home = kvpin.call(&turn_of_claude_code("one", 0)).await;
    assert_eq!(home.decision(), "placed");
    for _ in 0..3 {
        assert_eq!(seen(&kvpin.call(&title("one")).await).0, "side");
    }
    let back = kvpin.call(&turn_of_claude_code("one", 1)).await;
    assert_eq!(seen(&back), ("sticky", home.replica()));
    assert_eq!(conversations(&kvpin).await, 1);
}

#[tokio::test]
async fn a_hint_header_says_what_is_a_side_call_and_what_a_turn() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let hinted = |call: Call, class: &str| call.header("x-claude-code-request-class", class);
    assert_eq!(seen(&kvpin.call(&hinted(turn_of_claude_code("one", 0), "auxiliary")).await).0, "side");
    assert_eq!(seen(&kvpin.call(&hinted(title("one"), "main")).await).0, "placed");
    assert_eq!(seen(&kvpin.call(&hinted(title("one"), "compaction")).await).0, "sticky");
}

#[tokio::test]
async fn opencodes_title_is_a_side_call_and_a_chat_without_tools_is_a_turn() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let plain = history("Count the files.", 0).header("x-session-id", "ses_1");
    let title = plain.clone().header("user-agent", "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14");
    assert_eq!(seen(&kvpin.call(&title).await).0, "side");
    assert_eq!(seen(&kvpin.call(&plain).await).0, "placed");
}

#[tokio::test]
async fn a_refused_turn_pins_nothing_and_a_cancelled_one_keeps_what_was_there() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let turn = || Call::post(CHAT, r#"{"model":"m"}"#).of("one");
    let ended = async || (kvpin.in_flight().await == 0).then_some(());
    // The engine refuses it; the client leaves before it is answered.
    for status in ["400 Bad Request", ""] {
        let mut wire = kvpin.connect().await;
        wire.send(&turn().bytes()).await;
        let mut at_engine = hand.turn().await;
        assert_eq!(conversations(&kvpin).await, 1, "a second turn would go where the first one is");
        if status.is_empty() {
            drop(wire);
        } else {
            at_engine.write(format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}")).await;
            assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(400));
        }
        until("the turn has ended", ended).await;
        assert_eq!(conversations(&kvpin).await, 0, "{status}");
    }
    let mut wire = kvpin.connect().await;
    wire.send(&turn().bytes()).await;
    hand.turn().await.answer("{}").await;
    assert_eq!(wire.reply("POST").await.map(|reply| reply.decision().to_owned()), Some("placed".to_owned()));
    let mut wire = kvpin.connect().await;
    wire.send(&turn().bytes()).await;
    let at_engine = hand.turn().await;
    drop(wire);
    until("the turn has ended", ended).await;
    drop(at_engine);
    assert_eq!(conversations(&kvpin).await, 1, "its pin stays");
}

#[tokio::test]
async fn embeddings_and_the_like_pin_nothing() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for path in ["/v1/embeddings", "/v1/rerank", "/v1/score"] {
        let reply = kvpin.call(&Call::post(path, r#"{"model":"m","input":"text"}"#).of("one")).await;
        assert_eq!(seen(&reply).0, "unpinned", "{path}");
    }
    for path in ["/v1/messages/render", "/v1/chat/completions/render", "/tokenize"] {
        assert_eq!(seen(&kvpin.call(&Call::post(path, r#"{"model":"m"}"#).of("one")).await).0, "side", "{path}");
    }
    assert_eq!(conversations(&kvpin).await, 0);
}

#[tokio::test]
async fn a_client_without_an_id_is_known_by_its_messages() {
    let replicas = start_many(3, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let mut homes = BTreeSet::new();
    for conversation in 0..6 {
        let first = format!("Question of conversation {conversation}.");
        let home = kvpin.call(&history(&first, 0)).await;
        assert_eq!(seen(&home).0, "placed");
        for exchanges in 1..4 {
            assert_eq!(seen(&kvpin.call(&history(&first, exchanges)).await), ("sticky", home.replica()));
        }
        homes.insert(home.replica().to_owned());
    }
    assert_eq!(homes.len(), 3, "conversations are spread");
    assert_eq!(conversations(&kvpin).await, 6);
    let line = kvpin.until_logged("decision=sticky").await;
    assert!(line.contains("source=fingerprint"), "{line}");
}

#[tokio::test]
async fn moved_cache_marks_and_flattened_blocks_leave_a_conversation_the_same() {
    let replicas = start_many(3, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let turn = |billing: &str, messages: Value| {
        let system = json!([
            {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=2.1.332.{billing};")},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ]);
        let tools = json!([{"name": "Bash", "input_schema": {}}]);
        let body = json!({"model": MODEL, "messages": messages, "system": system, "tools": tools, "max_tokens": 2});
        Call::post(MESSAGES, body.to_string())
    };
    let block = |text: &str, marked: bool| {
        let mut block = json!({"type": "text", "text": text});
        if marked {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
        block
    };
    let reminder = "<system-reminder>\nToday is Monday.\n</system-reminder>";
    let first = turn("bd3", json!([{"role": "user", "content": [block(reminder, false), block("Hello.", true)]}]));
    let home = kvpin.call(&first).await;
    assert_eq!(seen(&home).0, "placed");
    let second = turn(
        "ef5",
        json!([
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": [block("Hi.", false)]},
            {"role": "user", "content": [block("Go on.", true)]},
        ]),
    );
    assert_eq!(seen(&kvpin.call(&second).await), ("sticky", home.replica()));
    assert_eq!(conversations(&kvpin).await, 1);
}

#[tokio::test]
async fn two_conversations_that_share_a_long_preamble_are_two() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let preamble = "Rules of the project. ".repeat(60);
    let first = kvpin.call(&history(&format!("{preamble}Count the files."), 0)).await;
    let second = kvpin.call(&history(&format!("{preamble}Count the lines."), 0)).await;
    assert_eq!((seen(&first).0, seen(&second).0), ("placed", "placed"));
    assert_ne!(first.replica(), second.replica());
    assert_eq!(conversations(&kvpin).await, 2);
}

#[tokio::test]
async fn a_fork_under_a_new_session_starts_where_its_history_is() {
    let replicas = start_many(4, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    // Others first, so that the parent's replica is not the one whose turn it is.
    for other in 0..5 {
        assert_eq!(kvpin.call(&history("Another.", 0).of(&format!("other-{other}"))).await.decision(), "placed");
    }
    let parent = kvpin.call(&history("The question.", 0).of("parent")).await;
    assert_eq!(seen(&parent).0, "placed");
    assert_eq!(seen(&kvpin.call(&history("The question.", 1).of("parent")).await), ("sticky", parent.replica()));
    for fork in ["fork-1", "fork-2"] {
        let reply = kvpin.call(&history("The question.", 2).of(fork)).await;
        assert_eq!(seen(&reply), ("placed", parent.replica()));
        assert_eq!(seen(&kvpin.call(&history("The question.", 3).of(fork)).await), ("sticky", parent.replica()));
    }
    assert_eq!(kvpin.metric("kvpin_forked_conversations_total").await, 2.0);
    let alike: BTreeSet<_> = [
        kvpin.call(&history("The question.", 0).of("alike-1")).await.replica().to_owned(),
        kvpin.call(&history("The question.", 0).of("alike-2")).await.replica().to_owned(),
    ]
    .into();
    assert_eq!(alike.len(), 2, "what only begins alike is placed by load");
}

/// Sends a turn of which the greater part comes only after its replica was chosen.
async fn call_in_two(kvpin: &Kvpin, call: &Call) -> Reply {
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    wire.send(&call.body[..100]).await;
    until("the turn has its replica", async || (kvpin.in_flight().await == 1).then_some(())).await;
    wire.send(&call.body[100..]).await;
    wire.reply("POST").await.expect("a response")
}

/// 40 KB in front of the question.
fn long_history(exchanges: usize) -> Call {
    history(&format!("{} The question.", "A line of a file. ".repeat(2_000)), exchanges)
}

#[tokio::test]
async fn what_comes_after_the_decision_is_learned_from() {
    let replicas = start_many(4, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let parent = call_in_two(&kvpin, &long_history(0).of("parent")).await;
    assert_eq!(seen(&parent).0, "placed");
    for fork in ["fork-1", "fork-2"] {
        let reply = kvpin.call(&long_history(1).of(fork)).await;
        assert_eq!(seen(&reply), ("placed", parent.replica()));
    }
    assert_eq!(kvpin.metric("kvpin_forked_conversations_total").await, 2.0);

    let mut both = long_history(0).of("one-id");
    both.body.pop();
    both.body.extend_from_slice(br#","prompt_cache_key":"another-id"}"#);
    let home = call_in_two(&kvpin, &both).await;
    let mut alone = chat_of(&[json!({"role": "user", "content": "hello"})]);
    alone = alone.header("x-session-id", "another-id");
    assert_eq!(seen(&kvpin.call(&alone).await), ("sticky", home.replica()));
}

#[tokio::test]
async fn a_side_call_that_shows_itself_after_the_decision_leaves_no_pin() {
    let replicas = start_many(2, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let mut body: Value = serde_json::from_slice(&title("one").body).expect("JSON");
    body["system"] = json!("Name this session. ".repeat(2_000));
    let long = Call::post(MESSAGES, body.to_string()).header("X-Claude-Code-Session-Id", "one");
    assert_eq!(seen(&call_in_two(&kvpin, &long).await).0, "placed");
    until("the turn has ended", async || (kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(conversations(&kvpin).await, 0);
    assert_eq!(seen(&kvpin.call(&long).await).0, "side", "where it comes whole");
}

#[tokio::test]
async fn an_id_that_a_later_head_brings_along_is_an_alias_too() {
    let replicas = start_many(3, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let turn = || history("The question.", 0);
    let home = kvpin.call(&turn().header("x-session-id", "a")).await;
    let both = turn().header("x-session-id", "a").header("x-session-affinity", "b");
    assert_eq!(seen(&kvpin.call(&both).await), ("sticky", home.replica()));
    let other = kvpin.call(&turn().header("x-session-affinity", "b")).await;
    assert_eq!(seen(&other), ("sticky", home.replica()));
}

#[tokio::test]
async fn parallel_subagents_spread_out_and_their_parent_stays() {
    let replicas = start_many(4, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let session = claude::SESSION;
    let home = kvpin.call(&turn_of_claude_code(session, 0)).await.replica().to_owned();
    let subagent = |agent: usize| turn_of_claude_code(session, 0).header("x-claude-code-agent-id", format!("a{agent}"));
    let mut homes = BTreeSet::new();
    for agent in 0..8 {
        let reply = kvpin.call(&subagent(agent)).await;
        assert_eq!(seen(&reply).0, "placed");
        homes.insert(reply.replica().to_owned());
    }
    assert_eq!(homes.len(), 4);
    assert_eq!(seen(&kvpin.call(&turn_of_claude_code(session, 1)).await), ("sticky", home.as_str()));
    let status = kvpin.status().await;
    assert_eq!(status["models"][0]["conversations"], 9);
    let listed = call(kvpin.admin, &Call::get("/api/v1/conversations")).await.json();
    let listed = listed["models"][0]["conversations"].as_array().expect("a list").clone();
    let of_parent =
        listed.iter().filter(|one| one["parent"].is_null()).map(|one| one["key"].clone()).collect::<Vec<_>>();
    assert_eq!((listed.len(), of_parent.len()), (9, 1));
    assert_eq!(listed.iter().filter(|one| one["parent"] == of_parent[0]).count(), 8);
    assert!(listed.iter().all(|one| one["proven"] == true && one["in_flight"] == 0), "{listed:?}");
    let relatives = |replica: &Value| replica["conversations"]["relatives"].as_u64();
    assert_eq!(crate::support::kvpin::replicas(&status).filter_map(relatives).sum::<u64>(), 8, "{status}");
}

#[tokio::test]
async fn ids_that_came_together_name_one_conversation_apart() {
    let replicas = start_many(3, fast()).await;
    let kvpin = in_front_of(&replicas).await;
    let body = |key: &str| {
        let messages = [json!({"role": "user", "content": "hello"})];
        json!({"model": MODEL, "messages": messages, "max_tokens": 2, "prompt_cache_key": key}).to_string()
    };
    let both = Call::post(CHAT, body("by-body")).header("x-session-id", "by-head");
    let home = kvpin.call(&both).await;
    assert_eq!(seen(&home).0, "placed");
    assert_eq!(seen(&kvpin.call(&Call::post(CHAT, body("by-body"))).await), ("sticky", home.replica()));
    let head_only = Call::post(CHAT, json!({"model": MODEL, "messages": []}).to_string());
    assert_eq!(kvpin.call(&head_only.header("x-session-id", "by-head")).await.replica(), home.replica());
    assert_eq!(conversations(&kvpin).await, 1);
}

#[tokio::test]
async fn the_operators_headers_go_first_and_a_reload_changes_them() {
    let recorders = [Recorder::start(), Recorder::start()];
    let model = json!({ "m": { "replicas": [recorders[0].url(), recorders[1].url()] } });
    let mut file = config(model);
    file["session_headers"] = json!(["X-Team-Chat"]);
    let kvpin = Kvpin::start(&file).await;
    let turn = |chat: &str, id: &str| Call::post(CHAT, r#"{"model":"m"}"#).header("x-team-chat", chat).of(id);
    let home = kvpin.call(&turn("chat-1", "a")).await;
    assert_eq!(seen(&home).0, "placed");
    assert_eq!(seen(&kvpin.call(&turn("chat-1", "b")).await), ("sticky", home.replica()));
    let line = kvpin.until_logged("decision=sticky").await;
    assert!(line.contains("source=session_headers"), "{line}");
    file["session_headers"] = json!([]);
    assert!(kvpin.reload(&file).await);
    assert_eq!(seen(&kvpin.call(&turn("chat-1", "c")).await).0, "placed");
}

#[tokio::test]
async fn forwarding_begins_with_the_model_where_a_header_names_the_session() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "x".repeat(200_000));
    // The first turn is of an unknown conversation, the second of a known one.
    for _ in 0..2 {
        let call = Call::post(MESSAGES, body.clone()).header("X-Claude-Code-Session-Id", "one");
        let mut wire = kvpin.connect().await;
        wire.send(&call.head_bytes()).await;
        wire.send(&call.body[..20]).await;
        // The replica has the request while 200 KB of it don't exist yet.
        let mut turn = hand.arriving().await;
        wire.send(&call.body[20..]).await;
        turn.read_to(call.body.len()).await;
        assert_eq!(turn.body, call.body);
        turn.answer("{}").await;
        assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(200));
    }
}

#[tokio::test]
async fn the_engine_is_told_a_conversations_key_where_the_client_names_no_session_of_its_own() {
    let recorder = Recorder::start();
    let model = |send: bool| json!({ "m": { "replicas": [recorder.url()], "send_session_id": send } });
    let kvpin = Kvpin::serve(model(true)).await;
    let plain = || Call::post(CHAT, r#"{"model":"m"}"#);
    kvpin.call(&plain().of("secret-session")).await;
    let key = recorder.last().header("x-session-id").expect("a key").to_owned();
    assert!(key.len() == 16 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    assert!(kvpin.until_logged("source=session-id").await.contains(&format!("conversation={key}")));
    kvpin.call(&plain().header("x-session-id", "its own")).await;
    assert_eq!(recorder.last().header("x-session-id"), Some("its own"));
    kvpin.call(&plain()).await;
    assert_eq!(recorder.last().header("x-session-id"), None, "there is no conversation");
    assert!(kvpin.reload(&config(model(false))).await);
    kvpin.call(&plain().of("secret-session")).await;
    assert_eq!(recorder.last().header("x-session-id"), None);
}

#[tokio::test]
async fn responses_say_why_they_came_from_where_unless_that_is_turned_off() {
    let recorder = Recorder::start();
    let mut file = config(json!({ "m": { "replicas": [recorder.url()] } }));
    let kvpin = Kvpin::start(&file).await;
    let turn = Call::post(CHAT, r#"{"model":"m"}"#).of("one");
    assert_eq!(seen(&kvpin.call(&turn).await), ("placed", recorder.name().as_str()));
    file["decision_headers"] = json!(false);
    assert!(kvpin.reload(&file).await);
    let reply = kvpin.call(&turn).await;
    assert_eq!((reply.status(), reply.header("x-kvpin-replica"), reply.header("x-kvpin-decision")), (200, None, None));
}

#[tokio::test]
async fn equal_requests_without_an_id_dont_pile_up_on_one_replica() {
    let replicas = start_many(4, crate::support::replicas::stuck()).await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": urls(&replicas), "spill_threshold": 2 } })).await;
    let mut waiting = Vec::new();
    for number in 1..=8_u64 {
        let mut wire = kvpin.connect().await;
        wire.send(&history("The same for all.", 0).bytes()).await;
        waiting.push(wire);
        until("the turn is in flight", async || (kvpin.in_flight().await == number).then_some(())).await;
    }
    let counts: Vec<_> = replicas.iter().map(|replica| turns(replica).len()).collect();
    assert!(counts.iter().all(|count| *count <= 3), "{counts:?}");
}
