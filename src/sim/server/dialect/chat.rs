//! `/v1/chat/completions`.

use bytes::Bytes;

use super::super::refusal::{Refusal, quoted};
use super::{
    Dialect, FINGERPRINT, Heading, Piece, Usage, UsageEvents, continuous_usage, fingerprint_if_last, openai_closing,
    openai_failure, openai_head, openai_reason, openai_usage,
};

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

    fn content(&self, piece: Piece<'_>) -> Bytes {
        let (head, text) = (&self.chunk_head, quoted(piece.text));
        let usage = continuous_usage(self.events, piece.prompt_tokens, piece.index + 1);
        let fingerprint = fingerprint_if_last(self.events, piece.finish);
        let finish = match piece.finish {
            Some(reason) => format!(r#""{}","stop_reason":null"#, openai_reason(reason)),
            None => "null".into(),
        };
        Bytes::from(format!(
            "data: {head},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}},\"logprobs\":null,\
             \"finish_reason\":{finish},\"token_ids\":null}}]{usage}{fingerprint}}}\n\n"
        ))
    }
}

impl Dialect for Chat {
    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes> {
        let role = (piece.index == 0).then(|| self.role(piece.prompt_tokens));
        role.into_iter().chain([self.content(piece)]).collect()
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        openai_closing(&self.chunk_head, self.events, &openai_usage(&usage.completion, &details(usage)))
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        openai_failure(refusal)
    }

    fn whole(&self, text: &str, usage: &Usage) -> String {
        let (head, text, reason) = (&self.whole_head, quoted(text), openai_reason(usage.completion.reason));
        let usage = openai_usage(&usage.completion, &format!(r#"{},"multimodal_tokens":null"#, details(usage)));
        format!(
            r#"{head},"choices":[{{"index":0,"message":{{"role":"assistant","content":{text},"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}},"logprobs":null,"finish_reason":"{reason}","stop_reason":null,"token_ids":null}}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}","usage":{usage},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}}"#
        )
    }
}

fn details(usage: &Usage) -> String {
    format!(r#""cached_tokens":{},"created_cache_tokens":{}"#, usage.completion.cached_tokens, usage.created_tokens)
}
