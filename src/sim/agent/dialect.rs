//! How the two APIs that agents speak are written and read.

use serde_json::{Value, json};

use super::AgentWorkload;
use super::turn::TurnUsage;

/// The API that an agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgentDialect {
    /// `/v1/messages`, as Claude Code.
    #[default]
    Messages,
    /// `/v1/chat/completions`.
    Chat,
}

/// What one event of a stream means to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sign {
    /// Text of the reply.
    Text(String),
    /// Something else that was generated, such as a thought or the call of a tool.
    Generated,
    /// What the turn used.
    Usage(TurnUsage),
    /// The reply is complete.
    End,
    /// The server gives up.
    Error,
    /// Nothing of interest.
    Nothing,
}

impl AgentDialect {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Messages => "/v1/messages",
            Self::Chat => "/v1/chat/completions",
        }
    }

    /// The headers that name a session, and a subagent of it.
    pub(super) fn identity(self, session: &str, agent: Option<&str>) -> Vec<(&'static str, String)> {
        match (self, agent) {
            (Self::Messages, None) => vec![("x-claude-code-session-id", session.to_owned())],
            (Self::Messages, Some(agent)) => {
                vec![("x-claude-code-session-id", session.to_owned()), ("x-claude-code-agent-id", agent.to_owned())]
            }
            (Self::Chat, None) => vec![("x-session-id", session.to_owned())],
            (Self::Chat, Some(agent)) => {
                vec![("x-session-id", agent.to_owned()), ("x-parent-session-id", session.to_owned())]
            }
        }
    }

    pub(super) fn headers(self, api_key: Option<&str>) -> Vec<(&'static str, String)> {
        match self {
            Self::Messages => {
                let version = ("anthropic-version", "2023-06-01".to_owned());
                [version].into_iter().chain(api_key.map(|key| ("x-api-key", key.to_owned()))).collect()
            }
            Self::Chat => api_key.map(|key| ("authorization", format!("Bearer {key}"))).into_iter().collect(),
        }
    }

    pub(super) fn body(self, workload: &AgentWorkload, system: &str, messages: &[Value]) -> Value {
        let mut body = json!({"model": workload.model, "stream": true});
        match self {
            Self::Messages => {
                body["system"] = json!([{"type": "text", "text": system}]);
                body["messages"] = json!(messages);
                // Without it or tools, a small request of an agent is taken for the making of a title.
                body["thinking"] = json!({"type": "adaptive"});
            }
            Self::Chat => {
                let leading = json!({"role": "system", "content": system});
                body["messages"] = [leading].into_iter().chain(messages.iter().cloned()).collect();
                body["stream_options"] = json!({"include_usage": true});
            }
        }
        body
    }

    /// Reads the `data` of one event.
    pub(super) fn read(self, data: &str) -> Sign {
        if data == "[DONE]" {
            return Sign::End;
        }
        // An event that isn't JSON is the server's fault and as bad as an error.
        let Ok(event) = serde_json::from_str::<Value>(data) else { return Sign::Error };
        match self {
            Self::Messages => read_message_event(&event),
            Self::Chat => read_chat_event(&event),
        }
    }
}

fn read_message_event(event: &Value) -> Sign {
    match event["type"].as_str() {
        Some("content_block_delta") => match text(&event["delta"]["text"]) {
            Sign::Nothing if has_text(&event["delta"], &["thinking", "partial_json"]) => Sign::Generated,
            sign => sign,
        },
        Some("message_delta") => {
            let usage = &event["usage"];
            let (cached, created) =
                (number(&usage["cache_read_input_tokens"]), number(&usage["cache_creation_input_tokens"]));
            let prompt_tokens = number(&usage["input_tokens"]) + cached + created;
            Sign::Usage(TurnUsage {
                prompt_tokens,
                cached_tokens: cached,
                completion_tokens: number(&usage["output_tokens"]),
            })
        }
        Some("message_stop") => Sign::End,
        Some("error") => Sign::Error,
        Some(_) | None => Sign::Nothing,
    }
}

fn read_chat_event(event: &Value) -> Sign {
    if event.get("error").is_some() {
        return Sign::Error;
    }
    let usage = &event["usage"];
    if usage.is_object() {
        return Sign::Usage(TurnUsage {
            prompt_tokens: number(&usage["prompt_tokens"]),
            cached_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
            completion_tokens: number(&usage["completion_tokens"]),
        });
    }
    let delta = &event["choices"][0]["delta"];
    match text(&delta["content"]) {
        Sign::Nothing if has_text(delta, &["reasoning_content", "reasoning"]) || delta["tool_calls"].is_array() => {
            Sign::Generated
        }
        sign => sign,
    }
}

/// Whether one of the fields has a text in it.
fn has_text(value: &Value, fields: &[&str]) -> bool {
    fields.iter().any(|field| value[field].as_str().is_some_and(|text| !text.is_empty()))
}

/// vLLM's first event has an empty text, which is no token yet.
fn text(value: &Value) -> Sign {
    match value.as_str() {
        Some(text) if !text.is_empty() => Sign::Text(text.to_owned()),
        Some(_) | None => Sign::Nothing,
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_stream_is_read() {
        let read = |data: Value| AgentDialect::Messages.read(&data.to_string());
        let start = json!({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 0}}});
        assert_eq!(read(start), Sign::Nothing);
        let delta = json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}});
        assert_eq!(read(delta), Sign::Text("a".into()));
        let thought = json!({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}});
        assert_eq!(read(thought), Sign::Generated);
        let usage = json!({
            "input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 16, "cache_read_input_tokens": 64,
        });
        let used = TurnUsage { prompt_tokens: 83, cached_tokens: 64, completion_tokens: 4 };
        assert_eq!(read(json!({"type": "message_delta", "delta": {}, "usage": usage})), Sign::Usage(used));
        assert_eq!(read(json!({"type": "message_stop"})), Sign::End);
        assert_eq!(read(json!({"type": "error", "error": {}})), Sign::Error);
    }

    #[test]
    fn a_chat_stream_is_read() {
        let read = |data: Value| AgentDialect::Chat.read(&data.to_string());
        let delta = |content: &str| json!({"choices": [{"delta": {"role": "assistant", "content": content}}]});
        assert_eq!(read(delta("")), Sign::Nothing);
        let generated = |delta: Value| read(json!({"choices": [{"delta": delta}]}));
        assert_eq!(generated(json!({"reasoning_content": "hm"})), Sign::Generated);
        assert_eq!(generated(json!({"tool_calls": [{"index": 0}]})), Sign::Generated);
        assert_eq!(read(delta("a")), Sign::Text("a".into()));
        let usage =
            json!({"prompt_tokens": 80, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 64}});
        let used = TurnUsage { prompt_tokens: 80, cached_tokens: 64, completion_tokens: 4 };
        assert_eq!(read(json!({"choices": [], "usage": usage})), Sign::Usage(used));
        assert_eq!(read(json!({"error": {"code": 503}})), Sign::Error);
        assert_eq!(AgentDialect::Chat.read("[DONE]"), Sign::End);
        assert_eq!(AgentDialect::Chat.read("{"), Sign::Error);
    }
}
