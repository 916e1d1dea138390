//! Turns of agents, in the sizes that are measured.

use crate::proxies::Proxy;
use crate::rig::MODEL;
use crate::rig::client::request;

/// Where a turn says which conversation it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAt {
    Header,
    /// Only kvpin looks for it there. The others still have the header.
    BodyEnd,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub body_bytes: usize,
    pub session_at: SessionAt,
    /// For a stream of events.
    pub is_streamed: bool,
}

/// What an agent did and read, as the Messages API has it: code with its line breaks and quotes escaped.
const TURN: &str = r#"{"role":"assistant","content":[{"type":"text","text":"The function prints a greeting and the number of arguments. I will look at the tests before I change it."},{"type":"tool_use","id":"toolu_01","name":"Read","input":{"file_path":"/src/main.rs","description":"Read the program"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_01","content":[{"type":"text","text":"     1\tuse std::collections::HashMap;\n     2\t\n     3\tfn main() {\n     4\t    let greeting = \"hello\";\n     5\t    println!(\"{greeting}, {}\", std::env::args().count());\n     6\t}\n"}]}]}"#;

/// The same as the Chat Completions API has it.
const CHAT: &str = r#"{"role":"assistant","content":"The function prints a greeting and the number of arguments. I will look at the tests before I change it: cargo test --quiet 2>&1 | tail -20"},{"role":"user","content":"     1\tuse std::collections::HashMap;\n     2\t\n     3\tfn main() {\n     4\t    let greeting = \"hello\";\n     5\t    println!(\"{greeting}, {}\", std::env::args().count());\n     6\t}\n"}"#;

/// A tool but for its name, which each has for itself.
const TOOL: &str = r#""description":"Reads a file from the local filesystem. The path must be absolute.\n\nUsage:\n- By default, it reads up to 2000 lines from the beginning of the file","input_schema":{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"file_path":{"type":"string","description":"The absolute path to the file to read"},"offset":{"type":"integer","minimum":0},"limit":{"type":"integer","exclusiveMinimum":0}},"required":["file_path"],"additionalProperties":false}}"#;

/// Of a large body, what is not messages.
const TOOLS_BYTES: usize = 30_000;

impl Turn {
    pub const SMALL: Turn = Turn { body_bytes: 1_000, session_at: SessionAt::Header, is_streamed: false };

    /// The request of a conversation, as this proxy gets it.
    pub fn of(self, proxy: Proxy, session: &str) -> Vec<u8> {
        let header = format!("x-session-id: {session}\r\n");
        match self.session_at {
            SessionAt::Header => request("/v1/chat/completions", &header, &self.chat(session)),
            SessionAt::BodyEnd => {
                let header = if proxy.reads_session_in_body() { "" } else { &header };
                request("/v1/messages", header, &self.messages(session))
            }
        }
    }

    /// In the shape of Codex's or OpenCode's.
    fn chat(self, session: &str) -> String {
        let stream = self.is_streamed;
        let begin =
            format!(r#"{{"model":"{MODEL}","stream":{stream},"max_tokens":1000,"user":"{session}","messages":["#);
        self.filled(&begin, CHAT, "]}")
    }

    /// In the shape of Claude Code's.
    fn messages(self, session: &str) -> String {
        let tools = if self.body_bytes > 2 * TOOLS_BYTES { TOOLS_BYTES / TOOL.len() } else { 0 };
        let tools: Vec<String> = (0..tools).map(|number| format!(r#"{{"name":"Read{number}",{TOOL}"#)).collect();
        let tools = tools.join(",");
        let end = format!(
            r#"],"system":[{{"type":"text","text":"You are an interactive agent that helps."}}],"tools":[{tools}],"max_tokens":32000,"stream":{},"metadata":{{"user_id":"{{\"device_id\":\"{}\",\"account_uuid\":\"\",\"session_id\":\"{session}\"}}"}}}}"#,
            self.is_streamed,
            "0".repeat(64),
        );
        self.filled(&format!(r#"{{"model":"{MODEL}","messages":["#), TURN, &end)
    }

    /// A first message that fills the body up, and as many turns as fit between it and the end.
    fn filled(self, begin: &str, turn: &str, end: &str) -> String {
        let (first_begin, first_end) = (r#"{"role":"user","content":""#, r#""}"#);
        let room = self.body_bytes.saturating_sub(begin.len() + end.len() + first_begin.len() + first_end.len());
        let turns = room / (turn.len() + 1);
        let text = "a".repeat(room - turns * (turn.len() + 1));
        format!("{begin}{first_begin}{text}{first_end}{}{end}", format!(",{turn}").repeat(turns))
    }
}

/// A conversation's id.
pub fn session(number: usize) -> String {
    format!("{number:08x}-8294-49e0-b3d2-e58bc1e620a9")
}
