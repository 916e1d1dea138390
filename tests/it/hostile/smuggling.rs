//! Whatever a client sends, the replica sees exactly one request that can be read in one way only, or nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::Wire;
use crate::support::kvpin::Kvpin;
use crate::support::strict::{Request, Strict};
use crate::support::until;

/// What kvpin has to make of some bytes.
#[derive(Clone)]
enum Made {
    /// An answer with that status, and the connection's end. The replica sees nothing.
    Refused(u16),
    /// One request with that body. What came behind it is no request.
    Served(&'static str),
    /// The same, and there is more behind it already, so that the client may be told that instead of its answer.
    First(&'static str),
}

use Made::{First, Refused, Served};

const BODY: &str = r#"{"model":"m"}"#;

/// What an attacker wants the replica to take for a request.
const SMUGGLED: &str = "POST /v1/messages HTTP/1.1\r\nHost: kvpin.test\r\nX-Smuggled: 1\r\nContent-Length: 2\r\n\r\n{}";

/// Stands for the number of a case in what is sent.
const CASE: &str = "X-Case: ####\r\n";

/// A request with these lines in its head, and what comes behind the head.
fn with(lines: &str, rest: &str) -> Vec<u8> {
    format!("POST /v1/messages HTTP/1.1\r\nHost: kvpin.test\r\n{CASE}{lines}\r\n{rest}").into_bytes()
}

/// A chunked one.
fn chunked(rest: &str) -> Vec<u8> {
    with("Transfer-Encoding: chunked\r\n", rest)
}

/// One with that request line, and whatever lines.
fn line(line: &str, lines: &str) -> Vec<u8> {
    format!("{line}\r\n{lines}{CASE}Content-Length: 13\r\n\r\n{BODY}").into_bytes()
}

const HOST: &str = "Host: kvpin.test\r\n";

async fn behind() -> (Strict, Kvpin) {
    let replica = Strict::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [replica.url()] } })).await;
    (replica, kvpin)
}

/// Each of them, alone and with more behind it.
async fn assert_made(cases: impl IntoIterator<Item = (Vec<u8>, Made)>) {
    let (replica, kvpin) = behind().await;
    let mut allowed = BTreeMap::new();
    for (bytes, made) in cases {
        for more in ["", SMUGGLED, "\r\n\r\n", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let number = format!("{:04}", allowed.len());
            let bytes = numbered(&[&bytes[..], more.as_bytes()].concat(), &number);
            let what = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned();
            let mut wire = Wire::connect(kvpin.address).await;
            wire.send(&bytes).await;
            if matches!(made, Refused(_)) {
                // Nothing more will come: a body that isn't there can't be waited for.
                wire.half_close().await;
            }
            let reply = wire.reply("POST").await.unwrap_or_else(|| panic!("{what:?}: no answer"));
            match &made {
                Refused(expected) => {
                    assert_eq!(reply.status(), *expected, "{what:?}");
                    assert!(wire.ends().await, "{what:?}: more than one answer");
                }
                Served(_) if more.is_empty() => assert_eq!(reply.status(), 200, "{what:?}"),
                // Whether the answer or what came behind the request was there first.
                Served(_) | First(_) => {
                    assert!([200, 400].contains(&reply.status()), "{what:?}: {}", reply.status());
                    assert!(wire.ends().await, "{what:?}: more than one answer");
                }
            }
            allowed.insert(number, made.clone());
        }
    }
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
    assert_arrived(&replica.take(), &allowed);
    assert_eq!(kvpin.call(&Call::post("/v1/messages", BODY)).await.status(), 200);
    assert_eq!(kvpin.metric("kvpin_panics_total").await, 0.0);
}

fn numbered(bytes: &[u8], number: &str) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(at) = bytes.windows(4).position(|window| window == b"####") {
        bytes[at..at + 4].copy_from_slice(number.as_bytes());
    }
    bytes
}

