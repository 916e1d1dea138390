//! One try of a turn on one replica, up to the point where the replica's answer has shown what it is.
//!
//! vLLM's 200 head comes before the work and its errors come after it, in the stream ([`super::first_event`]). So the head
//! and the beginning of a stream are held back until the first event is there. Until then the turn can go to another
//! replica, and the client sees one good response.
//!
//! A long prefill would keep the client without a head for minutes, and clients give up on that (Claude Code after 360 s, and
//! its screen looks dead after 20 s). So after [`HEAD_HELD_MAX`], or the ping interval if that is shorter, the head goes out
//! and pings follow it. That costs the status line: what fails now can't become a 503 any more. It doesn't cost the other
//! replicas: the client has no content yet, so the turn may still move, and its stream goes on behind the pings. Only if no
//! replica is left is the failure told as an event ([`super::in_stream`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorSource, ErrorType, Result};
use tokio::time::{Instant, timeout};

use crate::config::Limits;
use crate::dispatch::Table;

use super::Proxy;
use super::alarm::Alarm;
use super::context::Context;
use super::down::Waited;
use super::downstream;
use super::exchange::{Event, Exchange};
use super::first_event::{FirstEvent, LOOKED_AT_MAX, Shown, trouble_of_500};
use super::pings::Pings;
use super::refusal::Refusal;
use super::response_head;
use super::trouble::Trouble;

/// How long a client waits for a stream's head at most once the replica has sent it: what Claude Code's gateway guide asks for.
const HEAD_HELD_MAX: Duration = Duration::from_secs(15);

/// How long the rest of an error is waited for. vLLM writes an error whole.
pub(super) const ERROR_WAIT: Duration = Duration::from_secs(5);

/// How soon a pooled connection breaks that the replica had closed before the request came. What breaks later has been
/// taken, and maybe worked on.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// One try.
pub struct Attempt<'a> {
    pub(super) proxy: &'a Proxy,
    pub(super) table: Arc<Table>,
    pub(super) session: &'a mut ServerSession,
    pub(super) context: &'a mut Context,
    pub(super) alarm: Alarm,
    pub(super) pings: Pings,
}

/// How an answer begins.
pub enum Opening {
    /// The client is to have it.
    Good(Answer),
    /// Another replica may do better. With the answer, if it is one that a client could be given.
    Bad(Trouble, Option<Kept>),
}

/// An answer, as far as it has been read.
pub struct Answer {
    pub head: Box<ResponseHeader>,
    /// What has been read of the body.
    pub begun: Bytes,
    pub has_ended: bool,
    pub is_stream: bool,
}

/// An engine's whole answer that is an error, for the case that no other replica does better.
pub struct Kept {
    /// As the client gets it.
    pub head: Box<ResponseHeader>,
    pub body: Bytes,
    /// Of the error; that of the head may be 200.
    pub status: StatusCode,
}

/// A try that broke off.
struct Broken {
    error: Box<Error>,
    had_head: bool,
}

/// An error's body, as far as it has been read.
enum ErrorBody {
    Whole(Bytes),
    /// It is too long for an error, or too slow.
    Begun(Bytes),
}

impl<'a> Attempt<'a> {
    pub fn new(proxy: &'a Proxy, session: &'a mut ServerSession, context: &'a mut Context) -> Self {
        let table = proxy.routing.table();
        let pings = Pings::new(context.dialect, table.config.limits.ping_interval);
        Attempt { proxy, table, session, context, alarm: Alarm::new(None), pings }
    }

    /// Sends the turn to a replica and waits until its answer shows what it is. The exchange is at hand if the answer goes on.
    ///
    /// # Errors
    /// What ends the turn: the client has left, or kvpin refuses.
    pub async fn open(&mut self, connection: Stream, is_pooled: bool) -> Result<(Opening, Option<Exchange>)> {
        let begun = Instant::now();
        let waited = self.context.lease.as_ref().map(Waited::on);
        let opened = match waited {
            Some(waited) => tokio::select! {
                opened = self.opened(connection) => opened,
                () = waited.until_down() => return self.went_down(),
            },
            None => self.opened(connection).await,
        };
        match opened {
            Ok((opening, exchange)) => Ok((opening, Some(exchange))),
            Err(Broken { error, had_head }) => {
                let is_stale = is_pooled && !had_head && begun.elapsed() < STALE_WITHIN;
                Ok((self.broken(error, is_stale)?, None))
            }
        }
    }

