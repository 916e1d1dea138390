//! Errors as events, for a client that has the head of a stream already.
//!
//! On `/v1/messages` the type is always `overloaded_error`: Claude Code retries after that one as a stream, and falls back to a
//! request without streaming after any other. Elsewhere the error has vLLM's own form: a `data:` line with the error, and
//! `[DONE]`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::endpoint::Dialect;

/// The rest of a stream that ends with an error. `error` is the body that the error would have had as a response.
pub fn event(dialect: Dialect, error: &[u8]) -> Bytes {
    let error: Value = serde_json::from_slice(error).unwrap_or_else(
        |_| json!({ "error": { "message": "The engine failed.", "type": "server_error", "param": null, "code": 502 } }),
    );
    match dialect {
        Dialect::Anthropic => {
            let message = error["error"]["message"].as_str().unwrap_or("The engine failed.");
            let error = json!({ "type": "error", "error": { "type": "overloaded_error", "message": message } });
            format!("event: error\ndata: {error}\n\n").into()
        }
        Dialect::OpenAi => format!("data: {error}\n\ndata: [DONE]\n\n").into(),
    }
}
