//! A request, from its head to its end.
//!
//! Pingora's proxy has a function for that, with phases to hang one's own into, and behind them all that a request could come to
//! need: caching, retries, a pump for two versions of HTTP. kvpin needs none of that, and every open stream would have 16 KiB of
//! room for it. So it goes through its phases itself, on Pingora's session.

use http::Method;
use log::debug;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::{Error, ErrorSource, ErrorType, Result};

use crate::balancer::Outcome;

use super::context::Context;
use super::ending::{log_failure, outcome_of, refusal_of};
use super::endpoint::Dialect;
use super::refusal::Refusal;
use super::{Admitted, Proxy, authorise, downstream, watchdog};

impl Proxy {
    /// Serves the request that comes next on a connection. Returns the connection if another one may come on it.
    pub(super) async fn serve(&self, mut session: Box<ServerSession>, shutdown: &ShutdownWatch) -> Option<Stream> {
        if !read_head(&mut session).await {
            return None;
        }
        if *shutdown.borrow() {
            session.set_keepalive(None);
        }
        let mut context = self.begin(&mut session);
        let error = self.answer(&mut session, &mut context).await.err();
        let may_stay = match &error {
            Some(error) => self.fail(&mut session, error, &mut context).await,
            None => true,
        };
        self.conclude(&mut session, error.as_deref(), &mut context).await;
        if let Some(error) = error {
            session.on_proxy_failure(error);
        }
        if !may_stay {
            return None;
        }
        let reusable = session.finish().await.ok().flatten()?;
        Some(reusable.into_parts().0)
    }

    /// A head is complete.
    fn begin(&self, session: &mut ServerSession) -> Context {
        watchdog::disarm();
        downstream::set_timeouts(session, &self.routing.table().config.limits);
        let head = session.req_header();
        let mut context = Context::new(&self.open);
        context.dialect = Dialect::of_path(head.uri.path());
        context.takes_chunks = head.version == http::Version::HTTP_11;
        context
    }

    /// Takes the request in and has it answered.
    ///
    /// # Errors
    /// What ended it before its answer was whole.
    async fn answer(&self, session: &mut ServerSession, context: &mut Context) -> Result<()> {
        match self.admit(session, context).await {
            Ok(Admitted::ToReplica) => self.forward(session, context).await,
            Ok(Admitted::Answered) => Ok(()),
            Err(refusal) => {
                self.refuse(session, context, refusal).await;
                Ok(())
            }
        }
    }

    /// Tells the client what it can still be told of a failure. Whether its connection can be used again.
    async fn fail(&self, session: &mut ServerSession, error: &Error, context: &mut Context) -> bool {
        let is_clients = *error.esource() == ErrorSource::Downstream;
        let nobody_listens =
            is_clients && session.is_body_done() && downstream::refusal_of(error) != Refusal::BytesAfterBody;
        let is_out_of_reach = has_answered(session) && !context.kept_waiting;
        if nobody_listens || is_out_of_reach {
            return false;
        }
        let refusal = context.refusal.take().unwrap_or_else(|| refusal_of(error, context));
        self.refuse(session, context, refusal).await;
        session.get_keepalive().is_some()
    }

    /// The request is done: it is booked, and gives back what it has.
    async fn conclude(&self, session: &mut ServerSession, error: Option<&Error>, context: &mut Context) {
        let outcome = outcome_of(error, context);
        if let Some(lease) = &mut context.lease {
            lease.note(outcome);
        }
        if outcome == Outcome::Abandoned || matches!(context.refusal, Some(Refusal::BodyCutShort)) {
            watchdog::abandoned();
        }
        if let Some(error) = error {
            log_failure(error, outcome, context);
        }
        context.charge(session.body_bytes_read());
        self.log_access(session, context);
        if let Some(verdict) = authorise::verdict(context.refusal.as_ref(), context.request.is_some()) {
            context.caller.count(verdict);
        }
        // Before lingering: a client that is slow to go must hold neither a slot nor memory.
        context.lease = None;
        context.slot = None;
        context.body = None;
        context.stream = None;
        if context.refusal.as_ref().is_none_or(Refusal::leaves_body_coming) {
            downstream::read_to_end(session).await;
        }
        self.departure.linger(session).await;
        watchdog::arm();
    }
}

/// Reads a request's head. `false`: there is none that could be served, and the connection is to be closed.
async fn read_head(session: &mut ServerSession) -> bool {
    let status = match session.read_request().await {
        // A tunnel is nothing that an engine has.
        Ok(true) if session.req_header().method == Method::CONNECT => Some(405),
        Ok(true) => return true,
        Ok(false) => return false,
        Err(error) => {
            debug!("a request has no head that could be read: {}", error.etype().as_str());
            (*error.etype() == ErrorType::InvalidHTTPHeader).then_some(400)
        }
    };
    if let Some(status) = status
        && let Err(error) = session.respond_error(status).await
    {
        debug!("the client was gone before it could be told: {}", error.etype().as_str());
    }
    session.shutdown().await;
    false
}

/// Whether a response has begun. A `100 Continue` is none.
fn has_answered(session: &ServerSession) -> bool {
    session.response_written().is_some_and(|head| !head.status.is_informational())
}
