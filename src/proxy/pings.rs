//! Pings into a stream whose engine is silent.
//!
//! Clients cut streams that are silent for 20 s to 300 s, and vLLM sends no pings on `/v1/messages`, and elsewhere only when
//! it is told to (`--sse-keep-alive-interval`). A ping goes only between two events, and never where the engine sends its own.

use std::time::Duration;

use super::endpoint::Dialect;

/// What may be sent into a stream, and where the stream is.
pub struct Pings {
    bytes: &'static [u8],
    enabled: bool,
    /// The last bytes that the client has got, the newest last; zeros before the first.
    tail: [u8; 3],
    /// Whether the engine sends comments or pings itself.
    pub engine_pings: bool,
}

/// As the Messages API has it.
const EVENT: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";
/// By the definition of event streams, a comment is for exactly this.
const COMMENT: &[u8] = b": kvpin\n\n";

impl Pings {
    pub fn new(dialect: Dialect, interval: Option<Duration>) -> Self {
        let bytes = match dialect {
            Dialect::Anthropic => EVENT,
            Dialect::OpenAi => COMMENT,
        };
        Pings { bytes, enabled: interval.is_some(), tail: [0; 3], engine_pings: false }
    }

    /// The client gets a chunk of the stream. Costs the same whatever its length.
    pub fn passed(&mut self, chunk: &[u8]) {
        self.engine_pings |= chunk.starts_with(b":") || chunk.starts_with(b"event: ping");
        let newest = &chunk[chunk.len().saturating_sub(self.tail.len())..];
        self.tail.rotate_left(newest.len());
        let old = self.tail.len() - newest.len();
        self.tail[old..].copy_from_slice(newest);
    }

    /// A ping, if one may be sent here.
    pub fn due(&self) -> Option<&'static [u8]> {
        let [_, before, last] = self.tail;
        let is_between_events =
            self.tail == [0; 3] || matches!((before, last), (b'\n', b'\n') | (b'\r', b'\r')) || self.tail == *b"\n\r\n";
        (self.enabled && !self.engine_pings && is_between_events).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_after(chunks: &[&str]) -> bool {
        let mut pings = Pings::new(Dialect::OpenAi, Some(Duration::from_secs(1)));
        for chunk in chunks {
            pings.passed(chunk.as_bytes());
        }
        pings.due().is_some()
    }

    #[test]
    fn a_ping_goes_only_between_complete_events() {
        assert!(due_after(&[]));
        assert!(due_after(&["data: 1\n\n"]));
        assert!(due_after(&["data: 1\r\n\r\n"]));
        assert!(due_after(&["data: 1\r\r"]));
        assert!(due_after(&["data: 1\n", "\n"]));
        assert!(due_after(&["data: 1", "\r", "\n", "\r", "\n"]));
        assert!(!due_after(&["data: 1\n"]));
        assert!(!due_after(&["data: 1\r\n"]));
        assert!(!due_after(&["data: 1\n\ndata"]));
        assert!(!due_after(&["d"]));
    }

    #[test]
    fn no_ping_goes_where_the_engine_sends_its_own_or_they_are_off() {
        assert!(!due_after(&["data: 1\n\n", ": keep-alive\n\n"]));
        assert!(!due_after(&["event: ping\ndata: {}\n\n", "data: 1\n\n"]));
        assert_eq!(Pings::new(Dialect::Anthropic, None).due(), None);
    }
}
