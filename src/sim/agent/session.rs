//! One agent's conversation: what it has said and heard, and how it asks next.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use super::AgentWorkload;
use super::text;

#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    seed: u64,
    id: String,
    system: String,
    messages: Vec<Value>,
}

impl Session {
    pub(super) fn begin(workload: &AgentWorkload, number: u64) -> Self {
        // Sessions of one run must differ, and so must those of two runs with neighbouring seeds.
        let seed = workload.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number + 1);
        Self {
            number,
            seed,
            id: text::session_id(seed),
            system: text::words(workload.seed, "You are a coding agent", workload.system_tokens),
            messages: Vec::new(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Says the agent's next message.
    pub(super) fn ask(&mut self, workload: &AgentWorkload, turn: u32) {
        let tokens = if turn == 0 { workload.first_tokens } else { workload.turn_tokens };
        let title = format!("{} {turn}", self.id);
        let content = text::words(self.seed.wrapping_add(u64::from(turn) << 32), &title, tokens);
        self.messages.push(json!({"role": "user", "content": content}));
    }

    /// Keeps the reply. An empty one is left out, since APIs refuse empty messages.
    pub(super) fn hear(&mut self, reply: String) {
        if !reply.is_empty() {
            self.messages.push(json!({"role": "assistant", "content": reply}));
        }
    }

    /// The whole conversation as a request.
    pub(super) fn request(&self, workload: &AgentWorkload) -> http::Result<Request<Full<Bytes>>> {
        let dialect = workload.dialect;
        let body = dialect.body(workload, &self.system, &self.messages);
        let mut request = Request::post(format!("http://{}{}", workload.base, dialect.path()))
            .header("content-type", "application/json")
            .header(dialect.session_header(), &self.id);
        for (name, value) in dialect.headers(workload.api_key.as_deref()) {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(body.to_string())))
    }
}
