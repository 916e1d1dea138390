//! What of a request body has been read before its replica was known, kept so that every byte still reaches it, and so
//! that it can be sent again if the replica fails before it answers.
//!
//! Pingora forwards bytes that a filter has read only from its own retry buffer, and that buffer holds 64 KiB or nothing.
//! So a body of a known length over 64 KiB is kept here, and the retry buffer is turned on where no more than 64 KiB are
//! left: then it never overflows, is never empty, and pingora always calls [`RequestBody::forward`]. A chunked body has no
//! known length. It is kept here whole, and never read past the end of its JSON, so that pingora still finds its end
//! unread and calls `forward` for that. Once that end was read, a chunked body over 64 KiB can't be sent again.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use log::debug;
use pingora::ErrorType;
use pingora::http::RequestHeader;
use pingora::proxy::Session;
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;

use super::memory::Share;
use super::refusal::Refusal;
use super::search::BodySearch;
use super::splice::{Splice, joined};

/// How long a request may take in all until its model and session are known. With each read bounded too, this ends only
/// bodies that trickle in; 32 MiB at 0.5 Mbit/s come in time.
pub const ANSWER_MAX: Duration = Duration::from_secs(600);

/// Size of pingora's retry buffer: `BODY_BUF_LIMIT` in pingora-core's `protocols/http/v1/common.rs`, which isn't public.
const RETRY_BUFFER_BYTES: usize = 64 * 1024;

/// How far behind the answer a second model is looked for. A scan of a whole agent body costs as much as everything else
/// kvpin does for a turn (`bench/hot_path.rs`), and a second model that isn't seen harms nobody: the first one decides.
pub const SECOND_MODEL_BYTES: usize = 4096;

/// The most that is reserved at once for a body whose length is only announced.
const RESERVE_BYTES_MAX: usize = 1024 * 1024;

/// A request body on its way through.
#[derive(Debug)]
pub struct RequestBody {
    /// Bytes read here. What pingora reads later is not counted.
    read: usize,
    /// The first `read` bytes, unless pingora's retry buffer holds them all.
    own: Bytes,
    /// Bytes at the end of `own` that pingora's retry buffer repeats.
    repeated: usize,
    /// Whether the next call of `forward` begins an attempt, and so must send `own` first.
    at_start: bool,
    /// Whether there is no replay any more.
    released: bool,
    /// The limit of a body without an announced length, as it was when the request came.
    bytes_max: Option<usize>,
    splice: Option<Splice>,
    late: Option<LateSearch>,
    share: Share,
}

/// A search that goes on while the body passes: what the rest says comes too late for the decision, and is learned from.
#[derive(Debug)]
pub struct LateSearch {
    pub search: BodySearch,
    /// How much of the body it has looked at.
    seen: usize,
    /// How much of the body has passed in this attempt.
    passed: usize,
}

/// Reads a body until its model and session are known, and then for a replay.
pub struct Reader<'a> {
    session: &'a mut Session,
    limits: &'a Limits,
    search: &'a mut BodySearch,
    length: Option<usize>,
    read: usize,
    /// What came after the byte that ended the search.
    unseen: Bytes,
    /// Whether what comes is looked at although the search has its answer.
    looks_on: bool,
    own: BytesMut,
    /// Where in the body pingora's retry buffer begins.
    retry_from: Option<usize>,
    share: Share,
}

impl<'a> Reader<'a> {
    /// Refuses at once what is announced to be over the limit.
    pub fn new(
        session: &'a mut Session,
        search: &'a mut BodySearch,
        limits: &'a Limits,
        share: Share,
    ) -> Result<Self, Refusal> {
        let length = announced_length(&session.req_header().headers);
        if length.is_some_and(|length| length > limits.body_bytes_max) {
            return Err(Refusal::BodyTooLarge { bytes_max: limits.body_bytes_max });
        }
        let keeps = length.is_none_or(|length| length > RETRY_BUFFER_BYTES);
        let capacity = if keeps { length.unwrap_or(0).min(RESERVE_BYTES_MAX) } else { 0 };
        Ok(Reader {
            session,
            limits,
            search,
            length,
            read: 0,
            unseen: Bytes::new(),
            looks_on: length.is_none(),
            own: BytesMut::with_capacity(capacity),
            retry_from: None,
            share,
        })
    }

    /// Reads until the search has its answer.
    pub async fn until_answered(&mut self) -> Result<(), Refusal> {
        if self.session.is_body_empty() {
            return Ok(());
        }
        self.invite_body().await?;
        while !self.search.is_over() && !self.session.is_body_done() {
            let Some(chunk) = self.next_chunk().await? else { break };
            self.look_at(&chunk);
            if !self.keep(&chunk, self.limits.replay_memory_bytes_max) {
                return Err(Refusal::OutOfMemory);
            }
        }
        Ok(())
    }

