//! One agent's conversation: what it has said and heard, and how it asks next.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use super::shape::{SessionPlan, TurnPlan};
use super::{AgentWorkload, text};

#[derive(Debug)]
pub(super) struct Session {
    /// Names it among all sessions of the workload.
    number: u64,
    /// Whether a session has sent it out.
    pub(super) is_subagent: bool,
    seed: u64,
    id: String,
    /// Of a subagent: its own id within its session.
    agent_id: Option<String>,
    system: String,
    messages: Vec<Value>,
    pub(super) plan: SessionPlan,
    /// The limit of the reply to the newest message.
    reply_tokens: u32,
}

/// Where the numbers of subagents begin: above those of sessions, which fit below.
const SUBAGENT_BIT: u32 = 48;

impl Session {
    pub(super) fn begin(workload: &AgentWorkload, number: u64) -> Self {
        // Sessions of one run must differ, and so must those of two runs with neighbouring seeds.
        let seed = mixed(workload.seed).wrapping_add(number + 1);
        let plan = match &workload.replay {
            Some(plans) => plans.get(number as usize).cloned().unwrap_or(SessionPlan { turns: Vec::new() }),
            None => workload.shape.plan(seed),
        };
        // The text also differs where nothing else does.
        let seed = seed ^ mixed(workload.salt);
        Self {
            number,
            is_subagent: false,
            seed,
            id: text::session_id(seed),
            agent_id: None,
            system: workload.text(
                mixed(workload.seed) ^ mixed(workload.salt),
                "You are a coding agent",
                workload.shape.system_tokens,
            ),
            messages: Vec::new(),
            reply_tokens: 1,
            plan,
        }
    }

    /// The subagents that this session sends out after a turn.
    pub(super) fn subagents(&self, workload: &AgentWorkload, turn: u32, count: u32) -> Vec<Session> {
        let of = |index: u32| {
            let seed = self.seed.wrapping_add(u64::from(turn + 1) << 40).wrapping_add(u64::from(index + 1) << 48);
            let number = (u64::from(turn * count + index + 1) << SUBAGENT_BIT) | self.number;
            Session {
                number,
                is_subagent: true,
                seed,
                id: self.id.clone(),
                agent_id: Some(format!("a{seed:016x}")),
                system: workload.text(
                    mixed(workload.seed) ^ mixed(workload.salt) ^ 1,
                    "You are a subagent",
                    workload.shape.system_tokens,
                ),
                messages: Vec::new(),
                plan: workload.shape.subagent_plan(seed),
                reply_tokens: 1,
            }
        };
        (0..count).map(of).collect()
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Says the agent's next message.
    pub(super) fn ask(&mut self, workload: &AgentWorkload, turn: u32, plan: &TurnPlan) {
        if plan.starts_over {
            self.messages.clear();
        }
        let who = self.agent_id.as_deref().unwrap_or(&self.id);
        let text =
            workload.text(self.seed.wrapping_add(u64::from(turn) << 32), &format!("{who} {turn}"), plan.message_tokens);
        self.messages.push(json!({"role": "user", "content": text}));
        self.reply_tokens = plan.reply_tokens;
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
        let mut request =
            Request::post(format!("{}{}", workload.base, dialect.path())).header("content-type", "application/json");
        for (name, value) in dialect.identity(&self.id, self.agent_id.as_deref()) {
            request = request.header(name, value);
        }
        for name in &workload.session_headers {
            request = request.header(name.as_str(), self.agent_id.as_deref().unwrap_or(&self.id));
        }
        for (name, value) in dialect.headers(workload.api_key.as_deref()) {
            request = request.header(name, value);
        }
        request.body(Full::new(Bytes::from(body.to_string())))
    }

    pub(super) fn turn(&self, turn: u32) -> Option<TurnPlan> {
        self.plan.turns.get(turn as usize).copied()
    }

    /// When a turn is to be sent, since the workload's start; `now` is the time of the reply to the one before.
    pub(super) fn due(plan: &TurnPlan, now: Duration) -> Duration {
        plan.due.max(now + plan.pause)
    }
}

/// Spreads neighbouring seeds.
fn mixed(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
