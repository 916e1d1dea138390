//! How an answer is written, one file for each API: whole or as a stream of events.

mod chat;
mod completions;
mod messages;
mod responses;

use bytes::Bytes;

pub use chat::Chat;
pub use completions::Completions;
pub use messages::Messages;
pub use responses::Responses;

use super::refusal::{Refusal, Shape, quoted};
use super::reply::{Part, Spoken};
use crate::sim::request::{Completion, FinishReason};

/// What every event of an answer repeats.
#[derive(Debug, Clone)]
pub struct Heading {
    /// The answer's id.
    pub id: String,
    /// The model's name as it is served.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// Which usage figures a stream of OpenAI's carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageEvents {
    /// None.
    #[default]
    Absent,
    /// In a last event of their own.
    AtEnd,
    /// In every event, of cached tokens only in the last.
    Continuous,
}

/// What an answer says of itself when it is complete.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// The engine's own figures.
    pub completion: Completion,
    /// Prompt tokens in whole blocks that were not in the cache and are there now.
    pub created_tokens: u32,
}

/// One token on its way out.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Its text.
    pub text: &'a str,
    /// What it is in its reply.
    pub part: Part<'a>,
    /// Its place in the reply, from 0.
    pub index: u32,
    /// The prompt's length in tokens.
    pub prompt_tokens: u32,
    /// Set on the last token.
    pub finish: Option<FinishReason>,
}

/// An answer's syntax. Each pushed item is one event and leaves as one HTTP chunk.
pub trait Dialect: Send + Sync {
    /// Events that leave with the head, before any work is done.
    fn opening(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// The events of one token.
    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes>;

    /// The events after the last token.
    fn closing(&mut self, usage: &Usage) -> Vec<Bytes>;

    /// The events of an error in the stream, up to its end.
    fn failure(&self, refusal: &Refusal) -> Vec<Bytes>;

    /// The body of an answer that isn't streamed.
    fn whole(&self, spoken: Spoken<'_>, usage: &Usage) -> String;
}

/// The mark at the end of OpenAI's older streams.
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

const FINGERPRINT: &str = "vllm-0.32.0-simulated";

fn openai_failure(refusal: &Refusal) -> Vec<Bytes> {
    vec![Bytes::from(refusal.event(Shape::OpenAi)), DONE]
}

fn openai_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn openai_reason_or_null(reason: Option<FinishReason>) -> String {
    reason.map_or_else(|| "null".into(), |reason| format!("\"{}\"", openai_reason(reason)))
}

/// The fields that every event of OpenAI's older APIs begins with.
fn openai_head(heading: &Heading, object: &str) -> String {
    let (id, model, created) = (quoted(&heading.id), quoted(&heading.model), heading.created);
    format!(r#"{{"id":{id},"object":"{object}","created":{created},"model":{model}"#)
}

/// `,"usage":{...}` of an event in the middle of a stream, after `completion` tokens.
fn continuous_usage(events: UsageEvents, prompt: u32, completion: u32) -> String {
    if events != UsageEvents::Continuous {
        return String::new();
    }
    let total = prompt + completion;
    format!(
        r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"completion_tokens_details":null}}"#
    )
}

/// The fingerprint, which vLLM sends once, in the last event before the mark.
fn fingerprint_if_last(events: UsageEvents, finish: Option<FinishReason>) -> String {
    match (events, finish) {
        (UsageEvents::Absent, Some(_)) => format!(r#","system_fingerprint":"{FINGERPRINT}""#),
        (UsageEvents::Absent | UsageEvents::AtEnd | UsageEvents::Continuous, _) => String::new(),
    }
}

/// OpenAI's usage object; `details` is the inside of `prompt_tokens_details`.
fn openai_usage(completion: &Completion, details: &str) -> String {
    let Completion { prompt_tokens, completion_tokens, .. } = *completion;
    let total = prompt_tokens + completion_tokens;
    format!(
        r#"{{"prompt_tokens":{prompt_tokens},"total_tokens":{total},"completion_tokens":{completion_tokens},"prompt_tokens_details":{{{details}}}}}"#
    )
}

/// The events that end a stream of OpenAI's older APIs: usage if it was asked for, and the mark.
fn openai_closing(head: &str, events: UsageEvents, usage: &str) -> Vec<Bytes> {
    if events == UsageEvents::Absent {
        return vec![DONE];
    }
    let last = format!("data: {head},\"choices\":[],\"usage\":{usage},\"system_fingerprint\":\"{FINGERPRINT}\"}}\n\n");
    vec![Bytes::from(last), DONE]
}
