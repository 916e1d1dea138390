//! HTTP/2: what a client may take. A connection that does nothing, too little or too much is not kept, and costs nobody else.

use std::time::Duration;

use h2::Reason;
use h2::client::Builder;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::call::Call;
use crate::support::client::Piece;
use crate::support::edge::Edge;
use crate::support::h2::{Client, Ending};
use crate::support::hand::{Hand, STREAM_HEAD};
use crate::support::recorder::Recorder;
use crate::support::secure::secure;
use crate::support::{until, within};

async fn with_limits(limits: Value) -> (Edge, Hand) {
    let hand = Hand::start();
    let edge = Edge::with(json!({ "m": { "replicas": [hand.url()] } }), limits).await;
    (edge, hand)
}

/// The start of a connection, as every client sends it: no settings of its own.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// `POST https://x/v1/echo`, as HPACK has it.
const HEAD: &[u8] = b"\x83\x87\x41\x01x\x04\x08/v1/echo";

#[tokio::test]
async fn a_body_that_stops_arriving_is_refused_wherever_it_stops() {
    // A byte earns a second, so that whoever sends is never late.
    let (edge, mut hand) = with_limits(json!({ "body_timeout_s": 1, "body_rate_min_bytes_per_s": 1 })).await;
    let mut client = edge.h2().await;
    // In the middle of what kvpin reads for itself.
    let mut stream = client.begin(&Call::post("/v1/completions", "").chunked(1)).await;
    stream.send(br#"{"mod"#, false);
    assert_eq!(stream.head().await.status, 408);
    // And behind it, when a replica has the beginning. One that is slow, but sends, is served.
    let mut slow = client.begin(&Call::post("/v1/completions", "").chunked(1).of("slow")).await;
    slow.send(br#"{"model":"m","text":""#, false);
    let mut slow_turn = hand.arriving().await;
    let mut stream = client.begin(&Call::post("/v1/completions", "").chunked(1).of("stalled")).await;
    stream.send(br#"{"model":"m","text":""#, false);
    let mut turn = hand.arriving().await;
    let refused = async { stream.head().await.status };
    let going_on = async {
        loop {
            slow.send(b"x", false);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let status = tokio::select! {
        status = refused => status,
        () = going_on => unreachable!("it goes on for ever"),
    };
    assert_eq!(status, 408);
    turn.rest().await;
    slow.send(br#""}"#, true);
    while !slow_turn.body.ends_with(b"0\r\n\r\n") {
        slow_turn.read_to(slow_turn.body.len() + 1).await;
    }
    slow_turn.answer("{}").await;
    assert_eq!(slow.head().await.status, 200);
    until("the slots are free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn an_idle_connection_is_told_that_it_ends_and_a_stream_outlives_every_limit() {
    let limits = json!({ "head_timeout_s": 1, "keepalive_timeout_s": 1, "body_timeout_s": 1, "write_timeout_s": 1, "ping_interval_s": 0 });
    let (edge, mut hand) = with_limits(limits).await;
    let mut streaming = edge.h2().await;
    let mut stream = streaming.send(&Call::post("/v1/messages", r#"{"model":"m"}"#), Ending::WithLast).await;
    let mut turn = hand.turn().await;
    turn.write(STREAM_HEAD).await;
    turn.write_chunk("data: early\n\n").await;
    stream.head().await;
    assert_eq!(stream.piece().await, Piece::Data("data: early\n\n".into()));
    // One that has served nothing, and one that has.
    let fresh = edge.h2().await;
    let mut used = edge.h2().await;
    assert_eq!(used.call(&Call::get("/health")).await.status(), 200);
    assert_eq!(fresh.ended_by_server().await, None);
    assert_eq!(used.ended_by_server().await, None);
    turn.write_chunk("data: late\n\n").await;
    assert_eq!(stream.piece().await, Piece::Data("data: late\n\n".into()));
    turn.write("0\r\n\r\n").await;
    assert_eq!(stream.piece().await, Piece::End);
    assert_eq!(streaming.ended_by_server().await, None);
}

#[tokio::test]
async fn a_client_is_told_what_it_may_send_before_it_is_read() {
    let (edge, _hand) = with_limits(json!({ "head_bytes_max": "16KiB" })).await;
    let mut stream = secure(edge.address(), edge.authority.client(&["h2"])).await;
    stream.write_all(PREFACE).await.expect("sends");
    let (kind, settings) = frame(&mut stream).await;
    assert_eq!(kind, 4);
    let told: Vec<_> = settings
        .chunks(6)
        .map(|pair| (pair[1], u32::from_be_bytes(pair[2..].try_into().expect("four bytes"))))
        .collect();
    for (setting, value) in [(3, 100), (4, 1 << 20), (6, 32 << 10)] {
        assert!(told.contains(&(setting, value)), "{setting} among {told:?}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_is_told_so_first_and_what_was_on_its_way_is_served() {
    let (edge, _hand) = with_limits(json!({ "head_timeout_s": 1 })).await;
    let mut stream = secure(edge.address(), edge.authority.client(&["h2"])).await;
    stream.write_all(PREFACE).await.expect("sends");
    let (kind, goodbye) = frame_after_settings(&mut stream).await;
    // GOAWAY: any stream may still come, and nothing is wrong.
    assert_eq!((kind, &goodbye[..]), (7, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0][..]));
    let (kind, question) = frame(&mut stream).await;
    assert_eq!(kind, 6, "a PING, whose answer shows that the client knows");
    // A request that was on its way: `GET https://x/health`.
    let head = b"\x82\x87\x41\x01x\x04\x07/health";
    stream.write_all(&[&[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1], &head[..]].concat()).await.expect("sends");
    stream.write_all(&[&[0, 0, 8, 6, 1, 0, 0, 0, 0], &question[..]].concat()).await.expect("sends");
    let mut kinds = Vec::new();
    let last = loop {
        let (kind, payload) = frame(&mut stream).await;
        kinds.push(kind);
        if kind == 7 {
            break payload;
        }
    };
    assert_eq!(last, [0, 0, 0, 1, 0, 0, 0, 0], "the last stream that is served");
    while let Ok(kind) = stream.read_u8().await {
        kinds.push(kind);
    }
    assert!(kinds.contains(&1), "the response's head is among {kinds:?}");
}

/// The first frame behind the settings that both sides agree on.
async fn frame_after_settings(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    loop {
        let (kind, payload) = frame(stream).await;
        // SETTINGS, and the WINDOW_UPDATE of the connection.
        if kind != 4 && kind != 8 {
            return (kind, payload);
        }
    }
}

/// The kind of the next frame, and what is in it.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    within("a frame", async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.expect("a whole frame");
        (head[3], payload)
    })
    .await
}

#[tokio::test]
async fn a_connection_that_says_nothing_or_only_pings_is_closed() {
    let (edge, _hand) = with_limits(json!({ "head_timeout_s": 1, "keepalive_timeout_s": 1 })).await;
    let half_a_head = b"\0\0\x40\x01\x04\0\0\0\x01\x83";
    for begun in [&b""[..], b"PRI * HTTP/2.0\r\n", PREFACE, &[PREFACE, half_a_head].concat()] {
        let mut stream = secure(edge.address(), edge.authority.client(&["h2"])).await;
        stream.write_all(begun).await.expect("sends");
        within("the end", stream.read_to_end(&mut Vec::new())).await.ok();
    }
    let mut stream = secure(edge.address(), edge.authority.client(&["h2"])).await;
    stream.write_all(PREFACE).await.expect("sends");
    within("the end of one that pings", async {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let pinging = async {
            while writer.write_all(b"\0\0\x08\x06\0\0\0\0\0pingping").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let reading = async {
            let mut heard = Vec::new();
            reader.read_to_end(&mut heard).await.ok();
        };
        tokio::join!(pinging, reading);
    })
    .await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up_and_others_on_its_connection_are_served() {
    let (edge, mut hand) = with_limits(json!({ "write_timeout_s": 1 })).await;
    let mut settings = Builder::new();
    settings.initial_window_size(10_000);
    let mut client = Client::with(edge.address(), edge.authority.client(&["h2"]), settings).await;
    let call = Call::post("/v1/messages", r#"{"model":"m"}"#);
    let mut stuck = client.send(&call, Ending::WithLast).await;
    let mut turn = hand.turn().await;
    turn.write("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n").await;
    turn.write("x".repeat(500_000)).await;
    assert_eq!(stuck.head().await.status, 200);
    let mut other = client.send(&call, Ending::WithLast).await;
    hand.turn().await.answer("{}").await;
    assert_eq!(other.head().await.status, 200);
    assert_eq!(other.piece().await, Piece::Data("{}".into()));
    // Nothing is read, so nothing is given back: not a byte over the window comes, and then the stream is given up.
    let mut got = 0;
    while let Piece::Data(data) = stuck.take_without_room().await {
        got += data.len();
    }
    assert_eq!(got, 10_000);
    turn.rest().await;
    until("the slots are free", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
    assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_all_its_requests_loses_its_connection_and_nobody_else_does() {
    let recorder = Recorder::start();
    let edge = Edge::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut honest = edge.h2().await;
    let call = Call::post("/v1/messages", r#"{"model":"m","messages":[]}"#).of("rapid");
    let mut rapid = edge.h2().await;
    let mut given_up = 0;
    while rapid.takes_more().await && given_up < 5_000 {
        let mut stream = rapid.begin(&call).await;
        stream.reset(Reason::CANCEL);
        given_up += 1;
        if given_up % 10 == 0 {
            assert_eq!(honest.call(&call.clone().of("honest")).await.status(), 200);
        }
    }
    // Whoever is still sending may miss what is said last.
    let said = rapid.ended().await;
    assert!(said.is_none_or(|reason| reason == Reason::ENHANCE_YOUR_CALM), "{said:?}");
    assert!(given_up < 5_000);
    edge.kvpin.until_logged("gave up 100 of its").await;
    assert_eq!(honest.call(&call).await.status(), 200);
    until("nothing is open", async || (edge.kvpin.metric("kvpin_open_requests").await == 0.0).then_some(())).await;
}

#[tokio::test]
async fn a_client_that_gives_up_as_many_requests_as_it_lets_be_answered_is_served() {
    let (edge, mut hand) = with_limits(json!({})).await;
    let mut client = edge.h2().await;
    let call = Call::post("/v1/messages", r#"{"model":"m"}"#);
    for _ in 0..150 {
        let mut stream = client.send(&call, Ending::WithLast).await;
        let mut turn = hand.turn().await;
        stream.reset(Reason::CANCEL);
        turn.rest().await;
        assert_eq!(client.call(&Call::get("/health")).await.status(), 200);
    }
}

#[tokio::test]
async fn floods_of_frames_are_answered_one_by_one_or_end_the_connection_and_cost_no_memory() {
    let (edge, _hand) = with_limits(json!({ "write_timeout_s": 1, "keepalive_timeout_s": 1 })).await;
    let settings = b"\0\0\0\x04\0\0\0\0\0".repeat(1000);
    let pings = b"\0\0\x08\x06\0\0\0\0\0pingping".repeat(1000);
    let empty_data = {
        // A request whose body is a flood of empty frames.
        [&[0, 0, 15, 1, 4, 0, 0, 0, 1], HEAD, &b"\0\0\0\0\0\0\0\0\x01".repeat(1000)].concat()
    };
    let resets: Vec<u8> = (0..1000_u32)
        .flat_map(|number| {
            let id = (2 * number + 1).to_be_bytes();
            [&[0, 0, 15, 1, 4], &id[..], HEAD, &[0, 0, 4, 3, 0], &id, &[0, 0, 0, 8]].concat()
        })
        .collect();
    let before = edge.kvpin.resident_bytes();
    for flood in [settings, pings, empty_data, resets] {
        let mut stream = secure(edge.address(), edge.authority.client(&["h2"])).await;
        stream.write_all(PREFACE).await.expect("sends");
        // Nothing is read meanwhile: what kvpin had to say about it would be kept somewhere.
        for _ in 0..50 {
            let sent = tokio::time::timeout(Duration::from_millis(200), stream.write_all(&flood)).await;
            if !matches!(sent, Ok(Ok(()))) {
                break;
            }
        }
        assert_eq!(edge.h2().await.call(&Call::get("/health")).await.status(), 200, "others are served");
    }
    let grown = edge.kvpin.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert_eq!(edge.kvpin.metric("kvpin_panics_total").await, 0.0);
}
