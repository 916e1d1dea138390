//! Agents as clients: closed-loop sessions that re-send a growing history, each turn after the reply to the one before.
//!
//! The sizes are those of a coding agent's first minutes: a system prompt that all sessions share, a long first message
//! that is the session's own, and short turns after it. The text depends on the seed and the session's number alone, so two
//! runs ask the same questions, whatever answers them and in whatever order.

mod dialect;
mod session;
mod text;
mod turn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

pub use dialect::AgentDialect;
pub use turn::{TurnFailure, TurnOutcome, TurnResult, TurnUsage};

use session::Session;

/// vLLM closes idle connections after 5 s; one that is about to be closed isn't worth using.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// How often one turn is tried before its session gives up, as the clients' own libraries do by default.
const MOST_TRIES: u32 = 3;

/// The pause before a turn is tried again when the server names none.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A number of agents that work at the same time.
#[derive(Debug, Clone)]
pub struct AgentWorkload {
    /// Where the server is.
    pub base: SocketAddr,
    /// The model's name.
    pub model: String,
    /// Sessions at the same time; one that ends is replaced by a new one.
    pub sessions: usize,
    /// The API that is spoken.
    pub dialect: AgentDialect,
    /// Tokens of the system prompt that all sessions share.
    pub system_tokens: u32,
    /// Tokens of a session's first message.
    pub first_tokens: u32,
    /// Tokens of each later message.
    pub turn_tokens: u32,
    /// Turns in a session, the first included.
    pub turns: u32,
    /// The longest reply in tokens; replies are drawn from a quarter of it up.
    pub max_tokens: u32,
    /// The mean pause between a reply and the next turn: the agent's tools at work.
    pub gap: Duration,
    /// How long turns that run at the deadline may go on.
    pub grace: Duration,
    /// Chooses all text.
    pub seed: u64,
    /// Sent in the way of the API's clients.
    pub api_key: Option<String>,
}

type HttpClient = Client<HttpConnector, Full<Bytes>>;

/// One place for a session, and what it needs.
struct Seat {
    workload: Arc<AgentWorkload>,
    client: HttpClient,
    results: mpsc::Sender<TurnResult>,
    started: Instant,
    until: Instant,
}

impl AgentWorkload {
    /// Claude Code's sizes and API, without pauses.
    pub fn new(base: SocketAddr, model: impl Into<String>, sessions: usize) -> Self {
        Self {
            base,
            model: model.into(),
            sessions,
            dialect: AgentDialect::Messages,
            system_tokens: 3400,
            first_tokens: 7000,
            turn_tokens: 400,
            turns: 6,
            max_tokens: 256,
            gap: Duration::ZERO,
            grace: Duration::from_secs(5),
            seed: 0,
            api_key: None,
        }
    }

    /// Drives the sessions until the deadline and sends each turn's result as it ends. Turns that still run then have the
    /// grace to end; what hasn't by then is abandoned and reported as cut. Returns early if nobody takes the results.
    pub async fn drive(self, until: Instant, results: mpsc::Sender<TurnResult>) {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .build_http();
        let (workload, started) = (Arc::new(self), Instant::now());
        let mut seats = JoinSet::new();
        for number in 0..workload.sessions as u64 {
            let (workload, client, results) = (Arc::clone(&workload), client.clone(), results.clone());
            let seat = Seat { workload, client, results, started, until };
            seats.spawn(seat.occupy(number));
        }
        let all_ended = async {
            while let Some(ended) = seats.join_next().await {
                if let Err(error) = ended {
                    log::error!("an agent failed: {error}");
                }
            }
        };
        tokio::select! {
            () = all_ended => {}
            () = results.closed() => {}
        }
    }
}

impl Seat {
    /// Runs session after session. The numbers depend on the seat and not on when its sessions end.
    async fn occupy(self, seat: u64) {
        let mut number = seat;
        while Instant::now() < self.until && self.run_session(number).await.is_ok() {
            number += self.workload.sessions as u64;
        }
    }

    /// Runs one session to its end or to the deadline; an error once nobody takes the results.
    async fn run_session(&self, number: u64) -> Result<(), mpsc::error::SendError<TurnResult>> {
        let mut session = Session::begin(&self.workload, number);
        for turn in 0..self.workload.turns {
            session.ask(&self.workload, turn);
            if !self.run_turn(&mut session, turn).await? || !self.rest(session.pause(&self.workload, turn)).await {
                break;
            }
        }
        Ok(())
    }

    /// Tries a turn until it is complete; false if the session ends here.
    async fn run_turn(&self, session: &mut Session, turn: u32) -> Result<bool, mpsc::error::SendError<TurnResult>> {
        for _ in 0..MOST_TRIES {
            let mut result = TurnResult::begin(session.number(), turn, self.started);
            let request = session.request(&self.workload);
            let perform = turn::perform(&self.client, request, self.workload.dialect, &mut result);
            let reply = timeout_at(self.until + self.workload.grace, perform).await.ok().flatten();
            let pause = result.retry_after.unwrap_or(RETRY_PAUSE);
            self.results.send(result).await?;
            if let Some(reply) = reply {
                session.hear(reply);
                return Ok(true);
            }
            if !self.rest(pause).await {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Waits; false if the deadline comes first.
    async fn rest(&self, pause: Duration) -> bool {
        timeout_at(self.until, sleep(pause)).await.is_ok() && Instant::now() < self.until
    }
}

#[cfg(test)]
mod tests;
