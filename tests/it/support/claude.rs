//! The request of Claude Code 2.1 as it was recorded on the wire: the same headers and the same order of keys, with text of
//! our own in the same sizes.

use serde_json::{Value, json};

use super::call::Call;
use super::replicas::MODEL;

pub const SESSION: &str = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";

/// In the order of the wire; the client's connection adds `Host` and `Content-Length`.
const HEAD: [(&str, &str); 17] = [
    ("Accept", "application/json"),
    ("Authorization", "Bearer dummy-token"),
    ("User-Agent", "claude-cli/2.1.332 (external, sdk-cli)"),
    ("X-Claude-Code-Session-Id", SESSION),
    ("X-Stainless-Arch", "x64"),
    ("X-Stainless-Lang", "js"),
    ("X-Stainless-OS", "Linux"),
    ("X-Stainless-Package-Version", "0.128.0"),
    ("X-Stainless-Retry-Count", "0"),
    ("X-Stainless-Runtime", "node"),
    ("X-Stainless-Runtime-Version", "v26.12.1"),
    ("X-Stainless-Timeout", "600"),
    (
        "anthropic-beta",
        "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,\
         mid-conversation-tool-changes-2026-07-01,thinking-token-count-2026-05-13,advanced-tool-use-2025-11-20,\
         effort-2025-11-24",
    ),
    ("anthropic-dangerous-direct-browser-access", "true"),
    ("anthropic-version", "2023-06-01"),
    ("x-app", "cli"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
];

/// A turn of the session with so many exchanges behind it. `user_id` is the JSON value of `metadata.user_id`.
pub fn turn(exchanges: usize, user_id: &Value) -> Call {
    let call = Call::post("/v1/messages?beta=true", body(exchanges, user_id));
    HEAD.iter().fold(call, |call, (name, value)| call.header(name, value)).header("Connection", "keep-alive")
}

/// `metadata.user_id` in the three forms in which a session was seen in it.
pub fn user_ids(session: &str) -> [Value; 3] {
    let device = "0f".repeat(32);
    let as_object = json!({ "device_id": device, "account_uuid": "", "session_id": session });
    [json!(as_object.to_string()), json!(format!("user_{device}_account__session_{session}")), as_object]
}

fn body(exchanges: usize, user_id: &Value) -> String {
    let messages = messages(exchanges);
    let system =
        json!([{"type": "text", "text": "You are an agent. ".repeat(380), "cache_control": {"type": "ephemeral"}}]);
    let tools = tools();
    let metadata = json!({ "user_id": user_id });
    format!(r#"{{"model":"{MODEL}","messages":{messages},"system":{system},"tools":{tools},"metadata":{metadata},"#)
        + r#""max_tokens":8,"thinking":{"type":"adaptive","display":"summarized"},"#
        + r#""context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"output_config":{"effort":"high"},"#
        + r#""stream":true}"#
}

fn messages(exchanges: usize) -> Value {
    let mut messages = Vec::new();
    for exchange in 0..exchanges {
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": format!("Question {exchange}. ").repeat(120)}]}));
        messages
            .push(json!({"role": "assistant", "content": [{"type": "text", "text": format!("Answer {exchange}.")}]}));
    }
    messages.push(json!({"role": "user", "content": "And now?"}));
    Value::from(messages)
}

/// Some 31 KB of schemas, with keys in them that mean something only at the top of a body.
fn tools() -> Value {
    let tool = |number: usize| {
        json!({
            "name": format!("tool_{number}"),
            "description": "Takes a path and does something with it. ".repeat(30),
            "input_schema": {"type": "object", "properties": {
                "model": {"type": "string"}, "session_id": {"type": "string"},
                "metadata": {"type": "object", "properties": {"user_id": {"type": "string"}}},
            }},
        })
    };
    (0..20).map(tool).collect()
}
