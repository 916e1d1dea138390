//! The edge: a request's story, phase by phase, in the order in which Pingora calls them.
//!
//! ```text
//! early_request_filter      limits of the head
//! request_filter            endpoint, body up to the model and the session, decision -> lease; refusals end here
//! upstream_peer             the lease's replica; after a failure another one      <-----------.
//! upstream_request_filter   rank, session and length for the engine, nothing meant for kvpin    |
//! request_body_filter       what was read before, then the rest as it comes                   |
//! fail_to_connect, error_while_proxy    move on to another replica before the first byte  ----'
//! response_filter           who served and why
//! response_body_filter      the first byte: the turn counts as served; the bytes are not touched
//! logging                   the outcome, one access line; then the context, and with it the lease, is dropped
//! ```

mod access_log;
mod body;
mod context;
mod downstream;
mod ending;
mod endpoint;
mod explain;
mod identify;
mod intake;
mod late;
mod local;
mod memory;
mod refusal;
mod search;
mod splice;
mod upstream;
pub mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use log::debug;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};

use crate::dispatch::Routing;

pub use access_log::TARGET as ACCESS_LOG;
pub use context::{Context, OpenRequests};
pub use explain::{Explanation, explain};
pub use upstream::TCP_KEEPALIVE;

use body::RequestBody;
use ending::{log_failure, outcome_of, refusal_of};
use endpoint::{Dialect, Endpoint, NotServed};
use identify::{RANK_HEADER, REPLICA_HEADER};
use intake::{Intake, Taken, learn_late};
use memory::Budget;
use refusal::Refusal;
use upstream::{peer, report_unreachable};

const DECISION_HEADER: &str = "x-kvpin-decision";
/// What vLLM takes for a session; it tells the events of its KV cache apart by it and decides nothing.
const SESSION_HEADER: &str = "x-session-id";

/// The most replicas that one turn is tried on, where none of them can be connected to. With each connection attempt bounded, a client waits for seconds at most.
const TRIES_MAX: usize = 8;

