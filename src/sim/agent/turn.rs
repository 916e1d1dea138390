//! One turn over HTTP, measured as an agent would feel it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::client::HttpClient;
use super::dialect::{AgentDialect, Sign};
use super::session::Session;

/// The longest line of a stream that is read; events of one token are far shorter.
const LONGEST_LINE: usize = 1 << 20;

/// The most of an error's text that is kept.
pub const SAID_BYTES_MAX: usize = 400;

/// What became of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnResult {
    /// The session's number.
    pub session: u64,
    /// The turn's number in its session, from 0. A turn that is tried again keeps it.
    pub turn: u32,
    /// When it was sent, since the workload's start.
    pub started: Duration,
    /// From then to the first text of the reply. Heads and opening events are not text.
    pub first_token: Option<Duration>,
    /// From then to the end, whatever it was.
    pub total: Duration,
    /// Whether it is of a subagent that a session has sent out.
    pub is_subagent: bool,
    /// Whether it is the last one of its session.
    pub is_last: bool,
    /// Events with something generated: no more than the tokens of the reply so far.
    pub pieces: u64,
    /// How it ended.
    pub outcome: TurnOutcome,
    /// The status, if a head came.
    pub status: Option<u16>,
    /// What the engine says that it used; complete turns have it.
    pub usage: Option<TurnUsage>,
    /// The replica, if kvpin was asked.
    pub replica: Option<String>,
    /// kvpin's decision, in its word.
    pub decision: Option<String>,
    /// What the server, or the connection, says of a failure. At most [`SAID_BYTES_MAX`] bytes.
    pub said: Option<String>,
    /// The pause that the server asks for.
    pub retry_after: Option<Duration>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnOutcome {
    /// The reply is complete.
    Complete,
    /// The server answered with an error's status.
    Refused,
    /// The reply isn't complete.
    Failed(TurnFailure),
    /// It still ran when the workload ended.
    Cut,
}

/// Why a reply isn't complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnFailure {
    /// No head came.
    NoAnswer,
    /// The stream carried an error.
    InStream,
    /// The stream ended too early.
    CutOff,
}

/// What the engine says that a turn used, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnUsage {
    /// The prompt.
    pub prompt_tokens: u64,
    /// Of the prompt, what came from the cache.
    pub cached_tokens: u64,
    /// The reply.
    pub completion_tokens: u64,
}

impl TurnResult {
    /// A turn that begins now; until it ends it is one that was cut.
    pub(super) fn begin(session: &Session, turn: u32, workload_started: Instant) -> Self {
        Self {
            session: session.number(),
            turn,
            is_subagent: session.is_subagent,
            is_last: session.turn(turn + 1).is_none(),
            pieces: 0,
            started: workload_started.elapsed(),
            first_token: None,
            total: Duration::ZERO,
            outcome: TurnOutcome::Cut,
            status: None,
            usage: None,
            replica: None,
            decision: None,
            said: None,
            retry_after: None,
        }
    }

    fn note_said(&mut self, text: &str) {
        let end = (0..=SAID_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.said = Some(text[..end].to_owned());
    }

    fn see_head(&mut self, status: u16, headers: &HeaderMap) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        self.status = Some(status);
        self.replica = text("x-kvpin-replica");
        self.decision = text("x-kvpin-decision");
        self.retry_after = text("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    }
}

/// Asks and reads the reply to its end. Returns its text if it is complete; everything else is in `result`, also when this
/// is dropped before its end.
pub(super) async fn perform(
    client: &HttpClient,
    request: http::Result<Request<Full<Bytes>>>,
    dialect: AgentDialect,
    result: &mut TurnResult,
) -> Option<String> {
    let mut watch = Watch { sent: Instant::now(), result };
    match watch.converse(client, request, dialect).await {
        Ok(reply) => {
            watch.result.outcome = TurnOutcome::Complete;
            Some(reply)
        }
        Err(outcome) => {
            watch.result.outcome = outcome;
            None
        }
    }
}

/// Keeps the time of a turn; its end is when this is dropped.
struct Watch<'a> {
    sent: Instant,
    result: &'a mut TurnResult,
}

impl Watch<'_> {
    async fn converse(
        &mut self,
        client: &HttpClient,
        request: http::Result<Request<Full<Bytes>>>,
        dialect: AgentDialect,
    ) -> Result<String, TurnOutcome> {
        let no_answer = TurnOutcome::Failed(TurnFailure::NoAnswer);
        let request = request.map_err(|error| self.fail(&error, no_answer))?;
        let answer = client.request(request).await.map_err(|error| self.fail(&error, no_answer))?;
        self.result.see_head(answer.status().as_u16(), answer.headers());
        if !answer.status().is_success() {
            // Read to its end, so that the connection can be used again.
            return match answer.into_body().collect().await {
                Ok(body) => {
                    self.result.note_said(&String::from_utf8_lossy(&body.to_bytes()));
                    Err(TurnOutcome::Refused)
                }
                Err(_) => Err(TurnOutcome::Failed(TurnFailure::CutOff)),
            };
        }
        self.listen(answer.into_body(), dialect).await.map_err(TurnOutcome::Failed)
    }

