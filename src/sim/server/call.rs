//! What a body asks for: from JSON to a request for the engine and the syntax of its answer.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::dialect::UsageEvents;
use super::refusal::{Refusal, Shape};
use super::reply::Reply;
use crate::sim::prompt::{self, PromptError};
use crate::sim::request::{FinishReason, Request};
use crate::sim::script::Script;

/// The APIs that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/messages`
    Messages,
    /// `/v1/responses`
    Responses,
}

/// How the answer is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// In one piece.
    Whole,
    /// As events, with usage as asked for.
    Stream(UsageEvents),
}

/// A generation that was asked for.
#[derive(Debug)]
pub struct Call {
    /// What the engine gets.
    pub request: Request,
    /// How the client wants the answer.
    pub delivery: Delivery,
    /// What the answer is made of.
    pub reply: Reply,
}

/// The limits that a call is read under.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// The served model's name.
    pub model: &'a str,
    /// Tokens of prompt and reply together.
    pub max_model_len: u32,
    /// The length of a reply that nobody limited; it ends there by itself.
    pub default_max_tokens: u32,
    /// What the model says, if that is laid down.
    pub script: Option<&'a Script>,
}

impl Api {
    /// The shape of this API's errors.
    pub fn shape(self) -> Shape {
        match self {
            Self::Messages => Shape::Anthropic,
            Self::Chat | Self::Completions | Self::Responses => Shape::OpenAi,
        }
    }

    fn limit_field(self) -> &'static str {
        match self {
            Self::Chat | Self::Completions | Self::Messages => "max_tokens",
            Self::Responses => "max_output_tokens",
        }
    }

    fn prompt(self, body: &Map<String, Value>) -> Result<Vec<u32>, PromptError> {
        match self {
            Self::Chat => prompt::of_chat(body),
            Self::Completions => prompt::of_text(body.get("prompt").ok_or(PromptError::Missing("prompt"))?),
            Self::Messages => prompt::of_messages(body),
            Self::Responses => prompt::of_responses(body),
        }
    }
}

impl From<PromptError> for Refusal {
    fn from(error: PromptError) -> Self {
        match error {
            PromptError::Missing(field) => Self::missing(field),
            PromptError::WrongType(field) => Self::wrong_type(field),
        }
    }
}

/// The body as an object, if it is declared as JSON and is one.
pub fn json_object(headers: &HeaderMap, body: &Bytes) -> Result<Map<String, Value>, Refusal> {
    let declared = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        return Err(Refusal::not_declared_as_json());
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| Refusal::bad_json(&error))?;
    match value {
        Value::Object(fields) => Ok(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Refusal::wrong_type("body"))
        }
    }
}

/// Whether the body names the served model; naming none is as good.
pub fn check_model(body: &Map<String, Value>, served: &str) -> Result<(), Refusal> {
    match body.get("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(model)) if model.is_empty() || model == served => Ok(()),
        Some(Value::String(model)) => Err(Refusal::unknown_model(model, served)),
        Some(_) => Err(Refusal::wrong_type("model")),
    }
}

