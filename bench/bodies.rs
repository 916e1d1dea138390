//! Requests as agents send them, for the benches: heads and bodies in the shape of Claude Code's (key order and share of messages,
//! system and tools as captured from version 2.1.332).

// Each bench takes a part of it.
#![allow(dead_code)]

use http::{HeaderMap, HeaderValue};
use kvpin::conversation::{Progress, Scanner, Wanted};

/// The most that Pingora hands over at once.
pub const CHUNK: usize = 64 * 1024;

/// A turn as an agent's history has it: code with its line breaks and quotes escaped.
pub const TURN: &str = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01","content":[{"type":"text","text":"     1\tuse std::collections::HashMap;\n     2\t\n     3\tfn main() {\n     4\t    let greeting = \"hello\";\n     5\t    println!(\"{greeting}, {}\", std::env::args().count());\n     6\t}\n"}]}]},{"role":"assistant","content":[{"type":"text","text":"The function prints a greeting and the number of arguments. I will now look at the tests before I change it, so that the behaviour stays as it is."},{"type":"tool_use","id":"toolu_02","name":"Bash","input":{"command":"cargo test --quiet 2>&1 | tail -20","description":"Run tests"}}]}"#;

/// A tool as agents describe them: prose first, then a schema.
pub const TOOL: &str = r#"{"name":"Read","description":"Reads a file from the local filesystem. You can access any file directly by using this tool.\n\nUsage:\n- The file_path parameter must be an absolute path\n- By default, it reads up to 2000 lines from the beginning of the file","input_schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"file_path":{"type":"string","description":"The absolute path to the file to read"},"offset":{"type":"integer","minimum":0,"description":"The line number to start reading from"},"limit":{"type":"integer","exclusiveMinimum":0}},"required":["file_path"],"additionalProperties":false}}"#;

pub const MODEL: &str = r#""model":"qwen3-4b""#;

pub const TAIL: &str = r#""metadata":{"user_id":"{\"device_id\":\"0000000000000000000000000000000000000000000000000000000000000000\",\"account_uuid\":\"\",\"session_id\":\"be1bd76a-8294-49e0-b3d2-e58bc1e620a9\"}"},"max_tokens":32000,"thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"stream":true"#;

/// `item` over and over, to about so many bytes.
pub fn array(item: &str, bytes: usize) -> String {
    format!("[{}]", vec![item; bytes / item.len() + 1].join(","))
}

/// Messages, system prompt and tools of a body of about so many bytes.
pub fn history(bytes: usize) -> String {
    let tools = array(TOOL, 31_000);
    let system = array(r#"{"type":"text","text":"You are an interactive agent that helps."}"#, 7_000);
    let messages = array(TURN, bytes - tools.len() - system.len());
    format!(r#""messages":{messages},"system":{system},"tools":{tools}"#)
}

/// Searches until the answer is there, and says whether a model was found.
pub fn search(body: &[u8], wanted: Wanted) -> bool {
    let mut scanner = Scanner::new(wanted);
    for chunk in body.chunks(CHUNK) {
        scanner.search(chunk);
        if scanner.progress() != Progress::More {
            break;
        }
    }
    scanner.fields().model.name().is_some()
}

/// Feeds all of the body, and says whether there is a history.
pub fn read(body: &[u8]) -> bool {
    let mut scanner = Scanner::new(Wanted::ModelAndSession);
    for chunk in body.chunks(CHUNK) {
        scanner.feed(chunk);
    }
    scanner.fields().metadata_session.is_some() && scanner.history().is_some()
}

/// A head of Claude Code, without what names its session.
pub fn head() -> HeaderMap {
    [
        ("accept", "application/json"),
        ("authorization", "Bearer dummy-token"),
        ("content-type", "application/json"),
        ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)"),
        ("x-stainless-arch", "x64"),
        ("x-stainless-lang", "js"),
        ("x-stainless-os", "Linux"),
        ("x-stainless-retry-count", "0"),
        ("x-stainless-timeout", "600"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
        ("anthropic-version", "2023-06-01"),
        ("x-app", "cli"),
        ("host", "127.0.0.1:8080"),
        ("content-length", "49403"),
    ]
    .into_iter()
    .map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)))
    .collect()
}

/// A head that names its session too.
pub fn named_head() -> HeaderMap {
    let mut named = head();
    named.insert("x-claude-code-session-id", HeaderValue::from_static("be1bd76a-8294-49e0-b3d2-e58bc1e620a9"));
    named.insert("x-claude-code-agent-id", HeaderValue::from_static("a47b7e553d913f94c"));
    named
}

/// A body of about so many bytes, with the model where Claude Code has it and the session near the end.
pub fn body(bytes: usize) -> String {
    if bytes < 2_000 {
        return format!("{{{MODEL},\"messages\":{},{TAIL}}}", array(TURN, bytes / 2));
    }
    format!("{{{MODEL},{},{TAIL}}}", history(bytes))
}
