//! Conversations that fit into no cache wait at the door: who waits, who doesn't, what ends it, and that nothing of a turn is
//! lost over it.

use kvpin::sim::server::ReplicaServer;
use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::{Reply, Wire};
use crate::support::edge::Edge;
use crate::support::generations::Generations;
use crate::support::h2::Ending;
use crate::support::hand::{Hand, HandTurn};
use crate::support::kvpin::{Kvpin, config};
use crate::support::replicas::{MODEL, start, steady, streamed};
use crate::support::{until, within};

/// Room for two conversations as [`turn`] has them, and not for a third one.
const CACHE_TOKENS: u64 = 12_000;
/// More than a side call has. About 5,000 tokens, until an engine has said how long they are.
const BODY_BYTES: usize = 20_000;

const OPENAI: &str = "/v1/chat/completions";

/// A model on replicas with room for two conversations each, and what `keys` add.
fn model(urls: &[String], keys: Value) -> Value {
    let mut model = json!({ "replicas": urls, "kv_cache_tokens": CACHE_TOKENS });
    for (key, value) in keys.as_object().into_iter().flatten() {
        model[key] = value.clone();
    }
    json!({ (MODEL): model })
}

fn body(id: &str, bytes: usize) -> String {
    let text = format!("{id} ").repeat(bytes / (id.len() + 1));
    json!({ "model": MODEL, "max_tokens": 5, "messages": [{ "role": "user", "content": text }] }).to_string()
}

fn turn(id: &str) -> Call {
    Call::post(OPENAI, body(id, BODY_BYTES)).of(id)
}

/// Two conversations with a turn in flight each, on the one replica.
struct Full {
    hand: Hand,
    kvpin: Kvpin,
    turns: Vec<(Wire, HandTurn)>,
}

/// Sends a turn; its answer is for later.
async fn sent(address: std::net::SocketAddr, call: &Call) -> Wire {
    let mut wire = Wire::connect(address).await;
    wire.send(&call.bytes()).await;
    wire
}

async fn fill(address: std::net::SocketAddr, hand: &mut Hand) -> Vec<(Wire, HandTurn)> {
    let mut turns = Vec::new();
    for id in ["first", "second"] {
        turns.push((sent(address, &turn(id)).await, hand.turn().await));
    }
    turns
}

impl Full {
    async fn with(keys: Value) -> Self {
        let mut hand = Hand::start();
        let mut config = config(model(&[hand.url()], keys));
        config["access_log"] = json!({ "to": "access.log", "format": "json" });
        let kvpin = Kvpin::start(&config).await;
        let turns = fill(kvpin.address, &mut hand).await;
        Full { hand, kvpin, turns }
    }

    /// A third conversation, which waits.
    async fn held(&self, call: &Call) -> Wire {
        let before = held_turns(&self.kvpin.status().await);
        let wire = sent(self.kvpin.address, call).await;
        until("it is held", async || (held_turns(&self.kvpin.status().await) > before).then_some(())).await;
        wire
    }

    async fn until_none_is_held(&self) -> Value {
        until("none is held", async || {
            let status = self.kvpin.status().await;
            (held_turns(&status) == 0).then_some(status)
        })
        .await
    }

    /// The line of the access log of a turn that was held and has ended.
    async fn line_of_held(&self) -> Value {
        until("a line of a held turn", async || {
            let text = std::fs::read_to_string(self.kvpin.file("access.log")).unwrap_or_default();
            let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.rfind(|line| line["held_ms"].as_f64() > Some(0.0))
        })
        .await
    }
}

fn admission(status: &Value) -> &Value {
    &status["models"][0]["admission"]
}

fn held_turns(status: &Value) -> u64 {
    admission(status)["held_turns"].as_u64().expect("a count")
}