/// Entries of `tools`.
pub fn offered_tools(body: &Map<String, Value>) -> usize {
    body.get("tools").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Reads a body of `api`.
pub fn parse(api: Api, body: &Map<String, Value>, limits: Limits<'_>) -> Result<Call, Refusal> {
    if api == Api::Messages && !body.contains_key("max_tokens") {
        return Err(Refusal::missing("max_tokens"));
    }
    check_model(body, limits.model)?;
    if let (Api::Responses, Some(Value::String(id))) = (api, body.get("previous_response_id")) {
        return Err(Refusal::unknown_response(id));
    }
    let prompt = api.prompt(body)?;
    let limit = reply_limit(api, body)?;
    if prompt.is_empty() {
        return Err(Refusal::empty_prompt());
    }
    let room = limits.max_model_len.saturating_sub(prompt.len() as u32);
    let asked = limit.unwrap_or(1);
    if asked > room {
        return Err(Refusal::context_overflow(prompt.len(), asked, limits.max_model_len));
    }
    let reply = limits.script.and_then(|script| Reply::scripted(script, api, body, &prompt)).unwrap_or_default();
    let (generate, finish) = reply_length(&reply, limit, room, limits.default_max_tokens);
    let salt = body.get("cache_salt").and_then(Value::as_str).unwrap_or_default().to_owned();
    let request = Request { prompt, generate, finish, salt, reply: reply.tokens.clone() };
    Ok(Call { request, delivery: delivery(body)?, reply })
}

/// The most tokens that the reply may have. Completions have vLLM's limit of 16.
fn reply_limit(api: Api, body: &Map<String, Value>) -> Result<Option<u32>, Refusal> {
    let newer = body.get("max_completion_tokens").filter(|limit| api == Api::Chat && !limit.is_null());
    let field = api.limit_field();
    let Some(limit) = newer.or_else(|| body.get(field)).filter(|limit| !limit.is_null()) else {
        return Ok((api == Api::Completions).then_some(16));
    };
    let limit = limit.as_i64().ok_or_else(|| Refusal::wrong_type(field))?;
    if limit < 1 {
        return Err(Refusal::no_tokens_asked(field, limit));
    }
    Ok(Some(u32::try_from(limit).unwrap_or(u32::MAX)))
}

/// A scripted reply ends by itself, unless there is no room for it. A made-up one is as long as its limit, and one without a
/// limit ends by itself.
fn reply_length(reply: &Reply, limit: Option<u32>, room: u32, default: u32) -> (u32, FinishReason) {
    let scripted = u32::try_from(reply.tokens.len()).ok().filter(|tokens| *tokens > 0);
    let most = limit.map_or(room, |limit| limit.min(room));
    match (scripted, limit) {
        (Some(scripted), _) if scripted > most => (most, FinishReason::Length),
        (Some(scripted), _) => (scripted, FinishReason::Stop),
        (None, Some(limit)) => (limit, FinishReason::Length),
        (None, None) => (default.min(room), FinishReason::Stop),
    }
}

fn delivery(body: &Map<String, Value>) -> Result<Delivery, Refusal> {
    match body.get("stream") {
        None | Some(Value::Null | Value::Bool(false)) => return Ok(Delivery::Whole),
        Some(Value::Bool(true)) => {}
        Some(_) => return Err(Refusal::wrong_type("stream")),
    }
    let option = |name| {
        let options = body.get("stream_options");
        options.and_then(|options| options.get(name)).and_then(Value::as_bool).unwrap_or(false)
    };
    Ok(Delivery::Stream(match (option("include_usage"), option("continuous_usage_stats")) {
        (false, _) => UsageEvents::Absent,
        (true, false) => UsageEvents::AtEnd,
        (true, true) => UsageEvents::Continuous,
    }))
}

/// The rank that a header names, read as Python's `int()` reads it: what isn't a number names none.
pub fn named_rank(headers: &HeaderMap) -> Option<i64> {
    python_int(headers.get("x-data-parallel-rank")?.to_str().ok()?)
}

fn python_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let groups_are_digits =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    if !groups_are_digits {
        return None;
    }
    // Python's integers have no bound; whatever doesn't fit here is out of any range.
    let number = digits.replace('_', "").parse().unwrap_or(i64::MAX);
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: Limits<'static> = Limits { model: "m", max_model_len: 100, default_max_tokens: 8, script: None };

    fn call(api: Api, body: Value) -> Result<Call, Refusal> {
        parse(api, body.as_object().expect("an object"), LIMITS)
    }

    fn status(api: Api, body: Value) -> u16 {
        call(api, body).expect_err("refused").status.as_u16()
    }

    #[test]
    fn a_rank_is_read_as_python_reads_it() {
        let cases = [
            ("1", Some(1)),
            ("+1", Some(1)),
            (" 1", Some(1)),
            ("1_0", Some(10)),
            ("-1", Some(-1)),
            ("007", Some(7)),
            ("99999999999999999999", Some(i64::MAX)),
            ("", None),
            ("1.0", None),
            ("_1", None),
            ("1__0", None),
            ("one", None),
            ("+", None),
        ];
        for (text, rank) in cases {
            assert_eq!(python_int(text), rank, "{text:?}");
        }
    }

    #[test]
    fn a_reply_has_the_length_that_was_asked_for() {
        let cases = [
            (Api::Completions, json!({"prompt": "a"}), 16, FinishReason::Length),
            (Api::Completions, json!({"prompt": "a", "max_tokens": 3}), 3, FinishReason::Length),
            (Api::Chat, json!({"messages": []}), 8, FinishReason::Stop),
            (Api::Chat, json!({"messages": [], "max_tokens": 3, "max_completion_tokens": 4}), 4, FinishReason::Length),
            (Api::Messages, json!({"messages": [], "max_tokens": 3}), 3, FinishReason::Length),
            (Api::Responses, json!({"input": "a", "max_output_tokens": 3}), 3, FinishReason::Length),
        ];
        for (api, body, generate, finish) in cases {
            let request = call(api, body).expect("accepted").request;
            assert_eq!((request.generate, request.finish), (generate, finish), "{api:?}");
        }
    }

    #[test]
    fn naming_no_model_is_accepted() {
        for model in [json!(null), json!(""), json!("m")] {
            assert!(call(Api::Chat, json!({"model": model, "messages": []})).is_ok());
        }
        assert_eq!(status(Api::Chat, json!({"model": "other", "messages": []})), 404);
    }

    #[test]
    fn what_vllm_refuses_is_refused() {
        assert_eq!(status(Api::Messages, json!({"messages": []})), 400);
        assert_eq!(status(Api::Chat, json!({})), 400);
        assert_eq!(status(Api::Chat, json!({"messages": [], "max_tokens": 0})), 400);
        assert_eq!(status(Api::Chat, json!({"messages": [], "max_tokens": 100})), 400);
        assert_eq!(status(Api::Completions, json!({"prompt": ""})), 400);
        assert_eq!(status(Api::Responses, json!({"input": "a", "previous_response_id": "resp_1"})), 404);
    }

    #[test]
    fn usage_comes_as_asked_for() {
        let of = |options: Value| {
            let body = json!({"messages": [], "stream": true, "stream_options": options});
            call(Api::Chat, body).expect("accepted").delivery
        };
        assert_eq!(of(json!(null)), Delivery::Stream(UsageEvents::Absent));
        assert_eq!(of(json!({"include_usage": true})), Delivery::Stream(UsageEvents::AtEnd));
        assert_eq!(of(json!({"continuous_usage_stats": true})), Delivery::Stream(UsageEvents::Absent));
        let both = json!({"include_usage": true, "continuous_usage_stats": true});
        assert_eq!(of(both), Delivery::Stream(UsageEvents::Continuous));
    }
}
