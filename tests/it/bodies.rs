//! A request body reaches the replica byte for byte, whatever its size, its framing and its pace.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::support::call::{Call, Framing};
use crate::support::client::Reply;
use crate::support::hand::Hand;
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::{Recorder, sha256};
use crate::support::until;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// kvpin's limit by default.
const LARGEST: usize = 32 * MIB;

const PATH: &str = "/v1/chat/completions";

/// Where in a body the model and the session stand.
#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    Last,
    /// The model first, the session last.
    Apart,
}

const PLACES: [Place; 3] = [Place::First, Place::Last, Place::Apart];

/// Two models, so that the body has to be searched for one.
struct Behind {
    recorder: Recorder,
    _other: Recorder,
    kvpin: Kvpin,
}

async fn recorder_behind_kvpin() -> Behind {
    let (recorder, other) = (Recorder::start(), Recorder::start());
    let models = json!({ "m": { "replicas": [recorder.url()] }, "other": { "replicas": [other.url()] } });
    let mut config = config(models);
    config["default_model"] = json!("m");
    let kvpin = Kvpin::start(&config).await;
    Behind { recorder, _other: other, kvpin }
}

/// A JSON body of exactly `bytes` bytes with a model and a session at `place`, or mere text where that is too few.
fn body(bytes: usize, place: Place) -> Vec<u8> {
    let model = r#""model":"m""#;
    let session = r#""metadata":{"user_id":"{\"session_id\":\"s\"}"}"#;
    let (front, back) = match place {
        Place::First => (format!(r#"{{{model},{session},"text":""#), "\"}".to_owned()),
        Place::Last => (r#"{"text":""#.to_owned(), format!(r#"",{model},{session}}}"#)),
        Place::Apart => (format!(r#"{{{model},"text":""#), format!(r#"",{session}}}"#)),
    };
    let Some(filler) = bytes.checked_sub(front.len() + back.len()) else { return vec![b'x'; bytes] };
    let mut body = front.into_bytes();
    body.extend((0..filler).map(|at| b'a' + (at % 251 % 26) as u8));
    body.extend_from_slice(back.as_bytes());
    body
}

/// What the replica has seen of `call` is what was sent, in the same framing.
fn assert_arrived(call: &Call, reply: &Reply, recorder: &Recorder, what: &str) {
    assert_eq!(reply.status(), 200, "{what}: {}", reply.text());
    let arrival = recorder.last();
    assert_eq!(arrival.body.len(), call.body.len(), "{what}");
    assert_eq!(arrival.sha256, sha256(&call.body), "{what}");
    assert_eq!(reply.json()["sha256"], arrival.sha256, "{what}: the answer is the one to this request");
    let framing = (arrival.header("content-length"), arrival.header("transfer-encoding"));
    match call.framing {
        Framing::Length => assert_eq!(framing, (Some(&*call.body.len().to_string()), None), "{what}"),
        // Without a body there is nothing to frame.
        Framing::Chunks(_) if call.body.is_empty() => assert_eq!(framing.0, None, "{what}"),
        Framing::Chunks(_) => assert_eq!(framing, (None, Some("chunked")), "{what}"),
        Framing::Absent => assert_eq!(framing.1, None, "{what}"),
    }
}

#[tokio::test]
async fn bodies_of_a_known_length_arrive_at_every_size() {
    let behind = recorder_behind_kvpin().await;
    let sizes = [0, 1, 200, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, 300 * KIB, 2 * MIB, 9 * MIB];
    for bytes in sizes {
        for place in PLACES {
            let call = Call::post(PATH, body(bytes, place));
            let reply = behind.kvpin.call(&call).await;
            assert_arrived(&call, &reply, &behind.recorder, &format!("{bytes} bytes, {place:?}"));
        }
    }
}

#[tokio::test]
async fn chunked_bodies_arrive_at_every_size_and_in_every_cut() {
    let behind = recorder_behind_kvpin().await;
    for (bytes, cuts) in [
        (0, &[1][..]),
        (1, &[1]),
        (200, &[1, 3, 199, 200, 4096]),
        (64 * KIB - 1, &[1000, 64 * KIB]),
        (64 * KIB, &[1, 1000, 64 * KIB]),
        (64 * KIB + 1, &[1000, 64 * KIB, 64 * KIB + 1]),
        (300 * KIB, &[17, 1400, 16 * KIB, 300 * KIB]),
        (2 * MIB, &[1400, 64 * KIB]),
        (9 * MIB, &[64 * KIB]),
    ] {
        for (cut, place) in cuts.iter().flat_map(|cut| PLACES.map(|place| (*cut, place))) {
            let call = Call::post(PATH, body(bytes, place)).chunked(cut);
            let reply = behind.kvpin.call(&call).await;
            assert_arrived(&call, &reply, &behind.recorder, &format!("{bytes} bytes in chunks of {cut}, {place:?}"));
        }
    }
}

#[tokio::test]
async fn a_body_of_exactly_the_limit_arrives() {
    let behind = recorder_behind_kvpin().await;
    for place in [Place::First, Place::Last] {
        let call = Call::post(PATH, body(LARGEST, place));
        let reply = behind.kvpin.call(&call).await;
        assert_arrived(&call, &reply, &behind.recorder, &format!("{place:?}"));
    }
    let call = Call::post(PATH, body(LARGEST, Place::Apart)).chunked(256 * KIB);
    let reply = behind.kvpin.call(&call).await;
    assert_arrived(&call, &reply, &behind.recorder, "chunked");
}

#[tokio::test]
async fn a_session_in_the_head_or_at_the_bodys_end_pins_the_same() {
    let behind = recorder_behind_kvpin().await;
    let first = behind.kvpin.call(&Call::post(PATH, body(300 * KIB, Place::Last))).await;
    assert_eq!(first.decision(), "placed");
    for call in [
        Call::post(PATH, body(300 * KIB, Place::Apart)),
        Call::post(PATH, body(300 * KIB, Place::Apart)).chunked(1400),
        Call::post(PATH, body(200, Place::First)),
        Call::post(PATH, body(2 * MIB, Place::Apart)).of("s"),
    ] {
        let reply = behind.kvpin.call(&call).await;
        assert_eq!(reply.decision(), "sticky");
        assert_arrived(&call, &reply, &behind.recorder, "of one conversation");
    }
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_go_on_is_told() {
    let behind = recorder_behind_kvpin().await;
    for bytes in [200, 300 * KIB] {
        for chunked in [false, true] {
            let call = Call::post(PATH, body(bytes, Place::Last)).header("Expect", "100-continue");
            let call = if chunked { call.chunked(1400) } else { call };
            let mut wire = behind.kvpin.connect().await;
            wire.send(&call.head_bytes()).await;
            assert_eq!(wire.head("POST").await.status, 100, "before any byte of the body");
            wire.send(&call.body_bytes()).await;
            let reply = wire.reply("POST").await.expect("a response");
            assert_arrived(&call, &reply, &behind.recorder, &format!("{bytes} bytes, chunked: {chunked}"));
            assert_eq!(behind.recorder.last().header("expect"), None, "the replica is not asked again");
            let next = Call::post(PATH, body(300, Place::First));
            assert_arrived(&next, &wire.call(&next).await, &behind.recorder, "the next one on the connection");
        }
    }
}

#[tokio::test]
async fn a_client_with_a_body_that_kvpin_does_not_look_into_is_told_to_go_on_too() {
    let behind = recorder_behind_kvpin().await;
    let call = Call::post(PATH, body(300 * KIB, Place::Last)).header("Expect", "100-continue");
    let call = call.header("Content-Encoding", "zstd");
    let mut wire = behind.kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    assert_eq!(wire.head("POST").await.status, 100, "before any byte of the body");
    wire.send(&call.body_bytes()).await;
    let reply = wire.reply("POST").await.expect("a response");
    assert_arrived(&call, &reply, &behind.recorder, "compressed, as far as kvpin knows");
}

#[tokio::test]
async fn a_slow_upload_reaches_the_replica_while_it_goes_on() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let call = Call::post(PATH, body(600 * KIB, Place::First)).of("slow");
    let mut wire = kvpin.connect().await;
    wire.send(&call.head_bytes()).await;
    let mut pieces = call.body.chunks(60 * KIB);
    wire.send(pieces.next().expect("a first piece")).await;
    let mut turn = hand.arriving().await;
    let mut sent = 60 * KIB;
    for piece in pieces {
        // In lock step: a piece is sent when all but the one before it have arrived at the replica.
        wire.send(piece).await;
        turn.read_to(sent).await;
        sent += piece.len();
    }
    turn.read_to(sent).await;
    assert_eq!(turn.body, call.body);
    turn.answer("{}").await;
    assert_eq!(wire.reply("POST").await.map(|reply| reply.status()), Some(200));
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_with_pauses_arrives_whole() {
    let behind = recorder_behind_kvpin().await;
    for chunked in [false, true] {
        let call = Call::post(PATH, body(120, Place::Last));
        let call = if chunked { call.chunked(1) } else { call };
        let mut wire = behind.kvpin.connect().await;
        wire.send(&call.head_bytes()).await;
        for (at, byte) in call.body_bytes().into_iter().enumerate() {
            wire.send(&[byte]).await;
            if at % 16 == 0 {
                // A round trip to kvpin is a pause that needs no clock.
                behind.kvpin.in_flight().await;
            }
        }
        let reply = wire.reply("POST").await.expect("a response");
        assert_arrived(&call, &reply, &behind.recorder, &format!("chunked: {chunked}"));
    }
}

#[tokio::test]
async fn random_bodies_arrive_on_connections_that_are_used_again() {
    let behind = recorder_behind_kvpin().await;
    let seed = 20_261_129;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut wires = [behind.kvpin.connect().await, behind.kvpin.connect().await];
    for number in 0..60 {
        let bytes = 1 << rng.random_range(0..21);
        let bytes = rng.random_range(bytes / 2..=bytes);
        let place = PLACES[rng.random_range(0..3)];
        let mut call = Call::post(PATH, body(bytes, place));
        if rng.random_bool(0.5) {
            call = call.of("random");
        }
        if rng.random_bool(0.5) {
            call = call.chunked(rng.random_range(1..=bytes.max(1)));
        }
        let what = format!("number {number} of seed {seed}: {bytes} bytes, {place:?}, {:?}", call.framing);
        let wire = &mut wires[rng.random_range(0..2)];
        wire.send(&call.head_bytes()).await;
        let sent = call.body_bytes();
        let (front, back) = sent.split_at(rng.random_range(0..=sent.len()));
        wire.send(front).await;
        if rng.random_bool(0.3) {
            // A round trip to kvpin is a pause that needs no clock.
            behind.kvpin.in_flight().await;
        }
        let reply = wire.rest(back).await;
        assert_arrived(&call, &reply, &behind.recorder, &what);
    }
}

#[tokio::test]
async fn the_memory_of_a_body_is_given_back_when_its_turn_or_its_client_has_gone() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["limits"] =
        json!({ "body_bytes_max": "3MiB", "replay_bytes_max": "3MiB", "replay_memory_bytes_max": "3MiB" });
    let kvpin = Kvpin::start(&config).await;
    // Two of these at once are over the budget.
    let call = Call::post(PATH, body(2 * MIB, Place::Last)).chunked(64 * KIB);
    let half = |call: &Call| [call.head_bytes(), call.body_bytes()[..MIB + 512 * KIB].to_vec()].concat();
    for _ in 0..3 {
        let reply = kvpin.call(&call).await;
        assert_arrived(&call, &reply, &recorder, "alone");
        let mut wire = kvpin.connect().await;
        wire.send(&half(&call)).await;
        drop(wire);
        until("nothing is open", async || (kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
    }
}

#[tokio::test]
async fn bodies_that_are_more_than_the_budget_of_all_are_refused_as_overload() {
    let recorder = Recorder::start();
    let mut config = config(json!({ "m": { "replicas": [recorder.url()] } }));
    config["limits"] =
        json!({ "body_bytes_max": "3MiB", "replay_bytes_max": "3MiB", "replay_memory_bytes_max": "3MiB" });
    let kvpin = Kvpin::start(&config).await;
    let call = Call::post("/v1/messages", body(2 * MIB, Place::Last)).chunked(64 * KIB);
    let sent = call.body_bytes();
    let (front, back) = sent.split_at(MIB + 512 * KIB);
    let mut holder = kvpin.connect().await;
    holder.send(&call.head_bytes()).await;
    holder.send(front).await;
    // Its chunks' heads and the one that is still coming are not held.
    let held = (MIB + 256 * KIB) as f64;
    until("the first body is held", async || (kvpin.metric("kvpin_request_held_bytes").await > held).then_some(()))
        .await;
    let refused = kvpin.call(&call).await;
    assert_eq!((refused.status(), refused.anthropic_error().0.as_str()), (503, "overloaded_error"));
    assert!(refused.header("retry-after").is_some());
    assert_arrived(&call, &holder.rest(back).await, &recorder, "the one that was first");
    let none_held = async || (kvpin.metric("kvpin_request_held_bytes").await == 0.0).then_some(());
    until("nothing is held", none_held).await;
}