/// The end of a turn, as an engine counts it. Its connection serves no other one, which the hand would not hear of.
async fn answer(turn: &mut HandTurn, of: &mut Wire) -> Reply {
    let usage =
        json!({ "prompt_tokens": 5_000, "completion_tokens": 5, "prompt_tokens_details": { "cached_tokens": 0 } });
    let choices =
        json!([{ "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": "yes" } }]);
    let body = json!({ "object": "chat.completion", "choices": choices, "usage": usage }).to_string();
    turn.write(format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())).await;
    of.reply("POST").await.expect("an answer")
}

fn held_ms(reply: &Reply) -> Option<u64> {
    reply.header("x-kvpin-held-ms").map(|millis| millis.parse().expect("a number"))
}

#[tokio::test]
async fn a_third_conversation_waits_until_one_falls_silent_and_says_how_long() {
    let mut full = Full::with(json!({})).await;
    let call = turn("third");
    let mut third = full.held(&call).await;
    assert!(!full.hand.has_turn(), "the replica hears nothing of it");
    let status = full.kvpin.status().await;
    assert!(admission(&status)["needed_tokens"].as_u64() >= Some(4_000), "{}", admission(&status));
    let replica = &status["models"][0]["replicas"][0];
    assert_eq!((&replica["residents"], &replica["admission_limit_tokens"]), (&json!(2), &json!(CACHE_TOKENS)));

    let [(first, first_turn), (second, second_turn)] = &mut full.turns[..] else { panic!("two fill the cache") };
    assert_eq!(held_ms(&answer(first_turn, first).await), None, "who had room was not held");
    // A resident comes back within its stay, and is not held though others wait.
    let mut again = sent(full.kvpin.address, &turn("first")).await;
    let mut turn_again = full.hand.turn().await;
    assert!(turn_again.body == turn("first").body);
    assert_eq!(answer(&mut turn_again, &mut again).await.decision(), "sticky");
    assert_eq!(held_ms(&answer(second_turn, second).await), None);

    let mut arrived = full.hand.turn().await;
    assert!(arrived.body == call.body, "byte for byte");
    let reply = answer(&mut arrived, &mut third).await;
    assert_eq!((reply.status(), reply.decision()), (200, "placed"));
    let held = held_ms(&reply).expect("it was held");
    assert!(held > 0);
    let line = full.line_of_held().await;
    assert_eq!((line["held_ms"].as_f64().expect("a number") as u64, &line["outcome"]), (held, &json!("completed")));

    let status = full.until_none_is_held().await;
    let counts = ["held_turns_total", "forced_turns_total", "left_turns_total", "refused_turns_total"];
    assert_eq!(counts.map(|count| admission(&status)[count].as_u64()), [1, 0, 0, 0].map(Some));
    assert_eq!(admission(&status)["hold"]["count"], 1);
    assert_eq!(full.kvpin.metric("kvpin_hold_seconds_count").await, 1.0);
    let told_s = full.kvpin.metric("kvpin_hold_seconds_sum").await;
    assert_eq!((told_s * 1e3) as u64, held);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_is_held_frees_its_place_and_no_replica_hears_of_it() {
    let mut full = Full::with(json!({ "held_max": 1 })).await;
    let third = full.held(&turn("third")).await;
    drop(third);
    let status = full.until_none_is_held().await;
    assert_eq!(admission(&status)["left_turns_total"], 1);
    // There is room in the line again.
    drop(full.held(&turn("fourth")).await);
    full.until_none_is_held().await;
    assert!(!full.hand.has_turn());
    assert_eq!(full.kvpin.metric("kvpin_hold_seconds_count").await, 0.0, "none got in");
}

#[tokio::test]
async fn a_stream_of_http2_that_is_reset_while_it_is_held_frees_its_place() {
    let mut hand = Hand::start();
    let edge = Edge::launch(model(&[hand.url()], json!({})), |_| ()).await;
    edge.kvpin.until_health("up", |_| true).await;
    let mut client = edge.h2().await;
    let mut streams = Vec::new();
    for id in ["first", "second"] {
        streams.push((client.send(&turn(id), Ending::WithLast).await, hand.turn().await));
    }
    let held = async |count| {
        until("so many are held", async || (held_turns(&edge.kvpin.status().await) == count).then_some(())).await;
    };
    let third = client.send(&turn("third"), Ending::WithLast).await;
    held(1).await;
    // One whose body is still to come leaves too.
    let mut fourth = client.begin(&turn("fourth")).await;
    fourth.send(&turn("fourth").body, false);
    held(2).await;
    drop(third);
    held(1).await;
    drop(fourth);
    held(0).await;
    assert_eq!(admission(&edge.kvpin.status().await)["left_turns_total"], 2);
    assert!(!hand.has_turn());
    // The connection serves on.
    for (stream, mut turn) in streams {
        turn.answer("{}").await;
        assert_eq!(stream.reply().await.status(), 200);
    }
}

#[tokio::test]
async fn where_too_many_wait_the_next_one_is_refused_in_each_dialect() {
    let full = Full::with(json!({ "held_max": 1 })).await;
    let _third = full.held(&turn("third")).await;
    for (path, refused) in [(OPENAI, 1), ("/v1/messages", 2), ("/v1/responses", 3), ("/v1/completions", 4)] {
        let mut call = turn("one-too-many");
        call.path = path.to_owned();
        let mut body: Value = serde_json::from_slice(&call.body).expect("JSON");
        match path {
            "/v1/responses" => body["input"] = body["messages"].take(),
            "/v1/completions" => body["prompt"] = body["messages"][0]["content"].take(),
            _ => {}
        }
        call.body = body.to_string().into_bytes();
        let reply = full.kvpin.call(&call).await;
        assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("1")), "{path}: {}", reply.text());
        let said = match path {
            "/v1/messages" => {
                let (kind, said) = reply.anthropic_error();
                assert_eq!(kind, "overloaded_error");
                said
            }
            _ => {
                assert_eq!(reply.json()["error"]["code"], "line_full");
                reply.openai_error()
            }
        };
        assert!(said.contains("too many wait already"), "{said}");
        let status = full.kvpin.status().await;
        assert_eq!(admission(&status)["refused_turns_total"], refused);
        assert_eq!(status["models"][0]["refused"]["line_full"], refused);
    }
}

