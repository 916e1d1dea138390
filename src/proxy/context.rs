//! What is known of one request while it is being handled. It is dropped on every way out, and with it the lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use pingora::{Error, ErrorType};

use crate::balancer::{Bill, Outcome, Ranks, Recognised, ReplicaId, Turn, TurnKind};
use crate::conversation::{Chain, ConversationKey, Source};
use crate::dispatch::{Admitted, Hold, Lease, Model};
use crate::keys::{Caller, Slot};

use super::attempt::Kept;
use super::body::RequestBody;
use super::endpoint::Dialect;
use super::intake::Late;
use super::meter::Meter;
use super::refusal::Refusal;
use super::streams::Stream;

/// One request.
pub struct Context {
    pub started: Instant,
    pub dialect: Dialect,
    /// Whether the client's protocol has chunks: HTTP/1.1 only.
    pub takes_chunks: bool,
    /// Who asks. It stays who it is, whatever a reload does to the key.
    pub caller: Caller,
    /// The place among the requests of the caller's key.
    pub slot: Option<Slot>,
    /// What the request was recognised as; `None` until then, and for requests that kvpin answers itself.
    pub request: Option<EngineRequest>,
    pub body: Option<RequestBody>,
    /// What is still to be learned from the rest of the body.
    pub late: Option<Late>,
    /// Whether the whole body showed that the turn is none of its conversation's: then it leaves no pin.
    pub is_side_after_all: bool,
    /// Its place among the requests that are served at a time.
    pub stream: Option<Stream>,
    /// The slot on the replica that is being tried or serves.
    pub lease: Option<Lease>,
    /// How long it was held until its conversation fit.
    pub held: Duration,
    /// How long connections to replicas were waited for.
    pub connecting: Duration,
    /// Whether the request has gone out, to whatever replica.
    pub is_sent: bool,
    /// Replicas that failed this turn.
    pub tried: Vec<ReplicaId>,
    /// Whether the current replica was already given a second chance on a fresh connection.
    pub reconnected: bool,
    /// Replicas that took the turn and broke off before they answered.
    pub breaks: usize,
    /// The last error of an engine that was not passed on because another replica could be tried.
    pub kept: Option<Kept>,
    /// Whether the client has the head of a stream, and pings at most behind it. Whatever serves the turn goes on from there.
    pub kept_waiting: bool,
    /// Whether something is being written to a client that waits for its answer.
    pub is_writing: bool,
    /// Why kvpin answers the request itself.
    pub refusal: Option<Refusal>,
    /// The status of the engine's response, or of the error that its stream is.
    pub status: Option<StatusCode>,
    /// From the request head to the first byte of the response body.
    pub first_byte: Option<Duration>,
    /// From the request head to the first token: what comes before may be pings and announcements.
    pub first_token: Option<Duration>,
    /// Watches the answer; `None` where it can't be looked into.
    pub meter: Option<Meter>,
    /// What the turn was booked with.
    pub bill: Option<Bill>,
    _open: Open,
}

/// A request that goes to a replica.
pub struct EngineRequest {
    pub model: Arc<Model>,
    pub kind: TurnKind,
    pub ranks: Ranks,
    pub conversation: Option<ConversationKey>,
    /// Other ids of the same conversation.
    pub aliases: Vec<ConversationKey>,
    /// The conversation that this one was started by.
    pub parent: Option<ConversationKey>,
    /// The history, until the response begins.
    pub chain: Option<Chain>,
    /// What named the conversation.
    pub source: Option<Source>,
    pub client_pin: Option<ReplicaId>,
    /// The length of its body, where its head tells or it has been read; else 0.
    pub body_bytes: u64,
}

/// Requests that are being handled at this moment, and connections that still owe their client something.
#[derive(Clone, Debug, Default)]
pub struct OpenRequests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicUsize,
    owing: AtomicUsize,
}

/// Counts one request as open until it is dropped.
struct Open(OpenRequests);

/// Of a connection: what its requests have written may not have gone out yet. On HTTP/2 that is another task's to do.
pub struct Owed(OpenRequests);

impl EngineRequest {
    /// The request as the balancer sees it.
    pub fn turn<'a>(&'a self, tried: &'a [ReplicaId]) -> Turn<'a> {
        Turn {
            conversation: self.conversation,
            aliases: &self.aliases,
            parent: self.parent,
            chain: self.chain.as_ref(),
            kind: self.kind,
            client_pin: self.client_pin,
            ranks: self.ranks,
            body_bytes: self.body_bytes,
            tried,
        }
    }
}

impl OpenRequests {
    /// The requests.
    pub fn count(&self) -> usize {
        self.0.requests.load(Ordering::Acquire)
    }

    /// Whether every request has ended, and every client has got what it was sent.
    pub fn is_quiet(&self) -> bool {
        self.count() == 0 && self.0.owing.load(Ordering::Acquire) == 0
    }

    pub fn owe(&self) -> Owed {
        self.0.owing.fetch_add(1, Ordering::Acquire);
        Owed(self.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.0.0.owing.fetch_sub(1, Ordering::Release);
    }
}

impl Context {
    pub fn new(open: &OpenRequests) -> Self {
        open.0.requests.fetch_add(1, Ordering::Acquire);
        Context {
            started: Instant::now(),
            dialect: Dialect::OpenAi,
            takes_chunks: true,
            caller: Caller::default(),
            slot: None,
            request: None,
            body: None,
            late: None,
            is_side_after_all: false,
            stream: None,
            lease: None,
            held: Duration::ZERO,
            connecting: Duration::ZERO,
            is_sent: false,
            tried: Vec::new(),
            reconnected: false,
            breaks: 0,
            kept: None,
            kept_waiting: false,
            is_writing: false,
            refusal: None,
            status: None,
            first_byte: None,
            first_token: None,
            meter: None,
            bill: None,
            _open: Open(open.clone()),
        }
    }

