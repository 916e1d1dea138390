//! Towards the clients: how long they may take, and what becomes of the body of a request that was refused.

use std::time::Duration;

use bytes::Bytes;
use log::debug;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::proxy::Session;
use pingora::{Error, ErrorType, Result};
use tokio::time::timeout;

use crate::config::Limits;

use super::body::announced_length;

/// How long the rest of a refused request's body is read to keep its connection.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long a body may take to arrive between two reads; pingora's own default is one minute. On HTTP/2 [`read`] sees to that.
pub fn set_timeouts(session: &mut Session, limits: &Limits) {
    session.set_read_timeout(Some(limits.body_timeout));
    session.set_write_timeout(Some(limits.write_timeout));
    // Where it is off, the request was HTTP/1.0, had ambiguous framing, or the process is shutting down.
    if session.get_keepalive().is_some() {
        session.set_keepalive(Some(limits.keepalive_timeout.as_secs()));
    }
    session.set_total_drain_timeout(Some(DRAIN_MAX));
}

/// Writes a response's head. Where no body can follow it, HTTP/2 wants the stream to end with it: a client may take an end that
/// comes later for the end of a body that was announced and has not come.
pub async fn write_head(session: &mut Session, head: Box<ResponseHeader>, is_all: bool) -> Result<()> {
    match session.as_mut() {
        ServerSession::H2(stream) if is_all => stream.write_response_header(head, true),
        _ => session.write_response_header(head, is_all).await,
    }
    .map_err(Error::into_down)
}

/// The next piece of a request's body; `None` at its end. Pingora's own patience is for HTTP/1 only.
pub async fn read(session: &mut Session, patience: Duration) -> Result<Option<Bytes>> {
    if session.as_http2().is_none() {
        return session.read_request_body().await;
    }
    timeout(patience, session.read_request_body()).await.unwrap_or_else(|_| Err(stalled()))
}

/// Waits until a client leaves, without reading anything of its body where that is possible. On HTTP/1 it has to have sent all
/// of it.
pub async fn left(session: &mut Session) -> Box<Error> {
    let left = match session.as_mut().watch_h2_stream_close() {
        Some(closing) => closing.await.map(|_| ()),
        None => session.as_mut().read_body_or_idle(true).await.map(|_| ()),
    };
    match left {
        Err(error) => error.into_down(),
        Ok(()) if session.as_http2().is_some() => {
            Error::explain(ErrorType::ConnectionClosed, "the client has left").into_down()
        }
        Ok(()) => std::future::pending().await,
    }
}

/// The client has sent nothing of its body for too long.
pub fn stalled() -> Box<Error> {
    Error::explain(ErrorType::ReadTimedout, "the body stopped arriving").into_down()
}

/// Whether the rest of a refused request's body may be read so that its connection can be used again: not a body over the
/// limit, nor one that its client holds back until it is told to go on.
pub fn is_worth_draining(session: &mut Session, limits: &Limits) -> bool {
    if session.is_body_done() {
        return true;
    }
    let waits = session.req_header().headers.contains_key(http::header::EXPECT) && session.response_written().is_none();
    !waits && announced_length(&session.req_header().headers).is_none_or(|length| length <= limits.body_bytes_max)
}

/// Reads on for a moment before a connection is closed. Closed at once, with bytes of the body unread, it would be reset,
/// and the client could lose the answer that says why.
pub async fn linger(session: &mut Session) {
    if let Err(error) = session.drain_request_body().await {
        debug!("a refused body did not end: {}", error.etype().as_str());
    }
}
