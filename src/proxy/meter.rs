//! What a turn costs, read from its answer in passing, and when its tokens come.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use pingora::http::ResponseHeader;
use prometheus::Histogram;
use tokio::time::Instant;

use crate::balancer::Cost;
use crate::usage::{Observer, StopReason};

/// Of events that come in one chunk, no more are counted each for itself.
const EVENTS_COUNTED_MAX: u64 = 16;

/// Watches one answer.
pub struct Meter {
    observer: Observer,
    form: Form,
    between_tokens: Histogram,
    /// When content came last.
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Its first token is with its first byte.
    Document,
    Stream,
}

impl Meter {
    /// For an answer that can be looked into: JSON or a stream of events, as it is.
    pub fn of(head: &ResponseHeader, between_tokens: Histogram) -> Option<Self> {
        if !head.status.is_success() || head.headers.contains_key(CONTENT_ENCODING) {
            return None;
        }
        let media_type = head.headers.get(CONTENT_TYPE)?.as_bytes().split(|byte| *byte == b';').next()?.trim_ascii();
        let (observer, form) = if media_type.eq_ignore_ascii_case(b"text/event-stream") {
            (Observer::of_stream(), Form::Stream)
        } else if media_type.eq_ignore_ascii_case(b"application/json") {
            (Observer::of_document(), Form::Document)
        } else {
            return None;
        };
        Some(Meter { observer, form, between_tokens, last: None })
    }

    /// A chunk is on its way to the client. True if it has the first token in it: not a ping, not an announcement of a role.
    pub fn pass(&mut self, chunk: &[u8]) -> bool {
        let events = self.observer.observe(chunk);
        let had_none = self.last.is_none();
        match self.form {
            Form::Document => self.last = Some(Instant::now()),
            Form::Stream if events > 0 => self.note(events),
            Form::Stream => {}
        }
        had_none && self.last.is_some()
    }

    /// What the turn cost, once its answer has ended or was given up. What an answer said that didn't come to its end is not
    /// the whole: it is no measure.
    pub fn cost(&self, request_bytes: usize) -> Cost {
        let report = self.observer.report();
        let request_bytes = request_bytes as u64;
        match report.usage.filter(|_| report.has_ended && !report.has_error) {
            Some(usage) => {
                let (prompt, cached, completion) = (Some(usage.prompt), usage.cached, usage.completion);
                let asks = matches!(report.stop_reason, Some(StopReason::ToolCalls | StopReason::Pause));
                Cost { request_bytes, prompt, cached, completion, asks }
            }
            None => Cost { request_bytes, completion: report.content_events, ..Cost::default() },
        }
    }

    /// Events with content have come, about a token each.
    fn note(&mut self, events: u64) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            let between = now.duration_since(last).as_secs_f64() / events as f64;
            (0..events.min(EVENTS_COUNTED_MAX)).for_each(|_| self.between_tokens.observe(between));
        }
    }
}
