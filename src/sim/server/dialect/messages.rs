//! `/v1/messages`, Anthropic's API.

use bytes::Bytes;

use super::super::refusal::{Refusal, Shape, quoted};
use super::super::reply::{Part, Spoken, ToolCall};
use super::{Dialect, Heading, Piece, Usage};
use crate::sim::request::FinishReason;

/// Anthropic's syntax.
#[derive(Debug)]
pub struct Messages {
    id: String,
    model: String,
    /// The one block that there is, if it has been started.
    block: Block,
}

/// What is in an answer's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    None,
    Text,
    ToolUse,
}

impl Messages {
    /// An answer under `heading`.
    pub fn new(heading: &Heading) -> Self {
        Self { id: quoted(&heading.id), model: quoted(&heading.model), block: Block::None }
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
        }
        match piece.part {
            Part::Text => {
                if self.block == Block::None {
                    self.block = Block::Text;
                    events.push(block_start(r#"{"type":"text","text":""}"#));
                }
                events.push(block_delta("text_delta", "text", piece.text));
            }
            Part::Arguments(opened) => {
                if let Some(call) = opened {
                    self.block = Block::ToolUse;
                    events.push(block_start(&tool_use(call, "{}")));
                }
                events.push(block_delta("input_json_delta", "partial_json", piece.text));
            }
            Part::MarkUp => {}
        }
        events
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        let reason = stop_reason(usage.completion.reason, self.block);
        let usage = figures(usage);
        let delta = format!(r#""delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{usage}"#);
        let stop = (self.block != Block::None).then(|| event("content_block_stop", r#""index":0"#));
        let end = Bytes::from_static(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
        stop.into_iter().chain([event("message_delta", &delta), end]).collect()
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        vec![Bytes::from(refusal.event(Shape::Anthropic))]
    }

    fn whole(&self, spoken: Spoken<'_>, usage: &Usage) -> String {
        let (block, content) = match spoken {
            Spoken::Text(text) => (Block::Text, format!(r#"{{"type":"text","text":{}}}"#, quoted(text))),
            Spoken::Call(call) => (Block::ToolUse, tool_use(call, &call.arguments)),
        };
        let (id, model) = (&self.id, &self.model);
        let (reason, usage) = (stop_reason(usage.completion.reason, block), figures(usage));
        format!(
            r#"{{"id":{id},"type":"message","role":"assistant","content":[{content}],"model":{model},"stop_reason":"{reason}","usage":{usage}}}"#
        )
    }
}

fn block_start(block: &str) -> Bytes {
    event("content_block_start", &format!(r#""content_block":{block},"index":0"#))
}

fn block_delta(kind: &str, field: &str, text: &str) -> Bytes {
    let text = quoted(text);
    event("content_block_delta", &format!(r#""delta":{{"type":"{kind}","{field}":{text}}},"index":0"#))
}

/// `input` is JSON; a stream's block starts with none of it.
fn tool_use(call: &ToolCall, input: &str) -> String {
    let (id, name) = (quoted(&call.id), quoted(&call.tool.shown_as));
    format!(r#"{{"type":"tool_use","id":{id},"name":{name},"input":{input}}}"#)
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

fn stop_reason(reason: FinishReason, block: Block) -> &'static str {
    match (reason, block) {
        (FinishReason::Stop, Block::ToolUse) => "tool_use",
        (FinishReason::Stop, Block::None | Block::Text) => "end_turn",
        (FinishReason::Length, _) => "max_tokens",
    }
}
