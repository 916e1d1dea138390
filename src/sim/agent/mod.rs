//! Agents as clients: closed-loop sessions that re-send a growing history, each turn after the reply to the one before.
//!
//! The sizes are those of a coding agent's first minutes: a system prompt that all sessions share, a long first message
//! that is the session's own, and short turns after it. The text depends on the seed and the session's number alone, so two
//! runs ask the same questions, whatever answers them and in whatever order.

mod client;
mod dialect;
mod session;
mod shape;
mod text;
mod turn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub use client::{HttpClient, http_client};
pub use dialect::AgentDialect;
pub use shape::{Burst, Pause, SessionPlan, Shape, Span, TurnPlan};
pub use text::ASSUMED_BYTES_PER_TOKEN;
pub use turn::{TurnFailure, TurnOutcome, TurnResult, TurnUsage};

use session::Session;

/// How often one turn is tried before its session gives up, as the clients' own libraries do by default.
const MOST_TRIES: u32 = 3;

/// The pause before a turn is tried again when the server names none.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A number of agents that work at the same time.
#[derive(Debug, Clone)]
pub struct AgentWorkload {
    /// Where the server is: a scheme, an authority and perhaps a path that the APIs' paths follow, without a slash at its end.
    pub base: String,
    /// The model's name.
    pub model: String,
    /// Sessions at the same time; one that ends is replaced by a new one.
    pub sessions: usize,
    /// The API that is spoken.
    pub dialect: AgentDialect,
    /// The sizes of what is said.
    pub shape: Shape,
    /// Sessions that are taken as they are, each at its time and once, in the place of ones of `shape`.
    pub replay: Option<Arc<Vec<SessionPlan>>>,
    /// How long turns that run at the deadline may go on.
    pub grace: Duration,
    /// Chooses sizes, pauses and all text.
    pub seed: u64,
    /// Changes all text and no size, so that two runs of a seed share no prefix.
    pub salt: u64,
    /// Bytes of this text that make a token.
    pub bytes_per_token: f64,
    /// Sent in the way of the API's clients.
    pub api_key: Option<String>,
    /// Headers that name the conversation beside the API's own.
    pub session_headers: Vec<String>,
}

/// One place for a session, and what it needs.
struct Seat {
    workload: Arc<AgentWorkload>,
    client: HttpClient,
    results: mpsc::Sender<TurnResult>,
    started: Instant,
    until: Instant,
}

/// Nobody takes the results: nothing more is to be done.
type Unheard = mpsc::error::SendError<TurnResult>;

impl AgentWorkload {
    /// Claude Code's sizes and API, without pauses, in the clear.
    pub fn new(address: SocketAddr, model: impl Into<String>, sessions: usize) -> Self {
        Self {
            base: format!("http://{address}"),
            model: model.into(),
            sessions,
            dialect: AgentDialect::Messages,
            shape: Shape::AGENT,
            replay: None,
            grace: Duration::from_secs(5),
            seed: 0,
            salt: 0,
            bytes_per_token: ASSUMED_BYTES_PER_TOKEN,
            api_key: None,
            session_headers: Vec::new(),
        }
    }

