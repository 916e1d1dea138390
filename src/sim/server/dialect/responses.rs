//! `/v1/responses`, as far as a balancer sees it: the order of the events and where the usage is.

use bytes::Bytes;

use super::super::refusal::{Refusal, quoted};
use super::{Dialect, Heading, Piece, Usage, openai_failure};
use crate::sim::request::FinishReason;

/// OpenAI's syntax of responses.
#[derive(Debug)]
pub struct Responses {
    head: String,
    item: String,
    sequence_number: u32,
    text: String,
}

impl Responses {
    /// An answer under `heading`.
    pub fn new(heading: &Heading) -> Self {
        let (id, model, created) = (quoted(&heading.id), quoted(&heading.model), heading.created);
        Self {
            head: format!(r#""id":{id},"created_at":{created},"model":{model},"object":"response""#),
            item: quoted(&heading.id.replacen("resp_", "msg_", 1)),
            sequence_number: 0,
            text: String::new(),
        }
    }

    fn event(&mut self, name: &str, fields: &str) -> Bytes {
        let number = self.sequence_number;
        self.sequence_number += 1;
        Bytes::from(format!("event: {name}\ndata: {{{fields},\"sequence_number\":{number},\"type\":\"{name}\"}}\n\n"))
    }

    fn in_progress(&mut self, name: &str) -> Bytes {
        let head = &self.head;
        let fields = format!(
            r#""response":{{{head},"incomplete_details":null,"output":[],"status":"in_progress","usage":null}}"#
        );
        self.event(name, &fields)
    }

    /// An event about the one text part of the one item.
    fn part_event(&mut self, name: &str, fields: &str) -> Bytes {
        let item = &self.item;
        let fields = format!(r#""content_index":0,"item_id":{item},"output_index":0,{fields}"#);
        self.event(name, &fields)
    }

    fn complete(&self, text: &str, usage: &Usage) -> String {
        let (head, item) = (&self.head, finished_item(&self.item, text));
        let (status, incomplete) = match usage.completion.reason {
            FinishReason::Stop => ("completed", "null"),
            FinishReason::Length => ("incomplete", r#"{"reason":"max_output_tokens"}"#),
        };
        let usage = figures(usage);
        format!(
            r#"{{{head},"incomplete_details":{incomplete},"output":[{item}],"parallel_tool_calls":true,"status":"{status}","usage":{usage}}}"#
        )
    }
}

impl Dialect for Responses {
    fn opening(&mut self) -> Vec<Bytes> {
        vec![self.in_progress("response.created"), self.in_progress("response.in_progress")]
    }

    fn token(&mut self, piece: Piece<'_>) -> Vec<Bytes> {
        let mut events = Vec::new();
        if piece.index == 0 {
            let item = &self.item;
            let added = format!(
                r#""item":{{"id":{item},"content":[],"role":"assistant","status":"in_progress","type":"message"}},"output_index":0"#
            );
            events.push(self.event("response.output_item.added", &added));
            let part = r#""part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}"#;
            events.push(self.part_event("response.content_part.added", part));
        }
        self.text.push_str(piece.text);
        let delta = format!(r#""delta":{},"logprobs":[]"#, quoted(piece.text));
        events.push(self.part_event("response.output_text.delta", &delta));
        events
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        let text = std::mem::take(&mut self.text);
        let done = format!(r#""logprobs":[],"text":{}"#, quoted(&text));
        let part =
            format!(r#""part":{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#, quoted(&text));
        let item = format!(r#""item":{},"output_index":0"#, finished_item(&self.item, &text));
        let response = format!(r#""response":{}"#, self.complete(&text, usage));
        vec![
            self.part_event("response.output_text.done", &done),
            self.part_event("response.content_part.done", &part),
            self.event("response.output_item.done", &item),
            self.event("response.completed", &response),
        ]
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        openai_failure(refusal)
    }

    fn whole(&self, text: &str, usage: &Usage) -> String {
        self.complete(text, usage)
    }
}

fn finished_item(item: &str, text: &str) -> String {
    let text = quoted(text);
    format!(
        r#"{{"id":{item},"content":[{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}],"role":"assistant","status":"completed","type":"message"}}"#
    )
}

fn figures(usage: &Usage) -> String {
    let completion = &usage.completion;
    let (input, output) = (completion.prompt_tokens, completion.completion_tokens);
    let (cached, written, total) = (completion.cached_tokens, usage.created_tokens, input + output);
    format!(
        r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{written}}},"output_tokens":{output},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0}},"total_tokens":{total}}}"#
    )
}
