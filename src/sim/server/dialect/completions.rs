//! `/v1/completions`.

use bytes::Bytes;

use super::super::refusal::{Refusal, quoted};
use super::super::reply::Spoken;
use super::{
    Dialect, FINGERPRINT, Heading, Piece, Usage, UsageEvents, continuous_usage, fingerprint_if_last, openai_closing,
    openai_failure, openai_head, openai_reason, openai_reason_or_null, openai_usage,
};

/// OpenAI's syntax for plain text, in which no parser looks for calls.
#[derive(Debug)]
pub struct Completions {
    head: String,
    events: UsageEvents,
}

impl Completions {
    /// An answer under `heading`.
    pub fn new(heading: &Heading, events: UsageEvents) -> Self {
        Self { head: openai_head(heading, "text_completion"), events }
    }
}

impl Dialect for Completions {
    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes> {
        let (head, text, finish) = (&self.head, quoted(piece.text), openai_reason_or_null(piece.finish));
        let usage = continuous_usage(self.events, piece.prompt_tokens, piece.index + 1);
        let fingerprint = fingerprint_if_last(self.events, piece.finish);
        vec![Bytes::from(format!(
            "data: {head},\"choices\":[{{\"index\":0,\"text\":{text},\"logprobs\":null,\"finish_reason\":{finish},\
             \"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}]{usage}{fingerprint}}}\n\n"
        ))]
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        openai_closing(&self.head, self.events, &openai_usage(&usage.completion, &details(usage)))
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        openai_failure(refusal)
    }

    fn whole(&self, spoken: Spoken<'_>, usage: &Usage) -> String {
        let text = match spoken {
            Spoken::Text(text) => quoted(text),
            // No parser looks at plain completions, so there is never a call in one.
            Spoken::Call(_) => quoted(""),
        };
        let (head, reason) = (&self.head, openai_reason(usage.completion.reason));
        let usage = openai_usage(&usage.completion, &details(usage));
        format!(
            r#"{head},"choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":"{reason}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{usage},"kv_transfer_params":null}}"#
        )
    }
}

fn details(usage: &Usage) -> String {
    format!(r#""cached_tokens":{}"#, usage.completion.cached_tokens)
}
