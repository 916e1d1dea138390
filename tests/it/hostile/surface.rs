//! What of an engine can be reached, and what an engine is told.

use serde_json::json;

use crate::support::call::Call;
use crate::support::client::Wire;
use crate::support::kvpin::{Kvpin, config, run};
use crate::support::recorder::Recorder;
use crate::support::strict::{Request, Strict};

const BODY: &str = r#"{"model":"m"}"#;

async fn behind() -> (Strict, Kvpin) {
    let replica = Strict::start();
    let kvpin = Kvpin::serve(json!({ "m": { "replicas": [replica.url()] } })).await;
    (replica, kvpin)
}

/// Sends a request with that target as it stands. Says the status, and what the replica saw of it.
async fn status_of(kvpin: &Kvpin, replica: &Strict, method: &str, target: &str) -> (u16, Vec<Request>) {
    let mut wire = Wire::connect(kvpin.address).await;
    let head = format!("{method} {target} HTTP/1.1\r\nHost: kvpin.test\r\nContent-Length: 13\r\n\r\n{BODY}");
    wire.send(head.as_bytes()).await;
    let reply = wire.reply(method).await.expect("an answer");
    (reply.status(), replica.take())
}

#[tokio::test]
async fn no_spelling_of_an_engines_other_routes_reaches_it() {
    let (replica, kvpin) = behind().await;
    for route in [
        "metrics",
        "invocations",
        "scale_elastic_ep",
        "inference/v1/generate",
        "v1/load_lora_adapter",
        "collective_rpc",
        "sleep",
        "reset_prefix_cache",
        "server_info?config_format=json",
        "version",
        "docs",
        "openapi.json",
        "v1/responses/resp_1",
        "v1/responses/resp_1/cancel",
    ] {
        let encoded = format!("%{:02x}{}", route.as_bytes()[0], &route[1..]);
        for target in [
            format!("/{route}"),
            format!("//{route}"),
            format!("/./{route}"),
            format!("/{encoded}"),
            format!("/v1/../{route}"),
            format!("/v1/messages/../../{route}"),
            format!("/v1/messages/%2e%2e/%2e%2e/{encoded}"),
            format!("/v1/messages/..%2f..%2f{route}"),
            format!("/v1/models/../../{route}"),
            format!("/v1/messages/..\\..\\{route}"),
            format!("/v1/messages/..;/..;/{route}"),
            format!("/v1/messages%00/../../{route}"),
            format!("/v1/messages%2500/../{route}"),
            format!("/%2576%31/../{route}"),
            format!("http://kvpin.test/{route}"),
            format!("/{}", route.to_uppercase()),
        ] {
            for method in ["GET", "POST"] {
                let (status, seen) = status_of(&kvpin, &replica, method, &target).await;
                assert!(matches!(status, 400 | 404 | 405), "{method} {target}: {status}");
                assert_eq!(seen, [], "{method} {target}");
            }
        }
    }
}