/// Each request is one that was to arrive, and arrived once.
fn assert_arrived(requests: &[Request], allowed: &BTreeMap<String, Made>) {
    let mut seen = BTreeSet::new();
    for request in requests {
        let cases = request.all("x-case");
        let &[case] = &cases[..] else { panic!("{request:?}") };
        assert!(seen.insert(case.to_owned()), "twice: {request:?}");
        match allowed[case] {
            Served(body) | First(body) => assert_served(request, body),
            Refused(_) => panic!("this was to be refused: {request:?}"),
        }
    }
}

fn assert_served(request: &Request, body: &str) {
    assert_eq!(String::from_utf8_lossy(&request.body), body, "{request:?}");
    assert_eq!(request.target(), "/v1/messages", "{request:?}");
    for header in ["x-smuggled", "upgrade", "http2-settings", "te", "trailer", "connection", "expect"] {
        assert!(request.all(header).is_empty(), "{header} in {request:?}");
    }
}

#[tokio::test]
async fn a_length_and_a_coding_together_are_refused() {
    let smuggled = "0\r\n\r\nG";
    assert_made([
        (with("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", smuggled), Refused(400)),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 6\r\n", smuggled), Refused(400)),
        (with("Transfer-Encoding: chunked\r\nX: 1\r\ncontent-length: 0\r\n", smuggled), Refused(400)),
        (with("Content-Length: 13\r\nTransfer-Encoding: identity\r\n", BODY), Refused(400)),
    ])
    .await;
}

