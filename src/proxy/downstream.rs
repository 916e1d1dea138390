//! Towards the clients: how long they may take, and what becomes of the body of a request that was refused.

use std::time::Duration;

use log::debug;
use pingora::proxy::Session;

use crate::config::Limits;

use super::body::announced_length;

/// How long the rest of a refused request's body is read to keep its connection.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long a body may take to arrive between two reads; pingora's own default is one minute.
pub fn set_timeouts(session: &mut Session, limits: &Limits) {
    session.set_read_timeout(Some(limits.body_timeout));
    session.set_write_timeout(Some(limits.write_timeout));
    // Where it is off, the request was HTTP/1.0, had ambiguous framing, or the process is shutting down.
    if session.get_keepalive().is_some() {
        session.set_keepalive(Some(limits.keepalive_timeout.as_secs()));
    }
    session.set_total_drain_timeout(Some(DRAIN_MAX));
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
