//! TLS towards clients: who gets in, what they are shown, and that a reload changes it under their feet without a stumble.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustls::{ClientConfig, ProtocolVersion};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::support::authority::{Authority, set_mode};
use crate::support::call::Call;
use crate::support::client::{Reply, Wire};
use crate::support::edge::{Edge, listener};
use crate::support::h2::{Client, Ending};
use crate::support::kvpin::{Kvpin, config, run};
use crate::support::recorder::Recorder;
use crate::support::replicas::{MODEL, fast, start_many, streamed, urls};
use crate::support::secure::{HOST, protocol, secure, shown, try_secure, version};
use crate::support::{until, within};

async fn edge_with(change: impl FnOnce(&mut Value)) -> (Edge, Recorder) {
    let recorder = Recorder::start();
    let edge = Edge::launch(json!({ "m": { "replicas": [recorder.url()] } }), change).await;
    (edge, recorder)
}

/// Speaks one version only.
fn of_version(authority: &Authority, version: &'static rustls::SupportedProtocolVersion) -> ClientConfig {
    ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(authority.roots())
        .with_no_client_auth()
}

/// Whether a client with that configuration gets an answer. In TLS 1.3 a client learns only behind the handshake that it is
/// not wanted.
async fn gets_in(edge: &Edge, config: &ClientConfig) -> bool {
    let Ok(mut stream) = try_secure(edge.address(), config.clone(), HOST).await else { return false };
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let mut answer = Vec::new();
    asked.is_ok()
        && within("an answer", stream.read_to_end(&mut answer)).await.is_ok()
        && answer.starts_with(b"HTTP/1.1 ")
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_spoken_and_where_1_3_is_wanted_only_that() {
    for (min_version, is_1_2_in) in [(json!("1.2"), true), (json!(1.3), false)] {
        let (edge, _recorder) = edge_with(|config| config["listen"]["tls"]["min_version"] = min_version).await;
        for (offered, spoken, is_in) in [
            (&rustls::version::TLS12, ProtocolVersion::TLSv1_2, is_1_2_in),
            (&rustls::version::TLS13, ProtocolVersion::TLSv1_3, true),
        ] {
            let stream = try_secure(edge.address(), of_version(&edge.authority, offered), HOST).await;
            assert_eq!(stream.is_ok(), is_in, "{offered:?}");
            assert!(stream.is_ok_and(|stream| version(&stream) == spoken) == is_in);
        }
        until("it is counted", async || {
            let failed = edge.kvpin.metric("kvpin_tls_handshakes_total{outcome=\"failed\"}").await;
            (failed == f64::from(u8::from(!is_1_2_in))).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn client_and_kvpin_agree_on_http_2_or_http_1_in_the_handshake() {
    let (edge, _recorder) = edge_with(|_| {}).await;
    for (offered, agreed) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&["http/1.0", "http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let stream = secure(edge.address(), edge.authority.client(offered)).await;
        assert_eq!(protocol(&stream).as_deref(), agreed, "{offered:?}");
    }
    assert!(try_secure(edge.address(), edge.authority.client(&["spdy/3"]), HOST).await.is_err());
    let call = Call::post("/v1/messages", r#"{"model":"m"}"#);
    assert_eq!(edge.h1().await.call(&call).await.status(), 200);
    assert_eq!(edge.h2().await.call(&call).await.status(), 200);
    let mut without = Wire::over(secure(edge.address(), edge.authority.client(&[])).await);
    assert_eq!(without.call(&call).await.status(), 200);
}

#[tokio::test]
async fn the_certificate_for_the_host_that_a_client_asks_for_is_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("an authority");
    let all = [("first", "gpu.example"), ("second", "*.lab.example"), ("third", "a.lab.example")];
    let issued = all.map(|(_, host)| authority.issue(&[host]));
    let files: Vec<_> = all.iter().zip(&issued).map(|((name, _), one)| one.write(directory.path(), name)).collect();
    let pairs: Vec<_> =
        files.iter().map(|files| json!({ "certificate": files.certificate, "key": files.key })).collect();
    let (edge, _recorder) = edge_with(|config| config["listen"]["tls"] = json!({ "certificates": pairs })).await;
    for (host, expected) in [("gpu.example", 0), ("b.lab.example", 1), ("A.Lab.Example", 2)] {
        let stream = try_secure(edge.address(), authority.client(&[]), host).await;
        assert_eq!(shown(&stream.unwrap_or_else(|error| panic!("{host}: {error}"))), issued[expected].der(), "{host}");
    }
    // The first one is shown to the others, and they see that it is for somebody else.
    for host in ["elsewhere.example", "a.b.lab.example", "127.0.0.1"] {
        let error = try_secure(edge.address(), authority.client(&[]), host).await.expect_err(host).to_string();
        assert!(error.contains("not valid for") && error.contains("gpu.example"), "{host}: {error}");
    }
}

#[tokio::test]
async fn where_clients_need_a_certificate_only_one_of_that_authority_gets_in() {
    let directory = tempfile::tempdir().expect("a directory");
    let (clients, strangers) = (Authority::new("the clients'"), Authority::new("a stranger's"));
    let file = clients.write(directory.path(), "clients.pem");
    let (edge, _recorder) = edge_with(|config| config["listen"]["tls"]["client_ca"] = json!(file)).await;
    let good = clients.issue(&["agent.example"]);
    for (config, is_in) in [
        (edge.authority.client_as(&good, &["http/1.1"]), true),
        (edge.authority.client(&["http/1.1"]), false),
        (edge.authority.client_as(&strangers.issue(&["agent.example"]), &["http/1.1"]), false),
        (edge.authority.client_as(&edge.authority.issue(&["agent.example"]), &["http/1.1"]), false),
        (edge.authority.client_as(&clients.issue_for_years(&["agent.example"], 2000, 2001), &["http/1.1"]), false),
    ] {
        assert_eq!(gets_in(&edge, &config).await, is_in);
    }
    let mut h2 = Client::connect(edge.address(), edge.authority.client_as(&good, &["h2"])).await;
    assert_eq!(h2.call(&Call::get("/health")).await.status(), 200);
}

#[tokio::test]
async fn what_is_no_tls_is_closed_and_what_says_nothing_is_closed_in_time() {
    let (edge, recorder) = edge_with(|config| config["limits"] = json!({ "head_timeout_s": 1 })).await;
    for begun in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut stream = tokio::net::TcpStream::connect(edge.address()).await.expect("connects");
        stream.write_all(begun).await.expect("sends");
        let mut rest = Vec::new();
        within("the end", stream.read_to_end(&mut rest)).await.ok();
        assert_eq!(rest, b"", "{begun:?}");
    }
    assert_eq!(edge.kvpin.metric("kvpin_tls_handshakes_total{outcome=\"timed_out\"}").await, 3.0);
    // And behind the handshake, whatever was agreed on.
    for protocol in ["http/1.1", "h2"] {
        let mut stream = secure(edge.address(), edge.authority.client(&[protocol])).await;
        within("the end", stream.read_to_end(&mut Vec::new())).await.ok();
    }
    let mut plain = edge.kvpin.connect().await;
    plain.send(&Call::get("/health").bytes()).await;
    // An alert at most, and no response.
    plain.ends().await;
    until("it is counted", async || {
        (edge.kvpin.metric("kvpin_tls_handshakes_total{outcome=\"failed\"}").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(recorder.count(), 0);
}

/// Streams turns of one conversation until told to stop, each on what the one before came on or on a fresh connection, and
/// says how many they were.
async fn converse(edge: Arc<Edge>, number: usize, stop: Arc<AtomicBool>, turns: Arc<AtomicUsize>) {
    let call =
        Call::post("/v1/chat/completions", streamed("go on", 10).to_string()).of(&format!("conversation-{number}"));
    let (mut h1, mut h2) = (None, None);
    let mut home: Option<String> = None;
    while !stop.load(Ordering::Relaxed) {
        let turn = turns.fetch_add(1, Ordering::Relaxed);
        let reply: Reply = if number.is_multiple_of(2) {
            if h1.is_none() || turn.is_multiple_of(5) {
                h1 = Some(edge.h1().await);
            }
            h1.as_mut().expect("a connection").call(&call).await
        } else {
            if h2.is_none() || turn.is_multiple_of(5) {
                h2 = Some(edge.h2().await);
            }
            h2.as_mut().expect("a connection").send(&call, Ending::Empty).await.reply().await
        };
        assert_eq!(reply.status(), 200, "{number}: {}", reply.text());
        assert!(reply.is_whole && reply.text().ends_with("data: [DONE]\n\n"), "{number}: {}", reply.text());
        assert_eq!(reply.text().matches("data: {").count(), 11, "{number}: {}", reply.text());
        let replica = reply.replica().to_owned();
        assert_eq!(*home.get_or_insert(replica.clone()), replica, "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_swapped_under_conversations_that_lose_and_alter_nothing() {
    const SWAPS: usize = 20;
    let replicas = start_many(2, fast()).await;
    let models = json!({ (MODEL): { "spill_threshold": 100, "replicas": urls(&replicas) } });
    let edge = Arc::new(Edge::serve(models).await);
    let (stop, turns): (Arc<AtomicBool>, Arc<AtomicUsize>) = Default::default();
    let mut conversations = JoinSet::new();
    for number in 0..8 {
        conversations.spawn(converse(Arc::clone(&edge), number, Arc::clone(&stop), Arc::clone(&turns)));
    }
    let mut kept = edge.h2().await;
    let mut shown_before = shown(&secure(edge.address(), edge.authority.client(&[])).await);
    for swap in 0..SWAPS {
        let before = turns.load(Ordering::Relaxed);
        let issued = edge.authority.issue(&[HOST]);
        issued.write(edge.directory(), "server");
        assert!(edge.kvpin.reload(&edge.config).await, "swap {swap}");
        let shown_now = shown(&secure(edge.address(), edge.authority.client(&[])).await);
        assert_eq!(shown_now, issued.der(), "swap {swap}");
        assert_ne!(shown_now, shown_before);
        shown_before = shown_now;
        until("conversations go on", async || (turns.load(Ordering::Relaxed) >= before + 8).then_some(())).await;
        assert!(conversations.try_join_next().is_none(), "no conversation ends by itself");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = conversations.join_next().await {
        ended.expect("every turn came whole from where its conversation is");
    }
    assert_eq!(kept.call(&Call::get("/health")).await.status(), 200, "a connection outlives all of it");
    assert_eq!(edge.kvpin.reloads().await, (SWAPS as f64, 0.0));
    assert_eq!(edge.kvpin.metric("kvpin_tls_handshakes_total{outcome=\"failed\"}").await, 0.0);
    assert!(edge.kvpin.log().contains("tls.certificates: [kvpin.test until"), "the log says what was changed");
    until("no turn is in flight", async || (edge.kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_reload_with_a_file_that_cant_be_used_names_it_and_changes_nothing() {
    let (edge, _recorder) = edge_with(|_| {}).await;
    let before = shown(&secure(edge.address(), edge.authority.client(&[])).await);
    let other = edge.authority.issue(&[HOST]);
    let (certificate, key) = (&edge.files.certificate, &edge.files.key);
    let good = (fs::read(certificate).expect("reads"), fs::read(key).expect("reads"));
    let mut refused = 0.0;
    for (file, content, reason) in [
        (certificate, Some(b"no certificate".to_vec()), "there is no certificate in it"),
        (certificate, Some(other.certificate.pem().into_bytes()), "it is not the key of the certificate in"),
        (key, Some(other.key.serialize_pem().into_bytes()), "it is not the key of the certificate in"),
        (key, Some(good.1[..good.1.len() / 2].to_vec()), "section end"),
        (key, None, "No such file"),
        (certificate, None, "No such file"),
    ] {
        match content {
            Some(content) => fs::write(file, content).expect("writes"),
            None => fs::remove_file(file).expect("removes"),
        }
        let mut changed = edge.config.clone();
        changed["models"]["m"]["aliases"] = json!(["never"]);
        assert!(!edge.kvpin.reload(&changed).await, "{reason}");
        refused += 1.0;
        assert_eq!(edge.kvpin.reloads().await, (0.0, refused));
        let line = edge.kvpin.log().lines().rfind(|line| line.contains("reload refused")).expect("a line").to_owned();
        assert!(line.contains("nothing has changed") && line.contains("listen.tls."), "{line}");
        assert!(line.contains(reason) && line.contains(edge.directory().to_str().expect("text")), "{line}");
        assert_eq!(shown(&secure(edge.address(), edge.authority.client(&[])).await), before, "{reason}");
        let reply = edge.h1().await.call(&Call::post("/v1/messages", r#"{"model":"never"}"#)).await;
        assert_eq!(reply.status(), 404, "nothing else of the file was taken either");
        fs::write(certificate, &good.0).expect("writes");
        fs::write(key, &good.1).expect("writes");
    }
    assert!(edge.kvpin.reload(&edge.config).await);
}

#[tokio::test]
async fn an_expired_certificate_and_a_key_for_everybody_are_served_and_warned_of() {
    let (edge, _recorder) = edge_with(|_| {}).await;
    assert!(!edge.kvpin.log().contains("the certificate ran out"));
    let files = edge.authority.issue_for_years(&[HOST], 2000, 2001).write(edge.directory(), "server");
    set_mode(&files.key, 0o644);
    assert!(edge.kvpin.reload(&edge.config).await, "whoever has to change something else must be able to");
    edge.kvpin.until_logged("the certificate ran out on Mon, 01 Jan 2001").await;
    edge.kvpin.until_logged("every user of this machine can read the key").await;
    let error = try_secure(edge.address(), edge.authority.client(&[]), HOST).await.expect_err("it has expired");
    assert!(error.to_string().contains("expired"), "{error}");
    let expiry =
        format!("kvpin_certificate_expiry_timestamp_seconds{{host=\"kvpin.test\",listen=\"{}\"}}", edge.address());
    assert_eq!(edge.kvpin.metric(&expiry).await, 978_307_200.0);
    let path = edge.directory().join("kvpin.yaml");
    fs::write(&path, edge.config.to_string()).expect("writes");
    let output = run(&["check", "--config", path.to_str().expect("text")]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("warning: listen 127.0.0.1:0: "), "{said}");
    assert!(said.contains("the certificate ran out") && said.contains("certificate kvpin.test until"), "{said}");
}

#[tokio::test]
async fn a_reload_puts_clients_out_whose_authority_is_believed_no_longer() {
    let directory = tempfile::tempdir().expect("a directory");
    let (old, new) = (Authority::new("the old one"), Authority::new("the new one"));
    let file = old.write(directory.path(), "clients.pem");
    let (edge, _recorder) = edge_with(|config| config["listen"]["tls"]["client_ca"] = json!(file)).await;
    // A client remembers its sessions, and takes one up again instead of showing its certificate.
    let of_old = edge.authority.client_as(&old.issue(&["agent.example"]), &["http/1.1"]);
    let of_new = edge.authority.client_as(&new.issue(&["agent.example"]), &["http/1.1"]);
    assert!(gets_in(&edge, &of_old).await && gets_in(&edge, &of_old).await);
    let mut running = Wire::over(secure(edge.address(), of_old.clone()).await);
    assert_eq!(running.call(&Call::get("/health")).await.status(), 200);
    new.write(directory.path(), "clients.pem");
    assert!(edge.kvpin.reload(&edge.config).await);
    edge.kvpin.until_logged("tls.client_ca: ").await;
    assert!(!gets_in(&edge, &of_old).await);
    assert!(gets_in(&edge, &of_new).await);
    assert_eq!(running.call(&Call::get("/health")).await.status(), 200, "what was let in stays");
}

#[tokio::test]
async fn whether_a_listener_has_tls_takes_a_new_process() {
    let (edge, recorder) = edge_with(|_| {}).await;
    let mut plain = edge.config.clone();
    plain["listen"] = json!("127.0.0.1:0");
    assert!(!edge.kvpin.reload(&plain).await);
    edge.kvpin.until_logged("listen: it can only change with a new process").await;
    assert_eq!(edge.h1().await.call(&Call::get("/health")).await.status(), 200);
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [recorder.url()] } })).await;
    let mut secured = config(json!({ "m": { "replicas": [recorder.url()] } }));
    secured["listen"] = listener(&edge.files);
    assert!(!kvpin.reload(&secured).await);
    kvpin.until_logged("listen: it can only change with a new process").await;
    assert_eq!(kvpin.call(&Call::get("/health")).await.status(), 200);
}

#[tokio::test]
async fn plain_and_secure_listeners_serve_side_by_side() {
    let (edge, recorder) = edge_with(|config| {
        let secure = config["listen"].clone();
        config["listen"] = json!([secure, "127.0.0.1:0"]);
    })
    .await;
    let line = edge.kvpin.until_logged("listening on ").await;
    let lines: Vec<_> =
        edge.kvpin.log().lines().filter(|line| line.contains("listening on ")).map(str::to_owned).collect();
    assert_eq!((lines.len(), lines[0] == line), (2, true), "{lines:?}");
    let plain = lines[1].rsplit(' ').next().and_then(|address| address.parse().ok()).expect("an address");
    let call = Call::post("/v1/messages", r#"{"model":"m"}"#).of("both");
    edge.kvpin.until_health("up", |_| true).await;
    assert_eq!(crate::support::client::call(plain, &call).await.decision(), "placed");
    assert_eq!(edge.h2().await.call(&call).await.decision(), "sticky");
    assert_eq!(edge.h1().await.call(&call).await.decision(), "sticky");
    assert_eq!(recorder.count(), 3);
}

#[test]
fn a_start_with_a_file_that_cant_be_used_exits_78_and_names_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("an authority");
    let files = authority.issue(&[HOST]).write(directory.path(), "server");
    let other = authority.issue(&[HOST]).write(directory.path(), "other");
    let path = directory.path().join("kvpin.yaml");
    let mut config = config(json!({ "m": { "replicas": ["http://127.0.0.1:1"] } }));
    for (tls, parts) in [
        (
            json!({ "certificate": "nowhere.pem", "key": files.key }),
            ["listen.tls.certificate", "nowhere.pem", "No such file"],
        ),
        (
            json!({ "certificate": files.certificate, "key": other.key }),
            ["listen.tls.key", "other-key.pem", "not the key of"],
        ),
        (
            json!({ "certificate": files.certificate, "key": files.key, "client_ca": files.key }),
            ["listen.tls.client_ca", "server-key.pem", "no certificate in it"],
        ),
    ] {
        config["listen"] = json!({ "address": "127.0.0.1:0", "tls": tls });
        fs::write(&path, config.to_string()).expect("writes");
        for command in ["check", "run"] {
            let output = run(&[command, "--config", path.to_str().expect("text")]);
            assert_eq!(output.status.code(), Some(78), "{command} {tls}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
        }
    }
}
