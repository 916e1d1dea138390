//! One request on one connection to a replica: its body on the way there, its response on the way back, and all the while
//! an eye on the client, which may leave.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};

use super::alarm::Alarm;
use super::body::RequestBody;
use super::context::Context;
use super::downstream;
use super::refusal::Refusal;
use super::request_head;
use super::response::{Part, Response};
use super::response_head;
use super::upload::{Piece, Upload};

/// Interim responses (1xx) to one request. vLLM sends none, and other servers one or two.
const INTERIM_MAX: usize = 16;

/// A request that has begun.
pub struct Exchange {
    upload: Upload,
    response: Response,
    interim: usize,
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

impl Exchange {
    /// Begins with the head, and of the body with what is at hand. Nothing is written yet. The replica may take nothing for
    /// `write_timeout`.
    ///
    /// # Errors
    /// If the head can't be written at all.
    pub fn begin(
        connection: Stream,
        session: &mut ServerSession,
        context: &mut Context,
        write_timeout: Duration,
    ) -> Result<Self> {
        let head = request_head::for_replica(session, context)?;
        let bytes = context.body.as_mut().map(RequestBody::begin_attempt).unwrap_or_default();
        let first = Piece { bytes, is_last: session.is_body_done() };
        // Both at the same time: a response may come while the body is still being written, and the replica take no more.
        let (from, to) = tokio::io::split(connection);
        let upload = Upload::new(to, &head, first, write_timeout)?;
        Ok(Exchange { upload, response: Response::new(from), interim: 0 })
    }

    /// Waits for what comes next of the response, while the request goes out. Dropped while it waits, it loses nothing.
    ///
    /// # Errors
    /// Of the replica (`ErrorSource::Upstream`), if it takes nothing or the response broke off; of the client, if it has left;
    /// kvpin's own refusals.
    pub async fn next(
        &mut self,
        session: &mut ServerSession,
        context: &mut Context,
        alarm: &mut Alarm,
    ) -> Result<Event> {
        loop {
            // Behind the end nothing is waited for: a client that has all of its answer may ask for the next thing at once, and that
            // would look as if it had left in the middle.
            if self.response.has_ended() {
                return Ok(Event::End);
            }
            let awaited = Awaited::of(session, &self.upload);
            tokio::select! {
                part = self.response.next() => {
                    if let Some(event) = self.response_event(part)? {
                        return Ok(event);
                    }
                }
                written = self.upload.write(), if self.upload.is_writing() => written?,
                piece = from_client(session, context, awaited), if awaited != Awaited::Nothing => {
                    self.upload.push(piece?);
                }
                () = alarm.rings() => return Ok(Event::Silence),
            }
        }
    }

    /// Whether the response has come to its end, so that what is at hand of it is the last.
    pub fn has_ended(&self) -> bool {
        self.response.has_ended()
    }

    /// The connection, if the next request may use it.
    pub fn into_reusable(self) -> Option<Stream> {
        let Exchange { upload, response, .. } = self;
        let is_reusable = upload.is_sent() && response.leaves_open();
        is_reusable.then(|| response.into_half().unsplit(upload.into_half()))
    }

    fn response_event(&mut self, part: Result<Part>) -> Result<Option<Event>> {
        let part = part.map_err(|error| self.upload.refused().unwrap_or_else(|| error.into_up()))?;
        let head = match part {
            Part::Data(data) => return Ok(Some(Event::Data(data))),
            Part::End => return Ok(Some(Event::End)),
            Part::Head(head) => head,
        };
        let wrong = if head.status == http::StatusCode::SWITCHING_PROTOCOLS {
            "an upgrade that nobody asked for"
        } else if head.status.is_informational() && self.interim < INTERIM_MAX {
            // It says nothing that a client would wait for, which has been told to go on with its body.
            self.interim += 1;
            return Ok(None);
        } else if head.status.is_informational() {
            "interim responses without end"
        } else if response_head::is_garbage(&head) {
            "a head that no engine writes"
        } else {
            return Ok(Some(Event::Head(head)));
        };
        Err(Error::explain(ErrorType::InvalidHTTPHeader, wrong).into_up())
    }
}

/// What a client is heard for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The next piece of its body.
    Piece,
    /// Its leaving.
    Leaving,
    /// Nothing: behind a body that nobody takes, the end of an HTTP/1 client can't be seen.
    Nothing,
}

impl Awaited {
    fn of(session: &mut ServerSession, upload: &Upload) -> Self {
        match (session.is_body_done(), upload.has_room()) {
            (false, true) => Awaited::Piece,
            (false, false) if session.as_http2().is_none() => Awaited::Nothing,
            (false, false) | (true, _) => Awaited::Leaving,
        }
    }
}

/// Waits for the client. There is a piece to be had only where one is awaited.
async fn from_client(session: &mut ServerSession, context: &mut Context, awaited: Awaited) -> Result<Piece> {
    if awaited != Awaited::Piece {
        return Err(downstream::left(session).await);
    }
    let bytes = {
        let reading = pin!(session.read_body_or_idle(false));
        match &mut context.body {
            Some(body) => body.patience().wait(reading).await,
            None => reading.await,
        }
    };
    let bytes = bytes.map_err(Error::into_down)?;
    let is_last = session.is_body_done() || bytes.is_none();
    let bytes = outgoing(session, context, bytes.unwrap_or_default())?;
    Ok(Piece { bytes, is_last })
}

/// What goes out in the place of a piece that has come in.
fn outgoing(session: &ServerSession, context: &mut Context, piece: Bytes) -> Result<Bytes> {
    let Some(body) = &mut context.body else { return Ok(piece) };
    if let Some(bytes_max) = body.is_over(session.body_bytes_read()) {
        // The replica sees its request break off.
        return Err(context.refused(Refusal::BodyTooLarge { bytes_max }));
    }
    Ok(body.pass(piece))
}
