//! What the beginning of an engine's stream shows: work, or the news that there will be none.
//!
//! vLLM sends the head of a stream, with its 200, before any of the work, and reports whatever goes wrong then as the
//! stream's first event: `data: {"error": {.., "code": 503}}` followed by `data: [DONE]`, or `event: error` on
//! `/v1/messages` (seen on 0.32.0: a full queue, a killed engine, a rank that doesn't exist). So the head says nothing, and
//! the first event that isn't a comment, a ping or an announcement decides.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use memchr::memmem;
use serde_json::Value;

use super::trouble::Trouble;

/// The most of a stream that is looked at. A first event of vLLM's has some hundred bytes; the announcements of
/// `/v1/responses` repeat the request's instructions and tools.
pub const LOOKED_AT_MAX: usize = 64 * 1024;

/// In what vLLM answers, with 500, to the requests of an engine that has died.
const DEAD: &[u8] = b"EngineCore encountered an issue";
/// In vLLM's answer to a new request once it has begun to end (`--shutdown-timeout`), while its `/health` still says 200.
const ENDING: &[u8] = b"cannot schedule new futures after shutdown";

/// How far into an event the word for an error can be: `{"error":` and `{"type": "error"` both begin with it.
const ERROR_WORD_WITHIN: usize = 64;

/// What a stream has shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Nothing that matters yet.
    Nothing,
    /// Content, or an error that another replica would give as well.
    Content,
    /// An error of the engine's own: nothing was generated.
    EngineError(EngineError),
}

/// An error that says something of the engine and not of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineError {
    /// As it would be without streaming: 500 or more.
    pub status: StatusCode,
    pub trouble: Trouble,
}

/// The beginning of a stream: holds what has come of it, and judges it event by event.
#[derive(Debug, Default)]
pub struct FirstEvent {
    held: BytesMut,
    /// The chunk that decided, if nothing was held before it.
    whole: Bytes,
    /// Where in `held` the first event begins that isn't judged yet.
    event_at: usize,
    /// So many bytes at the beginning of `held` are comments and pings, which mean nothing to anybody.
    idle: usize,
    /// Whether the engine has announced a response.
    announced: bool,
    /// Whether the engine keeps the connection alive with comments or pings itself.
    pub engine_pings: bool,
}

impl FirstEvent {
    /// Takes the next chunk in. Once something was shown, there is nothing more to push.
    pub fn push(&mut self, chunk: Bytes) -> Shown {
        if !self.held.is_empty() {
            self.held.extend_from_slice(&chunk);
            let held = std::mem::take(&mut self.held);
            let shown = self.judge(&held);
            self.held = held;
            return shown;
        }
        let shown = self.judge(&chunk);
        match shown {
            Shown::Nothing => self.held.extend_from_slice(&chunk),
            Shown::Content | Shown::EngineError(_) => self.whole = chunk,
        }
        shown
    }

    /// Everything that is held. Not a copy where one chunk is all there is.
    pub fn take(&mut self) -> Bytes {
        if self.held.is_empty() { std::mem::take(&mut self.whole) } else { self.held.split().freeze() }
    }

    /// The comments and pings at the beginning, which may be passed on whatever comes.
    pub fn take_idle(&mut self) -> Bytes {
        let idle = std::mem::take(&mut self.idle);
        self.event_at -= idle;
        self.held.split_to(idle).freeze()
    }

    fn judge(&mut self, bytes: &[u8]) -> Shown {
        while let Some(end) = event_end(bytes, self.event_at) {
            let shown = self.judge_event(&bytes[self.event_at..end]);
            self.event_at = end;
            if shown != Shown::Nothing {
                return shown;
            }
            if !self.announced {
                self.idle = end;
            }
        }
        if bytes.len() > LOOKED_AT_MAX { Shown::Content } else { Shown::Nothing }
    }

