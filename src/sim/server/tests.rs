//! The server over real sockets: bytes in, bytes out.

mod scripts;

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Arrival, Failure, ReplicaOptions, ReplicaServer};
use crate::sim::config::EngineConfig;

const DEADLINE: Duration = Duration::from_secs(20);

/// A reply's text is the same on every server, because the weights are.
fn fast() -> ReplicaOptions {
    ReplicaOptions { model: "tiny".into(), time_scale: 1000.0, dev_mode: true, ..ReplicaOptions::default() }
}

/// So slow that nothing ends by itself within a test.
fn stuck() -> ReplicaOptions {
    let engine = EngineConfig { step: Duration::from_secs(600), ..EngineConfig::default() };
    ReplicaOptions { engine, time_scale: 1.0, ..fast() }
}

async fn start(options: ReplicaOptions) -> ReplicaServer {
    ReplicaServer::start(options).await.expect("starts")
}

struct Reply {
    status: u16,
    head: String,
    /// The body as sent, one entry a chunk.
    chunks: Vec<String>,
    /// Whether the body came to its proper end.
    complete: bool,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.contains("transfer-encoding: chunked");
        let (chunks, complete) = if chunked { chunks(body) } else { (vec![body.to_owned()], true) };
        Self { status, head: head.to_owned(), chunks, complete }
    }

    fn body(&self) -> String {
        self.chunks.concat()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body()).expect("JSON")
    }

    /// The JSON of the `data:` lines, without the last mark.
    fn events(&self) -> Vec<Value> {
        let body = self.body();
        let lines = body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        lines.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }
}

fn chunks(mut body: &str) -> (Vec<String>, bool) {
    let mut chunks = Vec::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's size");
        if size == 0 {
            return (chunks, true);
        }
        chunks.push(rest[..size].to_owned());
        body = &rest[size + 2..];
    }
    (chunks, false)
}

async fn connect(server: &ReplicaServer) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("connects")
}

async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("ends in time");
    // A cut answer may end in a reset; what came before it is what counts.
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    bytes
}

/// Reads until `mark` has come; returns all that came.
async fn read_until(stream: &mut TcpStream, mark: &str) -> String {
    let reading = async {
        let mut seen = Vec::new();
        loop {
            assert_ne!(stream.read_buf(&mut seen).await.expect("reads"), 0, "the end comes before {mark:?}");
            let text = String::from_utf8_lossy(&seen);
            if text.contains(mark) {
                return text.into_owned();
            }
        }
    };
    timeout(DEADLINE, reading).await.expect("comes in time")
}

fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}content-length: \
         {}\r\n\r\n{body}",
        body.len()
    )
}

async fn exchange(server: &ReplicaServer, request: &str) -> Reply {
    let mut stream = connect(server).await;
    stream.write_all(request.as_bytes()).await.expect("writes");
    Reply::parse(&read_to_end(&mut stream).await)
}

async fn ask(server: &ReplicaServer, path: &str, body: &Value) -> Reply {
    exchange(server, &post(path, "", &body.to_string())).await
}

async fn ask_rank(server: &ReplicaServer, rank: &str, body: &Value) -> Reply {
    let headers = format!("x-data-parallel-rank: {rank}\r\n");
    exchange(server, &post("/v1/chat/completions", &headers, &body.to_string())).await
}