    /// Takes a slot for the request, or a place in the line until its conversation fits.
    pub fn ask(&mut self) -> Result<Option<Hold>, Refusal> {
        let Some(request) = &self.request else { return Err(Refusal::Internal) };
        match request.model.dispatcher.admit(&request.turn(&self.tried)) {
            Ok(Admitted::In(lease)) => {
                self.lease = Some(lease);
                Ok(None)
            }
            Ok(Admitted::Held(hold)) => Ok(Some(hold)),
            Err(reason) => Err(Refusal::no_replica(reason, &request.model)),
        }
    }

    /// Takes a slot for the request, not on a replica that has failed it.
    pub fn acquire(&mut self) -> Result<(), Refusal> {
        let Some(request) = &self.request else { return Err(Refusal::Internal) };
        let turn = request.turn(&self.tried);
        let lease = request.model.dispatcher.acquire(&turn);
        self.lease = Some(lease.map_err(|reason| Refusal::no_replica(reason, &request.model))?);
        self.reconnected = false;
        Ok(())
    }

    /// Leaves the replica that has failed the turn for another one. Where there is none, the turn stays with it.
    pub fn move_on(&mut self) -> Result<(), Refusal> {
        let Some(mut failed) = self.lease.take() else { return Err(Refusal::Internal) };
        self.tried.push(failed.id());
        match self.acquire() {
            Ok(()) => {
                failed.note(Outcome::MovedOn);
                Ok(())
            }
            Err(refusal) => {
                self.tried.pop();
                self.lease = Some(failed);
                Err(refusal)
            }
        }
    }

    /// Keeps the reason for the client, and makes the error that ends the handling of its request.
    pub fn refused(&mut self, refusal: Refusal) -> Box<Error> {
        let status = refusal.answer(self.dialect).status;
        self.refusal = Some(refusal);
        Error::explain(ErrorType::HTTPStatus(status), "kvpin answers")
    }

    /// The request begins to go out. Returns what kvpin itself has taken until then, the first time.
    pub fn sent(&mut self) -> Option<Duration> {
        if std::mem::replace(&mut self.is_sent, true) {
            return None;
        }
        let waited = self.held + self.connecting + self.body.as_ref().map_or(Duration::ZERO, RequestBody::waited);
        Some(self.started.elapsed().saturating_sub(waited))
    }

    /// All of the answer has come, and only the writing of it is left. The caller's place is given back before that: who asks
    /// again at the last byte, on whatever connection, is not one too many.
    pub fn answered(&mut self) {
        self.slot = None;
    }

    /// The first byte of the response body has come.
    pub fn first_byte(&mut self) -> Option<Duration> {
        if self.first_byte.is_some() {
            return None;
        }
        let elapsed = self.started.elapsed();
        self.first_byte = Some(elapsed);
        if let Some(body) = &mut self.body {
            body.release();
        }
        if let Some(request) = &mut self.request {
            request.chain = None;
        }
        if self.is_good()
            && !self.is_side_after_all
            && let Some(lease) = &mut self.lease
        {
            lease.served();
        }
        Some(elapsed)
    }

    /// A chunk of the answer is on its way to the client. True with the first token.
    pub fn pass(&mut self, chunk: &[u8]) -> bool {
        let has_first = self.meter.as_mut().is_some_and(|meter| meter.pass(chunk));
        if has_first {
            let took = self.started.elapsed();
            self.first_token = Some(took);
            if let Some(lease) = &self.lease {
                lease.note_first_token(took);
            }
        }
        has_first
    }

    /// Books what the turn has cost, if an engine has worked for it.
    pub fn charge(&mut self, request_bytes: usize) {
        let (Some(meter), Some(lease)) = (self.meter.take(), &self.lease) else { return };
        let cost = meter.cost(request_bytes);
        if cost.prompt.is_none() && cost.completion == 0 && self.is_side() {
            // Tokens were counted or a prompt was rendered, which takes the engine's front end and computes nothing.
            return;
        }
        self.bill = lease.charge(&cost);
    }

    fn is_side(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.kind == TurnKind::Side)
    }

    /// The conversation's key and the word for what named it, once the turn has a slot.
    pub fn conversation(&self) -> Option<(ConversationKey, &'static str)> {
        let lease = self.lease.as_ref()?;
        let named = self.request.as_ref()?.source.map_or(Recognised::Fingerprint.as_str(), Source::as_str);
        Some((lease.conversation()?, named))
    }

    /// What the engine is told of the conversation, if it is told: its key, never the client's id.
    pub fn session_id_to_send(&self) -> Option<ConversationKey> {
        let sends = self.request.as_ref()?.model.send_session_id;
        self.lease.as_ref().filter(|_| sends)?.conversation()
    }

    /// Whether a rank that the client names is for the engine to obey: it may name one, and kvpin doesn't know the ranks.
    pub fn passes_rank(&self) -> bool {
        let may = |request: &EngineRequest| request.model.client_pins && request.model.engine_balances;
        self.caller.may_pin() && self.request.as_ref().is_some_and(may)
    }

    /// Whether the engine has accepted the turn.
    pub fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }
}