    /// Sends the request, and waits until the answer has shown what it is.
    async fn opened(&mut self, connection: Stream) -> std::result::Result<(Opening, Exchange), Broken> {
        let write_timeout = self.limits().write_timeout;
        let exchange = Exchange::begin(connection, self.session, self.context, write_timeout);
        let mut exchange = exchange.map_err(Broken::before_head)?;
        self.proxy.sent(self.context);
        let head = self.head(&mut exchange).await.map_err(Broken::before_head)?;
        let opening = match head.status {
            StatusCode::OK if response_head::is_stream(&head) => self.stream(&mut exchange, head).await,
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
                self.engine_error(&mut exchange, head).await
            }
            _ => self.with_what_came(&mut exchange, head).await,
        };
        let opening = opening.map_err(|error| Broken { error, had_head: true })?;
        Ok((opening, exchange))
    }

    /// An answer with what of its body came together with its head, so that both go on together.
    async fn with_what_came(&mut self, exchange: &mut Exchange, head: Box<ResponseHeader>) -> Result<Opening> {
        let came = tokio::select! {
            biased;
            event = exchange.next(self.session, self.context, &mut self.alarm) => Some(event?),
            () = std::future::ready(()) => None,
        };
        let begun = match came {
            Some(Event::Data(begun)) => begun,
            Some(Event::End | Event::Silence) | None => Bytes::new(),
            Some(Event::Head(_)) => return Err(second_head()),
        };
        Ok(Opening::Good(Answer { head, begun, has_ended: exchange.has_ended(), is_stream: false }))
    }

    /// The replica was found to be down. If that has cut off what was being written to the client, the client can't be given
    /// another answer.
    fn went_down(&self) -> Result<(Opening, Option<Exchange>)> {
        if self.context.is_writing {
            return Err(Error::explain(ErrorType::WriteTimedout, "the client takes nothing").into_down());
        }
        Ok((Opening::Bad(Trouble::WentDown, None), None))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.table.config.limits
    }

    /// What an error means, if it is the replica's. A pooled connection that carried nothing was stale.
    fn broken(&self, error: Box<Error>, is_pooled: bool) -> Result<Opening> {
        let is_garbage = *error.etype() == ErrorType::InvalidHTTPHeader;
        match error.esource() {
            ErrorSource::Upstream if is_pooled && !is_garbage && !self.context.reconnected => {
                Ok(Opening::Bad(Trouble::StaleConnection, None))
            }
            ErrorSource::Upstream => Ok(Opening::Bad(Trouble::BrokeOff, None)),
            ErrorSource::Downstream | ErrorSource::Internal | ErrorSource::Unset => Err(error),
        }
    }

    /// Waits for the response's head. A client that has a stream's head already is sent pings meanwhile.
    async fn head(&mut self, exchange: &mut Exchange) -> Result<Box<ResponseHeader>> {
        let response_timeout = self.limits().response_timeout;
        let deadline = Instant::now() + response_timeout;
        let interval = self.limits().ping_interval.filter(|_| self.context.kept_waiting);
        self.alarm.set(Some(interval.unwrap_or(response_timeout).min(response_timeout)));
        loop {
            match exchange.next(self.session, self.context, &mut self.alarm).await? {
                Event::Head(head) => return Ok(head),
                Event::Silence if Instant::now() >= deadline => {
                    let after_s = response_timeout.as_secs();
                    return Err(self.context.refused(Refusal::ResponseTimedOut { after_s }));
                }
                Event::Silence => self.ping().await?,
                Event::Data(_) | Event::End => {
                    return Err(Error::explain(ErrorType::InvalidHTTPHeader, "a body without a head").into_up());
                }
            }
        }
    }

    /// Holds a stream back until its first event is there.
    async fn stream(&mut self, exchange: &mut Exchange, mut head: Box<ResponseHeader>) -> Result<Opening> {
        response_head::for_client(&mut head, self.context, &self.table)?;
        let interval = self.limits().ping_interval;
        let hold = interval.unwrap_or(HEAD_HELD_MAX).min(HEAD_HELD_MAX);
        let release_at = Instant::now() + hold;
        self.alarm.set(if self.context.kept_waiting { interval } else { Some(hold) });
        let mut first = FirstEvent::default();
        loop {
            let event = exchange.next(self.session, self.context, &mut self.alarm).await?;
            match event {
                Event::Data(chunk) => match first.push(chunk) {
                    Shown::Nothing if self.context.kept_waiting || Instant::now() >= release_at => {
                        self.release(&head, &mut first).await?;
                    }
                    Shown::Nothing => {}
                    Shown::Content => {
                        self.pings.engine_pings |= first.engine_pings;
                        let answer = Answer { head, begun: first.take(), has_ended: false, is_stream: true };
                        return Ok(Opening::Good(answer));
                    }
                    Shown::EngineError(error) => {
                        let kept = self.keep(exchange, head, first.take()).await?;
                        let kept = kept.map(|kept| Kept { status: error.status, ..kept });
                        return Ok(Opening::Bad(error.trouble, kept));
                    }
                },
                Event::Silence => {
                    let is_due = self.context.kept_waiting || interval.is_some_and(|interval| interval <= hold);
                    self.release(&head, &mut first).await?;
                    if is_due {
                        self.ping().await?;
                    }
                }
                // A clean end without an event is no answer either: an engine that is shut down ends its streams so.
                Event::End => return Ok(Opening::Bad(Trouble::BrokeOff, None)),
                Event::Head(_) => return Err(second_head()),
            }
        }
    }

    /// Lets the client have the head, and what the engine has sent to keep the connection alive.
    async fn release(&mut self, head: &ResponseHeader, first: &mut FirstEvent) -> Result<()> {
        if !self.context.kept_waiting {
            let head = Box::new(head.clone());
            self.proxy.announce_departure(self.session);
            self.context.is_writing = true;
            downstream::write_head(self.session, head, false).await?;
            self.context.is_writing = false;
            self.context.kept_waiting = true;
            // From here on it is the ping interval that counts.
            self.alarm.set(self.limits().ping_interval);
        }
        self.pings.engine_pings |= first.engine_pings;
        let idle = first.take_idle();
        if idle.is_empty() {
            return Ok(());
        }
        self.alarm.put_off();
        self.say(idle).await
    }

    /// Writes something to a client that waits for its answer.
    pub(super) async fn say(&mut self, bytes: Bytes) -> Result<()> {
        self.context.is_writing = true;
        self.session.write_response_body(bytes, false).await.map_err(Error::into_down)?;
        self.context.is_writing = false;
        Ok(())
    }

    /// Reads an error of the engine's, to see whose it is and to keep it.
    async fn engine_error(&mut self, exchange: &mut Exchange, mut head: Box<ResponseHeader>) -> Result<Opening> {
        response_head::for_client(&mut head, self.context, &self.table)?;
        let status = head.status;
        let body = match self.error_body(exchange, BytesMut::new()).await {
            Err(error) if *error.esource() == ErrorSource::Upstream && status != StatusCode::INTERNAL_SERVER_ERROR => {
                return Ok(Opening::Bad(Trouble::Failing, None));
            }
            body => body?,
        };
        let trouble = match (&body, status) {
            (ErrorBody::Whole(body), StatusCode::INTERNAL_SERVER_ERROR) => trouble_of_500(body),
            (ErrorBody::Begun(_), StatusCode::INTERNAL_SERVER_ERROR) => None,
            _ => Some(Trouble::Failing),
        };
        let Some(trouble) = trouble else { return Ok(Opening::Good(answered(head, body))) };
        let kept = match body {
            ErrorBody::Whole(body) => Some(Kept { head, body, status }),
            ErrorBody::Begun(_) => None,
        };
        Ok(Opening::Bad(trouble, kept))
    }

    /// A stream that is an error, with its rest, if it comes to an end.
    async fn keep(&mut self, exchange: &mut Exchange, head: Box<ResponseHeader>, begun: Bytes) -> Result<Option<Kept>> {
        let status = head.status;
        match self.error_body(exchange, BytesMut::from(begun)).await {
            Ok(ErrorBody::Whole(body)) => Ok(Some(Kept { head, body, status })),
            Ok(ErrorBody::Begun(_)) => Ok(None),
            Err(error) if *error.esource() == ErrorSource::Upstream => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads an error to its end, for as long and as far as an error goes. One that breaks off is none.
    async fn error_body(&mut self, exchange: &mut Exchange, mut body: BytesMut) -> Result<ErrorBody> {
        let (session, context, alarm) = (&mut *self.session, &mut *self.context, &mut self.alarm);
        alarm.set(None);
        let reading = async {
            while body.len() <= LOOKED_AT_MAX {
                match exchange.next(session, context, alarm).await? {
                    Event::Data(chunk) => body.extend_from_slice(&chunk),
                    Event::End => return Ok(true),
                    Event::Head(_) | Event::Silence => return Err(second_head()),
                }
            }
            Ok(false)
        };
        let is_whole = timeout(ERROR_WAIT, reading).await.unwrap_or(Ok(false))?;
        let body = body.freeze();
        Ok(if is_whole { ErrorBody::Whole(body) } else { ErrorBody::Begun(body) })
    }
}

impl Broken {
    fn before_head(error: Box<Error>) -> Self {
        Broken { error, had_head: false }
    }
}

fn answered(head: Box<ResponseHeader>, body: ErrorBody) -> Answer {
    let (begun, has_ended) = match body {
        ErrorBody::Whole(body) => (body, true),
        ErrorBody::Begun(body) => (body, false),
    };
    Answer { head, begun, has_ended, is_stream: false }
}

fn second_head() -> Box<Error> {
    Error::explain(ErrorType::InvalidHTTPHeader, "a second head").into_up()
}