    fn judge_event(&mut self, event: &[u8]) -> Shown {
        let (mut name, mut data): (&[u8], Vec<u8>) = (b"", Vec::new());
        for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
            if line.starts_with(b":") {
                self.engine_pings = true;
            } else if let Some(value) = field(line, b"event") {
                name = value;
            } else if let Some(value) = field(line, b"data") {
                data.extend_from_slice(value);
            }
        }
        match name {
            b"ping" => {
                self.engine_pings = true;
                Shown::Nothing
            }
            // `/v1/responses` announces a response before it begins with the work.
            b"response.created" | b"response.queued" | b"response.in_progress" => {
                self.announced = true;
                Shown::Nothing
            }
            b"error" => judge_error(&data),
            _ if data.is_empty() => Shown::Nothing,
            _ if speaks_of_error(&data) => judge_error(&data),
            _ => Shown::Content,
        }
    }
}

/// What a 500 says of the engine. `None`: it may be the request's own fault, and another replica would say the same.
pub fn trouble_of_500(body: &[u8]) -> Option<Trouble> {
    if memmem::find(body, ENDING).is_some() {
        return Some(Trouble::Draining);
    }
    memmem::find(body, DEAD).map(|_| Trouble::EngineError)
}

/// The end of the event that begins at `from`, with its empty line. Lines end with LF, CR LF or CR.
fn event_end(bytes: &[u8], from: usize) -> Option<usize> {
    let event = bytes.get(from..)?;
    let ends = |at: &usize| {
        let rest = &event[*at..];
        rest.starts_with(b"\n\n") || rest.starts_with(b"\n\r\n") || rest.starts_with(b"\r\r")
    };
    let at = memchr::memchr2_iter(b'\n', b'\r', event).find(ends)?;
    Some(from + at + if event[at..].starts_with(b"\n\r\n") { 3 } else { 2 })
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

fn speaks_of_error(data: &[u8]) -> bool {
    memmem::find(&data[..data.len().min(ERROR_WORD_WITHIN)], br#""error""#).is_some()
}

/// An event that says error, but not of what kind, is the engine's.
fn judge_error(data: &[u8]) -> Shown {
    let Ok(event) = serde_json::from_slice::<Value>(data) else { return Shown::Content };
    let error = match &event["error"] {
        // Older versions: `{"object": "error", "message": .., "code": ..}`.
        Value::Null => &event,
        error => error,
    };
    if error.get("message").is_none() {
        return Shown::Content;
    }
    let code = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    let code = code.unwrap_or_else(|| status_of_type(error["type"].as_str().unwrap_or_default()));
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if !status.is_server_error() {
        return Shown::Content;
    }
    let refused = matches!(status, StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE);
    let trouble = match trouble_of_500(data) {
        Some(trouble) => trouble,
        None if refused => Trouble::Failing,
        None => Trouble::EngineError,
    };
    Shown::EngineError(EngineError { status, trouble })
}

/// The status that stands for Anthropic's types of errors. vLLM's own `internal_error` isn't one of them.
fn status_of_type(kind: &str) -> u16 {
    match kind {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "overloaded_error" => 503,
        "timeout_error" => 504,
        _ => 500,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: &str = r#"data: {"error": {"message": "The engine is currently busy.", "type": "Service Unavailable", "param": null, "code": 503}}"#;

    /// What a stream shows, pushed in chunks of so many bytes; and whether what was held is what came.
    fn judged_in_chunks(stream: &str, bytes: usize) -> Shown {
        let (mut first, mut came, mut shown) = (FirstEvent::default(), Vec::new(), Shown::Nothing);
        for chunk in stream.as_bytes().chunks(bytes) {
            came.extend_from_slice(chunk);
            shown = first.push(Bytes::copy_from_slice(chunk));
            if shown != Shown::Nothing {
                break;
            }
        }
        let idle = if shown == Shown::Nothing { first.take_idle() } else { Bytes::new() };
        assert_eq!([idle, first.take()].concat(), came);
        shown
    }

    fn judged(stream: &str) -> Shown {
        let whole = judged_in_chunks(stream, stream.len().max(1));
        for bytes in [1, 2, 3, 7, 50] {
            assert_eq!(judged_in_chunks(stream, bytes), whole, "{stream:?} in chunks of {bytes}");
        }
        whole
    }

    fn engine_error(status: u16) -> Shown {
        let trouble = if status == 503 { Trouble::Failing } else { Trouble::EngineError };
        Shown::EngineError(EngineError { status: StatusCode::from_u16(status).unwrap(), trouble })
    }

    #[test]
    fn the_errors_of_vllm_are_seen_in_every_dialect() {
        assert_eq!(judged(&format!("{BUSY}\n\n")), engine_error(503));
        assert_eq!(judged(&format!("{BUSY}\r\n\r\n")), engine_error(503));
        assert_eq!(judged(&format!("{BUSY}\r\r")), engine_error(503));
        let messages = |kind: &str| {
            format!(
                "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"x\"}}}}\n\n"
            )
        };
        assert_eq!(judged(&messages("internal_error")), engine_error(500));
        assert_eq!(judged(&messages("api_error")), engine_error(500));
        assert_eq!(judged(&messages("overloaded_error")), engine_error(503));
        assert_eq!(judged(&messages("invalid_request_error")), Shown::Content);
        let old = r#"data: {"object":"error","message":"gone","type":"InternalServerError","param":null,"code":500}"#;
        assert_eq!(judged(&format!("{old}\n\n")), engine_error(500));
        let ending = BUSY.replace("busy.", "busy: cannot schedule new futures after shutdown").replace("503", "500");
        let Shown::EngineError(error) = judged(&format!("{ending}\n\n")) else { panic!("{ending}") };
        assert_eq!((error.status.as_u16(), error.trouble), (500, Trouble::Draining));
    }

    #[test]
    fn an_error_that_another_replica_would_give_as_well_is_content() {
        assert_eq!(judged(&format!("{}\n\n", BUSY.replace("503", "400"))), Shown::Content);
        assert_eq!(judged("data: [DONE]\n\n"), Shown::Content);
        assert_eq!(judged("data: {\"choices\":[{\"delta\":{\"content\":\"\\\"error\\\"\"}}]}\n\n"), Shown::Content);
        assert_eq!(judged("data: \"error\"\n\n"), Shown::Content);
        assert_eq!(judged("data: {\"error\": null, \"choices\": []}\n\n"), Shown::Content);
        assert_eq!(judged("event: message_start\ndata: {\"type\":\"message_start\"}\n\n"), Shown::Content);
    }

    #[test]
    fn comments_pings_and_announcements_show_nothing() {
        let before = ": keep-alive\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n";
        let announced = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n";
        assert_eq!(judged(before), Shown::Nothing);
        assert_eq!(judged(&format!("{before}{announced}{BUSY}\n\n")), engine_error(503));
        assert_eq!(judged(&format!("{announced}data: {{}}\n\n")), Shown::Content);
        assert_eq!(judged("data: {\"half\":"), Shown::Nothing);
        assert_eq!(judged(""), Shown::Nothing);
        let mut first = FirstEvent::default();
        first.push(Bytes::from(format!("{before}{announced}")));
        assert!(first.engine_pings);
        assert_eq!(first.take_idle(), before, "an announcement is held until there is content");
        assert_eq!(first.push("data: {}\n\n".into()), Shown::Content);
        assert_eq!(first.take(), format!("{announced}data: {{}}\n\n"));
    }

    #[test]
    fn a_stream_without_an_event_is_not_held_for_ever() {
        let mut first = FirstEvent::default();
        assert_eq!(first.push(vec![b'x'; LOOKED_AT_MAX].into()), Shown::Nothing);
        assert_eq!(first.push("x".into()), Shown::Content);
        assert_eq!(first.take().len(), LOOKED_AT_MAX + 1);
    }
}