    /// Reads to the end of the body and looks at all of it.
    pub async fn until_end(&mut self) -> Result<(), Refusal> {
        self.look_on();
        while !self.session.is_body_done() && !self.session.is_body_empty() {
            let Some(chunk) = self.next_chunk().await? else { break };
            self.look_at(&chunk);
            if !self.keep(&chunk, self.limits.replay_memory_bytes_max) {
                return Err(Refusal::OutOfMemory);
            }
        }
        Ok(())
    }

    /// From here on, everything that is read is looked at.
    pub fn look_on(&mut self) {
        self.looks_on = true;
        let unseen = std::mem::take(&mut self.unseen);
        self.search.feed(&unseen);
    }

    /// Looks a little further for a second model.
    pub fn look_a_little(&mut self) {
        let little = self.unseen.split_to(self.unseen.len().min(SECOND_MODEL_BYTES));
        self.search.feed(&little);
    }

    /// Nothing more is looked at.
    pub fn look_no_further(&mut self) {
        self.unseen = Bytes::new();
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.session.req_header().headers
    }

    pub fn search(&self) -> &BodySearch {
        self.search
    }

    /// Bytes of the whole body, if the client has said how many.
    pub fn length(&self) -> Option<usize> {
        self.length
    }

    /// Reads what arrives within a moment, so that the whole body is at hand for a replay. A body that is announced to be
    /// too large for that, or that is slow, isn't waited for.
    pub async fn for_replay(&mut self) -> Result<(), Refusal> {
        if self.length.is_some_and(|length| length > self.limits.replay_bytes_max) || self.session.is_body_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.limits.replay_wait;
        while self.may_read_on() && self.read < self.limits.replay_bytes_max {
            let Ok(chunk) = timeout_at(deadline, self.next_chunk()).await else { break };
            let Some(chunk) = chunk? else { break };
            if self.looks_on {
                self.search.feed(&chunk);
            }
            // Half of the memory is left to bodies that have to be kept.
            if !self.keep(&chunk, self.limits.replay_memory_bytes_max / 2) {
                break;
            }
        }
        Ok(())
    }

    /// Hands the body over to be forwarded.
    pub fn finish(mut self) -> Result<RequestBody, Refusal> {
        let truncated = self.session.as_ref().retry_buffer_truncated();
        let repeated = match (self.length, self.retry_from) {
            (Some(_), Some(from)) => self.own.len().saturating_sub(from),
            _ => 0,
        };
        if self.length.is_none() && !truncated {
            self.own.clear();
        }
        let in_retry_buffer = self.session.as_ref().get_retry_buffer().is_some();
        if self.session.is_body_done() && self.read > 0 && !in_retry_buffer {
            // Pingora would never ask for the body again, and the replica would wait for it for ever.
            return Err(Refusal::BodyIncomplete);
        }
        Ok(RequestBody {
            read: self.read,
            own: self.own.freeze(),
            repeated,
            at_start: true,
            released: false,
            bytes_max: self.length.is_none().then_some(self.limits.body_bytes_max),
            splice: None,
            late: None,
            share: self.share,
        })
    }

    /// A body without an announced length is looked at to its end, which must not be missed.
    fn look_at(&mut self, chunk: &Bytes) {
        if self.looks_on {
            self.search.feed(chunk);
        } else {
            let used = self.search.search(chunk);
            self.unseen = chunk.slice(used..);
        }
    }

    /// Sends `100 Continue` to a client that waits for it before it sends its body.
    async fn invite_body(&mut self) -> Result<(), Refusal> {
        let expects = self.session.req_header().headers.get(http::header::EXPECT);
        if expects.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
            // Pingora takes it for a response that comes before the body's end, and would close the connection afterwards.
            self.session.set_close_on_response_before_downstream_finish(false);
            let told = self.session.write_continue_response().await;
            self.session.set_close_on_response_before_downstream_finish(true);
            told.map_err(|_| Refusal::BodyCutShort)?;
        }
        Ok(())
    }

    /// A chunked body is read only while its end can't have been reached: inside its JSON.
    fn may_read_on(&mut self) -> bool {
        !self.session.is_body_done() && (self.length.is_some() || self.search.is_inside())
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Refusal> {
        let rest_fits = self.length.is_none_or(|length| length - self.read <= RETRY_BUFFER_BYTES);
        if self.retry_from.is_none() && rest_fits {
            self.session.enable_retry_buffering();
            self.retry_from = Some(self.read);
        }
        match self.session.read_request_body().await {
            Ok(Some(chunk)) if self.read + chunk.len() > self.limits.body_bytes_max => {
                Err(Refusal::BodyTooLarge { bytes_max: self.limits.body_bytes_max })
            }
            Ok(chunk) => Ok(chunk),
            Err(error) if *error.etype() == ErrorType::ReadTimedout => Err(Refusal::BodyTimedOut),
            Err(_) => Err(Refusal::BodyCutShort),
        }
    }

    /// Keeps a chunk, and says whether that stayed within the memory of all turns. A short body costs none of it: pingora
    /// keeps it anyway.
    fn keep(&mut self, chunk: &Bytes, memory_bytes_max: usize) -> bool {
        self.read += chunk.len();
        if self.length.is_some_and(|length| length <= RETRY_BUFFER_BYTES) {
            return true;
        }
        self.own.extend_from_slice(chunk);
        self.share.take(chunk.len(), memory_bytes_max)
    }
}

