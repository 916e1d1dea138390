//! One request on one connection to a replica: its body on the way there, its response on the way back, and all the while
//! an eye on the client, which may leave.

use bytes::Bytes;
use log::debug;
use pingora::http::ResponseHeader;
use pingora::protocols::http::HttpTask;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use tokio::time::Duration;

use super::alarm::Alarm;
use super::body::RequestBody;
use super::context::Context;
use super::downstream;
use super::refusal::Refusal;
use super::request_head;

/// A request that has begun.
pub struct Exchange {
    replica: HttpSession,
    upload: Upload,
    /// Whether the response has come to its proper end. Nothing is waited for behind it: a client that has all of its answer
    /// may ask for the next thing at once, and that would look as if it had left in the middle.
    has_ended: bool,
    /// Rings when the client is silent in the middle of its body. Only on HTTP/2, for which Pingora has none.
    body_alarm: Option<Alarm>,
}

/// What comes next.
#[derive(Debug)]
pub enum Event {
    Head(Box<ResponseHeader>),
    /// Never empty.
    Data(Bytes),
    /// The response has come to its proper end.
    End,
    /// Nothing came for as long as the alarm was set for.
    Silence,
}

/// Where the request's body is.
enum Upload {
    /// The client has more of it.
    Coming,
    /// The replica has all of it.
    Sent,
    /// The replica doesn't take the rest. It may have answered before.
    Refused(Box<Error>),
    /// A piece is being written. One that is given up half-way leaves it so: nothing more can be sent on the connection, and
    /// nothing else may use it.
    Writing,
}

impl Exchange {
    /// Sends the head, and of the body what is at hand.
    ///
    /// # Errors
    /// Of the replica, if it could not be written to; of the client, if it has left; kvpin's own refusals.
    pub async fn begin(
        replica: HttpSession,
        session: &mut Session,
        context: &mut Context,
        body_timeout: Duration,
    ) -> Result<Self> {
        let may_stall = session.as_http2().is_some() && !session.is_body_done();
        let body_alarm = may_stall.then(|| Alarm::new(Some(body_timeout)));
        let mut exchange = Exchange { replica, upload: Upload::Coming, has_ended: false, body_alarm };
        let head = request_head::for_replica(session, context)?;
        exchange.replica.write_request_header(head).await.map_err(Error::into_up)?;
        let first = context.body.as_mut().map(RequestBody::begin_attempt).unwrap_or_default();
        let is_last = session.is_body_done();
        exchange.send(session, first, is_last).await?;
        Ok(exchange)
    }

    /// Waits for what comes next of the response, while the rest of the request goes out. Dropped while it waits it loses
    /// nothing; dropped while a piece goes out it ends the sending, and the response can still be read.
    ///
    /// # Errors
    /// Of the replica (`ErrorSource::Upstream`), if the response broke off; of the client, if it has left; kvpin's own refusals.
    pub async fn next(&mut self, session: &mut Session, context: &mut Context, alarm: &mut Alarm) -> Result<Event> {
        loop {
            if self.has_ended {
                return Ok(Event::End);
            }
            let is_sent = matches!(self.upload, Upload::Sent);
            let is_refused = matches!(self.upload, Upload::Refused(_) | Upload::Writing);
            tokio::select! {
                task = self.replica.read_response_task() => {
                    if let Some(event) = self.response_event(task)? {
                        return Ok(event);
                    }
                }
                piece = heard(session, is_sent, is_refused) => {
                    let piece = piece.map_err(Error::into_down)?;
                    let is_last = session.is_body_done() || piece.is_none();
                    let piece = outgoing(session, context, piece.unwrap_or_default())?;
                    self.send(session, piece, is_last).await?;
                    if let Some(alarm) = &mut self.body_alarm {
                        alarm.put_off();
                    }
                }
                () = rings(&mut self.body_alarm), if !is_sent && !is_refused => return Err(downstream::stalled()),
                () = alarm.rings() => return Ok(Event::Silence),
            }
        }
    }

