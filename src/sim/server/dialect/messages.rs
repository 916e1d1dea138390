//! `/v1/messages`, Anthropic's API.

use bytes::Bytes;

use super::super::refusal::{Refusal, Shape, quoted};
use super::{Dialect, Heading, Piece, Usage};
use crate::sim::request::FinishReason;

/// Anthropic's syntax.
#[derive(Debug)]
pub struct Messages {
    id: String,
    model: String,
}

impl Messages {
    /// An answer under `heading`.
    pub fn new(heading: &Heading) -> Self {
        Self { id: quoted(&heading.id), model: quoted(&heading.model) }
    }

    /// The start names the whole prompt as input: what of it was cached is told at the end only.
    fn start(&self, prompt_tokens: u32) -> Bytes {
        let (id, model) = (&self.id, &self.model);
        event(
            "message_start",
            &format!(
                r#""message":{{"id":{id},"type":"message","role":"assistant","content":[],"model":{model},"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{prompt_tokens},"output_tokens":0}}}}"#
            ),
        )
    }
}

impl Dialect for Messages {
    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes> {
        let mut events = Vec::new();
        if piece.index == 0 {
            events.push(self.start(piece.prompt_tokens));
            events.push(event("content_block_start", r#""content_block":{"type":"text","text":""},"index":0"#));
        }
        let text = quoted(piece.text);
        let delta = format!(r#""delta":{{"type":"text_delta","text":{text}}},"index":0"#);
        events.push(event("content_block_delta", &delta));
        events
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        let reason = stop_reason(usage.completion.reason);
        let usage = figures(usage);
        let delta = format!(r#""delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{usage}"#);
        vec![
            event("content_block_stop", r#""index":0"#),
            event("message_delta", &delta),
            Bytes::from_static(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
        ]
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        vec![Bytes::from(refusal.event(Shape::Anthropic))]
    }

    fn whole(&self, text: &str, usage: &Usage) -> String {
        let (id, model, text) = (&self.id, &self.model, quoted(text));
        let (reason, usage) = (stop_reason(usage.completion.reason), figures(usage));
        format!(
            r#"{{"id":{id},"type":"message","role":"assistant","content":[{{"type":"text","text":{text}}}],"model":{model},"stop_reason":"{reason}","usage":{usage}}}"#
        )
    }
}

fn event(name: &str, fields: &str) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {{\"type\":\"{name}\",{fields}}}\n\n"))
}

/// Anthropic's input tokens are those that were neither read from the cache nor written to it.
fn figures(usage: &Usage) -> String {
    let (read, created) = (usage.completion.cached_tokens, usage.created_tokens);
    let (input, output) = (usage.completion.prompt_tokens - read - created, usage.completion.completion_tokens);
    format!(
        r#"{{"input_tokens":{input},"output_tokens":{output},"cache_creation_input_tokens":{created},"cache_read_input_tokens":{read}}}"#
    )
}

fn stop_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "end_turn",
        FinishReason::Length => "max_tokens",
    }
}