impl RequestBody {
    /// An attempt to send the request begins.
    pub fn begin_attempt(&mut self) {
        self.at_start = true;
        if let Some(splice) = &mut self.splice {
            splice.begin();
        }
        if let Some(late) = &mut self.late {
            late.passed = 0;
        }
    }

    /// Goes on with a search that has looked at all that was read.
    pub fn search_on(&mut self, search: BodySearch) {
        self.late = Some(LateSearch { search, seen: self.read, passed: 0 });
    }

    /// The search that went on, if it has seen the whole body.
    pub fn searched(&mut self) -> Option<BodySearch> {
        self.late.take().map(|late| late.search).filter(BodySearch::is_complete)
    }

    /// Changes a part of the body on its way.
    pub fn splice(&mut self, splice: Splice) {
        self.splice = Some(splice);
    }

    /// How many bytes of it were read before its replica was known.
    pub fn bytes_read(&self) -> usize {
        self.read
    }

    /// Gives a head the length of the body as it is sent.
    pub fn announce(&self, head: &mut RequestHeader) -> pingora::Result<()> {
        let Some(splice) = self.splice.as_ref().filter(|_| head.headers.contains_key(CONTENT_LENGTH)) else {
            return Ok(());
        };
        match announced_length(&head.headers) {
            Some(length) => head.insert_header(CONTENT_LENGTH, splice.sent_length(length).to_string()),
            None => Ok(()),
        }
    }

    /// Puts what was read before in front of the first piece that pingora sends in an attempt.
    ///
    /// Also mends pingora 0.9.1's way of ending a chunked body twice when its last piece is empty (its issue 935), which
    /// would leave garbage in front of the next request on that connection.
    pub fn forward(&mut self, body: &mut Option<Bytes>, end_of_body: bool) {
        if end_of_body && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        if std::mem::take(&mut self.at_start) && !self.own.is_empty() {
            let piece = body.take().unwrap_or_default();
            let fresh = piece.slice(self.repeated.min(piece.len())..);
            *body = Some(if fresh.is_empty() { self.own.clone() } else { joined(&[&self.own, &fresh]) });
        }
        if let (Some(late), Some(piece)) = (&mut self.late, body.as_ref()) {
            late.pass(piece);
        }
        if let (Some(splice), Some(piece)) = (&mut self.splice, body.as_mut()) {
            *piece = splice.pass(piece);
        }
        if self.released {
            self.free();
        }
    }

    /// Whether the whole body can be sent again from its first byte.
    pub fn can_replay(&self, session: &mut Session) -> bool {
        if session.is_body_empty() {
            return true;
        }
        if self.released {
            return false;
        }
        let nothing_sent = session.body_bytes_read() == self.read && !session.is_body_done();
        let in_retry_buffer = session.as_ref().get_retry_buffer().is_some();
        nothing_sent || (in_retry_buffer && !session.as_ref().retry_buffer_truncated())
    }

    /// There is no replay any more: the response has begun, or pingora couldn't keep what came later. The memory goes as
    /// soon as its bytes have been sent.
    pub fn release(&mut self) {
        self.released = true;
        if !self.at_start {
            self.free();
        }
    }

    /// The limit, if so many bytes are over it. A length that was announced was judged when it came.
    pub fn is_over(&self, bytes: usize) -> Option<usize> {
        self.bytes_max.filter(|bytes_max| bytes > *bytes_max)
    }

    fn free(&mut self) {
        self.own = Bytes::new();
        self.share.release();
    }
}

impl LateSearch {
    fn pass(&mut self, piece: &[u8]) {
        let known = self.seen.saturating_sub(self.passed).min(piece.len());
        self.search.feed(&piece[known..]);
        self.passed += piece.len();
        self.seen = self.seen.max(self.passed);
    }
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

/// The length that a head announces for its body; `None` for a chunked one.
pub fn announced_length(headers: &HeaderMap) -> Option<usize> {
    if headers.contains_key(http::header::TRANSFER_ENCODING) {
        return None;
    }
    match headers.get(CONTENT_LENGTH) {
        // Pingora has already refused what isn't a number; identical duplicates in one line are left, "5, 5".
        Some(value) => value.to_str().ok().and_then(|text| text.split(',').next()?.trim().parse().ok()),
        None => Some(0),
    }
}

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

/// How long the rest of a refused request's body is read to keep its connection.
const DRAIN_MAX: Duration = Duration::from_secs(5);
