//! What of a request body has been read before its replica was known, and what has come since: kept so that every byte
//! reaches the replica, and the next one if that fails before it answers.
//!
//! Kept is all of it or nothing. A body that grows over `replay_bytes_max`, or over what is left of the memory for all
//! requests, is let go while it passes, and then goes to one replica only. Pingora's own buffer for a second try holds 64 KiB
//! and is never turned on.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v1::common::is_expect_continue_req;
use tokio::time::{Instant, timeout_at};

use crate::config::Limits;

use super::downstream;
use super::late::LateSearch;
use super::memory::Share;
use super::patience::Patience;
use super::pieces::Pieces;
use super::refusal::Refusal;
use super::search::BodySearch;
use super::splice::Splice;

/// How long a request may take in all until its model and session are known; 32 MiB at 0.5 Mbit/s come in time.
pub const ANSWER_MAX: Duration = Duration::from_secs(600);

/// How far behind the answer a second model is looked for. A scan of a whole agent body costs as much as everything else
/// kvpin does for a turn (`bench/hot_path.rs`), and a second model that isn't seen harms nobody: the first one decides.
pub const SECOND_MODEL_BYTES: usize = 4096;

/// How many times what has come of a body room is made for, as far as its announced length goes. What is only announced costs
/// nothing, and a body in large pieces is copied once or twice.
const ROOM_FACTOR: usize = 8;

/// No piece that comes from a client is larger: Pingora's buffer for them.
const PIECE_MAX: usize = 64 << 10;

/// A request body on its way through.
#[derive(Debug)]
pub struct RequestBody {
    /// Bytes read before its replica was known.
    read: usize,
    /// The first of the bytes that are kept, and those that came later.
    own: Bytes,
    later: Pieces,
    /// Whether nothing is kept any more.
    released: bool,
    /// The limit of a body without an announced length, as it was when the request came.
    bytes_max: Option<usize>,
    /// The most that is kept of it.
    kept_max: usize,
    /// The most that all requests together may have kept if this one is to keep more.
    memory_max: usize,
    splice: Option<Splice>,
    late: Option<LateSearch>,
    waited: Duration,
    patience: Patience,
    share: Share,
}

/// Reads a body until its model and session are known, and then for a replay.
pub struct Reader<'a> {
    session: &'a mut ServerSession,
    limits: &'a Limits,
    search: &'a mut BodySearch,
    length: Option<usize>,
    read: usize,
    /// What came after the byte that ended the search.
    unseen: Bytes,
    /// Whether what comes is looked at although the search has its answer.
    looks_on: bool,
    own: BytesMut,
    /// How long the client was waited for.
    waited: Duration,
    patience: Patience,
    share: Share,
}

/// A wait that counts however it ends.
struct Waited<'a> {
    since: Instant,
    sum: &'a mut Duration,
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        *self.sum += self.since.elapsed();
    }
}

