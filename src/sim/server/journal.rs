//! What arrived at the server, for tests that compare it with what was sent.

use std::collections::VecDeque;

use http::HeaderMap;
use http::request::Parts;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};

/// Requests that are remembered; older ones are forgotten.
pub const CAPACITY: usize = 1000;

/// The newest requests, oldest first.
#[derive(Debug, Default)]
pub struct Journal {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    newest: VecDeque<Arrival>,
    next: u64,
}

/// Names a request in the journal, whether or not it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrivalId(u64);

impl ArrivalId {
    /// The request's number since the start, from 0.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// One request as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Arrival {
    /// Its number since the server's start.
    pub number: u64,
    /// The method.
    pub method: String,
    /// Path and query, as received.
    pub path: String,
    /// Names and values in order; names in lower case, values of one name together.
    pub headers: Vec<(String, String)>,
    /// Whether the body arrived to its end.
    pub complete: bool,
    /// Bytes of the body.
    pub body_bytes: usize,
    /// The body's SHA-256 in hexadecimal digits.
    pub body_sha256: String,
    /// The `x-request-id` header.
    pub request_id: Option<String>,
    /// The rank that got it; none for requests that don't generate or were refused.
    pub rank: Option<usize>,
    /// Entries of the body's `tools`; none for requests that don't generate or can't be read. Agents' side calls, such as
    /// for a title, have 0.
    pub offered_tools: Option<usize>,
    /// Prompt tokens found in that rank's cache; none before the first token.
    pub cached_tokens: Option<u32>,
}

impl Journal {
    /// Remembers a request; `body` is None if it broke off.
    pub fn record(&self, parts: &Parts, body: Option<&[u8]>) -> ArrivalId {
        let mut arrival = Arrival {
            number: 0,
            method: parts.method.to_string(),
            path: parts.uri.path_and_query().map_or_else(|| parts.uri.to_string(), ToString::to_string),
            headers: in_order(&parts.headers),
            complete: body.is_some(),
            body_bytes: body.map_or(0, <[u8]>::len),
            body_sha256: hex(&Sha256::digest(body.unwrap_or_default())),
            request_id: parts.headers.get("x-request-id").map(|value| text(value.as_bytes())),
            rank: None,
            offered_tools: None,
            cached_tokens: None,
        };
        let mut entries = self.entries.lock();
        arrival.number = entries.next;
        entries.next += 1;
        if entries.newest.len() == CAPACITY {
            entries.newest.pop_front();
        }
        let id = ArrivalId(arrival.number);
        entries.newest.push_back(arrival);
        id
    }

    /// Notes which rank got the request.
    pub fn note_rank(&self, id: ArrivalId, rank: usize) {
        self.amend(id, |arrival| arrival.rank = Some(rank));
    }

    /// Notes how many tools the model may call.
    pub fn note_offered_tools(&self, id: ArrivalId, tools: usize) {
        self.amend(id, |arrival| arrival.offered_tools = Some(tools));
    }

    /// Notes what the rank's cache held of it.
    pub fn note_cached(&self, id: ArrivalId, tokens: u32) {
        self.amend(id, |arrival| arrival.cached_tokens = Some(tokens));
    }

    /// All that is remembered, oldest first.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.entries.lock().newest.iter().cloned().collect()
    }

    fn amend(&self, id: ArrivalId, change: impl FnOnce(&mut Arrival)) {
        let mut entries = self.entries.lock();
        let oldest = entries.next - entries.newest.len() as u64;
        let Some(index) = id.0.checked_sub(oldest) else {
            return;
        };
        if let Some(arrival) = entries.newest.get_mut(index as usize) {
            change(arrival);
        }
    }
}

fn in_order(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Parts {
        http::Request::get(path).header("X-Request-Id", "r").body(()).expect("a request").into_parts().0
    }

    #[test]
    fn only_the_newest_are_remembered() {
        let journal = Journal::default();
        let first = journal.record(&parts("/first"), Some(b""));
        for _ in 0..CAPACITY {
            journal.record(&parts("/later?a=b"), Some(b"abc"));
        }
        journal.note_rank(first, 3);
        let arrivals = journal.arrivals();
        assert_eq!(arrivals.len(), CAPACITY);
        assert!(arrivals.iter().all(|arrival| arrival.path == "/later?a=b" && arrival.rank.is_none()));
    }

    #[test]
    fn what_is_learnt_later_is_added() {
        let journal = Journal::default();
        journal.record(&parts("/one"), None);
        let id = journal.record(&parts("/two"), Some(b"abc"));
        journal.note_rank(id, 1);
        journal.note_cached(id, 64);
        let [one, two] = journal.arrivals().try_into().expect("two arrivals");
        assert!(!one.complete && one.rank.is_none());
        assert_eq!((two.rank, two.cached_tokens, two.request_id.as_deref()), (Some(1), Some(64), Some("r")));
        assert_eq!(two.body_sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
