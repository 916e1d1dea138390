//! `/v1/chat/completions`.

use bytes::Bytes;

use super::super::refusal::{Refusal, quoted};
use super::super::reply::{Part, Spoken, ToolCall};
use super::{
    Dialect, FINGERPRINT, Heading, Piece, Usage, UsageEvents, continuous_usage, fingerprint_if_last, openai_closing,
    openai_failure, openai_head, openai_reason, openai_usage,
};
use crate::sim::request::FinishReason;

/// OpenAI's chat syntax.
#[derive(Debug)]
pub struct Chat {
    chunk_head: String,
    whole_head: String,
    events: UsageEvents,
}

impl Chat {
    /// An answer under `heading`.
    pub fn new(heading: &Heading, events: UsageEvents) -> Self {
        let chunk_head = openai_head(heading, "chat.completion.chunk");
        Self { chunk_head, whole_head: openai_head(heading, "chat.completion"), events }
    }

    fn role(&self, prompt_tokens: u32) -> Bytes {
        let (head, usage) = (&self.chunk_head, continuous_usage(self.events, prompt_tokens, 0));
        Bytes::from(format!(
            "data: {head},\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":null}}]{usage},\"prompt_token_ids\":null,\"prompt_text\":null}}\n\n"
        ))
    }

    /// `delta` is the inside of the object.
    fn delta(&self, piece: Piece<'_>, delta: &str) -> Bytes {
        let head = &self.chunk_head;
        let usage = continuous_usage(self.events, piece.prompt_tokens, piece.index + 1);
        let fingerprint = fingerprint_if_last(self.events, piece.finish);
        let finish = match piece.finish {
            Some(reason) => format!(r#""{}","stop_reason":null"#, finish_reason(reason, piece.part)),
            None => "null".into(),
        };
        Bytes::from(format!(
            "data: {head},\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\
             \"finish_reason\":{finish},\"token_ids\":null}}]{usage}{fingerprint}}}\n\n"
        ))
    }
}

impl Dialect for Chat {
    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes> {
        let role = (piece.index == 0).then(|| self.role(piece.prompt_tokens));
        let deltas = match piece.part {
            Part::Text => vec![format!(r#""content":{}"#, quoted(piece.text))],
            Part::Arguments(opened) => {
                opened.map(opening).into_iter().chain([arguments(&quoted(piece.text))]).collect()
            }
            Part::MarkUp if piece.finish.is_some() => vec![String::new()],
            Part::MarkUp => Vec::new(),
        };
        role.into_iter().chain(deltas.iter().map(|delta| self.delta(piece, delta))).collect()
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        openai_closing(&self.chunk_head, self.events, &openai_usage(&usage.completion, &details(usage)))
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        openai_failure(refusal)
    }

    fn whole(&self, spoken: Spoken<'_>, usage: &Usage) -> String {
        let (text, calls, part) = match spoken {
            Spoken::Text(text) => (quoted(text), String::new(), Part::Text),
            Spoken::Call(call) => ("null".into(), tool_calls(call), Part::MarkUp),
        };
        let (head, reason) = (&self.whole_head, finish_reason(usage.completion.reason, part));
        let usage = openai_usage(&usage.completion, &format!(r#"{},"multimodal_tokens":null"#, details(usage)));
        format!(
            r#"{head},"choices":[{{"index":0,"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null{calls},"reasoning":null}},"logprobs":null,"finish_reason":"{reason}","stop_reason":null,"token_ids":null}}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{usage},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}}"#
        )
    }
}

/// The parser's own reason stands for the engine's, unless the reply was cut off.
fn finish_reason(reason: FinishReason, part: Part<'_>) -> &'static str {
    match (reason, part) {
        (FinishReason::Stop, Part::MarkUp | Part::Arguments(_)) => "tool_calls",
        (FinishReason::Stop, Part::Text) | (FinishReason::Length, _) => openai_reason(reason),
    }
}

fn opening(call: &ToolCall) -> String {
    let (id, name) = (quoted(&call.id), quoted(&call.tool.shown_as));
    format!(r#""tool_calls":[{{"id":{id},"type":"function","index":0,"function":{{"name":{name}}}}}]"#)
}

fn arguments(piece: &str) -> String {
    format!(r#""tool_calls":[{{"index":0,"function":{{"arguments":{piece}}}}}]"#)
}

fn tool_calls(call: &ToolCall) -> String {
    let (id, name, arguments) = (quoted(&call.id), quoted(&call.tool.shown_as), quoted(&call.arguments));
    format!(r#","tool_calls":[{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}]"#)
}

fn details(usage: &Usage) -> String {
    format!(r#""cached_tokens":{},"created_cache_tokens":{}"#, usage.completion.cached_tokens, usage.created_tokens)
}