#[tokio::test]
async fn whatever_spelling_is_served_the_engine_gets_the_one_path_and_the_query_as_it_came() {
    let (replica, kvpin) = behind().await;
    for (target, expected) in [
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/%761/messages?x=%2e%2e%2fmetrics&&y", "/v1/messages?x=%2e%2e%2fmetrics&&y"),
        ("//v1/./messages/", "/v1/messages"),
        ("/v1%2Fmessages?", "/v1/messages?"),
        ("/x/..//v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("http://kvpin.test/v1/chat/completions?a=b", "/v1/chat/completions?a=b"),
        ("http://kvpin.test//v1/chat/./completions", "/v1/chat/completions"),
        ("/v1/messages#/../metrics", "/v1/messages"),
    ] {
        let (status, seen) = status_of(&kvpin, &replica, "POST", target).await;
        assert_eq!(status, 200, "{target}");
        assert_eq!(seen.iter().map(Request::target).collect::<Vec<_>>(), [expected], "{target}");
    }
}

#[tokio::test]
async fn an_operators_own_paths_are_passed_on_and_check_warns_of_those_that_do_harm() {
    let (replica, other) = (Strict::start(), Recorder::start());
    let mut config = config(json!({ "m": { "replicas": [replica.url()] } }));
    config["allow_paths"] = json!(["/v1/chat/completions/batch", { "path": "/v1/files", "method": "GET" }, "/sleep"]);
    let kvpin = Kvpin::start(&config).await;
    for (method, target, expected) in [
        ("POST", "/v1/chat/completions/batch?x=1", Some("/v1/chat/completions/batch?x=1")),
        ("POST", "/v1/chat/%63ompletions//batch", Some("/v1/chat/completions/batch")),
        ("GET", "/v1/files", Some("/v1/files")),
        ("POST", "/v1/files", None),
        ("GET", "/v1/files/1", None),
    ] {
        let (_, seen) = status_of(&kvpin, &replica, method, target).await;
        let targets: Vec<_> = seen.iter().map(Request::target).collect();
        assert_eq!(targets, expected.into_iter().collect::<Vec<_>>(), "{method} {target}");
    }
    // Without a model in it, a request needs one that goes without saying.
    config["models"]["n"] = json!({ "replicas": [other.url()] });
    assert!(kvpin.reload(&config).await);
    assert_eq!(kvpin.call(&Call::get("/v1/files")).await.status(), 400);
    config["default_model"] = json!("n");
    config["allow_paths"] = json!(["/v1/files"]);
    assert!(kvpin.reload(&config).await);
    assert_eq!(kvpin.call(&Call::post("/v1/files", "{}")).await.replica(), other.name());
    assert_eq!(kvpin.call(&Call::post("/sleep", "{}")).await.status(), 404);

    config["allow_paths"] = json!(["/sleep"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), config.to_string()).expect("writes the configuration");
    let checked = run(&["check", "--config", file.path().to_str().expect("a path of text")]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("warning: allow_paths: /sleep stops the engine"), "{said}");
}

#[tokio::test]
async fn an_engine_is_told_where_a_request_came_from_and_not_what_its_client_claims() {
    let replica = Strict::start();
    let mut config = config(json!({ "m": { "replicas": [replica.url()] } }));
    let kvpin = Kvpin::start(&config).await;
    let call = Call::post("/v1/messages", BODY)
        .header("Host", "kvpin.test")
        .header("X-Forwarded-For", "1.1.1.1")
        .header("X-Forwarded-For", "2.2.2.2")
        .header("X-Forwarded-Host", "bank.example")
        .header("X-Forwarded-Proto", "https")
        .header("X-Forwarded-Prefix", "/admin")
        .header("Forwarded", "for=3.3.3.3")
        .header("X-Real-IP", "4.4.4.4")
        .header("Connection", "X-Forwarded-For, Host");
    assert_eq!(kvpin.call(&call).await.status(), 200);
    let seen = replica.take().remove(0);
    let told = |request: &Request, names: [&str; 3]| names.map(|name| request.all(name).join(" | "));
    let names = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    assert_eq!(told(&seen, names), ["127.0.0.1", "kvpin.test", "http"]);
    assert_eq!(told(&seen, ["x-forwarded-prefix", "forwarded", "x-real-ip"]), ["", "", ""]);
    assert_eq!(seen.all("host"), ["kvpin.test"]);

    config["trusted_proxies"] = json!(["127.0.0.0/8"]);
    assert!(kvpin.reload(&config).await);
    assert_eq!(kvpin.call(&call).await.status(), 200);
    let seen = replica.take().remove(0);
    assert_eq!(told(&seen, names), ["1.1.1.1, 2.2.2.2, 127.0.0.1", "bank.example", "https"]);
    assert_eq!(seen.all("x-real-ip"), ["4.4.4.4"]);
}

#[tokio::test]
async fn a_client_cannot_steer_an_engine_by_its_headers() {
    let (replica, kvpin) = behind().await;
    let call = Call::post("/v1/messages", BODY)
        .header("X-Vllm-Priority", "-1000")
        .header("X-VLLM-Anything", "1")
        .header("X-data-parallel-rank", "1")
        .header("endpoint-load-metrics-format", "json")
        .header("X-Request-Id", "mine")
        .header("traceparent", "00-1");
    assert_eq!(kvpin.call(&call).await.status(), 200);
    let seen = replica.take().remove(0);
    for name in ["x-vllm-priority", "x-vllm-anything", "x-data-parallel-rank", "endpoint-load-metrics-format"] {
        assert!(seen.all(name).is_empty(), "{name}: {seen:?}");
    }
    assert_eq!((seen.all("x-request-id"), seen.all("traceparent")), (vec!["mine"], vec!["00-1"]));
}

#[tokio::test]
async fn ids_and_names_break_out_of_no_header_no_log_line_and_no_answer() {
    let (replica, kvpin) = behind().await;
    let evil = "x\r\nX-Evil: 1\r\n\r\nHTTP/1.1 200 OK\u{1b}[31m";
    for body in [
        json!({ "model": "m", "session_id": evil }),
        json!({ "model": "m", "conversation": { "id": evil }, "prompt_cache_key": evil }),
        json!({ "model": "m", "metadata": { "user_id": format!("{{\"session_id\":{}}}", json!(evil)) } }),
        json!({ "model": evil }),
    ] {
        let is_served = body["model"] == "m";
        let reply = kvpin.call(&Call::post("/v1/messages", body.to_string())).await;
        assert_eq!(reply.status(), if is_served { 200 } else { 404 }, "{body}");
        assert!(reply.is_whole && reply.header("x-evil").is_none());
        for request in replica.take() {
            assert!(request.all("x-evil").is_empty() && request.body == body.to_string().as_bytes());
        }
    }
    for named in ["a\tb", "\"><script>", "caf\u{e9}", &"x".repeat(5000)] {
        let reply = kvpin.call(&Call::post("/v1/messages", BODY).header("x-kvpin-replica", named)).await;
        assert_eq!(reply.status(), 400);
        assert_eq!(reply.header("x-kvpin-replica"), None);
        assert!(!reply.anthropic_error().1.is_empty());
    }
    let log = kvpin.log();
    assert!(!log.contains("X-Evil") && !log.contains('\u{1b}') && !log.contains("<script>"), "{log}");
}

#[tokio::test]
async fn one_model_is_told_in_the_callers_shape() {
    let replica = Recorder::start();
    let kvpin = Kvpin::serve(json!({ "org/m": { "aliases": ["other"], "replicas": [replica.url()] } })).await;
    for path in ["/v1/models/org/m", "/v1/models/org%2Fm", "/v1/models/other"] {
        let named = if path.ends_with("other") { "other" } else { "org/m" };
        let openai = kvpin.call(&Call::get(path)).await.json();
        assert_eq!((&openai["id"], &openai["object"]), (&json!(named), &json!("model")), "{path}");
        let anthropic = kvpin.call(&Call::get(path).header("anthropic-version", "2023-06-01")).await.json();
        assert_eq!((&anthropic["id"], &anthropic["type"]), (&json!(named), &json!("model")), "{path}");
    }
    let unknown = kvpin.call(&Call::get("/v1/models/gpt-5")).await;
    assert_eq!(unknown.status(), 404);
    assert!(unknown.openai_error().contains("org/m"));
    let unknown = kvpin.call(&Call::get("/v1/models/gpt-5").header("anthropic-version", "2023-06-01")).await;
    assert_eq!(unknown.anthropic_error().0, "not_found_error");
    assert_eq!(replica.count(), 0);
}
