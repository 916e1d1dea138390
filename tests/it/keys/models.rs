//! A key that is limited to models: what it may not use, it can't reach by any way of writing a request.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::client::Reply;
use crate::support::keys::{KEYS_FILE, guarded, keys_file};
use crate::support::kvpin::Kvpin;
use crate::support::recorder::Recorder;
use crate::support::until;

/// Two models, of which `limited` may use `open` and its alias `also-open`, and `free` every one.
async fn two_models() -> ([Recorder; 2], Kvpin) {
    let recorders = [Recorder::start(), Recorder::start()];
    let models = json!({
        "open": { "replicas": [recorders[0].url()], "aliases": ["also-open", "an-adapter", {"name": "renamed", "upstream": "open"}] },
        "closed": { "replicas": [recorders[1].url()] },
    });
    let kvpin =
        Kvpin::guard(models, &[("limited", json!({ "models": ["open", "also-open"] })), ("free", json!({}))]).await;
    (recorders, kvpin)
}

fn asks_for(model: &str) -> Call {
    Call::post("/v1/chat/completions", json!({ "model": model, "messages": [] }).to_string())
}

fn code(reply: &Reply) -> String {
    reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_model_that_the_key_may_not_use_is_forbidden_in_the_callers_dialect() {
    let (recorders, kvpin) = two_models().await;
    for model in ["closed", "an-adapter", "renamed"] {
        let reply = kvpin.call(&asks_for(model).by("limited")).await;
        assert_eq!((reply.status(), code(&reply)), (403, "model_not_allowed".to_owned()), "{model}");
        assert!(reply.openai_error().ends_with("It may use: open, also-open."), "{}", reply.text());
        let turn = Call::post("/v1/messages", json!({ "model": model }).to_string()).by("limited");
        assert_eq!(kvpin.call(&turn).await.anthropic_error().0, "permission_error", "{model}");
    }
    assert_eq!((recorders[0].count(), recorders[1].count()), (0, 0));
    for (key, model) in [("limited", "open"), ("limited", "also-open"), ("free", "closed"), ("free", "renamed")] {
        assert_eq!(kvpin.call(&asks_for(model).by(key)).await.status(), 200, "{key} {model}");
    }
    assert_eq!(kvpin.metric("kvpin_key_requests_total{key=\"limited\",outcome=\"forbidden\"}").await, 6.0);
    assert_eq!(kvpin.metric("kvpin_key_requests_total{key=\"limited\",outcome=\"passed\"}").await, 2.0);
}

#[tokio::test]
async fn a_key_is_told_of_the_models_it_may_use_and_of_no_others() {
    let (_recorders, kvpin) = two_models().await;
    let listed = async |key: &str| {
        let list = kvpin.call(&Call::get("/v1/models").by(key)).await.json();
        let names = list["data"].as_array().expect("a list").iter().map(|model| model["id"].clone());
        names.map(|name| name.as_str().unwrap_or_default().to_owned()).collect::<BTreeSet<_>>()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(listed("limited").await, names(&["open", "also-open"]));
    assert_eq!(listed("free").await, names(&["open", "also-open", "an-adapter", "renamed", "closed"]));
    let unknown = kvpin.call(&asks_for("unheard-of").by("limited")).await;
    assert_eq!(unknown.status(), 404);
    assert!(!unknown.text().contains("closed"), "{}", unknown.text());
}

/// Where the body says so much of its model that kvpin and an engine could take it for different ones.
const READ_IN_TWO_WAYS: [u16; 2] = [400, 400];
/// Where it says nothing that kvpin can read, so that it is for the default model: not good enough where that is allowed.
const READ_IN_NO_WAY: [u16; 2] = [400, 403];
/// Where it says that it is for the default model.
const DEFAULT: [u16; 2] = [200, 403];

/// Bodies, each with its status where the default model is allowed, and where it isn't.
fn ambiguous() -> Vec<(&'static str, Call, [u16; 2])> {
    let json = |body: &str| Call::post("/v1/chat/completions", body);
    let filler = "x".repeat(300_000);
    let part =
        |name: &str, value: &str| format!("--XX\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    let typed = |body: String, boundary: &str| {
        let call = Call::post("/v1/audio/transcriptions", format!("{body}--XX--\r\n")).without("content-type");
        call.header("Content-Type", format!("multipart/form-data; {boundary}"))
    };
    let form = |body| typed(body, "boundary=XX");
    let utf16 = r#"{"model":"closed"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    let far = format!(r#"{{"model":"open","messages":[{{"role":"user","content":"{filler}"}}],"model":"closed"}}"#);
    let hidden = "--XX\r\nContent-Disposition: form-data; a=\"\nx: \"; name=\"model\"\r\n\r\nclosed\r\n";
    let open = r#"{"model":"open"}"#;
    let as_type = |body: &str, media_type: &str| json(body).without("content-type").header("Content-Type", media_type);
    let both = r#"{"model":"open","x":"&model=closed&"}"#;
    let second = part("model", "open") + &part("file", &filler) + &part("model", "closed");
    vec![
        ("a second model", json(r#"{"model":"open","model":"closed"}"#), READ_IN_TWO_WAYS),
        ("a second model far behind", json(&far).of("named"), READ_IN_TWO_WAYS),
        ("a second model far behind, in chunks", json(&far).of("named").chunked(10_000), READ_IN_TWO_WAYS),
        ("a second model, spelt otherwise", json(r#"{"model":"open","\u006dodel":"closed"}"#), READ_IN_TWO_WAYS),
        ("the same model twice", json(r#"{"model":"open","model":"open"}"#), READ_IN_TWO_WAYS),
        ("no end", json(r#"{"model":"open","messages":["#), READ_IN_TWO_WAYS),
        ("no JSON behind the model", json(r#"{"model":"open",'model':"closed"}"#), READ_IN_TWO_WAYS),
        ("two types", json(open).header("Content-Type", "multipart/form-data; boundary=XX"), READ_IN_TWO_WAYS),
        ("JSON that is another kind of form", as_type(both, "application/x-www-form-urlencoded"), READ_IN_TWO_WAYS),
        ("JSON that says it is a form", as_type(open, "multipart/form-data; boundary=a; boundary=b"), READ_IN_TWO_WAYS),
        ("a form with a second model", form(second), READ_IN_TWO_WAYS),
        ("a form that hides a part", form(part("model", "open") + hidden), READ_IN_TWO_WAYS),
        ("a form with an odd boundary", typed(part("model", "open"), r#"x="\""; boundary=XX"#), READ_IN_TWO_WAYS),
        ("a form without an end", form(part("model", "open") + "--XX\r\nX: y\r\n\r\n").chunked(50), READ_IN_TWO_WAYS),
        ("no JSON", json("model=closed"), READ_IN_NO_WAY),
        ("another encoding", Call::post("/v1/chat/completions", utf16), READ_IN_NO_WAY),
        ("half a character", json(r#"{"model":"closed\ud800"}"#), READ_IN_NO_WAY),
        ("a name that is too long", json(&json!({ "model": "c".repeat(2000) }).to_string()), READ_IN_NO_WAY),
        ("compressed", json(open).header("Content-Encoding", "gzip"), READ_IN_NO_WAY),
        ("no body", json(""), READ_IN_NO_WAY),
        ("no model", json("{}"), DEFAULT),
        ("null", json(r#"{"model":null}"#), DEFAULT),
    ]
}

#[tokio::test]
async fn no_way_of_writing_a_body_gets_another_model_past_the_check() {
    for (at, default_model) in ["open", "closed"].into_iter().enumerate() {
        let recorders = [Recorder::start(), Recorder::start()];
        let [open, closed] = recorders.each_ref().map(|recorder| json!({ "replicas": [recorder.url()] }));
        let mut config = guarded(json!({ "open": open, "closed": closed }));
        config["default_model"] = json!(default_model);
        let keys = keys_file(&[("limited", json!({ "models": ["open"] }))]);
        let kvpin = Kvpin::launch_with(&config, &[(KEYS_FILE, &keys)]).await;
        kvpin.until_health("up", |_| true).await;
        let mut served = 0;
        for (what, call, statuses) in ambiguous() {
            let reply = kvpin.call(&call.by("limited")).await;
            assert_eq!(reply.status(), statuses[at], "{what}, default {default_model}: {}", reply.text());
            served += usize::from(reply.status() == 200);
            assert_eq!((recorders[0].count(), recorders[1].count()), (served, 0), "{what}");
        }
        let in_flight =
            async || (kvpin.metric("kvpin_key_in_flight_requests{key=\"limited\"}").await == 0.0).then_some(());
        until("nothing is in flight", in_flight).await;
    }
}

#[tokio::test]
async fn what_a_limited_key_may_ask_arrives_byte_for_byte_and_pins_as_ever() {
    let (recorders, kvpin) = two_models().await;
    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(300_000) }], "model": "also-open" });
    for call in [
        asks_for("open"),
        Call::post("/v1/messages", long.to_string()),
        Call::post("/v1/messages", long.to_string()).chunked(7_000),
        Call::post("/v1/messages", format!("\u{feff} {long} \n")),
    ] {
        for decision in ["placed", "sticky"] {
            let call = call.clone().by("limited").of(&format!("{}-{:?}", call.body.len(), call.framing));
            let reply = kvpin.call(&call).await;
            assert_eq!((reply.status(), reply.decision()), (200, decision));
            assert_eq!(recorders[0].last().body, call.body);
        }
    }
    let part =
        |name: &str, value: &str| format!("--X\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    let form = part("file", &"\r\n--Y\0".repeat(50_000)) + &part("model", "open") + "--X--\r\n";
    let upload = Call::post("/v1/audio/transcriptions", form).without("content-type");
    let upload = upload.header("Content-Type", "multipart/form-data; boundary=\"X\"").by("limited");
    assert_eq!(kvpin.call(&upload).await.status(), 200);
    assert_eq!(recorders[0].last().body, upload.body);
}

#[tokio::test]
async fn a_key_without_a_list_sends_what_it_likes_and_the_engine_judges() {
    let (recorders, kvpin) = two_models().await;
    let filler = "x".repeat(300_000);
    let twice: Value = json!(format!(r#"{{"model":"open","messages":["{filler}"],"model":"closed"}}"#));
    let call = Call::post("/v1/chat/completions", twice.as_str().unwrap_or_default()).by("free").of("named");
    assert_eq!(kvpin.call(&call).await.status(), 200);
    assert_eq!(recorders[0].last().body, call.body);
}
