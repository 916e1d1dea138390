//! What a reply is made of: text, or a call of a tool that the server's parser finds in what the engine generates.

use std::hash::Hasher;

use serde_json::{Map, Value};
use siphasher::sip::SipHasher13;

use super::call::Api;
use crate::sim::script::{Dialogue, Line, OfferedTool, Script};
use crate::sim::{prompt, tokens};

/// A reply before its first token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    /// Its tokens, if they are known beforehand; else the engine makes them up.
    pub tokens: Vec<u32>,
    /// The call that those tokens write.
    pub call: Option<ToolCall>,
}

/// A tool call, in the parser's eyes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Names the call to the client, which returns it with the result.
    pub id: String,
    /// The tool.
    pub tool: OfferedTool,
    /// A JSON object.
    pub arguments: String,
    /// Tokens of mark-up before the arguments.
    opening: u32,
    /// Tokens of the arguments.
    length: u32,
}

/// What a token is in its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text.
    Text,
    /// Mark-up of a call, which the parser keeps to itself.
    MarkUp,
    /// A piece of a call's arguments, with the call where it is the first.
    Arguments(Option<&'a ToolCall>),
}

/// A reply after its last token.
#[derive(Debug, Clone, Copy)]
pub enum Spoken<'a> {
    /// Text; also a call that was cut off by the reply's limit.
    Text(&'a str),
    /// A call.
    Call(&'a ToolCall),
}

impl Reply {
    /// What `script` has the model say to a body whose prompt is `prompt`. Plain completions have no conversation in them.
    pub fn scripted(script: &Script, api: Api, body: &Map<String, Value>, prompt: &[u32]) -> Option<Self> {
        let dialogue = match api {
            Api::Chat => Dialogue::of_chat(body),
            Api::Messages => Dialogue::of_messages(body),
            Api::Responses => Dialogue::of_responses(body),
            Api::Completions => return None,
        };
        Some(match script.line(&dialogue) {
            Line::Text(text) => Self { tokens: encoded(text), call: None },
            Line::Call { tool, arguments } => Self::call(tool.clone(), arguments, prompt),
        })
    }

    fn call(tool: OfferedTool, arguments: String, prompt: &[u32]) -> Self {
        let parts = prompt::tool_call(&tool.shown_as, &arguments).map(|part| encoded(&part));
        let (opening, length) = (parts[0].len() as u32, parts[1].len() as u32);
        let call = ToolCall { id: call_id(prompt), tool, arguments, opening, length };
        Self { tokens: parts.concat(), call: Some(call) }
    }

    /// What the token number `index` is.
    pub fn part(&self, index: u32) -> Part<'_> {
        match &self.call {
            None => Part::Text,
            Some(call) => match index.checked_sub(call.opening) {
                Some(0) => Part::Arguments(Some(call)),
                Some(offset) if offset < call.length => Part::Arguments(None),
                Some(_) | None => Part::MarkUp,
            },
        }
    }

    /// The reply whose tokens came to `text`.
    pub fn spoken<'a>(&'a self, text: &'a str, tokens: u32) -> Spoken<'a> {
        match &self.call {
            Some(call) if tokens as usize == self.tokens.len() => Spoken::Call(call),
            Some(_) | None => Spoken::Text(text),
        }
    }
}

/// vLLM draws call ids at random. Here they follow from the whole prompt, which no other turn shares, so that they differ
/// within a conversation even if its turns are served by different servers.
fn call_id(prompt: &[u32]) -> String {
    let mut hasher = SipHasher13::new();
    prompt.iter().for_each(|token| hasher.write_u32(*token));
    format!("chatcmpl-tool-{:016x}", hasher.finish())
}

fn encoded(text: &str) -> Vec<u32> {
    let mut encoded = Vec::new();
    tokens::encode_into(text, &mut encoded);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_call_are_its_mark_up_and_its_arguments() {
        let tool = OfferedTool { shown_as: "Bash".into(), name: "Bash".into(), namespace: None };
        let reply = Reply::call(tool, r#"{"command":"ls"}"#.into(), &[1, 2]);
        let arguments: Vec<u32> = (0u32..)
            .zip(&reply.tokens)
            .filter(|(index, _)| matches!(reply.part(*index), Part::Arguments(_)))
            .map(|(_, token)| *token)
            .collect();
        assert_eq!(tokens::decode(&arguments), r#"{"command":"ls"}"#);
        let whole = tokens::decode(&reply.tokens);
        assert_eq!(whole, "<tool_call>\n{\"name\": \"Bash\", \"arguments\": {\"command\":\"ls\"}}\n</tool_call>");
        assert!(matches!(reply.spoken(&whole, reply.tokens.len() as u32), Spoken::Call(_)));
        assert!(matches!(reply.spoken("<tool", 2), Spoken::Text("<tool")));
    }
}
