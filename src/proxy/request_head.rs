//! The head of a request as a replica gets it: the client's, without what concerns only the client's connection and without
//! what is between client and kvpin.
//!
//! What is stripped follows Pingora 0.9.1 (`proxy_common.rs`), whose own code for it can't be called.

use http::header::{
    CONTENT_LENGTH, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING,
};
use pingora::Result;
use pingora::http::RequestHeader;
use pingora::proxy::Session;

use super::context::Context;
use super::hop_by_hop;
use super::identify::{RANK_HEADER, REPLICA_HEADER};

/// What vLLM takes for a session; it tells the events of its KV cache apart by it and decides nothing.
const SESSION_HEADER: &str = "x-session-id";

/// What else is between the client and kvpin. Replicas are spoken to in HTTP/1.1, and framed anew.
const OF_CLIENT: [HeaderName; 5] =
    [HeaderName::from_static("http2-settings"), PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING];

/// Headers that a client can't have removed by naming them in `Connection`. Without a length a body would go out in chunks;
/// the others say who asks, and whom (CVE-2026-105299 was about those in Pingora).
const PROTECTED: [&str; 5] = ["content-length", "host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// The head for the replica that the lease is for.
pub fn for_replica(session: &mut Session, context: &Context) -> Result<Box<RequestHeader>> {
    let mut head = Box::new(session.req_header().clone());
    head.set_version(http::Version::HTTP_11);
    strip_hop_by_hop(&mut head);
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
