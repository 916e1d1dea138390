//! From a request body to the prompt's tokens: the part of vLLM's chat template that decides which prefixes are equal.
//!
//! The shape is Qwen's ChatML. Every header, every block of content and every end mark is a segment of its own, so
//! appending a message extends the token list, a string and one text block are the same prompt, and a reply that a client
//! sends back has the tokens it was generated with.

use serde_json::{Map, Value};

use super::script::shown_as;
use super::tokens;

/// A body that the template can't render; vLLM answers 400 to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptError {
    /// A field that must be there isn't.
    Missing(&'static str),
    /// A field is there with a type that it can't have.
    WrongType(&'static str),
}

/// The prompt of `/v1/chat/completions`.
pub fn of_chat(body: &Map<String, Value>) -> Result<Vec<u32>, PromptError> {
    let messages = list(body, "messages")?;
    let mut prompt = Prompt::default();
    let leading = messages.first().filter(|first| is_system(first));
    prompt.system(leading.and_then(|message| message.get("content")), body.get("tools"));
    for message in &messages[usize::from(leading.is_some())..] {
        prompt.message(message);
    }
    Ok(prompt.finish())
}

/// The prompt of `/v1/messages` and its `count_tokens`.
pub fn of_messages(body: &Map<String, Value>) -> Result<Vec<u32>, PromptError> {
    let messages = list(body, "messages")?;
    let mut prompt = Prompt::default();
    let system = body.get("system").map(without_billing_line);
    prompt.system(system.as_ref(), body.get("tools"));
    for message in messages {
        prompt.message(message);
    }
    Ok(prompt.finish())
}

/// The prompt of `/v1/responses`.
pub fn of_responses(body: &Map<String, Value>) -> Result<Vec<u32>, PromptError> {
    let input = body.get("input").ok_or(PromptError::Missing("input"))?;
    let mut prompt = Prompt::default();
    prompt.system(body.get("instructions"), body.get("tools"));
    match input {
        Value::String(_) => {
            prompt.open("user");
            prompt.content(input);
            prompt.close();
        }
        Value::Array(items) => items.iter().for_each(|item| prompt.message(item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(PromptError::WrongType("input"));
        }
    }
    Ok(prompt.finish())
}

/// The prompt of `/v1/completions`, `/v1/embeddings` and `/tokenize`: text or tokens, taken as they are. Several prompts
/// in one request become one.
pub fn of_text(prompt: &Value) -> Result<Vec<u32>, PromptError> {
    let mut tokens = Vec::new();
    text_into(prompt, &mut tokens)?;
    Ok(tokens)
}

/// A tool call as the model writes it and finds it again in its prompt: the mark-up before the arguments, the arguments,
/// and the mark-up behind them, each a segment of its own.
pub fn tool_call(name: &str, arguments: &str) -> [String; 3] {
    let opening = format!("<tool_call>\n{{\"name\": {}, \"arguments\": ", Value::from(name));
    [opening, arguments.to_owned(), "}\n</tool_call>".to_owned()]
}

fn text_into(prompt: &Value, tokens: &mut Vec<u32>) -> Result<(), PromptError> {
    match prompt {
        Value::String(text) => tokens::encode_into(text, tokens),
        Value::Number(token) => {
            let token = token.as_u64().and_then(|token| u32::try_from(token).ok());
            tokens.push(token.ok_or(PromptError::WrongType("prompt"))?);
        }
        Value::Array(parts) => {
            for part in parts {
                text_into(part, tokens)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => {
            return Err(PromptError::WrongType("prompt"));
        }
    }
    Ok(())
}

fn list<'a>(body: &'a Map<String, Value>, field: &'static str) -> Result<&'a Vec<Value>, PromptError> {
    let value = body.get(field).ok_or(PromptError::Missing(field))?;
    value.as_array().ok_or(PromptError::WrongType(field))
}

fn is_system(message: &Value) -> bool {
    matches!(message.get("role").and_then(Value::as_str), Some("system" | "developer"))
}

/// A prompt under construction.
#[derive(Debug, Default)]
struct Prompt {
    tokens: Vec<u32>,
}

impl Prompt {
    /// The leading system message, with the tools behind it as Qwen's template has them.
    fn system(&mut self, content: Option<&Value>, tools: Option<&Value>) {
        let tools = tools.and_then(Value::as_array).filter(|tools| !tools.is_empty());
        let content = content.filter(|content| !content.is_null());
        if content.is_none() && tools.is_none() {
            return;
        }
        self.open("system");
        if let Some(content) = content {
            self.content(content);
        }
        for tool in tools.into_iter().flatten() {
            self.segment(&tool.to_string());
        }
        self.close();
    }

    /// One item of `messages` or of `input`. What isn't text is rendered as JSON: it has to be stable, not readable.
    fn message(&mut self, message: &Value) {
        let role = message.get("role").or_else(|| message.get("type")).and_then(Value::as_str);
        if role == Some("function_call") {
            self.open("assistant");
            self.tool_call(message, message.get("arguments"));
            return self.close();
        }
        self.open(role.unwrap_or("user"));
        for field in ["content", "tool_calls", "name", "arguments", "output"] {
            match message.get(field) {
                Some(content @ (Value::String(_) | Value::Array(_))) => self.content(content),
                Some(other @ (Value::Object(_) | Value::Bool(_) | Value::Number(_))) => {
                    self.segment(&other.to_string())
                }
                Some(Value::Null) | None => {}
            }
        }
        self.close();
    }

    fn content(&mut self, content: &Value) {
        match content {
            Value::String(text) => self.segment(text),
            Value::Array(blocks) => blocks.iter().for_each(|block| self.block(block)),
            other => self.segment(&other.to_string()),
        }
    }

    fn block(&mut self, block: &Value) {
        if let Some(text) = block.get("text").and_then(Value::as_str) {
            return self.segment(text);
        }
        match block.get("type").and_then(Value::as_str) {
            // Qwen's template drops earlier reasoning.
            Some("thinking" | "redacted_thinking" | "reasoning") => {}
            Some("tool_result") => {
                self.segment("<tool_response>");
                if let Some(content) = block.get("content") {
                    self.content(content);
                }
            }
            Some("tool_use") => self.tool_call(block, block.get("input")),
            Some("function") => {
                let function = block.get("function").unwrap_or(block);
                self.tool_call(function, function.get("arguments"));
            }
            _ => self.segment(&without_cache_control(block).to_string()),
        }
    }

    fn tool_call(&mut self, call: &Value, arguments: Option<&Value>) {
        let field = |name| call.get(name).and_then(Value::as_str);
        let name = shown_as(field("namespace"), field("name").unwrap_or_default());
        // OpenAI's APIs have the arguments as a string of JSON. What isn't JSON stays as it is.
        let read = arguments.and_then(Value::as_str).map(|text| serde_json::from_str(text).unwrap_or(text.into()));
        let arguments = read.as_ref().or(arguments).map_or_else(|| "{}".into(), Value::to_string);
        tool_call(&name, &arguments).iter().for_each(|part| self.segment(part));
    }

    fn open(&mut self, role: &str) {
        self.segment("<|im_start|>");
        self.segment(role);
        self.segment("\n");
    }

    fn close(&mut self) {
        self.segment("<|im_end|>\n");
    }

    fn segment(&mut self, text: &str) {
        tokens::encode_into(text, &mut self.tokens);
    }

    fn finish(mut self) -> Vec<u32> {
        self.open("assistant");
        self.tokens
    }
}

/// vLLM drops Claude Code's billing block, whose hash differs from request to request: on this endpoint only, so a translator
/// that merges it into a chat's system text costs the cache there as it does here.
fn without_billing_line(system: &Value) -> Value {
    let mut system = system.clone();
    if let Some(blocks) = system.as_array_mut() {
        blocks.retain(|block| {
            let text = block.get("text").and_then(Value::as_str);
            !text.is_some_and(|text| text.starts_with("x-anthropic-billing-header"))
        });
    }
    system
}

/// Clients move `cache_control` from message to message as a conversation grows; templates never see it.
fn without_cache_control(block: &Value) -> Value {
    let mut block = block.clone();
    if let Some(fields) = block.as_object_mut() {
        fields.remove("cache_control");
    }
    block
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(body: Value) -> Vec<u32> {
        of_chat(body.as_object().expect("an object")).expect("renders")
    }

    fn messages(body: Value) -> Vec<u32> {
        of_messages(body.as_object().expect("an object")).expect("renders")
    }

    /// Without the header that invites the reply, which the next turn repeats before the reply itself.
    #[test]
    fn appending_messages_extends_the_tokens() {
        let user = json!({"role": "user", "content": "what is in src?"});
        let reply = json!({"role": "assistant", "content": [{"type": "text", "text": "abc def "}]});
        let call =
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "ls"}}]});
        let tools = json!([{"type": "function", "function": {"name": "ls"}}]);
        let before = chat(json!({"tools": tools, "messages": [user]}));
        let after = chat(json!({"tools": tools, "messages": [user, reply]}));
        let later = chat(json!({"tools": tools, "messages": [user, reply, call, user]}));
        assert!(after.starts_with(&before), "the reply follows the header that invited it");
        let invitation = Prompt::default().finish().len();
        assert!(later.starts_with(&after[..after.len() - invitation]));
    }

    #[test]
    fn a_string_and_one_text_block_are_the_same_prompt() {
        let string = messages(json!({"system": "be brief", "messages": [{"role": "user", "content": "hello"}]}));
        let block = messages(json!({
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        }));
        assert_eq!(string, block);
    }

    #[test]
    fn the_billing_line_is_not_in_the_prompt() {
        let with = |hash: &str| {
            let billing = format!("x-anthropic-billing-header: cch={hash}");
            messages(json!({
                "system": [{"type": "text", "text": billing}, {"type": "text", "text": "be brief"}],
                "messages": [],
            }))
        };
        assert_eq!(with("1"), with("2"));
        assert_eq!(with("1"), messages(json!({"system": "be brief", "messages": []})));
    }

    #[test]
    fn moving_cache_control_changes_nothing() {
        let image = |marked: bool| {
            let mut block = json!({"type": "image", "source": {"data": "AAAA"}});
            if marked {
                block["cache_control"] = json!({"type": "ephemeral"});
            }
            messages(json!({"messages": [{"role": "user", "content": [block]}]}))
        };
        assert_eq!(image(true), image(false));
    }

    #[test]
    fn a_chat_and_the_same_messages_are_the_same_prompt() {
        let turn = json!({"role": "user", "content": "hello"});
        let anthropic = messages(json!({"system": "be brief", "messages": [turn]}));
        let openai = chat(json!({"messages": [{"role": "system", "content": "be brief"}, turn]}));
        assert_eq!(anthropic, openai);
    }

    #[test]
    fn a_tool_call_is_the_same_prompt_in_every_api_and_is_what_the_model_wrote() {
        let mut written = Prompt::default();
        written.open("assistant");
        tool_call("ns__ls", r#"{"a":1,"b":2}"#).iter().for_each(|part| written.segment(part));
        written.close();
        let written = written.finish();
        let block = json!({"type": "tool_use", "id": "1", "name": "ns__ls", "input": {"b": 2, "a": 1}});
        assert_eq!(messages(json!({"messages": [{"role": "assistant", "content": [block]}]})), written);
        let function = json!({"name": "ns__ls", "arguments": "{\"b\": 2, \"a\": 1}"});
        let call = json!({"id": "1", "type": "function", "function": function});
        assert_eq!(chat(json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [call]}]})), written);
        let item = json!({"type": "function_call", "name": "ls", "namespace": "ns", "arguments": "{\"a\":1,\"b\":2}"});
        assert_eq!(of_responses(json!({"input": [item]}).as_object().expect("an object")), Ok(written));
    }

    #[test]
    fn text_and_its_tokens_are_the_same_prompt() {
        let tokens = of_text(&json!("some text")).expect("renders");
        assert_eq!(of_text(&json!(tokens)), Ok(tokens));
        assert_eq!(of_text(&json!({})), Err(PromptError::WrongType("prompt")));
    }

    #[test]
    fn what_cannot_be_rendered_says_which_field() {
        assert_eq!(of_chat(&Map::new()), Err(PromptError::Missing("messages")));
        let body = json!({"messages": "hi"});
        assert_eq!(of_messages(body.as_object().expect("an object")), Err(PromptError::WrongType("messages")));
    }
}
