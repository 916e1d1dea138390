//! A probe: whether a server answers at its health page and, once each time it comes up, what it was started with.

use std::time::Duration;

use log::info;
use serde_json::Value;

use crate::balancer::Evidence;

use super::client::{Client, Failure, Patience};
use super::server::Server;

/// So many probes without an answer, and the server may come back as another one.
const MISSES_MAX: u32 = 3;

const HEALTH_PATH: &str = "/health";
/// vLLM collects the facts of its whole system for the answer: 1.7 s on an idle machine, several times that on a busy one.
const SERVER_INFO_MAX: Duration = Duration::from_secs(30);
/// Served only in vLLM's development mode.
const SERVER_INFO_PATH: &str = "/server_info?config_format=json";

/// Whether a server was asked what it was started with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Question {
    /// It is down, or was not looked at yet.
    #[default]
    NotYet,
    Due,
    Asked,
}

impl Question {
    /// Whether the server is to be asked. From here on it counts as asked.
    pub fn is_to_be_asked(&mut self) -> bool {
        let due = *self == Question::Due;
        if due {
            *self = Question::Asked;
        }
        due
    }

    /// There was no answer: the question stands.
    pub fn ask_again(&mut self) {
        if *self == Question::Asked {
            *self = Question::Due;
        }
    }

    /// A probe has shown `evidence`, the last of so many that failed in a row.
    pub fn note(&mut self, evidence: Evidence, misses: u32) {
        match (evidence, *self) {
            (Evidence::Answered, Question::NotYet) => *self = Question::Due,
            (Evidence::Unreachable(_), _) => *self = Question::NotYet,
            (Evidence::ProbeFailed, _) if misses >= MISSES_MAX => *self = Question::NotYet,
            (Evidence::Answered | Evidence::ProbeFailed, _) => {}
            (Evidence::Served | Evidence::BrokeOff | Evidence::Failing | Evidence::Draining, _) => {}
        }
    }
}

/// Looks whether a server answers, and tells its balancers. One that has no health page has shown that it answers.
pub async fn probe(client: &Client, server: &Server, patience: Patience) -> Evidence {
    let evidence = match client.get(server, HEALTH_PATH, patience).await {
        Ok(_) | Err(Failure::Status(..500) | Failure::TooLarge) => Evidence::Answered,
        Err(Failure::Unreachable(reason)) => Evidence::Unreachable(reason),
        Err(Failure::Status(_) | Failure::TimedOut | Failure::Broken) => Evidence::ProbeFailed,
    };
    server.each(|balancer, id, now| {
        balancer.observe(id, evidence, now);
    });
    evidence
}

/// Asks an engine what it was started with, and uses what it tells. Returns whether there was an answer, were it only that
/// it doesn't tell: nearly always, since it does so only in development mode.
pub async fn learn_max_num_seqs(client: &Client, server: &Server, connect: Duration) -> bool {
    let patience = Patience { connect, total: SERVER_INFO_MAX };
    let answer = match client.get(server, SERVER_INFO_PATH, patience).await {
        Ok(answer) => answer,
        Err(Failure::Status(_) | Failure::TooLarge) => return true,
        Err(Failure::Unreachable(_) | Failure::TimedOut | Failure::Broken) => return false,
    };
    let Some(max_num_seqs) = max_num_seqs_in(&answer) else { return true };
    info!("server={} tells its max_num_seqs: {max_num_seqs}", server.address);
    server.each(|balancer, id, _| balancer.set_max_num_seqs(id, max_num_seqs));
    true
}

fn max_num_seqs_in(answer: &[u8]) -> Option<u32> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let max_num_seqs = answer.pointer("/vllm_config/scheduler_config/max_num_seqs")?.as_u64()?;
    u32::try_from(max_num_seqs).ok().filter(|max_num_seqs| *max_num_seqs > 0)
}