impl<'a> Reader<'a> {
    /// Refuses at once what is announced to be over the limit.
    pub fn new(
        session: &'a mut ServerSession,
        search: &'a mut BodySearch,
        limits: &'a Limits,
        share: Share,
    ) -> Result<Self, Refusal> {
        let length = announced_length(&session.req_header().headers);
        if length.is_some_and(|length| length > limits.body_bytes_max) {
            return Err(Refusal::BodyTooLarge { bytes_max: limits.body_bytes_max });
        }
        Ok(Reader {
            session,
            limits,
            search,
            length,
            read: 0,
            unseen: Bytes::new(),
            looks_on: length.is_none(),
            own: BytesMut::new(),
            patience: Patience::new(limits),
            waited: Duration::ZERO,
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

    /// Reads what arrives within a moment, so that the whole body, and with it the history, is at hand for the decision. A
    /// body that is announced to be too large to be kept, or that is slow, isn't waited for.
    pub async fn for_history(&mut self) -> Result<(), Refusal> {
        if self.length.is_some_and(|length| length > self.limits.replay_bytes_max) || self.session.is_body_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.limits.history_wait;
        while !self.session.is_body_done() && self.read < self.limits.replay_bytes_max {
            let Ok(chunk) = timeout_at(deadline, self.next_chunk()).await else { break };
            let Some(chunk) = chunk? else { break };
            if self.looks_on {
                self.search.feed(&chunk);
            }
            if !self.keep(&chunk, memory_for_replays(self.limits)) {
                break;
            }
        }
        Ok(())
    }

    /// Hands the body over to be forwarded.
    pub fn finish(self) -> RequestBody {
        RequestBody {
            read: self.read,
            own: self.own.freeze(),
            later: Pieces::default(),
            released: false,
            bytes_max: self.length.is_none().then_some(self.limits.body_bytes_max),
            kept_max: self.limits.replay_bytes_max,
            memory_max: memory_for_replays(self.limits),
            splice: None,
            late: None,
            waited: self.waited,
            patience: self.patience,
            share: self.share,
        }
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

    /// Sends `100 Continue` to a client that waits for it before it sends its body. HTTP/1.0 has no such answer.
    async fn invite_body(&mut self) -> Result<(), Refusal> {
        if is_expect_continue_req(self.session.req_header()) {
            // Pingora takes it for a response that comes before the body's end, and would close the connection afterwards.
            self.session.set_close_on_response_before_downstream_finish(false);
            let told = self.session.write_continue_response().await;
            self.session.set_close_on_response_before_downstream_finish(true);
            told.map_err(|_| Refusal::BodyCutShort)?;
        }
        Ok(())
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Refusal> {
        let waited = Waited { since: Instant::now(), sum: &mut self.waited };
        let read = self.patience.wait(self.session.read_request_body()).await;
        drop(waited);
        match read {
            Ok(Some(chunk)) if self.read + chunk.len() > self.limits.body_bytes_max => {
                Err(Refusal::BodyTooLarge { bytes_max: self.limits.body_bytes_max })
            }
            Ok(chunk) => Ok(chunk),
            Err(error) => Err(downstream::refusal_of(&error)),
        }
    }

    /// Keeps a chunk, and says whether that stayed within the memory of all turns.
    fn keep(&mut self, chunk: &Bytes, memory_bytes_max: usize) -> bool {
        self.read += chunk.len();
        if self.own.capacity() < self.read {
            let room = self.length.unwrap_or(0).min(self.read * ROOM_FACTOR);
            self.own.reserve(room.max(self.read) - self.own.len());
        }
        self.own.extend_from_slice(chunk);
        self.share.take(chunk.len(), memory_bytes_max)
    }
}

impl RequestBody {
    /// An attempt to send the request begins. Returns what goes out first: all that is kept.
    pub fn begin_attempt(&mut self) -> Bytes {
        self.own = self.later.take_behind(&self.own);
        if let Some(splice) = &mut self.splice {
            splice.begin();
        }
        if let Some(late) = &mut self.late {
            late.begin();
        }
        self.outgoing(self.own.clone())
    }

    /// What goes out in the place of a piece that has come.
    pub fn pass(&mut self, piece: Bytes) -> Bytes {
        if !self.released {
            let fits = self.own.len() + self.later.len() + piece.len() <= self.kept_max;
            if fits && self.share.take(piece.len(), self.memory_max) {
                self.later.push(&piece);
            } else {
                self.release();
            }
        }
        self.outgoing(piece)
    }

    /// Whether more of it may come in while nobody takes it.
    pub fn has_room(&self) -> bool {
        self.own.len() + self.later.len() + PIECE_MAX <= self.kept_max
    }

    /// Keeps a piece that has come while nobody takes any. False if the memory of all requests is used up.
    #[must_use]
    pub fn keep(&mut self, piece: &Bytes) -> bool {
        self.later.push(piece);
        self.share.take(piece.len(), self.memory_max)
    }

    /// What is left of the time that the client has for the rest.
    pub fn patience(&mut self) -> &mut Patience {
        &mut self.patience
    }

    /// How long the client was waited for before the replica was known.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Goes on with a search that has looked at all that was read.
    pub fn search_on(&mut self, search: BodySearch) {
        self.late = Some(LateSearch::new(search, self.read));
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

    /// Whether the whole body can be sent again from its first byte.
    pub fn can_replay(&self) -> bool {
        !self.released
    }

    /// Lets go of what is kept: the response has begun, or it was too much. What is being sent is not affected.
    pub fn release(&mut self) {
        self.released = true;
        self.own = Bytes::new();
        self.later = Pieces::default();
        self.share.release();
    }

    /// The limit, if so many bytes are over it. A length that was announced was judged when it came.
    pub fn is_over(&self, bytes: usize) -> Option<usize> {
        self.bytes_max.filter(|bytes_max| bytes > *bytes_max)
    }

    fn outgoing(&mut self, piece: Bytes) -> Bytes {
        if let Some(late) = &mut self.late {
            late.pass(&piece);
        }
        match &mut self.splice {
            Some(splice) => splice.pass(&piece),
            None => piece,
        }
    }
}

/// Half of the memory is left to bodies that have to be kept, because nothing is known of them yet.
fn memory_for_replays(limits: &Limits) -> usize {
    limits.replay_memory_bytes_max / 2
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prometheus::IntGauge;

    use super::super::memory::Budget;
    use super::*;

    const BODY: &[u8] = br#"{"model":"alias","messages":[1,2,3]}"#;

    fn budget() -> Arc<Budget> {
        Arc::new(Budget::new(IntGauge::new("held", "Held.").unwrap()))
    }

    /// A body of which so many bytes were read before its replica was known.
    fn read_to(read: usize, kept_max: usize, budget: &Arc<Budget>) -> RequestBody {
        let mut share = budget.share();
        assert!(share.take(read, 1000));
        RequestBody {
            read,
            own: Bytes::from_static(&BODY[..read]),
            later: Pieces::default(),
            released: false,
            bytes_max: None,
            kept_max,
            memory_max: 1000,
            splice: None,
            late: None,
            waited: Duration::ZERO,
            patience: Patience::new(&Limits::default()),
            share,
        }
    }

    #[test]
    fn a_second_attempt_sends_what_the_first_has_sent_and_goes_on_from_there() {
        for read in 0..=BODY.len() {
            for broke_at in read..=BODY.len() {
                for with in [r#""alias""#, r#""m""#, r#""a-longer-name""#] {
                    let mut body = read_to(read, 100, &budget());
                    body.splice(Splice::new(9..16, with));
                    let first = [body.begin_attempt(), body.pass(Bytes::from_static(&BODY[read..broke_at]))].concat();
                    assert!(body.can_replay());
                    let mut second = body.begin_attempt().to_vec();
                    assert_eq!(second, first, "{read} {broke_at} {with}");
                    second.extend_from_slice(&body.pass(Bytes::from_static(&BODY[broke_at..])));
                    assert_eq!(second, format!(r#"{{"model":{with},"messages":[1,2,3]}}"#).as_bytes());
                    assert_eq!(body.begin_attempt(), second, "and a third one too");
                }
            }
        }
    }

    #[test]
    fn a_body_that_grows_over_what_may_be_kept_is_let_go_whole_and_still_passes() {
        let budget = budget();
        let mut body = read_to(10, 20, &budget);
        let sent = [body.begin_attempt(), body.pass(Bytes::from_static(&BODY[10..20]))].concat();
        assert!(body.can_replay());
        let rest = body.pass(Bytes::from_static(&BODY[20..]));
        assert!(!body.can_replay());
        assert_eq!([sent, rest.to_vec()].concat(), BODY);
        assert!(budget.share().take(1000, 1000), "its memory is given back");
    }
}
