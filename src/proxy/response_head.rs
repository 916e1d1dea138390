//! The head of a replica's response as the client gets it.

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{StatusCode, Version};
use pingora::Result;
use pingora::http::ResponseHeader;

use crate::dispatch::Table;

use super::context::Context;
use super::hop_by_hop;
use super::identify::REPLICA_HEADER;

/// What says where a body ends. A replica can't have it removed by naming it in `Connection`.
const FRAMING: [&str; 2] = ["content-length", "transfer-encoding"];

/// The most of a response's head. Clients take 16 KiB to 64 KiB.
const BYTES_MAX: usize = 64 * 1024;

const DECISION_HEADER: &str = "x-kvpin-decision";
/// How long the turn was held until its conversation fit, in milliseconds; absent if it was not.
const HELD_HEADER: &str = "x-kvpin-held-ms";

/// Whether a response is a stream of events that something can be put between.
pub fn is_stream(head: &ResponseHeader) -> bool {
    let is_of_events = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
        let kind = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    });
    is_of_events && !head.headers.contains_key(CONTENT_LENGTH) && !head.headers.contains_key(CONTENT_ENCODING)
}

/// Whether a head is one that no engine writes: clients refuse the size, and a line break in a value would be the end of
/// the line for some of them.
pub fn is_garbage(head: &ResponseHeader) -> bool {
    let mut bytes = 0;
    head.headers.iter().any(|(name, value)| {
        bytes += name.as_str().len() + value.len();
        bytes > BYTES_MAX || memchr::memchr2(b'\r', b'\n', value.as_bytes()).is_some()
    })
}

/// Whether a response of that status has no body, whatever its head says of one.
pub fn is_bare(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Adds who served and why, and what the client's connection needs.
pub fn for_client(head: &mut ResponseHeader, context: &Context, table: &Table) -> Result<()> {
    head.set_version(Version::HTTP_11);
    for name in hop_by_hop::of_connection(&head.headers, &FRAMING) {
        head.remove_header(&name);
    }
    if !context.takes_chunks {
        // A body without a length then ends with the connection, or is framed by the protocol.
        head.remove_header(&TRANSFER_ENCODING);
    } else if !is_bare(head.status)
        && !head.headers.contains_key(CONTENT_LENGTH)
        && !head.headers.contains_key(TRANSFER_ENCODING)
    {
        // A body that ends with the replica's connection: the client's can stay.
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    if let Some(lease) = &context.lease
        && table.config.decision_headers
    {
        head.insert_header(REPLICA_HEADER, lease.replica().name.as_str())?;
        head.insert_header(DECISION_HEADER, lease.decision().as_str())?;
        if !context.held.is_zero() {
            head.insert_header(HELD_HEADER, context.held.as_millis().to_string())?;
        }
    }
    // vLLM refuses on overload without saying when to come back, and some clients give up without it.
    if head.status == StatusCode::SERVICE_UNAVAILABLE && !head.headers.contains_key("retry-after") {
        head.insert_header("retry-after", "1")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_the_replicas_connection_goes_no_further_and_the_framing_stays() {
        let mut head = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("Connection", "close, X-Hop, Content-Length"),
            ("Keep-Alive", "timeout=5"),
            ("X-Hop", "1"),
            ("Upgrade", "h2c"),
            ("Trailer", "x-sum"),
            ("Content-Length", "3"),
            ("X-Stays", "1"),
        ] {
            head.append_header(name, value).unwrap();
        }
        let names: Vec<_> = hop_by_hop::of_connection(&head.headers, &FRAMING);
        names.iter().for_each(|name| drop(head.remove_header(name)));
        let mut left: Vec<_> = head.headers.keys().map(|name| name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "x-stays"]);
    }
}
