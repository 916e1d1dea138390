//! What a client writes is what the replica reads, and what the replica writes is what the client reads.

use serde_json::json;

use crate::support::call::Call;
use crate::support::hand::Hand;
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;

/// JSON that a parser would not write again as it was, and what is no JSON at all.
fn peculiar_bodies() -> Vec<Vec<u8>> {
    let texts = [
        r#"{"model":"m","unknown":{"deep":[null,true,{"x":1}]},"seed":12345678901234567890123}"#,
        r#"{"model":"m","temperature":1.50,"top_p":1E-2,"n":-0,"big":1e400}"#,
        r#"{"model":"m","stop":"a","stop":"b","messages":[],"messages":[1]}"#,
        " {\r\n\t\"model\" :\t\"m\" ,\n\n \"messages\"  : [ ] } \n\n ",
        r#"{"model":"m","text":"\u00e9\/\ud83e\udd80 é 🦀 \u0000"}"#,
        r#"{"text":"z","a":"b","model":"m","0":{},"":""}"#,
        "{\"model\":\"m\",\"text\":\"a raw tab\tin a string\"}",
        "{\"model\":\"m\"} trailing words",
        "{\"model\":\"m\",",
    ];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    bodies.push(b"\xef\xbb\xbf{\"model\":\"m\"}".to_vec());
    bodies.push(b"{\"model\":\"m\",\"text\":\"\xff\xfe\"}".to_vec());
    bodies.push((0..=255).collect());
    bodies
}

#[tokio::test]
async fn a_request_body_reaches_the_replica_byte_for_byte() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    for body in peculiar_bodies() {
        for call in
            [Call::post("/v1/chat/completions", body.clone()), Call::post("/v1/messages", body.clone()).chunked(5)]
        {
            let reply = kvpin.call(&call.of("exact")).await;
            assert_eq!(reply.status(), 200, "{}", reply.text());
            assert_eq!(recorder.last().body, body, "{}", String::from_utf8_lossy(&body));
        }
    }
}

#[tokio::test]
async fn a_clients_headers_reach_the_replica_with_the_hop_by_hop_ones_left_out() {
    let recorder = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let call = Call::post("/v1/messages?beta=true", "{}")
        .header("Authorization", "Bearer key")
        .header("anthropic-beta", "a,b;q=1")
        .header("X-Twice", "one")
        .header("X-Twice", "two")
        .header("X-Claude-Code-Session-Id", "s")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("X-Raw", b"caf\xc3\xa9 \xff")
        .header("Connection", "keep-alive")
        .header("Keep-Alive", "timeout=5");
    assert_eq!(kvpin.call(&call).await.status(), 200);
    let arrival = recorder.last();
    for name in ["authorization", "anthropic-beta", "x-claude-code-session-id", "traceparent", "content-type"] {
        let sent =
            call.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice());
        assert_eq!(arrival.headers.get(name).map(|value| value.as_bytes()), sent, "{name}");
    }
    let twice: Vec<_> = arrival.headers.get_all("x-twice").iter().map(|value| value.as_bytes()).collect();
    assert_eq!(twice, [b"one", b"two"]);
    assert_eq!(arrival.headers["x-raw"].as_bytes(), b"caf\xc3\xa9 \xff");
    assert_eq!(arrival.path, "/v1/messages?beta=true");
    assert!(!arrival.headers.contains_key("keep-alive"));
}

#[tokio::test]
async fn a_response_reaches_the_client_byte_for_byte_with_its_status_and_headers() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [{ "url": hand.url(), "name": "r" }] } })).await;
    let body: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for status in ["200 OK", "400 Bad Request", "404 Not Found", "429 Too Many Requests", "500 Internal Server Error"] {
        let mut wire = kvpin.connect().await;
        wire.send(&Call::post("/v1/messages", "{}").bytes()).await;
        let mut turn = hand.turn().await;
        let length = body.len();
        turn.write(format!("HTTP/1.1 {status}\r\nX-Own: a\r\nRetry-After: 7\r\nContent-Length: {length}\r\n\r\n"))
            .await;
        turn.write(&body).await;
        let reply = wire.reply("POST").await.expect("a response");
        assert_eq!(reply.status().to_string(), status[..3]);
        assert_eq!((reply.header("x-own"), reply.header("retry-after")), (Some("a"), Some("7")));
        assert_eq!(reply.pieces.concat(), body);
        assert_eq!((reply.replica(), reply.decision()), ("r", "unpinned"));
    }
}

#[tokio::test]
async fn an_engines_503_without_a_time_to_come_back_gets_one() {
    let mut hand = Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    let mut wire = kvpin.connect().await;
    wire.send(&Call::post("/v1/messages", "{}").bytes()).await;
    hand.turn().await.write("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy").await;
    let reply = wire.reply("POST").await.expect("a response");
    assert_eq!((reply.status(), reply.text().as_str()), (503, "busy"));
    let seconds: u32 = reply.header("retry-after").and_then(|value| value.parse().ok()).expect("whole seconds");
    assert!((1..=30).contains(&seconds));
}