#[tokio::test]
async fn who_has_waited_for_the_longest_hold_is_let_in_over_the_limit() {
    let mut full = Full::with(json!({ "hold_max_s": 1 })).await;
    let mut third = full.held(&turn("third")).await;
    let mut arrived = full.hand.turn().await;
    let reply = answer(&mut arrived, &mut third).await;
    assert!(held_ms(&reply) >= Some(1_000), "{:?}", reply.head);
    let status = full.until_none_is_held().await;
    assert_eq!(admission(&status)["forced_turns_total"], 1);
}

#[tokio::test]
async fn a_subagent_of_a_resident_is_not_held_and_one_of_nobody_there_is() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(model(&[hand.url()], json!({}))).await;
    let of = |session: &str| Call::post(OPENAI, body(session, BODY_BYTES)).header("x-claude-code-session-id", session);
    let agent = |session: &str| {
        let text = body(&format!("agent of {session}"), BODY_BYTES);
        Call::post(OPENAI, text).header("x-claude-code-session-id", session).header("x-claude-code-agent-id", "a1")
    };
    let mut turns = Vec::new();
    for session in ["first", "second"] {
        turns.push((sent(kvpin.address, &of(session)).await, hand.turn().await));
    }
    let mut child = sent(kvpin.address, &agent("first")).await;
    let mut arrived = hand.turn().await;
    assert_eq!(held_ms(&answer(&mut arrived, &mut child).await), None);
    let _held = sent(kvpin.address, &agent("third")).await;
    until("it is held", async || (held_turns(&kvpin.status().await) == 1).then_some(())).await;
    assert!(!hand.has_turn());
}

