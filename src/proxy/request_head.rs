//! The head of a request as a replica gets it: the client's, without what concerns only the client's connection and without
//! what is between client and kvpin.
//!
//! What is stripped follows Pingora 0.9.1 (`proxy_common.rs`), whose own code for it can't be called.

use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING,
};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;

use super::context::Context;
use super::hop_by_hop;
use super::identify::{RANK_HEADER, REPLICA_HEADER};

/// What vLLM takes for a session; it tells the events of its KV cache apart by it and decides nothing.
const SESSION_HEADER: &str = "x-session-id";

/// What else is between the client and kvpin. Replicas are spoken to in HTTP/1.1, and framed anew.
const OF_CLIENT: [HeaderName; 5] =
    [HeaderName::from_static("http2-settings"), PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING];

/// What a client shows to be let in: here, or by habit elsewhere. It is kvpin's to judge, so no engine sees it.
const OF_CALLER: [HeaderName; 5] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
    COOKIE,
];

/// Headers that a client can't have removed by naming them in `Connection`. Without a length a body would go out in chunks;
/// the others say who asks, and whom (CVE-2026-105299 was about those in Pingora).
const PROTECTED: [&str; 5] = ["content-length", "host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// The head for the replica that the lease is for.
pub fn for_replica(session: &mut ServerSession, context: &Context) -> Result<Box<RequestHeader>> {
    let mut head = Box::new(session.req_header().clone());
    head.set_version(http::Version::HTTP_11);
    strip_hop_by_hop(&mut head);
    join_cookies(&mut head)?;
    if let Some(body) = &context.body {
        body.announce(&mut head)?;
    }
    if !session.is_body_empty() && !head.headers.contains_key(CONTENT_LENGTH) {
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    if !head.headers.contains_key(HOST) {
        // HTTP/2 has another place for it, and in HTTP/1.0 there may be none.
        let authority = head.uri.authority().map(ToString::to_string);
        let replica = context.lease.as_ref().map(|lease| lease.replica().address.to_string());
        head.insert_header(HOST, authority.or(replica).unwrap_or_default())?;
    }
    // kvpin has read or will read the body, so the client was already told to go on.
    head.remove_header(&EXPECT);
    head.remove_header(REPLICA_HEADER);
    authorize(&mut head, context)?;
    if let Some(rank) = context.lease.as_ref().and_then(|lease| lease.replica().rank) {
        head.insert_header(RANK_HEADER, rank.to_string())?;
    } else if !context.passes_rank() {
        head.remove_header(RANK_HEADER);
    }
    if let Some(key) = context.session_id_to_send()
        && !head.headers.contains_key(SESSION_HEADER)
    {
        head.insert_header(SESSION_HEADER, key.to_string())?;
    }
    Ok(head)
}

/// On HTTP/2 a client may send its cookies one by one; HTTP/1 knows one such header (RFC 9113, section 8.2.3).
fn join_cookies(head: &mut RequestHeader) -> Result<()> {
    let crumbs: Vec<_> = head.headers.get_all(COOKIE).iter().map(|crumb| crumb.as_bytes()).collect();
    if crumbs.len() < 2 {
        return Ok(());
    }
    let joined = crumbs.join(&b"; "[..]);
    head.insert_header(COOKIE, joined)
}

/// Has the engine see its own key, if it has one, and never one that is kvpin's to judge. Where there are neither, what the
/// client sends goes on: an engine may ask for it.
fn authorize(head: &mut RequestHeader, context: &Context) -> Result<()> {
    let authorization = context.request.as_ref().and_then(|request| request.model.upstream_authorization.as_ref());
    if context.caller.has_key() || authorization.is_some() {
        for name in &OF_CALLER {
            head.remove_header(name);
        }
    }
    if let Some(authorization) = authorization {
        head.insert_header(AUTHORIZATION, authorization)?;
    }
    Ok(())
}

/// Takes away the headers of the connection and those that `Connection` names.
fn strip_hop_by_hop(head: &mut RequestHeader) {
    for name in hop_by_hop::of_connection(&head.headers, &PROTECTED).iter().chain(&OF_CLIENT) {
        head.remove_header(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_that_came_one_by_one_are_one_header() {
        let mut head = RequestHeader::build("POST", b"/v1/messages", None).unwrap();
        join_cookies(&mut head).unwrap();
        assert!(!head.headers.contains_key(COOKIE));
        for crumb in ["a=1", "b=2; c=3", "d"] {
            head.append_header("cookie", crumb).unwrap();
        }
        join_cookies(&mut head).unwrap();
        let cookies: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; b=2; c=3; d"]);
    }

    #[test]
    fn what_belongs_to_the_clients_connection_is_stripped_and_nothing_else() {
        let mut head = RequestHeader::build("POST", b"/v1/messages", None).unwrap();
        for (name, value) in [
            ("Connection", "keep-alive, X-Hop, Host, content-length"),
            ("Connection", "X-Forwarded-For, \"quoted\", ,"),
            ("Keep-Alive", "timeout=5"),
            ("X-Hop", "1"),
            ("Upgrade", "websocket"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Host", "kvpin.test"),
            ("Content-Length", "3"),
            ("X-Forwarded-For", "10.0.0.1"),
            ("X-Stays", "1"),
        ] {
            head.append_header(name, value).unwrap();
        }
        strip_hop_by_hop(&mut head);
        let mut left: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "host", "x-forwarded-for", "x-stays"]);
    }
}