/// The proxy, as Pingora drives it.
pub struct Proxy {
    pub routing: Arc<Routing>,
    pub open: OpenRequests,
    memory: Arc<Budget>,
    /// Numbers the pools that are used once.
    fresh_pools: AtomicU64,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new(&self.open)
    }

    async fn early_request_filter(&self, session: &mut Session, context: &mut Context) -> Result<()> {
        watchdog::disarm();
        // A refusal may have turned it on. With it on, one byte after a body hides that the client has gone.
        session.set_pipelining_enabled(false);
        downstream::set_timeouts(session, &self.routing.table().config.limits);
        context.dialect = Dialect::of_path(session.req_header().uri.path());
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        match self.admit(session, context).await {
            Ok(Admitted::ToReplica) => Ok(false),
            Ok(Admitted::Answered) => Ok(true),
            Err(refusal) => {
                self.refuse(session, context, refusal).await;
                Ok(true)
            }
        }
    }

    async fn upstream_peer(&self, session: &mut Session, context: &mut Context) -> Result<Box<HttpPeer>> {
        if context.lease.is_none() {
            context.acquire().map_err(|refusal| refused(context, refusal))?;
            self.routing.metrics.retries.inc();
        }
        let Some(lease) = &context.lease else { return Err(refused(context, Refusal::Internal)) };
        if let Some(body) = &mut context.body {
            body.begin_attempt();
        }
        let mut peer = peer(lease.replica().address, &self.routing.table().config.limits);
        if context.reconnected {
            // A pool of its own, so that the second chance isn't given to another connection that is stale too.
            peer.group_key = self.fresh_pools.fetch_add(1, Ordering::Relaxed);
        }
        debug_assert!(!has_answered(session));
        Ok(Box::new(peer))
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        upstream: &mut RequestHeader,
        context: &mut Context,
    ) -> Result<()> {
        if let Some(body) = &context.body {
            body.announce(upstream)?;
        }
        // kvpin has read or will read the body, so the client was already told to go on.
        upstream.remove_header(&http::header::EXPECT);
        upstream.remove_header(REPLICA_HEADER);
        if let Some(rank) = context.lease.as_ref().and_then(|lease| lease.replica().rank) {
            upstream.insert_header(RANK_HEADER, rank.to_string())?;
        } else if !context.passes_rank() {
            upstream.remove_header(RANK_HEADER);
        }
        if let Some(key) = context.session_id_to_send()
            && !upstream.headers.contains_key(SESSION_HEADER)
        {
            upstream.insert_header(SESSION_HEADER, key.to_string())?;
        }
        Ok(())
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<()> {
        let Some(kept) = &mut context.body else { return Ok(()) };
        if kept.is_over(session.body_bytes_read()) {
            // The replica sees its request break off.
            let bytes_max = self.routing.table().config.limits.body_bytes_max;
            return Err(refused(context, Refusal::BodyTooLarge { bytes_max }));
        }
        kept.forward(body, end_of_stream);
        if session.as_ref().retry_buffer_truncated() {
            kept.release();
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        context.status = Some(response.status);
        if let Some(lease) = &context.lease
            && self.routing.table().config.decision_headers
        {
            response.insert_header(REPLICA_HEADER, lease.replica().name.as_str())?;
            response.insert_header(DECISION_HEADER, lease.decision().as_str())?;
        }
        // vLLM refuses on overload without saying when to come back, and some clients give up without it.
        if response.status == http::StatusCode::SERVICE_UNAVAILABLE && !response.headers.contains_key("retry-after") {
            response.insert_header("retry-after", "1")?;
        }
        Ok(())
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<Option<Duration>> {
        let begins = end_of_stream || body.as_ref().is_some_and(|chunk| !chunk.is_empty());
        if begins {
            learn_late(&self.routing, session, context);
        }
        if begins && let Some(elapsed) = context.first_byte() {
            self.observe_first_byte(context, elapsed);
        }
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        report_unreachable(context, &error);
        let retry = self.try_elsewhere(session, context);
        error.set_retry(retry);
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        context: &mut Context,
        client_reused: bool,
    ) -> Box<Error> {
        let retry = match error.esource() {
            ErrorSource::Upstream if !has_answered(session) => {
                let stale = client_reused && !context.reconnected && can_replay(session, context);
                context.reconnected |= stale;
                stale || self.try_after_break(session, context)
            }
            ErrorSource::Upstream | ErrorSource::Downstream | ErrorSource::Internal | ErrorSource::Unset => false,
        };
        error.set_retry(retry);
        error
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, context: &mut Context) -> FailToProxy {
        let nobody_listens = *error.esource() == ErrorSource::Downstream && session.is_body_done();
        if nobody_listens || has_answered(session) {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        }
        let refusal = context.refusal.take().unwrap_or_else(|| refusal_of(error, context));
        let error_code = refusal.answer(context.dialect).status;
        self.refuse(session, context, refusal).await;
        FailToProxy { error_code, can_reuse_downstream: session.get_keepalive().is_some() }
    }

    fn suppress_error_log(&self, _session: &Session, _context: &Context, _error: &Error) -> bool {
        // Pingora's line has the client's path and query in it. `logging` says what happened without them.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Context,
        _error: &Error,
        _of: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, context: &mut Context) {
        let outcome = outcome_of(error, context);
        if let Some(lease) = &mut context.lease {
            lease.note(outcome);
        }
        if let Some(error) = error {
            log_failure(error, outcome, context);
        }
        access_log::write(session, context);
        // Before lingering: a client that is slow to go must hold neither a slot nor memory.
        context.lease = None;
        context.body = None;
        if context.refusal.as_ref().is_some_and(Refusal::leaves_body_coming) && session.get_keepalive().is_none() {
            downstream::linger(session).await;
        }
        watchdog::arm();
    }
}

/// What became of a request in `request_filter`.
enum Admitted {
    /// It has a lease.
    ToReplica,
    /// kvpin has answered it.
    Answered,
}

impl Proxy {
    pub fn new(routing: Arc<Routing>, open: OpenRequests) -> Self {
        let memory = Arc::new(Budget::new(routing.metrics.request_bytes_held.clone()));
        // Pool 0 is the common one.
        Proxy { routing, open, memory, fresh_pools: AtomicU64::new(1) }
    }

    /// Takes a request in: finds out what it is for, and takes a slot for it.
    async fn admit(&self, session: &mut Session, context: &mut Context) -> std::result::Result<Admitted, Refusal> {
        let table = self.routing.table();
        check_head(session, table.config.limits.head_bytes_max)?;
        let route = match find_endpoint(session)? {
            Endpoint::Engine(route) => route,
            Endpoint::Local(local) => {
                local::serve(session, &table, local).await.map_err(|_| Refusal::BodyCutShort)?;
                return Ok(Admitted::Answered);
            }
        };
        let intake = Intake { routing: &self.routing, table: &table, memory: &self.memory };
        let Taken { request, body, late } = intake.read(session, route).await?;
        context.request = Some(request);
        context.body = Some(body);
        context.late = late;
        context.acquire()?;
        Ok(Admitted::ToReplica)
    }

    /// Answers a request with an error of kvpin's own. If that fails, the client is gone, and its connection goes too.
    async fn refuse(&self, session: &mut Session, context: &mut Context, refusal: Refusal) {
        self.routing.metrics.refused.with_label_values(&[refusal.as_str()]).inc();
        // Once a replica was tried, pingora closes the connection whatever it is told.
        let keeps = context.tried.is_empty() && refusal.keeps_connection();
        if keeps && downstream::is_worth_draining(session, &self.routing.table().config.limits) {
            // Pingora would close the connection for the unread body; told not to, it reads the rest after the answer. The
            // client may send its next request meanwhile, and the read that meets the body's end then has the start of it.
            session.set_close_on_response_before_downstream_finish(false);
            session.set_pipelining_enabled(true);
        } else {
            session.set_keepalive(None);
        }
        let answer = refusal.answer(context.dialect);
        context.refusal = Some(refusal);
        if let Err(error) = local::write(session, answer).await {
            debug!("the client was gone before it could be told: {}", error.etype().as_str());
            session.set_keepalive(None);
        }
    }

    /// After a replica took the turn and broke off, one more is tried: what broke the first may break them all.
    fn try_after_break(&self, session: &mut Session, context: &mut Context) -> bool {
        let first_time = !std::mem::replace(&mut context.broke, true);
        first_time && self.try_elsewhere(session, context)
    }

    /// Leaves the replica that failed, if the turn can begin anew on another one.
    fn try_elsewhere(&self, session: &mut Session, context: &mut Context) -> bool {
        if context.tried.len() + 1 >= TRIES_MAX || !can_replay(session, context) {
            return false;
        }
        context.move_on();
        true
    }

    fn observe_first_byte(&self, context: &Context, elapsed: Duration) {
        if let (Some(request), Some(lease)) = (&context.request, &context.lease) {
            let labels = [request.model.name.as_str(), lease.decision().as_str()];
            self.routing.metrics.time_to_first_byte.with_label_values(&labels).observe(elapsed.as_secs_f64());
        }
    }
}

fn check_head(session: &Session, bytes_max: usize) -> std::result::Result<(), Refusal> {
    let head = session.req_header();
    let lines: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if lines + head.raw_path().len() > bytes_max { Err(Refusal::HeadTooLarge { bytes_max }) } else { Ok(()) }
}

fn find_endpoint(session: &Session) -> std::result::Result<Endpoint, Refusal> {
    let head = session.req_header();
    Endpoint::find(&head.method, head.uri.path()).map_err(|reason| match reason {
        NotServed::Path => Refusal::UnknownPath,
        NotServed::Method { allowed } => Refusal::WrongMethod { allowed },
    })
}

/// Whether a response has begun. A `100 Continue` is none.
fn has_answered(session: &Session) -> bool {
    session.response_written().is_some_and(|head| !head.status.is_informational())
}

fn can_replay(session: &mut Session, context: &Context) -> bool {
    context.body.as_ref().is_some_and(|body: &RequestBody| body.can_replay(session))
}

/// Keeps the reason for `fail_to_proxy`, and makes the error that ends Pingora's tries.
fn refused(context: &mut Context, refusal: Refusal) -> Box<Error> {
    let status = refusal.answer(context.dialect).status;
    context.refusal = Some(refusal);
    Error::explain(ErrorType::HTTPStatus(status), "no replica can take the turn")
}