#[tokio::test]
async fn a_length_is_one_plain_number() {
    let mut cases = Vec::new();
    for value in [
        "+13",
        "-13",
        "13.0",
        "1e1",
        "0xd",
        "13, 13",
        "13,13",
        "13 13",
        "1_3",
        "",
        "013",
        "99999999999999999999",
        "13;",
    ] {
        cases.push((with(&format!("Content-Length: {value}\r\n"), BODY), Refused(400)));
    }
    cases.extend([
        (with("Content-Length: 13\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("Content-Length: 13\r\nContent-Length: 12\r\n", BODY), Refused(400)),
        (with("Content-Length: 12\r\nX: 1\r\ncontent-length: 13\r\n", BODY), Refused(400)),
        (with("Content-Length: \t 13 \t\r\n", BODY), Served(BODY)),
        (with("Content-Length: 18446744073709551615\r\n", BODY), Refused(413)),
        (with("Content_Length: 13\r\nContent-Length: 0\r\n", BODY), Served("")),
        (with("Connection: Content-Length\r\nContent-Length: 13\r\n", BODY), Served(BODY)),
    ]);
    assert_made(cases).await;
}

#[tokio::test]
async fn the_only_coding_is_chunked_given_once() {
    let rest = "d\r\n{\"model\":\"m\"}\r\n0\r\n\r\n";
    let mut cases = Vec::new();
    for (value, status) in [
        ("xchunked", 400),
        ("chunkedx", 400),
        ("chunked, identity", 400),
        ("chunked;q=1", 400),
        ("\"chunked\"", 400),
        ("chunked,", 400),
        ("identity", 400),
        ("gzip", 400),
        ("", 400),
        ("chun\tked", 400),
        ("gzip, chunked", 501),
        ("identity, chunked", 501),
        ("x, chunked", 501),
        ("chunked, chunked", 400),
        (",chunked", 400),
    ] {
        cases.push((with(&format!("Transfer-Encoding: {value}\r\n"), rest), Refused(status)));
    }
    cases.extend([
        (with("Transfer-Encoding: \tCHUNKED \r\n", rest), Served(BODY)),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", rest), Refused(400)),
        (with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", rest), Refused(501)),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", rest), Refused(400)),
        (with("Transfer_Encoding: chunked\r\nContent-Length: 13\r\n", BODY), Served(BODY)),
        (with("Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n", rest), Served(BODY)),
        (with("TE: gzip, trailers, chunked\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n", rest), Served(BODY)),
        (b"POST /v1/messages HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(), Refused(400)),
        (
            b"POST /v1/messages HTTP/1.0\r\nContent-Length: 13\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
            Refused(400),
        ),
    ]);
    assert_made(cases).await;
}

#[tokio::test]
async fn lines_end_with_crlf_and_are_never_folded() {
    assert_made([
        (with("X: 1\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("Content-Length: 13\n", BODY), Refused(400)),
        (with("X: 1\rContent-Length: 13\r\n", BODY), Refused(400)),
        (with("X: 1\r\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("X: a\r\n b: c\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("X: a\r\n\tContent-Length: 1\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("Transfer-Encoding:\r\n chunked\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("Content-Length : 13\r\n", BODY), Refused(400)),
        (with("Content-Length\t: 13\r\n", BODY), Refused(400)),
        (with("Transfer-Encoding : chunked\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with(" Content-Length: 13\r\n", BODY), Refused(400)),
        (with("X\0: 1\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("X: \0\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with(": 1\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("no colon\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (with("X: \u{7f}\r\nContent-Length: 13\r\n", BODY), Refused(400)),
        (b"POST /v1/messages HTTP/1.1\nHost: x\nContent-Length: 13\n\n{\"model\":\"m\"}".to_vec(), Refused(400)),
    ])
    .await;
}

#[tokio::test]
async fn a_request_names_one_host_and_one_target() {
    let long_target = format!("POST /v1/messages?{} HTTP/1.1", "x".repeat(200_000));
    let mut cases = Vec::new();
    for (request_line, lines, made) in [
        ("POST /v1/messages HTTP/1.1", "", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: a\r\nHost: a\r\n", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: a\r\nhost: b\r\n", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: a b\r\n", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: a/b\r\n", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: a@b\r\n", Refused(400)),
        ("POST /v1/messages HTTP/1.1", "Host: \r\n", Served(BODY)),
        ("POST /v1/messages HTTP/1.0", "", Served(BODY)),
        ("POST /v1/messages HTTP/1.1", "Connection: Host\r\nHost: kvpin.test\r\n", Served(BODY)),
        ("POST http://kvpin.test/v1/messages HTTP/1.1", HOST, Served(BODY)),
        ("POST http://elsewhere/v1/messages HTTP/1.1", HOST, Refused(400)),
        ("POST http://user@kvpin.test/v1/messages HTTP/1.1", HOST, Refused(400)),
        ("POST //kvpin.test/v1/messages HTTP/1.1", HOST, Refused(404)),
        ("POST /v1/messages", HOST, Refused(400)),
        ("POST /v1/messages HTTP/0.9", HOST, Refused(400)),
        ("POST /v1/messages HTTP/1.2", HOST, Refused(400)),
        ("POST /v1/messages HTTP/2.0", HOST, Refused(400)),
        ("POST /v1/messages HTTP/1.1 HTTP/1.1", HOST, Refused(400)),
        ("POST /v1/messages X: HTTP/1.1", HOST, Refused(404)),
        ("POST  /v1/messages HTTP/1.1", HOST, Refused(405)),
        ("POST\t/v1/messages HTTP/1.1", HOST, Refused(400)),
        ("P\0ST /v1/messages HTTP/1.1", HOST, Refused(400)),
        ("post /v1/messages HTTP/1.1", HOST, Refused(405)),
        ("POST /v1/\u{e9}messages HTTP/1.1", HOST, Refused(400)),
        ("POST /v1/messages?\u{ff} HTTP/1.1", HOST, Refused(400)),
        ("TRACE /v1/messages HTTP/1.1", HOST, Refused(405)),
        ("CONNECT kvpin.test:80 HTTP/1.1", HOST, Refused(405)),
        ("OPTIONS * HTTP/1.1", HOST, Refused(404)),
        ("PRI * HTTP/2.0", "", Refused(400)),
        (&*long_target, HOST, Refused(431)),
    ] {
        let bytes = line(request_line, lines);
        // What is well-formed and not served keeps its connection; here it asks for its end.
        let bytes =
            String::from_utf8_lossy(&bytes).replacen("Content-Length", "Connection: close\r\nContent-Length", 1);
        cases.push((bytes.into_bytes(), made));
    }
    assert_made(cases).await;
}

#[tokio::test]
async fn chunks_are_read_by_the_letter_and_written_anew() {
    let extension = format!("d;{}\r\n{BODY}\r\n0\r\n\r\n", "x".repeat(70_000));
    let trailer = format!("d\r\n{BODY}\r\n0\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    let mut cases = Vec::new();
    for size in ["zz", "-d", "+d", "0xd", "d.", "fffffffffffffffff", "ffffffffffffffff", "d\n", " d", "d d", "d\r"] {
        cases.push((chunked(&format!("{size}\r\n{BODY}\r\n0\r\n\r\n")), Refused(400)));
    }
    cases.extend([
        (chunked("5\r\n{\"model\":\"m\"}\r\n0\r\n\r\n"), Refused(400)),
        (chunked("d\r\n{\"model\":\"m\"}0\r\n\r\n"), Refused(400)),
        (chunked("d\r\n{\"model\":\"m\"}\n0\r\n\r\n"), Refused(400)),
        (chunked(&extension), Refused(400)),
        (chunked(&trailer), Refused(400)),
        (chunked("d;ext=1;other=\"x\"\r\n{\"model\":\"m\"}\r\n0;last\r\n\r\n"), Served(BODY)),
        (chunked("00000d\r\n{\"model\":\"m\"}\r\n000\r\n\r\n"), Served(BODY)),
        (chunked("d \r\n{\"model\":\"m\"}\r\n0\r\n\r\n"), Served(BODY)),
        (chunked("d\r\n{\"model\":\"m\"}\r\n0\r\nX-Smuggled: 1\r\nContent-Length: 5\r\n\r\n"), Served(BODY)),
        // Some readers end an extension at the LF, and then see another size.
        (chunked("d;\n{\r\n{\"model\":\"m\"}\r\n0\r\n\r\n"), Served(BODY)),
    ]);
    assert_made(cases).await;
}

#[tokio::test]
async fn nothing_is_upgraded_and_nothing_behind_a_request_is_one() {
    let whole = String::from_utf8(with("Content-Length: 13\r\n", BODY)).expect("text");
    assert_made([
        (with("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 13\r\n", BODY), Served(BODY)),
        (
            with(
                "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 13\r\n",
                BODY,
            ),
            Served(BODY),
        ),
        (whole.repeat(2).into_bytes(), First(BODY)),
        (whole.repeat(50).into_bytes(), First(BODY)),
        (with("Expect: something\r\nContent-Length: 13\r\n", BODY), Served(BODY)),
    ])
    .await;
}

#[tokio::test]
async fn a_client_that_sends_more_after_its_body_is_told_so() {
    let mut hand = crate::support::hand::Hand::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [hand.url()] } })).await;
    for more in ["\r\n", SMUGGLED] {
        let mut wire = kvpin.connect().await;
        wire.send(&with("Content-Length: 13\r\n", BODY)).await;
        let mut turn = hand.turn().await;
        wire.send(more.as_bytes()).await;
        let reply = wire.reply("POST").await.expect("an answer");
        assert_eq!(reply.status(), 400);
        assert!(reply.anthropic_error().1.contains("after the request's body"), "{}", reply.text());
        assert!(wire.ends().await && turn.rest().await == BODY.as_bytes(), "nothing of it has reached the replica");
    }
    assert!(!hand.has_turn());
}

#[tokio::test]
async fn a_request_in_crumbs_is_the_same_request() {
    let (replica, kvpin) = behind().await;
    for bytes in [with("Content-Length: 13\r\n", BODY), chunked("5\r\n{\"mod\r\n8\r\nel\":\"m\"}\r\n0\r\n\r\n")] {
        let mut wire = kvpin.connect().await;
        for byte in &bytes {
            wire.send(&[*byte]).await;
            tokio::task::yield_now().await;
        }
        assert_eq!(wire.reply("POST").await.expect("an answer").status(), 200);
        let requests = replica.take();
        assert_eq!(requests.len(), 1);
        assert_served(&requests[0], BODY);
    }
}
