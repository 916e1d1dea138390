//! Errors in vLLM's words and shapes, one for each dialect and for each place they can appear in.

use http::StatusCode;
use serde_json::{Value, json};

/// Whose shape an error takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `{"error": {...}}`
    OpenAi,
    /// `{"type": "error", "error": {...}}`
    Anthropic,
}

/// An error that vLLM itself would answer with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status, where one can still be sent; inside a stream it is the error's `code`.
    pub status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
    /// Validation happens before a route's own code runs, hence in OpenAI's shape even for Anthropic's routes.
    validation: bool,
}

impl Refusal {
    /// The model isn't the one that is served.
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message).about("model")
    }

    /// The stored response isn't there, because none is ever stored.
    pub fn unknown_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).about("response_id")
    }

    /// The body isn't JSON.
    pub fn bad_json(error: &serde_json::Error) -> Self {
        let message = format!(
            "1 validation error:\n  {{'type': 'json_invalid', 'loc': ('body', {}), 'msg': 'JSON decode error', 'input': {{}}, \
             'ctx': {{'error': '{error}'}}}}",
            error.column()
        );
        Self::invalid(message)
    }

    /// The body isn't declared as JSON.
    pub fn not_declared_as_json() -> Self {
        Self::invalid("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed".into())
    }

    /// A field is missing.
    pub fn missing(field: &str) -> Self {
        Self::invalid(format!(
            "1 validation error:\n  {{'type': 'missing', 'loc': ('body', '{field}'), 'msg': 'Field required'}}"
        ))
    }

    /// A field has a value that it can't have.
    pub fn wrong_type(field: &str) -> Self {
        Self::invalid(format!(
            "1 validation error:\n  {{'type': 'type_error', 'loc': ('body', '{field}'), 'msg': 'Input has the wrong type'}}"
        ))
    }

    /// Less than one token was asked for.
    pub fn no_tokens_asked(field: &'static str, value: i64) -> Self {
        let message = format!("{field} must be at least 1, got {value}. (parameter={field}, value={value})");
        Self::bad_request(message).about(field)
    }

    /// Prompt and reply don't fit into the context.
    pub fn context_overflow(prompt: usize, generate: u32, max_model_len: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, you requested {generate} output tokens and \
             your prompt contains at least {prompt} input tokens, for a total of at least {} tokens. Please reduce the length of \
             the input prompt or the number of requested output tokens. (parameter=input_tokens, value={prompt})",
            prompt as u64 + u64::from(generate)
        );
        Self::bad_request(message).about("input_tokens")
    }

    /// The prompt has no token.
    pub fn empty_prompt() -> Self {
        Self::bad_request("The decoder prompt cannot be empty".into())
    }

    /// The named rank isn't there.
    pub fn rank_out_of_range(rank: i64, ranks: usize) -> Self {
        Self::bad_request(format!("data_parallel_rank {rank} is out of range [0, {ranks})."))
    }

    /// The queue is full.
    pub fn busy() -> Self {
        let message = "The engine is currently busy and cannot accept new requests. Please try again later or on a \
                       different instance.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable", message.into())
    }

    /// The server is ending.
    pub fn draining() -> Self {
        Self::internal("cannot schedule new futures after shutdown")
    }

    /// The engine died.
    pub fn engine_dead() -> Self {
        Self::internal("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    }

    /// The body of an answer with this error's status.
    pub fn body(&self, shape: Shape) -> String {
        let shape = if self.validation { Shape::OpenAi } else { shape };
        let (kind, message) = (quoted(self.kind), quoted(&self.message));
        match shape {
            Shape::OpenAi => format!(
                r#"{{"error":{{"message":{message},"type":{kind},"param":{},"code":{}}}}}"#,
                self.param(),
                self.status.as_u16()
            ),
            Shape::Anthropic => {
                format!(r#"{{"type":"error","error":{{"type":{kind},"message":{message}}}}}"#)
            }
        }
    }

    /// The error inside a stream whose head has gone. vLLM's Anthropic route wraps its own chat stream and trips over the
    /// error in it, so its clients see the complaint of the validation instead.
    pub fn event(&self, shape: Shape) -> String {
        match shape {
            Shape::OpenAi => {
                let (kind, message) = (quoted(self.kind), quoted(&self.message));
                let (param, code) = (self.param(), self.status.as_u16());
                format!(
                    "data: {{\"error\": {{\"message\": {message}, \"type\": {kind}, \"param\": {param}, \"code\": {code}}}}}\n\n"
                )
            }
            Shape::Anthropic => {
                let start: String = self.message.chars().take(2).collect();
                let input =
                    format!("{{'error': {{'message': '{start}...am': None, 'code': {}}}}}", self.status.as_u16());
                let field = |name: &str| {
                    format!("{name}\n  Field required [type=missing, input_value={input}, input_type=dict]")
                };
                let message = format!(
                    "2 validation errors for ChatCompletionStreamResponse\n{}\n{}",
                    field("model"),
                    field("choices")
                );
                let body = json!({"type": "error", "error": {"type": "internal_error", "message": message}});
                format!("event: error\ndata: {body}\n\n")
            }
        }
    }

    fn invalid(message: String) -> Self {
        Self { validation: true, ..Self::new(StatusCode::BAD_REQUEST, "Bad Request", message) }
    }

    fn bad_request(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    fn internal(message: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message.into())
    }

    fn new(status: StatusCode, kind: &'static str, message: String) -> Self {
        Self { status, kind, message, param: None, validation: false }
    }

    fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    fn param(&self) -> String {
        self.param.map_or_else(|| "null".into(), quoted)
    }
}

/// A string as JSON writes it.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_those_of_vllm() {
        assert_eq!(
            Refusal::unknown_model("nope", "tiny-agent").body(Shape::OpenAi),
            r#"{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny-agent.","type":"NotFoundError","param":"model","code":404}}"#
        );
        assert_eq!(
            Refusal::unknown_model("nope", "tiny-agent").body(Shape::Anthropic),
            r#"{"type":"error","error":{"type":"NotFoundError","message":"The model `nope` does not exist. Valid aliases: tiny-agent."}}"#
        );
        assert_eq!(
            Refusal::rank_out_of_range(7, 1).body(Shape::OpenAi),
            r#"{"error":{"message":"data_parallel_rank 7 is out of range [0, 1).","type":"BadRequestError","param":null,"code":400}}"#
        );
    }

    #[test]
    fn validation_fails_in_openais_shape_everywhere() {
        let refusal = Refusal::missing("messages");
        assert_eq!(refusal.body(Shape::Anthropic), refusal.body(Shape::OpenAi));
    }

    #[test]
    fn an_error_in_a_stream_is_that_of_vllm() {
        assert_eq!(
            Refusal::busy().event(Shape::OpenAi),
            "data: {\"error\": {\"message\": \"The engine is currently busy and cannot accept new requests. Please try again \
             later or on a different instance.\", \"type\": \"Service Unavailable\", \"param\": null, \"code\": 503}}\n\n"
        );
        let event = Refusal::engine_dead().event(Shape::Anthropic);
        assert!(event.starts_with("event: error\ndata: {"));
        assert!(event.contains("input_value={'error': {'message': 'En...am': None, 'code': 500}}"));
    }
}