#[tokio::test]
async fn a_reload_that_turns_admission_off_lets_everybody_in() {
    let mut full = Full::with(json!({})).await;
    let mut waiting = Vec::new();
    for id in ["third", "fourth", "fifth"] {
        waiting.push(full.held(&turn(id)).await);
    }
    let off = config(model(&[full.hand.url()], json!({ "admission": "off" })));
    assert!(full.kvpin.reload(&off).await);
    for _ in 0..3 {
        full.hand.turn().await.answer("{}").await;
    }
    for wire in &mut waiting {
        let reply = wire.reply("POST").await.expect("an answer");
        assert_eq!(reply.status(), 200);
        assert!(held_ms(&reply).is_some());
    }
    let status = full.until_none_is_held().await;
    assert_eq!((&admission(&status)["mode"], &admission(&status)["hold"]["count"]), (&json!("off"), &json!(3)));
    assert_eq!(status["models"][0]["replicas"][0]["residents"], Value::Null);
    let mut fresh = sent(full.kvpin.address, &turn("sixth")).await;
    let mut arrived = full.hand.turn().await;
    assert_eq!(held_ms(&answer(&mut arrived, &mut fresh).await), None);
}

#[tokio::test]
async fn a_stop_waits_for_those_who_are_held() {
    let mut full = Full::with(json!({ "hold_max_s": 2 })).await;
    let mut third = full.held(&turn("third")).await;
    full.kvpin.signal("TERM");
    full.kvpin.until_logged("shutting down: open requests have").await;
    let mut arrived = full.hand.turn().await;
    assert_eq!(answer(&mut arrived, &mut third).await.status(), 200);
    for (wire, turn) in &mut full.turns {
        assert_eq!(answer(turn, wire).await.status(), 200);
    }
    assert!(full.kvpin.exit().await.success());
}

#[tokio::test]
async fn an_upgrade_leaves_those_who_are_held_to_the_old_process_which_lets_them_in() {
    let mut hand = Hand::start();
    let mut kvpin = Generations::start(model(&[hand.url()], json!({ "hold_max_s": 2 }))).await;
    let mut turns = fill(kvpin.address(), &mut hand).await;
    let mut third = sent(kvpin.address(), &turn("third")).await;
    until("it is held", async || (held_turns(&kvpin.status().await) == 1).then_some(())).await;
    let old = kvpin.upgrade().await;
    let mut arrived = hand.turn().await;
    let reply = answer(&mut arrived, &mut third).await;
    assert_eq!(reply.status(), 200);
    assert!(held_ms(&reply).is_some());
    for (wire, turn) in &mut turns {
        assert_eq!(answer(turn, wire).await.status(), 200);
    }
    kvpin.ends(old).await;
}

#[tokio::test]
async fn a_body_that_is_too_large_to_keep_arrives_byte_for_byte_after_its_hold() {
    let mut hand = Hand::start();
    let mut config = config(model(&[hand.url()], json!({ "hold_max_s": 1 })));
    config["limits"] = json!({ "replay_bytes_max": "64KiB" });
    let kvpin = Kvpin::start(&config).await;
    let _turns = fill(kvpin.address, &mut hand).await;
    for (id, chunk) in [("large", None), ("large-in-chunks", Some(10_000))] {
        let call = Call::post(OPENAI, body(id, 3 << 20)).of(id);
        let call = chunk.map_or(call.clone(), |bytes| call.chunked(bytes));
        let mut wire = Wire::connect(kvpin.address).await;
        let answering = async {
            let mut arrived = hand.arriving().await;
            let whole = call.body_bytes().len();
            match chunk {
                None => arrived.read_to(whole).await,
                // However it cuts the chunks: the end is where the last one is.
                Some(_) => arrived.read_through(b"\r\n0\r\n\r\n").await,
            }
            arrived.answer("{}").await;
            arrived
        };
        let (reply, arrived) = tokio::join!(wire.call(&call), answering);
        assert_eq!(reply.status(), 200);
        assert!(held_ms(&reply) >= Some(1_000), "{id}");
        let got = if chunk.is_some() { unchunked(&arrived.body) } else { arrived.body.clone() };
        assert!(got == call.body, "{id}");
    }
}

