//! TLS towards replicas: one that is who it has to be is served as any other, and nobody else is sent a word.

use std::net::{Ipv4Addr, SocketAddr};

use serde_json::{Value, json};

use crate::support::authority::{Authority, Issued};
use crate::support::call::Call;
use crate::support::front::Front;
use crate::support::kvpin::{Kvpin, config, replicas};
use crate::support::recorder::{Recorder, sha256};
use crate::support::replicas::{MODEL, fast, start, steady, streamed, turns};
use crate::support::until;

const TURN: &str = r#"{"model":"m","text":"for the replica alone"}"#;

fn turn() -> Call {
    Call::post("/v1/messages", TURN).of("conversation")
}

/// An authority whose certificate is in a file.
fn authority(name: &str) -> (Authority, tempfile::TempDir, Value) {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new(name);
    let file = authority.write(directory.path(), "ca.pem");
    (authority, directory, json!(file))
}

/// The model `m` on one replica of that configuration.
fn with(replica: Value) -> Value {
    config(json!({ "m": { "replicas": [replica] } }))
}

#[tokio::test]
async fn turns_probes_and_scrapes_go_to_an_https_replica_of_a_believed_authority() {
    let (authority, _directory, ca_file) = authority("the replicas'");
    let replica = start(fast()).await;
    let front = Front::start(replica.address(), &authority.issue(&["127.0.0.1"]), None).await;
    let models = json!({ (MODEL): { "replicas": [{ "url": front.url(), "ca_file": ca_file, "name": "r" }] } });
    let kvpin = Kvpin::serve(models).await;
    for _ in 0..3 {
        let call = Call::post("/v1/chat/completions", streamed("hello", 10).to_string()).of("one");
        let reply = kvpin.call(&call).await;
        assert_eq!((reply.status(), reply.is_whole, reply.replica()), (200, true, "r"), "{}", reply.text());
    }
    assert_eq!(turns(&replica).len(), 3);
    until("its figures are there", async || kvpin.replica("r").await["engine"]["scrape_age_s"].as_f64()).await;
}

#[tokio::test]
async fn bodies_pass_byte_for_byte_over_connections_that_are_used_again() {
    let (authority, _directory, ca_file) = authority("the replicas'");
    let recorder = Recorder::start();
    let front = Front::start(recorder.address(), &authority.issue(&["localhost"]), None).await;
    let port = front.url().rsplit(':').next().expect("a port").to_owned();
    let kvpin = Kvpin::start(&with(json!({ "url": format!("https://localhost:{port}"), "ca_file": ca_file }))).await;
    let sizes = [1, 1000, 16_383, 16_384, 16_385, 65_537, 3_000_000];
    for size in sizes {
        let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(size));
        let whole = Call::post("/v1/messages", body.clone()).header("Host", "kvpin.test");
        for call in [whole.clone(), whole.chunked(9_999)] {
            let reply = kvpin.call(&call).await;
            assert_eq!(
                (reply.status(), reply.json()["sha256"].as_str()),
                (200, Some(&*sha256(body.as_bytes()))),
                "{size}"
            );
        }
    }
    assert_eq!(recorder.last().header("host"), Some("kvpin.test"));
    // One for the turns, and some for probes and scrapes.
    assert!(front.accepted() < sizes.len(), "{} connections", front.accepted());
}

#[tokio::test]
async fn a_replica_that_is_not_who_it_has_to_be_is_sent_nothing_and_the_reason_is_told() {
    let (good, _directory, ca_file) = authority("the replicas'");
    let stranger = Authority::new("a stranger's");
    for (issued, cause) in [
        (stranger.issue(&["127.0.0.1"]), "UnknownIssuer"),
        (good.issue(&["10.9.9.9", "gpu.example"]), "not valid for name"),
        (good.issue_for_years(&["127.0.0.1"], 2000, 2001), "expired"),
    ] {
        let recorder = Recorder::start();
        let front = Front::start(recorder.address(), &issued, None).await;
        let kvpin = Kvpin::launch(&with(json!({ "url": front.url(), "ca_file": ca_file, "name": "r" }))).await;
        kvpin.until_health("down", |_| true).await;
        let line = kvpin.until_logged("can't be spoken to over TLS").await;
        assert!(
            line.contains(&front.name()) && line.contains("invalid peer certificate") && line.contains(cause),
            "{line}"
        );
        let line = kvpin.until_logged("replica=r is down").await;
        assert!(line.contains("reason=certificate_refused"), "{line}");
        assert_eq!(kvpin.replica("r").await["health_reason"], "certificate_refused");
        let reply = kvpin.call(&turn()).await;
        assert_eq!(reply.status(), 503);
        let (_, message) = reply.anthropic_error();
        assert!(message.contains("r down (its certificate is not trusted) for"), "{message}");
        assert_eq!(recorder.count(), 0, "{cause}");
        // It is asked again and again, and told of once.
        until("more probes", async || {
            let status = kvpin.status().await;
            let age = replicas(&status).next()?["health_age_s"].as_f64()?;
            (age > 1.0).then_some(())
        })
        .await;
        assert_eq!(kvpin.log().matches("can't be spoken to over TLS").count(), 1);
    }
}

