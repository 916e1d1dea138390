//! The head of a replica's response as the client gets it.

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{StatusCode, Version};
use pingora::Result;
use pingora::http::ResponseHeader;

use crate::dispatch::Table;

use super::context::Context;
use super::identify::REPLICA_HEADER;

const DECISION_HEADER: &str = "x-kvpin-decision";

/// Whether a response is a stream of events that something can be put between.
pub fn is_stream(head: &ResponseHeader) -> bool {
    let is_of_events = head.headers.get(CONTENT_TYPE).is_some_and(|value| {
        let kind = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    });
    is_of_events && !head.headers.contains_key(CONTENT_LENGTH) && !head.headers.contains_key(CONTENT_ENCODING)
}

/// Adds who served and why, and what the client's connection needs.
pub fn for_client(head: &mut ResponseHeader, context: &Context, table: &Table) -> Result<()> {
    head.set_version(Version::HTTP_11);
    strip_hop_by_hop(head);
    let has_body = !matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_body && !head.headers.contains_key(CONTENT_LENGTH) && !head.headers.contains_key(TRANSFER_ENCODING) {
        // A body that ends with its connection: the client's can stay.
        head.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    if let Some(lease) = &context.lease
        && table.config.decision_headers
    {
        head.insert_header(REPLICA_HEADER, lease.replica().name.as_str())?;
        head.insert_header(DECISION_HEADER, lease.decision().as_str())?;
    }
    // vLLM refuses on overload without saying when to come back, and some clients give up without it.
    if head.status == StatusCode::SERVICE_UNAVAILABLE && !head.headers.contains_key("retry-after") {
        head.insert_header("retry-after", "1")?;
    }
    Ok(())
}

/// Takes away what is said of the connection to the replica and what `Connection` names. The framing stays.
fn strip_hop_by_hop(head: &mut ResponseHeader) {
    let nominated: Vec<HeaderName> = head
        .headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
        .filter(|name| !FRAMING.contains(name))
        .collect();
    for name in nominated.iter().chain(&HOP_BY_HOP) {
        head.remove_header(name);
    }
}

/// What says where a body ends.
const FRAMING: [HeaderName; 2] = [CONTENT_LENGTH, TRANSFER_ENCODING];

const HOP_BY_HOP: [HeaderName; 5] =
    [CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection"), TRAILER, UPGRADE];
