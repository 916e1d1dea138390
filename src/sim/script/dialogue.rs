//! What a script looks at: what was said to the model, and which tools it was offered, whatever API the body is of.

use serde_json::{Map, Value};

/// Between a tool and its namespace in the name that the model sees, as vLLM joins them.
const NAMESPACE_SEPARATOR: &str = "__";

/// The side of a conversation that the model didn't say itself, and the tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dialogue {
    /// Oldest first.
    pub(super) said: Vec<Said>,
    /// In the order of the body.
    pub(super) tools: Vec<OfferedTool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// All the text of one message.
    User(String),
    ToolResult,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedTool {
    /// The name that the model sees.
    pub shown_as: String,
    /// The name in its namespace, if it has one.
    pub name: String,
    /// The namespace; `/v1/responses` only.
    pub namespace: Option<String>,
}

impl Dialogue {
    /// Of `/v1/chat/completions`.
    pub fn of_chat(body: &Map<String, Value>) -> Self {
        let said = items(body, "messages").filter_map(|message| match text_field(message, "role")? {
            "tool" => Some(Said::ToolResult),
            "user" => Some(Said::User(text(message.get("content")?))),
            _ => None,
        });
        let tools = items(body, "tools").filter_map(|tool| OfferedTool::plain(tool.get("function")?));
        Self { said: said.collect(), tools: tools.collect() }
    }

    /// Of `/v1/messages`. A message with a tool's result is not the user's: what text stands beside it, the agent wrote.
    pub fn of_messages(body: &Map<String, Value>) -> Self {
        let mut said = Vec::new();
        for message in items(body, "messages").filter(|message| text_field(message, "role") == Some("user")) {
            let Some(content) = message.get("content") else { continue };
            let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
            let results = blocks.iter().filter(|block| text_field(block, "type") == Some("tool_result")).count();
            match results {
                0 => said.push(Said::User(text(content))),
                _ => said.extend((0..results).map(|_| Said::ToolResult)),
            }
        }
        Self { said, tools: items(body, "tools").filter_map(OfferedTool::plain).collect() }
    }

    /// Of `/v1/responses`.
    pub fn of_responses(body: &Map<String, Value>) -> Self {
        let said = match body.get("input") {
            Some(Value::String(text)) => vec![Said::User(text.clone())],
            _ => items(body, "input").filter_map(said_in_item).collect(),
        };
        Self { said, tools: items(body, "tools").flat_map(OfferedTool::with_namespace).collect() }
    }
}

impl OfferedTool {
    fn plain(tool: &Value) -> Option<Self> {
        let name = text_field(tool, "name")?.to_owned();
        Some(Self { shown_as: name.clone(), name, namespace: None })
    }

    /// The tools of one entry: of a namespace all, else the one.
    fn with_namespace(entry: &Value) -> Vec<Self> {
        let (Some("namespace"), Some(namespace)) = (text_field(entry, "type"), text_field(entry, "name")) else {
            return Self::plain(entry).into_iter().collect();
        };
        let tools = entry.get("tools").and_then(Value::as_array).into_iter().flatten();
        let named = tools.filter_map(|tool| text_field(tool, "name")).map(|name| Self {
            shown_as: shown_as(Some(namespace), name),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
        });
        named.collect()
    }
}

/// The name that the model sees.
pub fn shown_as(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{NAMESPACE_SEPARATOR}{name}"))
}

fn said_in_item(item: &Value) -> Option<Said> {
    match (text_field(item, "type"), text_field(item, "role")) {
        (Some("function_call_output" | "custom_tool_call_output"), _) => Some(Said::ToolResult),
        (_, Some("user")) => Some(Said::User(text(item.get("content")?))),
        _ => None,
    }
}

fn items<'a>(body: &'a Map<String, Value>, field: &str) -> impl Iterator<Item = &'a Value> {
    body.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn text_field<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

/// The text of a string or of blocks.
fn text(content: &Value) -> String {
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = blocks.iter().filter_map(|block| text_field(block, "text"));
    content.as_str().into_iter().chain(texts).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expected() -> Vec<Said> {
        vec![Said::User("one\ntwo".into()), Said::ToolResult, Said::User("three".into())]
    }

    fn read(of: fn(&Map<String, Value>) -> Dialogue, body: &Value) -> Dialogue {
        of(body.as_object().expect("an object"))
    }

    #[test]
    fn a_chat_is_read() {
        let body = json!({
            "messages": [
                {"role": "system", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "assistant", "content": null, "tool_calls": []},
                {"role": "tool", "content": "b"},
                {"role": "user", "content": "three"},
            ],
            "tools": [{"type": "function", "function": {"name": "bash"}}],
        });
        let dialogue = read(Dialogue::of_chat, &body);
        assert_eq!(dialogue.said, expected());
        assert_eq!(dialogue.tools[0].shown_as, "bash");
    }

    #[test]
    fn messages_are_read() {
        let body = json!({
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "system", "content": "a"},
                {"role": "assistant", "content": [{"type": "tool_use", "name": "Bash", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "content": "b"}, {"type": "text", "text": "c"}]},
                {"role": "user", "content": "three"},
            ],
            "tools": [{"name": "Bash"}, {"type": "unnamed"}],
        });
        let dialogue = read(Dialogue::of_messages, &body);
        assert_eq!(dialogue.said, expected());
        assert_eq!(dialogue.tools.len(), 1);
    }

    #[test]
    fn responses_are_read_and_their_namespaces_flattened() {
        let body = json!({
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
                {"type": "function_call", "name": "shell", "arguments": "{}"},
                {"type": "function_call_output", "output": "b"},
                {"type": "message", "role": "user", "content": "three"},
            ],
            "tools": [
                {"type": "function", "name": "shell"},
                {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]},
            ],
        });
        let dialogue = read(Dialogue::of_responses, &body);
        assert_eq!(dialogue.said, expected());
        let spawn = &dialogue.tools[1];
        assert_eq!((spawn.shown_as.as_str(), spawn.namespace.as_deref()), ("agents__spawn", Some("agents")));
        let text = read(Dialogue::of_responses, &json!({"input": "one"}));
        assert_eq!(text.said, [Said::User("one".into())]);
    }
}
