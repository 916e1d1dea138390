//! Towards the clients: how long they may take, and what becomes of the body of a request that was refused.

use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{CONTENT_LENGTH, EXPECT, TRANSFER_ENCODING};
use log::debug;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};
use tokio::time::timeout;

use crate::config::Limits;

use super::body::announced_length;
use super::refusal::Refusal;

/// How long the rest of a refused request's body is read to keep its connection.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long a body may take to arrive between two reads; pingora's own default is one minute. On HTTP/2 [`read`] sees to that.
pub fn set_timeouts(session: &mut ServerSession, limits: &Limits) {
    session.set_read_timeout(Some(limits.body_timeout));
    session.set_write_timeout(Some(limits.write_timeout));
    // Where it is off, the request was HTTP/1.0, had ambiguous framing, or the process is shutting down.
    if session.get_keepalive().is_some() {
        session.set_keepalive(Some(limits.keepalive_timeout.as_secs()));
    }
    session.set_total_drain_timeout(Some(DRAIN_MAX));
}

/// Writes a response's head. Pingora bounds the writing of bodies only. Where no body can follow the head, HTTP/2 wants the
/// stream to end with it: a client may take an end that comes later for the end of a body that was announced and has not come.
pub async fn write_head(session: &mut ServerSession, head: Box<ResponseHeader>, is_all: bool) -> Result<()> {
    if session.req_header().version == Version::HTTP_10 && !head.headers.contains_key(CONTENT_LENGTH) {
        // Its body ends with the connection.
        session.set_keepalive(None);
    }
    let limit = session.get_write_timeout();
    let writing = async {
        match session {
            ServerSession::H2(stream) if is_all => stream.write_response_header(head, true),
            _ => session.write_response_header(head).await,
        }
    };
    bounded(limit, writing).await
}

/// Writes what is left of a response's body, and its end.
pub async fn write_last(session: &mut ServerSession, last: Option<Bytes>) -> Result<()> {
    let limit = session.get_write_timeout();
    bounded(limit, session.write_response_body(last.unwrap_or_default(), true)).await
}

async fn bounded(limit: Option<Duration>, writing: impl Future<Output = Result<()>> + Send) -> Result<()> {
    // Boxed: every open stream would have room for it, and most of them wait for something else.
    let writing = Box::pin(writing);
    let Some(limit) = limit else { return writing.await.map_err(Error::into_down) };
    let written = timeout(limit, writing).await;
    written
        .unwrap_or_else(|_| Error::e_explain(ErrorType::WriteTimedout, "the client takes nothing"))
        .map_err(Error::into_down)
}

/// Waits until a client leaves, without reading anything of its body where that is possible. On HTTP/1 it has to have sent all
/// of it.
pub async fn left(session: &mut ServerSession) -> Box<Error> {
    let left = match session.watch_h2_stream_close() {
        Some(closing) => closing.await.map(|_| ()),
        None => session.read_body_or_idle(true).await.map(|_| ()),
    };
    match left {
        Err(error) => error.into_down(),
        Ok(()) if session.as_http2().is_some() => {
            Error::explain(ErrorType::ConnectionClosed, "the client has left").into_down()
        }
        Ok(()) => std::future::pending().await,
    }
}

/// What it means for a request that nothing more could be read from its client.
pub fn refusal_of(error: &Error) -> Refusal {
    match error.etype() {
        ErrorType::ReadTimedout => Refusal::BodyTimedOut,
        // Pingora's word for bytes that come while nothing is expected but the client's end.
        ErrorType::ConnectError => Refusal::BytesAfterBody,
        // Its words for chunks and trailers that can't be read are its own.
        ErrorType::Custom(_) => Refusal::MalformedBody,
        _ => Refusal::BodyCutShort,
    }
}

/// Whether the rest of a refused request's body may be read so that its connection can be used again: not a body over the
/// limit, nor one that its client holds back until it is told to go on. Nor chunks: a proxy in front could read their
/// extensions otherwise, and then what is the next request here would be a part of this one there.
pub fn is_worth_draining(session: &mut ServerSession, limits: &Limits) -> bool {
    if session.is_body_done() {
        return true;
    }
    let headers = &session.req_header().headers;
    let waits = headers.contains_key(EXPECT) && session.response_written().is_none();
    let is_chunked = headers.contains_key(TRANSFER_ENCODING);
    !waits && !is_chunked && announced_length(headers).is_some_and(|length| length <= limits.body_bytes_max)
}

/// Reads what is left of the body of a request that was answered before its end, for a moment. If the connection is to be used
/// again, this is what lies before the next request. If it is to be closed: closed at once, with bytes of the body unread, it
/// would be reset, and the client could lose the answer that says why.
pub async fn read_to_end(session: &mut ServerSession) {
    if session.is_body_done() {
        return;
    }
    if let Err(error) = session.drain_request_body().await {
        debug!("a refused body did not end: {}", error.etype().as_str());
        session.set_keepalive(None);
    }
}
