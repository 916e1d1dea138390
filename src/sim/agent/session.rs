//! One agent's conversation: what it has said and heard, and how it asks next.

use std::time::Duration;

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
    /// The limit of the reply to the newest message.
    reply_tokens: u32,
}

/// The shortest reply, as a part of the longest: replies of an agent differ, and equal ones would march in step.
const SHORTEST_REPLY: f64 = 0.25;

/// The longest pause, in pauses of the mean length.
const LONGEST_PAUSE: f64 = 8.0;

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
            reply_tokens: workload.max_tokens,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Says the agent's next message.
    pub(super) fn ask(&mut self, workload: &AgentWorkload, turn: u32) {
        let tokens = if turn == 0 { workload.first_tokens } else { workload.turn_tokens };
        let title = format!("{} {turn}", self.id);
        let seed = self.turn_seed(turn);
        self.messages.push(json!({"role": "user", "content": text::words(seed, &title, tokens)}));
        let share = SHORTEST_REPLY + (1.0 - SHORTEST_REPLY) * text::share(seed);
        self.reply_tokens = (f64::from(workload.max_tokens) * share).ceil() as u32;
    }

    /// How long the agent's tools work after a turn: exponentially distributed round the mean.
    pub(super) fn pause(&self, workload: &AgentWorkload, turn: u32) -> Duration {
        let share = text::share(self.turn_seed(turn).rotate_left(17));
        workload.gap.mul_f64((-(1.0 - share).ln()).min(LONGEST_PAUSE))
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
        let mut body = dialect.body(workload, &self.system, &self.messages);
        body["max_tokens"] = self.reply_tokens.into();
        let mut request = Request::post(format!("http://{}{}", workload.base, dialect.path()))
            .header("content-type", "application/json")
            .header(dialect.session_header(), &self.id);
        for (name, value) in dialect.headers(workload.api_key.as_deref()) {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(body.to_string())))
    }

    fn turn_seed(&self, turn: u32) -> u64 {
        self.seed.wrapping_add(u64::from(turn) << 32)
    }
}