    /// Keeps what an error and its causes say.
    fn fail(&mut self, error: &dyn std::error::Error, outcome: TurnOutcome) -> TurnOutcome {
        let causes = std::iter::successors(Some(error), |error| error.source());
        self.result.note_said(&causes.map(ToString::to_string).collect::<Vec<_>>().join(": "));
        outcome
    }

    fn note_piece(&mut self) {
        self.result.first_token.get_or_insert(self.sent.elapsed());
        self.result.pieces += 1;
    }

    /// Reads events until the body ends. It must say that it is complete, and then end properly.
    async fn listen(&mut self, mut body: Incoming, dialect: AgentDialect) -> Result<String, TurnFailure> {
        let (mut lines, mut reply, mut complete) = (Lines::default(), String::new(), false);
        while let Some(frame) = body.frame().await {
            let Ok(chunk) = frame.map_err(|_| TurnFailure::CutOff)?.into_data() else { continue };
            lines.push(&chunk)?;
            while let Some(line) = lines.pop() {
                let Some(data) = line.strip_prefix("data:") else { continue };
                match dialect.read(data.trim()) {
                    Sign::Text(text) => {
                        self.note_piece();
                        reply.push_str(&text);
                    }
                    Sign::Generated => self.note_piece(),
                    Sign::Usage(usage) => self.result.usage = Some(usage),
                    Sign::End => complete = true,
                    Sign::Error => {
                        self.result.note_said(data.trim());
                        return Err(TurnFailure::InStream);
                    }
                    Sign::Nothing => {}
                }
            }
        }
        if complete { Ok(reply) } else { Err(TurnFailure::CutOff) }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.result.total = self.sent.elapsed();
    }
}

/// Splits a body into lines, wherever its chunks end. vLLM's events have one `data` line each, so lines are enough.
#[derive(Debug, Default)]
struct Lines {
    bytes: Vec<u8>,
    read: usize,
}

impl Lines {
    fn push(&mut self, chunk: &[u8]) -> Result<(), TurnFailure> {
        self.bytes.drain(..std::mem::take(&mut self.read));
        if self.bytes.len() + chunk.len() > LONGEST_LINE {
            return Err(TurnFailure::InStream);
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    fn pop(&mut self) -> Option<String> {
        let rest = &self.bytes[self.read..];
        let length = memchr::memchr(b'\n', rest)?;
        self.read += length + 1;
        Some(String::from_utf8_lossy(&rest[..length]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_wherever_chunks_end() {
        let text = "data: a\n\n: comment\r\ndata: bc\n\nrest";
        for size in 1..text.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk).expect("short");
                found.extend(std::iter::from_fn(|| lines.pop()));
            }
            assert_eq!(found, ["data: a", "", ": comment\r", "data: bc", ""]);
        }
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let mut lines = Lines::default();
        let outcome = (0..=16).try_for_each(|_| lines.push(&[b'a'; LONGEST_LINE / 16]));
        assert_eq!(outcome, Err(TurnFailure::InStream));
    }
}
