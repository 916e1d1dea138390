//! Several models on one listener, and what kvpin answers itself.

use serde_json::{Value, json};

use crate::support::call::{Call, Framing};
use crate::support::kvpin::{Kvpin, config};
use crate::support::recorder::Recorder;
use crate::support::until;

/// `north` with the alias `up`, and `south`, each on a replica of its own.
struct TwoModels {
    north: Recorder,
    south: Recorder,
    kvpin: Kvpin,
}

async fn two_models() -> TwoModels {
    two_models_with(|_| ()).await
}

async fn two_models_with(change: impl FnOnce(&mut Value)) -> TwoModels {
    let (north, south) = (Recorder::start(), Recorder::start());
    let mut config = config(json!({
        "north": { "aliases": ["up", "claude-sonnet-4-5"], "replicas": [{ "url": north.url(), "name": "n" }] },
        "south": { "replicas": [{ "url": south.url(), "name": "s" }] },
    }));
    change(&mut config);
    let kvpin = Kvpin::start(&config).await;
    TwoModels { north, south, kvpin }
}

#[tokio::test]
async fn the_model_decides_wherever_it_stands_and_however_the_body_is_cut() {
    let two = two_models().await;
    let kvpin = &two.kvpin;
    let filler = "x".repeat(9000);
    for (model, replica) in [("north", "n"), ("south", "s")] {
        for body in [
            format!(r#"{{"model":"{model}","messages":[],"a":"{filler}"}}"#),
            format!(r#"{{"a":"{filler}","model":"{model}","messages":[{{"model":"nested"}}]}}"#),
            format!(r#"{{"a":{{"model":"nested"}},"b":"\"model\":\"quoted\"","c":"{filler}","model" : "{model}"}}"#),
            format!(r#"{{"mod\u0065l":"{}\u{:04x}"}}"#, &model[..4], u32::from(model.as_bytes()[4])),
        ] {
            for size in [None, Some(1), Some(7), Some(4096)] {
                let call = Call::post("/v1/chat/completions", body.clone());
                let reply = kvpin.call(&size.map_or(call.clone(), |size| call.chunked(size))).await;
                assert_eq!(reply.status(), 200, "{}", reply.text());
                assert_eq!(reply.replica(), replica, "{body:.60} in chunks of {size:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_alias_names_its_model_and_reaches_the_replica_unchanged() {
    let two = two_models().await;
    let kvpin = &two.kvpin;
    for alias in ["up", "claude-sonnet-4-5"] {
        let body = json!({ "model": alias }).to_string();
        let reply = kvpin.call(&Call::post("/v1/messages", body.clone())).await;
        assert_eq!((reply.status(), reply.replica()), (200, "n"));
        assert_eq!(two.north.last().body, body);
    }
}

/// A model `m` with two more names: `sonnet`, which the engine knows as `upstream`, and one that it knows as it is.
async fn renamed(upstream: &str) -> (Recorder, Kvpin) {
    let recorder = Recorder::start();
    let aliases = json!([{ "name": "sonnet", "upstream": upstream }, "as-written"]);
    let kvpin = Kvpin::serve(json!({ "m": { "aliases": aliases, "replicas": [recorder.url()] } })).await;
    (recorder, kvpin)
}

#[tokio::test]
async fn an_alias_that_stands_for_the_engines_name_changes_that_one_value_and_no_other_byte() {
    let text = r#"caf\u00e9 \"model\":\"sonnet\" "#;
    for upstream in ["q", r#"Qwen/"4B" with a name that is longer"#, "sonnet"] {
        let (recorder, kvpin) = renamed(upstream).await;
        let new = json!(upstream).to_string();
        for bytes in [10, 5000, 70_000, 400_000] {
            let filler = text.repeat(bytes / text.len() + 1);
            for (front, back) in [
                (r#"{"model":"#.to_owned(), format!(r#","prompt":"{filler}","n":1.50}}"#)),
                (format!(r#" {{ "prompt" : "{filler}" , "model" : "#), "\r\n}\n".to_owned()),
            ] {
                let body = format!(r#"{front}"sonn\u0065t"{back}"#);
                let expected = format!("{front}{new}{back}");
                for call in [
                    Call::post("/v1/completions", body.clone()),
                    Call::post("/v1/completions", body.clone()).of("one"),
                    Call::post("/v1/completions", body.clone()).chunked(1000),
                ] {
                    let is_chunked = call.framing != Framing::Length;
                    let reply = kvpin.call(&call).await;
                    assert_eq!(reply.status(), 200, "{}", reply.text());
                    let arrived = recorder.last();
                    assert!(arrived.body == expected.as_bytes(), "{bytes} bytes, chunked: {is_chunked}");
                    let length = (!is_chunked).then(|| expected.len().to_string());
                    assert_eq!(arrived.header("content-length").map(str::to_owned), length);
                }
            }
        }
        for name in ["m", "as-written"] {
            let body = json!({ "model": name }).to_string();
            kvpin.call(&Call::post("/v1/completions", body.clone())).await;
            assert_eq!(recorder.last().body, body, "the engine knows this one");
        }
    }
}

#[tokio::test]
async fn a_renamed_turn_is_renamed_for_the_replica_that_takes_it_over_too() {
    let (recorder, mut away) = (Recorder::start(), Recorder::start());
    let replicas = json!([away.url(), recorder.url()]);
    let aliases = json!([{ "name": "sonnet", "upstream": "the-engines" }]);
    let mut config = config(json!({ "m": { "aliases": aliases, "replicas": replicas } }));
    // A turn has to find out that it is away, before any look does.
    config["scrape_interval_ms"] = json!(60_000);
    config["health"] = json!({ "interval_ms": 60_000, "backoff_max_ms": 60_000 });
    let kvpin = Kvpin::start(&config).await;
    away.go_away().await;
    for bytes in [100, 300_000] {
        for _ in 0..2 {
            let body = format!(r#"{{"model":"sonnet","prompt":"{}"}}"#, "x".repeat(bytes));
            let reply = kvpin.call(&Call::post("/v1/completions", body.clone())).await;
            assert_eq!(reply.status(), 200, "{}", reply.text());
            assert!(recorder.last().body == body.replace("sonnet", "the-engines").as_bytes());
        }
    }
    assert!(kvpin.metric("kvpin_retried_turns_total").await >= 1.0);
}

#[tokio::test]
async fn a_compressed_body_goes_by_its_head_and_to_the_default_model_alone() {
    let compressed = b"\x28\xb5\x2f\xfd\"model\":\"south\",\x00\xff".as_slice();
    let call = |encoding: &str| Call::post("/v1/responses", compressed).header("content-encoding", encoding).of("one");
    let two = two_models().await;
    for encoding in ["zstd", "gzip", "br", "identity, gzip"] {
        let reply = two.kvpin.call(&call(encoding)).await;
        assert_eq!(reply.status(), 400, "{encoding}");
        let message = reply.openai_error();
        assert!(["compressed", "default_model", "north"].iter().all(|part| message.contains(part)), "{message}");
    }
    let two = two_models_with(|config| config["default_model"] = json!("north")).await;
    let first = two.kvpin.call(&call("zstd")).await;
    assert_eq!((first.status(), first.replica(), first.decision()), (200, "n", "placed"));
    assert_eq!(two.north.last().body, compressed);
    assert_eq!(two.north.last().header("content-encoding"), Some("zstd"));
    assert_eq!(two.kvpin.call(&call("zstd")).await.decision(), "sticky");
}

#[tokio::test]
async fn a_conversation_is_the_same_under_a_models_name_and_its_alias() {
    let two = two_models().await;
    let kvpin = &two.kvpin;
    let turn = |model: &str| Call::post("/v1/messages", json!({ "model": model }).to_string()).of("one");
    assert_eq!(kvpin.call(&turn("north")).await.decision(), "placed");
    assert_eq!(kvpin.call(&turn("up")).await.decision(), "sticky");
    assert_eq!(kvpin.call(&turn("south")).await.decision(), "placed", "of another model it is another one");
}

#[tokio::test]
async fn an_unknown_model_is_refused_with_the_names_that_are_served() {
    let TwoModels { north, south, kvpin } = two_models().await;
    let body = json!({ "model": "east" }).to_string();
    let reply = kvpin.call(&Call::post("/v1/chat/completions", body.clone())).await;
    assert_eq!(reply.status(), 404);
    let message = reply.openai_error();
    assert!(["`east`", "north", "up", "south"].iter().all(|name| message.contains(name)), "{message}");
    let reply = kvpin.call(&Call::post("/v1/messages", body)).await;
    assert_eq!(reply.status(), 404);
    assert_eq!(reply.anthropic_error().0, "not_found_error");
    assert_eq!(north.count() + south.count(), 0);
}

#[tokio::test]
async fn without_a_model_the_default_serves_and_without_a_default_nobody() {
    let no_model = Call::post("/v1/chat/completions", r#"{"messages":[]}"#);
    let two = two_models().await;
    let kvpin = &two.kvpin;
    let reply = kvpin.call(&no_model).await;
    assert_eq!(reply.status(), 400);
    let message = reply.openai_error();
    assert!(message.contains("No `model`") && message.contains("north") && message.contains("south"), "{message}");

    let two = two_models_with(|config| config["default_model"] = json!("south")).await;
    let kvpin = &two.kvpin;
    let reply = kvpin.call(&no_model).await;
    assert_eq!((reply.status(), reply.replica()), (200, "s"));
    assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"up"}"#)).await.replica(), "n");
}

#[tokio::test]
async fn the_only_model_serves_whatever_names_none() {
    let only = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "only": { "replicas": [only.url()] } })).await;
    for body in ["{}", "", "not JSON", r#"{"model":null}"#, r#"["model"]"#, r#"{"model":7}"#] {
        let reply = kvpin.call(&Call::post("/v1/chat/completions", body)).await;
        assert_eq!(reply.status(), 200, "{body:?} is the engine's to judge: {}", reply.text());
        assert_eq!(only.last().body, body);
    }
    assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"other"}"#)).await.status(), 404);
}

#[tokio::test]
async fn the_list_of_models_has_every_name_in_the_shape_of_the_callers_api() {
    let two = two_models().await;
    let names = ["north", "up", "claude-sonnet-4-5", "south"];
    let openai = Call::get("/v1/models?limit=1000");
    for (call, kind) in [(openai.clone(), "object"), (openai.header("anthropic-version", "2023-06-01"), "type")] {
        let reply = two.kvpin.call(&call).await;
        assert_eq!(reply.status(), 200);
        let list = reply.json();
        let models: Vec<_> = list["data"].as_array().into_iter().flatten().collect();
        assert_eq!(models.iter().filter_map(|model| model["id"].as_str()).collect::<Vec<_>>(), names);
        assert!(models.iter().all(|model| model[kind] == "model"), "{list}");
        let ends = [&list["object"], &list["has_more"], &list["first_id"], &list["last_id"]];
        match kind {
            "object" => assert_eq!(ends, [&json!("list"), &Value::Null, &Value::Null, &Value::Null]),
            _ => assert_eq!(ends, [&Value::Null, &json!(false), &json!("north"), &json!("south")]),
        }
    }
    assert_eq!(two.north.count(), 0, "kvpin answers it");
}

#[tokio::test]
async fn claude_codes_warm_up_is_answered_without_a_body() {
    let two = two_models().await;
    let kvpin = &two.kvpin;
    let mut wire = kvpin.connect().await;
    for path in ["/", "/api/hello", "/?a=b", "/health", "/v1/models"] {
        let reply = wire.call(&Call::head(path)).await;
        assert_eq!(reply.status(), 200, "{path}");
        assert!(reply.is_whole && reply.pieces.is_empty());
    }
    assert_eq!(wire.call(&Call::get("/")).await.status(), 200, "the connection was left usable");
}

#[tokio::test]
async fn health_is_503_until_a_replica_is_up_and_again_when_none_is() {
    let mut replica = Recorder::away();
    let kvpin = Kvpin::launch(&config(json!({ "m": { "replicas": [replica.url()] } }))).await;
    let health = async || kvpin.call(&Call::get("/health")).await.status();
    assert_eq!(health().await, 503);
    replica.come_back();
    until("kvpin is healthy", async || (health().await == 200).then_some(())).await;
    replica.go_away().await;
    until("kvpin is not healthy", async || (health().await == 503).then_some(())).await;
}

#[tokio::test]
async fn unknown_paths_are_404_and_wrong_methods_405_in_the_callers_dialect() {
    let TwoModels { north, south, kvpin } = two_models().await;
    let body = r#"{"model":"north"}"#;
    for path in ["/v1/nothing", "/metrics", "/sleep", "/V1/messages", "/invocations", "/v1/messages;x"] {
        let reply = kvpin.call(&Call::post(path, body)).await;
        assert_eq!(reply.status(), 404, "{path}");
    }
    assert_eq!(kvpin.call(&Call::post("/v1/messages/batches", body)).await.anthropic_error().0, "not_found_error");
    assert!(kvpin.call(&Call::get("/v1/files")).await.openai_error().contains("not served"));
    for (method, path, allowed) in
        [("GET", "/v1/chat/completions", "POST"), ("PUT", "/v1/messages", "POST"), ("POST", "/health", "GET, HEAD")]
    {
        let reply = kvpin.call(&Call::post(path, body).method(method)).await;
        assert_eq!((reply.status(), reply.header("allow")), (405, Some(allowed)), "{method} {path}");
    }
    assert_eq!(north.count() + south.count(), 0);
}

#[tokio::test]
async fn every_turn_endpoint_reaches_the_replica_with_its_query() {
    let two = two_models().await;
    let kvpin = &two.kvpin;
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/tokenize",
        "/detokenize",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
    ] {
        let path = format!("{path}?beta=true&x=%2F%20&&y");
        let reply = kvpin.call(&Call::post(&path, r#"{"model":"south"}"#)).await;
        assert_eq!((reply.status(), reply.replica()), (200, "s"), "{path}");
        assert_eq!(two.south.last().path, path);
    }
}

#[tokio::test]
async fn the_model_of_an_uploaded_form_decides() {
    let TwoModels { north, south, kvpin } = two_models().await;
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\0\x01model\r\n\
        --b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nsouth\r\n--b--\r\n";
    let call = Call::post("/v1/audio/transcriptions", form).without("content-type");
    let call = call.header("content-type", "multipart/form-data; boundary=b");
    for call in [call.clone(), call.chunked(1)] {
        let reply = kvpin.call(&call).await;
        assert_eq!((reply.status(), reply.replica()), (200, "s"));
        assert_eq!(south.last().body, form);
    }
    assert_eq!(north.count(), 0);
}