    /// Whether the response has come to its end, so that what is at hand of it is the last.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The connection, if the next request may use it.
    pub fn into_reusable(self) -> Option<HttpSession> {
        matches!(self.upload, Upload::Sent).then_some(self.replica)
    }

    fn response_event(&mut self, task: Result<HttpTask>) -> Result<Option<Event>> {
        let task = task.map_err(|error| match std::mem::replace(&mut self.upload, Upload::Sent) {
            Upload::Refused(cause) => cause,
            Upload::Coming | Upload::Sent | Upload::Writing => error.into_up(),
        })?;
        Ok(match task {
            HttpTask::Header(head, _) if head.status == http::StatusCode::SWITCHING_PROTOCOLS => {
                return Err(Error::explain(ErrorType::InvalidHTTPHeader, "an upgrade that nobody asked for").into_up());
            }
            // An interim response says nothing that a client would wait for: it has been told to go on with its body.
            HttpTask::Header(head, _) if head.status.is_informational() => None,
            HttpTask::Header(head, is_last) => {
                self.has_ended = is_last;
                Some(Event::Head(head))
            }
            HttpTask::Body(data, is_last) | HttpTask::UpgradedBody(data, is_last) => {
                self.has_ended = is_last;
                data.filter(|data| !data.is_empty()).map(Event::Data)
            }
            HttpTask::Trailer(_) => None,
            HttpTask::Done => {
                self.has_ended = true;
                None
            }
            HttpTask::Failed(error) => return Err(error.into_up()),
        })
    }

    /// Sends a piece of the body, while a client that has nothing more to send is watched.
    async fn send(&mut self, session: &mut Session, piece: Bytes, is_last: bool) -> Result<()> {
        self.upload = Upload::Writing;
        let written = tokio::select! {
            written = write(&mut self.replica, piece, is_last) => written,
            error = downstream::left(session), if session.is_body_done() || session.as_http2().is_some() => {
                return Err(error);
            }
        };
        self.upload = match written {
            Ok(()) if is_last => Upload::Sent,
            Ok(()) => Upload::Coming,
            // One that takes nothing for so long isn't waited for to say something.
            Err(error) if *error.etype() == ErrorType::WriteTimedout => return Err(error.into_up()),
            Err(error) => {
                debug!("a replica doesn't take the body: {}", error.etype().as_str());
                Upload::Refused(error.into_up())
            }
        };
        Ok(())
    }
}

/// What goes out in the place of a piece that has come in.
fn outgoing(session: &Session, context: &mut Context, piece: Bytes) -> Result<Bytes> {
    let Some(body) = &mut context.body else { return Ok(piece) };
    if let Some(bytes_max) = body.is_over(session.body_bytes_read()) {
        // The replica sees its request break off.
        return Err(context.refused(Refusal::BodyTooLarge { bytes_max }));
    }
    Ok(body.pass(piece))
}

async fn write(replica: &mut HttpSession, piece: Bytes, is_last: bool) -> Result<()> {
    // In chunks, an empty piece would be the end.
    if !piece.is_empty() {
        replica.write_body(&piece).await?;
    }
    if is_last {
        replica.finish_body().await?;
    }
    Ok(())
}

/// What the client does next: it sends more of its body or, when it has none or nobody takes it, it leaves. On HTTP/1 that can't
/// be seen behind a body that nobody takes.
async fn heard(session: &mut Session, is_sent: bool, is_refused: bool) -> Result<Option<Bytes>> {
    match (is_refused, session.as_http2().is_some()) {
        (false, _) => session.as_mut().read_body_or_idle(is_sent).await,
        (true, true) => Err(downstream::left(session).await),
        (true, false) => std::future::pending().await,
    }
}

async fn rings(alarm: &mut Option<Alarm>) {
    match alarm {
        Some(alarm) => alarm.rings().await,
        None => std::future::pending().await,
    }
}