/// What chunks carry.
fn unchunked(mut wire: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = wire.windows(2).position(|pair| pair == b"\r\n").expect("a chunk's head");
        let size = usize::from_str_radix(std::str::from_utf8(&wire[..end]).expect("text"), 16).expect("a size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&wire[end + 2..][..size]);
        wire = &wire[end + 2 + size + 2..];
    }
}

#[tokio::test]
async fn where_the_last_replica_dies_those_who_are_held_hear_of_it() {
    let full = Full::with(json!({})).await;
    let mut third = full.held(&turn("third")).await;
    let Full { hand, kvpin, turns } = full;
    drop((turns, hand));
    let reply = third.reply("POST").await.expect("an answer");
    assert_eq!((reply.status(), reply.header("retry-after")), (503, Some("1")));
    // By what is seen first: the turns that break off and leave room, or the replica that is gone.
    let code = reply.json()["error"]["code"].clone();
    assert!(["no_replica_up", "every_replica_failed"].iter().any(|known| code == *known), "{code}");
    assert_eq!(held_turns(&kvpin.status().await), 0);
}

#[tokio::test]
async fn where_one_of_two_replicas_dies_those_who_are_held_go_to_the_other() {
    let mut hands = [Hand::start(), Hand::start()];
    let urls: Vec<_> = hands.iter().map(Hand::url).collect();
    let kvpin = Kvpin::serve(model(&urls, json!({ "hold_max_s": 3 }))).await;
    let mut turns = Vec::new();
    for id in ["one", "two", "three", "four"] {
        let wire = sent(kvpin.address, &turn(id)).await;
        let [a, b] = &mut hands;
        let (at, arrived) = tokio::select! { turn = a.turn() => (0, turn), turn = b.turn() => (1, turn) };
        turns.push((at, wire, arrived));
    }
    assert_eq!(turns.iter().filter(|(at, _, _)| *at == 0).count(), 2, "two on each");
    let mut fifth = sent(kvpin.address, &turn("fifth")).await;
    until("it is held", async || (held_turns(&kvpin.status().await) == 1).then_some(())).await;
    let [dies, mut stays] = hands;
    drop(dies);
    turns.retain(|(at, _, _)| *at == 1);
    let mut arrived = within("the held turn at the other replica", async {
        loop {
            let turn = stays.turn().await;
            if turn.body.windows(6).any(|part| part == b"fifth ") {
                return turn;
            }
        }
    })
    .await;
    let reply = answer(&mut arrived, &mut fifth).await;
    assert_eq!(reply.replica(), stays.name());
    assert!(held_ms(&reply).is_some());
}

/// A simulated replica whose own engine says how large its cache is.
async fn simulated() -> ReplicaServer {
    let mut options = steady();
    options.engine.kv_tokens = CACHE_TOKENS as u32;
    options.engine.max_model_len = CACHE_TOKENS as u32;
    start(options).await
}

#[tokio::test]
async fn the_size_of_a_cache_is_what_its_engine_tells_where_nothing_is_configured() {
    let server = simulated().await;
    let kvpin = Kvpin::serve(json!({ (MODEL): { "replicas": [format!("http://{}", server.address())] } })).await;
    let limit = until("the engine has told", async || {
        kvpin.status().await["models"][0]["replicas"][0]["admission_limit_tokens"].as_u64()
    })
    .await;
    assert_eq!(limit, CACHE_TOKENS);
    let mut long = Vec::new();
    for id in ["first", "second"] {
        let text = format!("{id} ").repeat(BODY_BYTES / (id.len() + 1));
        let mut wire = Wire::connect(kvpin.address).await;
        let call = Call::post(OPENAI, streamed(&text, 800).to_string()).of(id);
        assert_eq!(wire.begin(&call).await.status, 200);
        long.push(wire);
    }
    let mut third = sent(kvpin.address, &turn("third")).await;
    until("it is held", async || (held_turns(&kvpin.status().await) == 1).then_some(())).await;
    drop(long);
    let reply = third.reply("POST").await.expect("an answer");
    assert_eq!((reply.status(), reply.decision()), (200, "placed"));
    assert!(held_ms(&reply).is_some());
}
