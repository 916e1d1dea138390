//! What a script has the model say, in each API's own form.

use serde_json::json;

use super::{Reply, ask, fast, last, start};
use crate::sim::script::Script;
use crate::sim::server::ReplicaOptions;

const SCRIPT: &str = r#"
rules:
  - says: LOOK
    steps:
      - call: {tool: Read, arguments: {path: src/lib.rs}}
      - call: {tool: agents__spawn, arguments: {}}
      - text: "It is a library."
otherwise: "What now?"
"#;

fn scripted() -> ReplicaOptions {
    ReplicaOptions { script: Some(Script::from_yaml(SCRIPT).expect("a script")), ..fast() }
}

fn kinds(reply: &Reply) -> Vec<String> {
    reply.events().iter().filter_map(|event| event["type"].as_str().map(str::to_owned)).collect()
}

/// All the strings that the events have at `pointer`, one after the other.
fn joined(reply: &Reply, pointer: &str) -> String {
    reply.events().iter().filter_map(|event| event.pointer(pointer)?.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_scripted_call_is_streamed_as_anthropics_tool_use() {
    let server = start(scripted()).await;
    let body = json!({
        "stream": true, "max_tokens": 1000,
        "tools": [{"name": "Read"}], "messages": [{"role": "user", "content": "LOOK"}],
    });
    let reply = ask(&server, "/v1/messages", &body).await;
    let mut kinds = kinds(&reply);
    kinds.dedup();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    assert_eq!(kinds, [&["message_start"], &block[..], &["message_delta", "message_stop"]].concat());
    let events = reply.events();
    let start = &events[1]["content_block"];
    assert_eq!((&start["type"], &start["name"], &start["input"]), (&json!("tool_use"), &json!("Read"), &json!({})));
    assert_eq!(joined(&reply, "/delta/partial_json"), r#"{"path":"src/lib.rs"}"#);
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
    assert_eq!(last(&server).offered_tools, Some(1));
    let mut whole = body.clone();
    whole["stream"] = json!(false);
    let whole = ask(&server, "/v1/messages", &whole).await.json();
    assert_eq!(whole["stop_reason"], "tool_use");
    let call = json!({"type": "tool_use", "id": start["id"], "name": "Read", "input": {"path": "src/lib.rs"}});
    assert_eq!(whole["content"], json!([call]), "the same prompt has the same call");
}

#[tokio::test]
async fn a_scripted_call_is_streamed_as_a_chats_tool_calls() {
    let server = start(scripted()).await;
    let tools = json!([{"type": "function", "function": {"name": "Read"}}]);
    let mut body = json!({"stream": true, "tools": tools, "messages": [{"role": "user", "content": "LOOK"}]});
    let reply = ask(&server, "/v1/chat/completions", &body).await;
    let events = reply.events();
    let delta = |index: usize| events[index]["choices"][0]["delta"].clone();
    assert_eq!(delta(0), json!({"role": "assistant", "content": ""}));
    let opening = &delta(1)["tool_calls"][0];
    assert_eq!((&opening["type"], &opening["function"]), (&json!("function"), &json!({"name": "Read"})));
    assert_eq!(joined(&reply, "/choices/0/delta/tool_calls/0/function/arguments"), r#"{"path":"src/lib.rs"}"#);
    assert_eq!(joined(&reply, "/choices/0/finish_reason"), "tool_calls");
    assert_eq!(delta(events.len() - 1), json!({}));
    body["stream"] = json!(false);
    let whole = ask(&server, "/v1/chat/completions", &body).await.json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["id"], opening["id"]);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"path":"src/lib.rs"}"#);
    assert_eq!((&message["content"], &whole["choices"][0]["finish_reason"]), (&json!(null), &json!("tool_calls")));
}

#[tokio::test]
async fn a_scripted_call_is_streamed_as_a_responses_item_with_its_namespace() {
    let server = start(scripted()).await;
    let namespace = json!({"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]});
    let mut body = json!({"stream": true, "tools": [namespace], "input": "LOOK"});
    let reply = ask(&server, "/v1/responses", &body).await;
    let item =
        ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"];
    let expected: Vec<String> = [&["created", "in_progress"], &item[..], &["completed"]]
        .concat()
        .iter()
        .map(|kind| format!("response.{kind}"))
        .collect();
    assert_eq!(kinds(&reply), expected);
    let end = reply.events().pop().expect("an event");
    assert_eq!(end["response"]["status"], "completed");
    let call = &end["response"]["output"][0];
    assert_eq!((&call["name"], &call["namespace"]), (&json!("spawn"), &json!("agents")));
    body["stream"] = json!(false);
    assert_eq!(ask(&server, "/v1/responses", &body).await.json()["output"][0], *call);
}

/// What the engine generated is what it finds in the next prompt, a call as well as text.
#[tokio::test]
async fn a_call_that_is_sent_back_is_found_in_the_cache() {
    let server = start(scripted()).await;
    let tools = json!([{"name": "Read"}]);
    let question = json!({"role": "user", "content": "LOOK ".repeat(50)});
    let body = json!({"max_tokens": 1000, "tools": tools, "messages": [question]});
    let call = ask(&server, "/v1/messages", &body).await.json();
    let result = json!({"type": "tool_result", "tool_use_id": call["content"][0]["id"], "content": "pub mod a;"});
    let messages = json!([
        question,
        {"role": "assistant", "content": call["content"]},
        {"role": "user", "content": [result]},
    ]);
    let answer = ask(&server, "/v1/messages", &json!({"max_tokens": 1000, "tools": tools, "messages": messages})).await;
    assert_eq!(answer.json()["content"], json!([{"type": "text", "text": "It is a library."}]));
    let known = call["usage"]["input_tokens"].as_u64().zip(call["usage"]["cache_creation_input_tokens"].as_u64());
    let prompt = known.map(|(rest, blocks)| rest + blocks).expect("figures");
    let cached = last(&server).cached_tokens.map(u64::from).expect("a number");
    assert!(cached > prompt, "{cached} tokens are more than the prompt's {prompt}");
}

#[tokio::test]
async fn a_scripted_reply_ends_at_its_limit() {
    let server = start(scripted()).await;
    let body = json!({"max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]});
    let cut = ask(&server, "/v1/messages", &body).await.json();
    assert_eq!((&cut["content"][0]["text"], &cut["stop_reason"]), (&json!("What now"), &json!("max_tokens")));
    let tools = json!([{"name": "Read"}]);
    let body =
        json!({"stream": true, "max_tokens": 2, "tools": tools, "messages": [{"role": "user", "content": "LOOK"}]});
    let reply = ask(&server, "/v1/messages", &body).await;
    assert_eq!(kinds(&reply), ["message_start", "message_delta", "message_stop"], "no block of half a mark");
    assert_eq!(joined(&reply, "/delta/stop_reason"), "max_tokens");
}
