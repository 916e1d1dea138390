//! One agent's conversation: how long it is, what it asks next, and which blocks its text makes.

use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::scenario::Workload;
use crate::conversation::ConversationKey;
use crate::sim::cache::BlockHash;
use crate::sim::request::{FinishReason, Outline};

/// The texts that many conversations share.
const SYSTEM_TEXT: u64 = 1;
const SUBAGENT_TEXT: u64 = 2;

/// What kind of agent it is: whether others wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Root,
    /// It was started by another agent, which waits for it.
    Child {
        parent: usize,
    },
}

/// What an agent says depends on the run's seed and its own number alone, and not on who serves it and when.
#[derive(Debug)]
pub struct Agent {
    /// Names it within the run.
    pub number: u64,
    /// The same as a number without an order; other seeds have others.
    id: u64,
    pub role: Role,
    pub begun: Duration,
    rng: ChaCha8Rng,
    /// The shared text that it begins with, and its length.
    system: (u64, u32),
    chain: Arc<Vec<BlockHash>>,
    /// Tokens of its history: what the next prompt begins with.
    history: u32,
    reply: u32,
    next: u32,
    turn: u32,
    turns: u32,
    /// Children that it waits for.
    pub children: u32,
}

/// How a session begins, and how long it is.
struct Opening {
    system: (u64, u32),
    first: u32,
    turns: u32,
}

impl Agent {
    /// An agent that begins a session.
    pub fn root(workload: &Workload, seed: u64, number: u64, now: Duration) -> Self {
        let mut rng = rng(seed, number);
        let turns = workload.turns.draw_count(&mut rng);
        let first = workload.first_tokens.draw_count(&mut rng);
        let opening = Opening { system: (SYSTEM_TEXT, workload.system_tokens), first, turns };
        Agent { begun: now, ..Agent::new(number, rng, opening) }
    }

    fn new(number: u64, mut rng: ChaCha8Rng, opening: Opening) -> Self {
        let Opening { system, first, turns } = opening;
        Agent {
            number,
            id: rng.random(),
            role: Role::Root,
            begun: Duration::ZERO,
            rng,
            system,
            chain: Arc::default(),
            history: system.1,
            reply: 0,
            next: first,
            turn: 0,
            turns,
            children: 0,
        }
    }

    /// The agents that it starts after its newest turn, as many as it wants. They are its own draws, so that they are the
    /// same however long the turn took.
    pub fn burst(&mut self, workload: &Workload, id: usize, now: Duration) -> Vec<Agent> {
        let Some(subagents) = workload.subagents.as_ref().filter(|_| self.role == Role::Root) else {
            return Vec::new();
        };
        if self.rng.random::<f64>() * 100.0 >= subagents.bursts_percent {
            return Vec::new();
        }
        let count = subagents.count.draw_count(&mut self.rng);
        (0..count)
            .map(|_| {
                let number = self.rng.random();
                let mut rng = rng(0, number);
                let turns = subagents.turns.draw_count(&mut rng);
                let first = subagents.first_tokens.draw_count(&mut rng);
                let opening = Opening { system: (SUBAGENT_TEXT, subagents.system_tokens), first, turns };
                Agent { role: Role::Child { parent: id }, begun: now, ..Agent::new(number, rng, opening) }
            })
            .collect()
    }

    /// The key that a client's session id would have become.
    pub fn key(&self) -> ConversationKey {
        ConversationKey(self.id)
    }

    pub fn turn(&self) -> u32 {
        self.turn
    }

    /// Tokens of the prompt that it asks with.
    pub fn prompt_tokens(&self) -> u32 {
        self.history + self.next
    }

    /// Says the next message; None if no engine would take it any more.
    pub fn ask(&mut self, workload: &Workload, max_model_len: u32, block_size: u32) -> Option<Outline> {
        self.reply = workload.reply_tokens.draw_count(&mut self.rng);
        let tokens = self.prompt_tokens() + self.reply;
        if tokens > max_model_len {
            return None;
        }
        self.extend_chain(tokens / block_size, block_size);
        Some(Outline {
            prompt_tokens: self.prompt_tokens() as usize,
            generate: self.reply,
            chain: Arc::clone(&self.chain),
            finish: FinishReason::Stop,
        })
    }

    /// Keeps the reply. Says whether there is a next turn.
    pub fn hear(&mut self, workload: &Workload) -> bool {
        self.history += self.next + self.reply;
        self.next = workload.turn_tokens.draw_count(&mut self.rng);
        self.turn += 1;
        self.turn < self.turns
    }

    /// Whether the answer to the turn under way asks for a tool: all do but the last, where models ask for tools at all.
    pub fn is_asked(&self, workload: &Workload) -> bool {
        workload.asks_for_tools && self.turn + 1 < self.turns
    }

    /// How long it is until it asks again.
    pub fn think(&mut self, workload: &Workload) -> Duration {
        workload.think_s.draw_time(&mut self.rng)
    }

    fn extend_chain(&mut self, blocks: u32, block_size: u32) {
        let (system, system_tokens) = self.system;
        // Nobody else has it any more: the turn before is over.
        let chain = Arc::make_mut(&mut self.chain);
        for index in chain.len() as u32..blocks {
            let text = if (index + 1) * block_size <= system_tokens { system } else { self.id };
            chain.push(BlockHash::named(text, u64::from(index)));
        }
    }
}

/// Runs with neighbouring seeds must differ, and so must agents with neighbouring numbers.
fn rng(seed: u64, number: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(BlockHash::named(seed, number).value())
}
