//! `/v1/responses`, as far as a balancer and an agent see it: the order of the events, the one item, and where the usage is.

use bytes::Bytes;

use super::super::refusal::{Refusal, quoted};
use super::super::reply::{Part, Spoken, ToolCall};
use super::{Dialect, Heading, Piece, Usage, openai_failure};
use crate::sim::request::FinishReason;

/// OpenAI's syntax of responses.
#[derive(Debug)]
pub struct Responses {
    head: String,
    message_id: String,
    sequence_number: u32,
    item: Item,
    /// What has been streamed of the item: its text, or its arguments.
    streamed: String,
}

/// The one item of a response, once it has begun.
#[derive(Debug, Clone)]
enum Item {
    None,
    Message,
    Call(ToolCall),
}

impl Responses {
    /// An answer under `heading`.
    pub fn new(heading: &Heading) -> Self {
        let (id, model, created) = (quoted(&heading.id), quoted(&heading.model), heading.created);
        Self {
            head: format!(r#""id":{id},"created_at":{created},"model":{model},"object":"response""#),
            message_id: quoted(&heading.id.replacen("resp_", "msg_", 1)),
            sequence_number: 0,
            item: Item::None,
            streamed: String::new(),
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

    /// An event about the whole item.
    fn item_event(&mut self, name: &str, item: &str) -> Bytes {
        self.event(name, &format!(r#""item":{item},"output_index":0"#))
    }

    /// An event about the one text part of a message.
    fn part_event(&mut self, name: &str, fields: &str) -> Bytes {
        let id = &self.message_id;
        let fields = format!(r#""content_index":0,"item_id":{id},"output_index":0,{fields}"#);
        self.event(name, &fields)
    }

    /// An event about the arguments of a call.
    fn arguments_event(&mut self, name: &str, call: &ToolCall, fields: &str) -> Bytes {
        let id = item_id(call);
        self.event(name, &format!(r#""item_id":{id},"output_index":0,{fields}"#))
    }

    fn text(&mut self, text: &str) -> Vec<Bytes> {
        let mut events = Vec::new();
        if matches!(self.item, Item::None) {
            self.item = Item::Message;
            let id = &self.message_id;
            let empty =
                format!(r#"{{"id":{id},"content":[],"role":"assistant","status":"in_progress","type":"message"}}"#);
            events.push(self.item_event("response.output_item.added", &empty));
            let part = r#""part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}"#;
            events.push(self.part_event("response.content_part.added", part));
        }
        self.streamed.push_str(text);
        let delta = format!(r#""delta":{},"logprobs":[]"#, quoted(text));
        events.push(self.part_event("response.output_text.delta", &delta));
        events
    }

    fn arguments(&mut self, text: &str, opened: Option<&ToolCall>) -> Vec<Bytes> {
        let mut events = Vec::new();
        if let Some(call) = opened {
            self.item = Item::Call(call.clone());
            events.push(self.item_event("response.output_item.added", &function_call(call, "", "in_progress")));
        }
        self.streamed.push_str(text);
        if let Item::Call(call) = self.item.clone() {
            let delta = format!(r#""delta":{}"#, quoted(text));
            events.push(self.arguments_event("response.function_call_arguments.delta", &call, &delta));
        }
        events
    }

    fn message_done(&mut self, text: &str) -> Vec<Bytes> {
        let done = format!(r#""logprobs":[],"text":{}"#, quoted(text));
        let part =
            format!(r#""part":{{"annotations":[],"text":{},"type":"output_text","logprobs":null}}"#, quoted(text));
        vec![self.part_event("response.output_text.done", &done), self.part_event("response.content_part.done", &part)]
    }

    fn call_done(&mut self, call: &ToolCall, arguments: &str) -> Vec<Bytes> {
        let done = format!(r#""arguments":{},"name":{}"#, quoted(arguments), quoted(&call.tool.name));
        vec![self.arguments_event("response.function_call_arguments.done", call, &done)]
    }

    /// The whole response; `item` is JSON, or empty if there is none.
    fn complete(&self, item: &str, usage: &Usage) -> String {
        let head = &self.head;
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
        match piece.part {
            Part::Text => self.text(piece.text),
            Part::Arguments(opened) => self.arguments(piece.text, opened),
            Part::MarkUp => Vec::new(),
        }
    }

    fn closing(&mut self, usage: &Usage) -> Vec<Bytes> {
        let streamed = std::mem::take(&mut self.streamed);
        let (mut events, item) = match self.item.clone() {
            Item::None => (Vec::new(), String::new()),
            Item::Message => (self.message_done(&streamed), message(&self.message_id, &streamed)),
            Item::Call(call) => (self.call_done(&call, &streamed), function_call(&call, &streamed, "completed")),
        };
        if !item.is_empty() {
            events.push(self.item_event("response.output_item.done", &item));
        }
        let response = format!(r#""response":{}"#, self.complete(&item, usage));
        events.push(self.event("response.completed", &response));
        events
    }

    fn failure(&self, refusal: &Refusal) -> Vec<Bytes> {
        openai_failure(refusal)
    }

    fn whole(&self, spoken: Spoken<'_>, usage: &Usage) -> String {
        let item = match spoken {
            Spoken::Text(text) => message(&self.message_id, text),
            Spoken::Call(call) => function_call(call, &call.arguments, "completed"),
        };
        self.complete(&item, usage)
    }
}

fn message(id: &str, text: &str) -> String {
    let text = quoted(text);
    format!(
        r#"{{"id":{id},"content":[{{"annotations":[],"text":{text},"type":"output_text","logprobs":null}}],"role":"assistant","status":"completed","type":"message"}}"#
    )
}

/// The model calls a tool of a namespace by one name; vLLM takes it apart again.
fn function_call(call: &ToolCall, arguments: &str, status: &str) -> String {
    let (id, call_id, name) = (item_id(call), quoted(&call.id), quoted(&call.tool.name));
    let namespace = call.tool.namespace.as_deref().map_or_else(|| "null".into(), quoted);
    let arguments = quoted(arguments);
    format!(
        r#"{{"arguments":{arguments},"call_id":{call_id},"name":{name},"type":"function_call","id":{id},"namespace":{namespace},"status":"{status}"}}"#
    )
}

fn item_id(call: &ToolCall) -> String {
    quoted(&call.id.replacen("chatcmpl-tool-", "fc_", 1))
}

fn figures(usage: &Usage) -> String {
    let completion = &usage.completion;
    let (input, output) = (completion.prompt_tokens, completion.completion_tokens);
    let (cached, written, total) = (completion.cached_tokens, usage.created_tokens, input + output);
    format!(
        r#"{{"input_tokens":{input},"input_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{written}}},"output_tokens":{output},"output_tokens_details":{{"reasoning_tokens":0,"tool_output_tokens":0}},"total_tokens":{total}}}"#
    )
}