async fn get(server: &ReplicaServer, path: &str) -> Reply {
    exchange(server, &format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n")).await
}

/// Waits, without a fixed pause, until the server is as expected.
async fn until(server: &ReplicaServer, expected: impl Fn(&ReplicaServer) -> bool) {
    let waiting = async {
        while !expected(server) {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, waiting).await.expect("comes to pass in time");
}

fn chat(more: Value) -> Value {
    let text = "a question about the code ".repeat(100);
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn last(server: &ReplicaServer) -> Arrival {
    server.arrivals().pop().expect("an arrival")
}

#[tokio::test]
async fn a_chat_stream_has_the_events_of_vllm() {
    let server = start(fast()).await;
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = ask(&server, "/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: text/event-stream; charset=utf-8"));
    assert!(reply.head.contains("server: uvicorn"));
    assert!(reply.chunks.iter().all(|chunk| chunk.starts_with("data: ") && chunk.ends_with("\n\n")));
    assert_eq!(reply.chunks.len(), 1 + 4 + 1 + 1, "role, four tokens, usage, mark: one chunk each");
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(events[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(events[5]["choices"], json!([]));
    assert_eq!(events[5]["usage"]["completion_tokens"], 4);
    assert_eq!(events[5]["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(reply.chunks[6], "data: [DONE]\n\n");
    assert!(reply.complete);
}

#[tokio::test]
async fn the_second_turn_is_cached_on_the_rank_that_had_the_first() {
    let server = start(ReplicaOptions { data_parallel_size: 2, ..fast() }).await;
    let first = ask_rank(&server, "1", &chat(json!({}))).await.json();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let reply = &first["choices"][0]["message"]["content"];
    let mut messages = chat(json!({}))["messages"].as_array().expect("messages").clone();
    messages.push(json!({"role": "assistant", "content": reply}));
    messages.push(json!({"role": "user", "content": "go on"}));
    let body = chat(json!({"messages": messages}));
    for (rank, warm) in [("0", false), ("1", true)] {
        let usage = &ask_rank(&server, rank, &body).await.json()["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        let prompt = usage["prompt_tokens"].as_u64().expect("a number");
        assert_eq!(cached > prompt * 9 / 10, warm, "{cached} of {prompt} on rank {rank}");
        assert_eq!(last(&server).cached_tokens.map(u64::from), Some(cached));
        assert_eq!(last(&server).rank.map(|rank| rank.to_string()).as_deref(), Some(rank));
    }
}

#[tokio::test]
async fn messages_tell_of_the_cache_at_their_end_only() {
    let server = start(fast()).await;
    let mut figures = Vec::new();
    for stream in [true, false] {
        let body = chat(json!({"stream": stream}));
        let reply = ask(&server, "/v1/messages", &body).await;
        if !stream {
            figures.push(reply.json()["usage"].clone());
            continue;
        }
        let events = reply.events();
        let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap_or_default()).collect();
        let deltas = ["content_block_delta"; 4];
        let start = ["message_start", "content_block_start"];
        let end = ["content_block_stop", "message_delta", "message_stop"];
        assert_eq!(kinds, [&start[..], &deltas, &end].concat());
        let usage = &events[0]["message"]["usage"];
        assert!(usage.get("cache_read_input_tokens").is_none());
        let whole_prompt = usage["input_tokens"].as_u64().expect("a number");
        let usage = events[7]["usage"].clone();
        let sum = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
        assert_eq!(sum.iter().filter_map(|name| usage[name].as_u64()).sum::<u64>(), whole_prompt);
        figures.push(usage);
    }
    let (cold, warm) = (&figures[0], &figures[1]);
    assert_eq!(cold["cache_creation_input_tokens"], warm["cache_read_input_tokens"]);
    assert_eq!(cold["cache_read_input_tokens"], 0);
}

#[tokio::test]
async fn completions_and_responses_answer_in_their_own_words() {
    let server = start(fast()).await;
    let body = json!({"prompt": "one two three", "stream": true});
    let reply = ask(&server, "/v1/completions", &body).await;
    assert_eq!(reply.events().len(), 16, "vLLM's default length");
    assert!(reply.body().ends_with("data: [DONE]\n\n"));
    let body = json!({"input": "one two three", "stream": true, "max_output_tokens": 3});
    let reply = ask(&server, "/v1/responses", &body).await;
    let events = reply.events();
    assert_eq!(events[0]["type"], "response.created");
    let end = events.last().expect("an event");
    assert_eq!((&end["type"], &end["response"]["status"]), (&json!("response.completed"), &json!("incomplete")));
    assert_eq!(end["response"]["usage"]["output_tokens"], 3);
    assert!(!reply.body().contains("[DONE]"));
    let whole = ask(&server, "/v1/responses", &json!({"input": "one two three", "max_output_tokens": 3})).await.json();
    let text = "/output/0/content/0/text";
    assert_eq!(whole.pointer(text), end["response"].pointer(text), "the same prompt has the same reply");
}

#[tokio::test]
async fn the_rank_header_is_judged_as_vllm_judges_it() {
    let server = start(ReplicaOptions { data_parallel_size: 2, ..fast() }).await;
    let refused = ask_rank(&server, "2", &chat(json!({}))).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["message"], "data_parallel_rank 2 is out of range [0, 2).");
    let late = ask_rank(&server, "-1", &chat(json!({"stream": true}))).await;
    assert_eq!(late.status, 200);
    assert_eq!(late.chunks.len(), 2);
    assert_eq!(late.events()[0]["error"]["code"], 400);
    let mut ranks = Vec::new();
    for header in ["", "x-data-parallel-rank: 1.0\r\n"] {
        for path in ["/v1/chat/completions", "/v1/chat/completions"] {
            exchange(&server, &post(path, header, &chat(json!({})).to_string())).await;
            ranks.push(last(&server).rank);
        }
    }
    assert!(ranks.contains(&Some(0)) && ranks.contains(&Some(1)), "without a usable rank idle ranks take turns");
    let body = json!({"input": "a", "max_output_tokens": 1}).to_string();
    let mut ranks = Vec::new();
    for _ in 0..2 {
        exchange(&server, &post("/v1/responses", "x-data-parallel-rank: 1\r\n", &body)).await;
        ranks.push(last(&server).rank);
    }
    assert!(ranks.contains(&Some(0)), "a response doesn't know the header");
}

#[tokio::test]
async fn errors_have_vllms_status_and_shape() {
    let server = start(fast()).await;
    let openai = ask(&server, "/v1/chat/completions", &chat(json!({"model": "nope"}))).await;
    assert_eq!((openai.status, &openai.json()["error"]["code"]), (404, &json!(404)));
    let anthropic = ask(&server, "/v1/messages", &chat(json!({"model": "nope"}))).await;
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (404, &json!("error")));
    let bad = exchange(&server, &post("/v1/messages", "", "{\"model\": ")).await;
    assert_eq!((bad.status, &bad.json()["error"]["type"]), (400, &json!("Bad Request")));
    let long = ask(&server, "/v1/chat/completions", &chat(json!({"max_tokens": 40000, "stream": true}))).await;
    assert_eq!((long.status, &long.json()["error"]["param"]), (400, &json!("input_tokens")));
    assert_eq!(get(&server, "/nope").await.json(), json!({"detail": "Not Found"}));
    assert_eq!(get(&server, "/v1/messages").await.status, 405);
    assert_eq!(get(&server, "/health/").await.status, 307);
}

#[tokio::test]
async fn a_body_is_recorded_byte_for_byte_before_it_is_judged() {
    let server = start(fast()).await;
    let body = "not JSON at all \u{1f980}";
    let headers = "X-Request-Id: r-1\r\nX-Twice: a\r\nX-Twice: b\r\n";
    let reply = exchange(&server, &post("/v1/messages?beta=true", headers, body)).await;
    assert_eq!(reply.status, 400);
    let listed = get(&server, "/sim/requests").await.json();
    let arrival = &listed.as_array().expect("a list")[0];
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(arrival["body_sha256"], json!(digest));
    assert_eq!(arrival["body_bytes"], json!(body.len()));
    assert_eq!(arrival["path"], "/v1/messages?beta=true");
    assert_eq!(arrival["request_id"], "r-1");
    assert_eq!(arrival["rank"], json!(null));
    let names: Vec<_> = arrival["headers"].as_array().expect("a list").iter().map(|header| &header[0]).collect();
    assert_eq!(names, ["host", "connection", "content-type", "x-request-id", "x-twice", "x-twice", "content-length"]);
}

#[tokio::test]
async fn a_large_body_after_expect_continue_is_served() {
    let server = start(fast()).await;
    let text = "x".repeat(1 << 20);
    let body = json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let head = post("/v1/messages/count_tokens", "expect: 100-continue\r\n", &body);
    let (head, body) = head.split_once("\r\n\r\n").expect("a head");
    let mut stream = connect(&server).await;
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.expect("writes");
    let mut interim = [0; 25];
    timeout(DEADLINE, stream.read_exact(&mut interim)).await.expect("in time").expect("reads");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).await.expect("writes");
    let reply = Reply::parse(&read_to_end(&mut stream).await);
    assert!(reply.json()["input_tokens"].as_u64() > Some(262_144));
}

#[tokio::test]
async fn a_client_that_goes_away_aborts_its_request() {
    for stream in [true, false] {
        let server = start(stuck()).await;
        let mut connection = connect(&server).await;
        let request = post("/v1/chat/completions", "", &chat(json!({"stream": stream})).to_string());
        connection.write_all(request.as_bytes()).await.expect("writes");
        until(&server, |server| server.loads() == [(1, 0)]).await;
        drop(connection);
        until(&server, |server| server.loads() == [(0, 0)]).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_in_mid_stream_aborts_its_request() {
    let server = start(ReplicaOptions { time_scale: 20.0, ..fast() }).await;
    let mut connection = connect(&server).await;
    let request = post("/v1/messages", "", &chat(json!({"stream": true, "max_tokens": 30_000})).to_string());
    connection.write_all(request.as_bytes()).await.expect("writes");
    read_until(&mut connection, "content_block_delta").await;
    drop(connection);
    until(&server, |server| server.loads() == [(0, 0)]).await;
    let reported = async {
        let idle = "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0";
        loop {
            let page = get(&server, "/metrics").await.body();
            if page.contains(idle) {
                return page;
            }
        }
    };
    let page = timeout(DEADLINE, reported).await.expect("the step under way ends in time");
    let aborted = "vllm:request_success_total{engine=\"0\",model_name=\"tiny\",finished_reason=\"abort\"} 0.0";
    assert!(page.contains(aborted), "vLLM doesn't count aborts");
}

#[tokio::test]
async fn a_streams_head_comes_before_its_work() {
    let server = start(stuck()).await;
    let mut connection = connect(&server).await;
    let request = post("/v1/chat/completions", "", &chat(json!({"stream": true})).to_string());
    connection.write_all(request.as_bytes()).await.expect("writes");
    let seen = read_until(&mut connection, "\r\n\r\n").await;
    assert!(seen.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(server.loads(), [(1, 0)]);
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_by_comments() {
    let keep_alive = Some(Duration::from_millis(5));
    let server = start(ReplicaOptions { sse_keep_alive: keep_alive, ..stuck() }).await;
    let mut connection = connect(&server).await;
    let request = post("/v1/chat/completions", "", &chat(json!({"stream": true})).to_string());
    connection.write_all(request.as_bytes()).await.expect("writes");
    read_until(&mut connection, ": keep-alive\n\n\r\n").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let idle_timeout = Duration::from_millis(30);
    let server = start(ReplicaOptions { idle_timeout, ..stuck() }).await;
    let mut busy = connect(&server).await;
    busy.write_all(post("/v1/chat/completions", "", &chat(json!({})).to_string()).as_bytes()).await.expect("writes");
    until(&server, |server| server.loads() == [(1, 0)]).await;
    let mut idle = connect(&server).await;
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.expect("writes");
    let reply = Reply::parse(&read_to_end(&mut idle).await);
    assert_eq!((reply.status, reply.body().as_str()), (200, ""), "nothing but the one answer before the end");
    assert_eq!(server.loads(), [(1, 0)]);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_or_in_the_stream() {
    let server = start(ReplicaOptions { failure: Failure::Busy, ..fast() }).await;
    let streamed = chat(json!({"stream": true}));
    assert_eq!(ask(&server, "/v1/chat/completions", &streamed).await.status, 503);
    server.set_failure(Failure::BusyInStream);
    let late = ask(&server, "/v1/chat/completions", &streamed).await;
    assert_eq!((late.status, &late.events()[0]["error"]["code"]), (200, &json!(503)));
    assert_eq!(late.chunks[1], "data: [DONE]\n\n");
    let late = ask(&server, "/v1/messages", &streamed).await;
    assert!(late.chunks.len() == 1 && late.complete && late.body().starts_with("event: error\n"));
    server.set_failure(Failure::None);
    assert_eq!(ask(&server, "/v1/chat/completions", &streamed).await.events().len(), 5);
}

#[tokio::test]
async fn a_dead_engine_ends_running_streams_with_an_error() {
    let server = start(stuck()).await;
    let mut connection = connect(&server).await;
    let request = post("/v1/chat/completions", "", &chat(json!({"stream": true})).to_string());
    connection.write_all(request.as_bytes()).await.expect("writes");
    until(&server, |server| server.loads() == [(1, 0)]).await;
    server.set_failure(Failure::EngineDead);
    let reply = Reply::parse(&read_to_end(&mut connection).await);
    assert_eq!(reply.events()[0]["error"]["code"], 500);
    assert!(reply.complete);
    assert_eq!(get(&server, "/health").await.status, 503);
    assert_eq!(ask(&server, "/v1/messages", &chat(json!({}))).await.status, 500);
}

#[tokio::test]
async fn an_answer_can_be_cut() {
    let server = start(ReplicaOptions { failure: Failure::CutAfter(2), ..fast() }).await;
    let reply = ask(&server, "/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert!(!reply.complete);
    assert_eq!(reply.chunks.len(), 3, "the role and two tokens");
    assert_eq!(ask(&server, "/v1/chat/completions", &chat(json!({}))).await.status, 0, "no head at all");
}

#[tokio::test]
async fn a_frozen_engine_is_healthy_and_goes_on_when_thawed() {
    let server = start(ReplicaOptions { failure: Failure::Frozen, ..fast() }).await;
    let mut connection = connect(&server).await;
    let request = post("/v1/chat/completions", "", &chat(json!({})).to_string());
    connection.write_all(request.as_bytes()).await.expect("writes");
    until(&server, |server| server.loads() == [(0, 1)]).await;
    assert_eq!(get(&server, "/health").await.status, 200);
    server.set_failure(Failure::None);
    assert_eq!(Reply::parse(&read_to_end(&mut connection).await).status, 200);
}

#[tokio::test]
async fn the_plain_endpoints_answer() {
    let server = start(fast()).await;
    assert_eq!(get(&server, "/v1/models").await.json()["data"][0]["id"], "tiny");
    assert_eq!(get(&server, "/version").await.json(), json!({"version": "0.32.0"}));
    assert_eq!(get(&server, "/ping").await.status, 200);
    assert!(get(&server, "/%6detrics").await.body().contains("vllm:cache_config_info{block_size=\"16\""));
    let info = get(&server, "/server_info?config_format=json").await.json();
    assert_eq!(info["vllm_config"]["scheduler_config"]["max_num_seqs"], 32);
    let tokens = ask(&server, "/tokenize", &json!({"prompt": "hello there"})).await.json()["tokens"].clone();
    assert_eq!(ask(&server, "/detokenize", &json!({"tokens": tokens})).await.json(), json!({"prompt": "hello there"}));
    let vector = ask(&server, "/v1/embeddings", &json!({"input": "hello"})).await.json();
    assert_eq!(vector["data"][0]["embedding"].as_array().map(Vec::len), Some(8));
    assert_eq!(get(&server, "/sim/running").await.json(), json!({"ranks": [{"running": 0, "waiting": 0}]}));
    let production = start(ReplicaOptions { dev_mode: false, ..fast() }).await;
    assert_eq!(get(&production, "/server_info").await.status, 404);
}

#[tokio::test]
async fn what_makes_no_server_is_refused() {
    for options in [
        ReplicaOptions { data_parallel_size: 0, ..fast() },
        ReplicaOptions { time_scale: 0.0, ..fast() },
        ReplicaOptions { engine: EngineConfig { block_size: 0, ..EngineConfig::default() }, ..fast() },
    ] {
        let error = ReplicaServer::start(options).await.expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn a_server_that_is_shut_down_frees_its_port() {
    let server = start(fast()).await;
    let listen = server.address();
    server.shutdown().await;
    let again = start(ReplicaOptions { listen, ..fast() }).await;
    assert_eq!(get(&again, "/health").await.status, 200);
}
