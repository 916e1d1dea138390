//! Headers that are meant for one connection and go no further.

use http::HeaderMap;
use http::header::{CONNECTION, HeaderName, TRAILER, UPGRADE};

/// What belongs to a connection in either direction, by RFC 9110 section 7.6.1 and by custom. Nothing is upgraded.
const ALWAYS: [HeaderName; 5] =
    [CONNECTION, HeaderName::from_static("keep-alive"), HeaderName::from_static("proxy-connection"), TRAILER, UPGRADE];

/// The headers of a connection: those that always are, and those that `Connection` names, but for the `protected` ones.
pub fn of_connection(headers: &HeaderMap, protected: &[&str]) -> Vec<HeaderName> {
    let named = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let named = named.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok());
    named.filter(|name| !protected.contains(&name.as_str())).chain(ALWAYS).collect()
}
