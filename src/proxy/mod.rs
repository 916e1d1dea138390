//! The edge: a request's story, phase by phase.
//!
//! ```text
//! request.serve           from its head to its end
//!     admit               endpoint, API key, body up to the model and the session, decision -> lease; refusals end here
//!     forward             the turn and its answer:
//!         attempt         connect, send, hold the answer until it shows what it is   <---.
//!         try_again       nothing has come of it: another replica, or another connection -'
//!         relay           the answer, byte for byte; pings while it is silent
//!     fail                what the client can still be told
//!     conclude            the outcome, one access line; then the context, and with it the lease, is dropped
//! ```

pub mod accept;
mod access_log;
mod alarm;
mod arrival;
mod attempt;
mod authorise;
mod body;
pub mod connection;
mod context;
mod deframe;
mod departure;
mod door;
mod down;
mod downstream;
mod ending;
mod endpoint;
mod exchange;
mod explain;
mod first_event;
mod forward;
mod forwarded;
mod framing;
mod h1;
mod h2;
mod head_guard;
mod hop_by_hop;
mod identify;
mod in_stream;
mod intake;
mod late;
mod local;
mod memory;
mod meter;
mod path;
mod patience;
mod pieces;
mod pings;
mod refusal;
mod refusal_text;
mod relay;
mod request;
mod request_head;
mod response;
mod response_head;
mod search;
mod splice;
mod stall;
mod streams;
mod trouble;
mod upload;
mod upstream;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use log::debug;
use pingora::protocols::http::ServerSession;

use crate::connector::Connector;
use crate::dispatch::Routing;

pub use access_log::{AccessLog, CannotOpen, Target};
pub use context::{Context, OpenRequests};
pub use departure::{Departure, Leaving, Teacher};
pub use explain::{Explanation, explain};
pub use upstream::TCP_KEEPALIVE;

use endpoint::{Dialect, Endpoint};
use intake::{Intake, Taken};
use local::Asked;
use memory::Budget;
use refusal::Refusal;
use streams::Streams;
use trouble::Trouble;

/// How many idle connections to replicas are pooled. Agents hold a connection each, and a replica serves hundreds.
const POOLED_MAX: usize = 1024;

/// The proxy, for the connections of all listeners.
pub struct Proxy {
    pub routing: Arc<Routing>,
    pub open: OpenRequests,
    departure: Arc<Departure>,
    access_log: Arc<AccessLog>,
    memory: Arc<Budget>,
    streams: Streams,
    /// Connections to the replicas, and the pool of those that are idle.
    replicas: Connector,
    /// Numbers the pools that are used once.
    fresh_pools: AtomicU64,
}

/// What is to be done with a request that was taken in.
enum Admitted {
    /// It has a lease.
    ToReplica,
    /// kvpin has answered it.
    Answered,
}

impl Proxy {
    pub fn new(
        routing: Arc<Routing>,
        open: OpenRequests,
        departure: Arc<Departure>,
        access_log: Arc<AccessLog>,
    ) -> Self {
        let memory = Arc::new(Budget::new(routing.metrics.request_bytes_held.clone()));
        let replicas = Connector::new(POOLED_MAX);
        // From 0 on, so that the first one is an increase too.
        for trouble in Trouble::ALL {
            routing.metrics.retries.with_label_values(&[trouble.as_str()]);
        }
        let streams = Streams::default();
        // 0 is the common pool.
        Proxy { routing, open, departure, access_log, memory, streams, replicas, fresh_pools: AtomicU64::new(1) }
    }

    /// Takes a request in: finds out what it is for, and takes a slot for it.
    async fn admit(
        &self,
        session: &mut ServerSession,
        context: &mut Context,
    ) -> std::result::Result<Admitted, Refusal> {
        let table = self.routing.table();
        arrival::check_head(session, table.config.limits.head_bytes_max)?;
        let found = arrival::find_endpoint(session, &table.config)?;
        let (endpoint, path) = (found.endpoint, found.path.into_owned());
        context.dialect = match endpoint {
            Endpoint::Engine(_) => Dialect::of_path(&path),
            Endpoint::Local(_) => local::dialect(session),
        };
        if endpoint.needs_key() {
            context.caller = authorise::caller(&table, &session.req_header().headers)?;
        }
        let route = match endpoint {
            Endpoint::Engine(route) => route,
            Endpoint::Local(local) => {
                local::serve(session, &table, Asked { local, path: &path, caller: &context.caller }).await?;
                return Ok(Admitted::Answered);
            }
        };
        context.slot = context.caller.enter(self.routing.uptime())?;
        let streams_max = table.config.limits.streams_max;
        context.stream = Some(self.streams.enter(streams_max).ok_or(Refusal::TooManyStreams { streams_max })?);
        arrival::settle(session, &path, &table.config).map_err(|_| Refusal::Internal)?;
        let intake = Intake { routing: &self.routing, table: &table, memory: &self.memory, caller: &context.caller };
        let Taken { request, body, late } = intake.read(session, route).await?;
        context.request = Some(request);
        context.body = Some(body);
        context.late = late;
        Ok(Admitted::ToReplica)
    }

    /// To be called before the head of an answer: one that is written while the process is about to end says so.
    fn announce_departure(&self, session: &mut ServerSession) {
        if self.departure.has_begun() {
            session.set_keepalive(None);
        }
    }

    /// Answers a request with an error of kvpin's own. If that fails, the client is gone, and its connection goes too.
    async fn refuse(&self, session: &mut ServerSession, context: &mut Context, refusal: Refusal) {
        self.routing.metrics.refused.with_label_values(&[refusal.as_str()]).inc();
        if refusal.keeps_connection() && downstream::is_worth_draining(session, &self.routing.table().config.limits) {
            // Pingora would close the connection for the unread body; told not to, it lets the rest be read after the answer.
            session.set_close_on_response_before_downstream_finish(false);
        } else {
            session.set_keepalive(None);
        }
        context.answered();
        let answer = refusal.answer(context.dialect);
        context.refusal = Some(refusal);
        let told = match context.kept_waiting {
            false => local::write(session, answer).await,
            true => {
                let event = in_stream::event(context.dialect, answer.body.as_bytes());
                downstream::write_last(session, Some(event)).await
            }
        };
        if let Err(error) = told {
            debug!("the client was gone before it could be told: {}", error.etype().as_str());
            session.set_keepalive(None);
        }
    }
}