#[tokio::test]
async fn a_turn_leaves_a_replica_whose_certificate_went_bad_for_another_one() {
    let (authority, directory, _) = authority("the replicas'");
    let recorder = Recorder::start();
    let (bad, good) = (
        Front::start(recorder.address(), &Authority::new("a stranger's").issue(&["127.0.0.1"]), None).await,
        Front::start(recorder.address(), &authority.issue(&["127.0.0.1"]), None).await,
    );
    let ca_file = directory.path().join("ca.pem");
    let mut config = config(json!({ "m": { "replicas": [
        { "url": bad.url(), "ca_file": ca_file, "name": "bad" },
        { "url": good.url(), "ca_file": ca_file, "name": "good" },
    ] } }));
    // So that the turn finds out by itself.
    config["health"] = json!({ "interval_ms": 60_000, "backoff_max_ms": 60_000 });
    config["scrape_interval_ms"] = json!(60_000);
    let kvpin = Kvpin::launch(&config).await;
    for id in ["one", "two"] {
        let reply = kvpin.call(&Call::post("/v1/messages", TURN).of(id)).await;
        assert_eq!((reply.status(), reply.replica()), (200, "good"), "{}", reply.text());
    }
    assert_eq!(kvpin.replica("bad").await["health_reason"], "certificate_refused");
    assert_eq!(recorder.last().body, TURN);
}

#[tokio::test]
async fn a_replica_that_wants_to_know_who_asks_is_shown_a_certificate() {
    let (authority, directory, ca_file) = authority("everybody's");
    let recorder = Recorder::start();
    let front = Front::start(recorder.address(), &authority.issue(&["127.0.0.1"]), Some(&authority)).await;
    let stranger = Authority::new("a stranger's");
    let own = authority.issue(&["kvpin.example"]).write(directory.path(), "kvpin");
    let others: Issued = stranger.issue(&["kvpin.example"]);
    let others = others.write(directory.path(), "other");
    let replica = |certificate: Option<&crate::support::authority::Files>| {
        let mut replica = json!({ "url": front.url(), "ca_file": ca_file, "name": "r" });
        if let Some(files) = certificate {
            replica["client_certificate"] = json!(files.certificate);
            replica["client_key"] = json!(files.key);
        }
        with(replica)
    };
    let kvpin = Kvpin::start(&replica(Some(&own))).await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
    assert_eq!(recorder.last().body, TURN);
    for bad in [None, Some(&others)] {
        let kvpin = Kvpin::launch(&replica(bad)).await;
        kvpin.until_health("down", |_| true).await;
        assert_eq!(kvpin.call(&turn()).await.status(), 503);
    }
    assert_eq!(recorder.count(), 1);
}

#[tokio::test]
async fn a_reload_changes_whom_a_replica_has_to_be_from_and_nothing_goes_to_it_after_that() {
    let (old, directory, ca_file) = authority("the old one");
    let recorder = Recorder::start();
    let front = Front::start(recorder.address(), &old.issue(&["127.0.0.1"]), None).await;
    let config = with(json!({ "url": front.url(), "ca_file": ca_file, "name": "r" }));
    let kvpin = Kvpin::start(&config).await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
    let new = Authority::new("the new one");
    new.write(directory.path(), "ca.pem");
    assert!(kvpin.reload(&config).await);
    // There is a pooled connection, which was good enough for the authority before.
    assert_eq!(kvpin.call(&turn()).await.status(), 503);
    assert_eq!(recorder.count(), 1);
    kvpin.until_health("down", |_| true).await;
    old.write(directory.path(), "ca.pem");
    assert!(kvpin.reload(&config).await);
    kvpin.until_health("up", |_| true).await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
}

#[tokio::test]
async fn a_stream_over_tls_is_cut_at_the_replica_when_its_client_leaves() {
    let (authority, _directory, ca_file) = authority("the replicas'");
    let replica = start(steady()).await;
    let front = Front::start(replica.address(), &authority.issue(&["127.0.0.1"]), None).await;
    let models = json!({ (MODEL): { "replicas": [{ "url": front.url(), "ca_file": ca_file }] } });
    let kvpin = Kvpin::serve(models).await;
    let mut wire = kvpin.connect().await;
    let call = Call::post("/v1/chat/completions", streamed("a long story", 20_000).to_string()).of("leaver");
    assert_eq!(wire.begin(&call).await.status, 200);
    drop(wire);
    until("the engine is idle", async || (crate::support::replicas::busy(&replica) == 0).then_some(())).await;
    until("no turn is in flight", async || (kvpin.in_flight().await == 0).then_some(())).await;
}

#[tokio::test]
async fn without_a_ca_file_the_systems_authorities_are_believed() {
    let (authority, _directory, ca_file) = authority("the system's");
    let recorder = Recorder::start();
    let front = Front::start(recorder.address(), &authority.issue(&["127.0.0.1"]), None).await;
    let config = with(json!({ "url": front.url(), "name": "r" }));
    let file = ca_file.as_str().expect("a path");
    let kvpin = Kvpin::launch_in(&config, &[], &[("SSL_CERT_FILE", file)]).await;
    kvpin.until_health("up", |_| true).await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
}

#[tokio::test]
async fn a_machine_without_authorities_serves_as_long_as_none_is_needed() {
    let recorder = Recorder::start();
    let nowhere = [("SSL_CERT_FILE", "/nowhere/ca.pem"), ("SSL_CERT_DIR", "/nowhere")];
    let kvpin = Kvpin::launch_in(&with(json!(recorder.url())), &[], &nowhere).await;
    kvpin.until_health("up", |_| true).await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
    // One that needs them is refused, by a reload as at the start.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    assert!(!kvpin.reload(&with(json!(format!("https://{address}")))).await);
    kvpin.until_logged("this machine has no certificates of authorities").await;
    assert_eq!(kvpin.call(&turn()).await.status(), 200);
}