    /// Drives the sessions until the deadline and sends each turn's result as it ends. Turns that still run then have the
    /// grace to end; what hasn't by then is abandoned and reported as cut. Returns early if nobody takes the results.
    pub async fn drive(self, client: HttpClient, until: Instant, results: mpsc::Sender<TurnResult>) {
        let (workload, started) = (Arc::new(self), Instant::now());
        let mut seats = JoinSet::new();
        let count = workload.replay.as_ref().map_or(workload.sessions, |plans| plans.len());
        for number in 0..count as u64 {
            let (workload, client, results) = (Arc::clone(&workload), client.clone(), results.clone());
            let seat = Arc::new(Seat { workload, client, results, started, until });
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

    /// Takes the first turn of one session, once, and gives what it used: so big is that in the server's own tokens.
    pub async fn probe(mut self, client: HttpClient, patience: Duration) -> TurnResult {
        self.grace = Duration::ZERO;
        self.shape.turns = 1;
        self.replay = None;
        let (until, workload) = (Instant::now() + patience, Arc::new(self));
        let (results, mut taken) = mpsc::channel(1);
        let seat = Arc::new(Seat { workload: Arc::clone(&workload), client, results, started: Instant::now(), until });
        let mut session = Session::begin(&workload, 0);
        let empty = TurnResult::begin(&session, 0, Instant::now());
        if let Some(plan) = session.turn(0) {
            session.ask(&workload, 0, &plan);
        }
        let (tried, result) = tokio::join!(seat.try_turn(&mut session, 0), taken.recv());
        drop(tried);
        result.unwrap_or(empty)
    }

    fn text(&self, seed: u64, title: &str, tokens: u32) -> String {
        text::words(seed, title, (f64::from(tokens) * self.bytes_per_token) as usize)
    }
}

impl Seat {
    /// Runs session after session. The numbers depend on the seat and not on when its sessions end.
    async fn occupy(self: Arc<Self>, seat: u64) {
        let mut number = seat;
        while Instant::now() < self.until && Arc::clone(&self).run_session(number).await.is_ok() {
            if self.workload.replay.is_some() {
                return;
            }
            number += self.workload.sessions as u64;
        }
    }

    /// Runs one session to its end or to the deadline.
    async fn run_session(self: Arc<Self>, number: u64) -> Result<(), Unheard> {
        let mut session = Session::begin(&self.workload, number);
        let mut turn = 0;
        while let Some(plan) = session.turn(turn) {
            if !self.take_turn(&mut session, turn, &plan).await? {
                break;
            }
            self.send_out(session.subagents(&self.workload, turn, plan.subagents)).await?;
            turn += 1;
        }
        Ok(())
    }

    /// Runs subagents at the same time, until each of them has ended.
    async fn send_out(self: &Arc<Self>, subagents: Vec<Session>) -> Result<(), Unheard> {
        let mut running = JoinSet::new();
        for subagent in subagents {
            running.spawn(Arc::clone(self).run_subagent(subagent));
        }
        while let Some(ended) = running.join_next().await {
            match ended {
                Ok(result) => result?,
                Err(error) => log::error!("a subagent failed: {error}"),
            }
        }
        Ok(())
    }

    async fn run_subagent(self: Arc<Self>, mut session: Session) -> Result<(), Unheard> {
        let mut turn = 0;
        while let Some(plan) = session.turn(turn) {
            if !self.take_turn(&mut session, turn, &plan).await? {
                break;
            }
            turn += 1;
        }
        Ok(())
    }

    /// Waits until a turn is due and takes it; false if the session ends here.
    async fn take_turn(&self, session: &mut Session, turn: u32, plan: &TurnPlan) -> Result<bool, Unheard> {
        let due = self.started + Session::due(plan, self.started.elapsed());
        if timeout_at(self.until, sleep_until(due)).await.is_err() || Instant::now() >= self.until {
            return Ok(false);
        }
        session.ask(&self.workload, turn, plan);
        self.run_turn(session, turn).await
    }

    /// Tries a turn until it is complete; false if the session ends here.
    async fn run_turn(&self, session: &mut Session, turn: u32) -> Result<bool, Unheard> {
        for _ in 0..MOST_TRIES {
            let (is_complete, pause) = self.try_turn(session, turn).await?;
            if is_complete {
                return Ok(true);
            }
            if !self.rest(pause).await {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// Tries a turn once: whether it is complete, and if not, how long to wait before it is tried again.
    async fn try_turn(&self, session: &mut Session, turn: u32) -> Result<(bool, Duration), Unheard> {
        let mut result = TurnResult::begin(session, turn, self.started);
        let request = session.request(&self.workload);
        let perform = turn::perform(&self.client, request, self.workload.dialect, &mut result);
        let reply = timeout_at(self.until + self.workload.grace, perform).await.ok().flatten();
        let pause = result.retry_after.unwrap_or(RETRY_PAUSE);
        self.results.send(result).await?;
        let is_complete = reply.is_some();
        reply.into_iter().for_each(|reply| session.hear(reply));
        Ok((is_complete, pause))
    }

    /// Waits; false if the deadline comes first.
    async fn rest(&self, pause: Duration) -> bool {
        timeout_at(self.until, sleep(pause)).await.is_ok() && Instant::now() < self.until
    }
}

#[cfg(test)]
mod tests;
