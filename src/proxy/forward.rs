//! A turn's way to a replica, and to another one as long as nothing has come of it.
//!
//! Pingora 0.9.1 has a loop of its own for that, behind `upstream_peer`. It writes a response's head as soon as it has come,
//! lets no filter hold it, and has no timer beside its pump. So kvpin drives the exchange itself, with Pingora's connector
//! and pool on one side and its session on the other.

use std::sync::atomic::Ordering;
use std::time::Instant;

use log::{debug, warn};
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use crate::balancer::{Evidence, ReplicaSpec};
use crate::connector::Destination;
use crate::dispatch::{Gone, Table};

use super::Proxy;
use super::attempt::{Attempt, Kept, Opening};
use super::context::Context;
use super::door;
use super::intake::learn_late;
use super::meter::Meter;
use super::refusal::Refusal;
use super::trouble::Trouble;
use super::upstream::{UPSTREAM_IDLE, peer};

impl Proxy {
    /// Brings the turn to a replica and the answer to the client.
    ///
    /// # Errors
    /// What ends the turn without a whole answer. What the client can still be told is in the context.
    pub(super) async fn forward(&self, session: &mut ServerSession, context: &mut Context) -> Result<()> {
        door::enter(session, context, &self.routing.metrics.hold).await?;
        loop {
            let Some((trouble, kept)) = self.try_replica(session, context).await? else { return Ok(()) };
            self.note(context, trouble);
            if let Some(kept) = kept {
                context.kept = Some(kept);
            }
            let Err(refusal) = self.try_again(context, trouble) else { continue };
            let Some(kept) = context.kept.take() else { return Err(context.refused(refusal)) };
            return Attempt::new(self, session, context).tell(kept).await;
        }
    }

    /// Tries the replica of the lease. Returns what was wrong with it, if nothing has come of it.
    async fn try_replica(
        &self,
        session: &mut ServerSession,
        context: &mut Context,
    ) -> Result<Option<(Trouble, Option<Kept>)>> {
        let table = self.routing.table();
        let Some(lease) = &context.lease else { return Err(context.refused(Refusal::Internal)) };
        let Ok(destination) = self.destination(&table, lease.replica(), context.reconnected) else {
            return Ok(Some((Trouble::Unreachable(None), None)));
        };
        let connecting = Instant::now();
        let connected = self.replicas.connect(&destination).await;
        context.connecting += connecting.elapsed();
        let (connection, is_pooled) = match connected {
            Ok(connected) => connected,
            Err(error) => return Ok(Some((Trouble::connecting(&error), None))),
        };
        let mut attempt = Attempt::new(self, session, context);
        let (opening, exchange) = attempt.open(connection, is_pooled).await?;
        let (answer, mut exchange) = match (opening, exchange) {
            (Opening::Bad(trouble, kept), _) => return Ok(Some((trouble, kept))),
            (Opening::Good(answer), Some(exchange)) => (answer, exchange),
            (Opening::Good(_), None) => return Err(context.refused(Refusal::Internal)),
        };
        attempt.relay(answer, &mut exchange).await?;
        if let Some(connection) = exchange.into_reusable() {
            self.replicas.release(connection, &destination, UPSTREAM_IDLE);
        }
        Ok(None)
    }

    /// How a replica is connected to; `Gone` if it was taken out since it was chosen, and can't be spoken to any more.
    fn destination<'a>(
        &self,
        table: &'a Table,
        replica: &ReplicaSpec,
        is_second_chance: bool,
    ) -> std::result::Result<Destination<'a>, Gone> {
        let tls = table.tls_of(replica)?;
        let mut destination = Destination::new(peer(replica.address, &table.config.limits), tls);
        if is_second_chance {
            // A pool of its own, so that it isn't given to another connection that is stale too.
            destination.peer.group_key = self.fresh_pools.fetch_add(1, Ordering::Relaxed);
        }
        Ok(destination)
    }

    /// Chooses where the turn is tried next: the same replica on a fresh connection, or another one. Refuses where it can't
    /// begin anew, and where there is nobody left.
    fn try_again(&self, context: &mut Context, trouble: Trouble) -> std::result::Result<(), Refusal> {
        let limits = &self.routing.table().config.limits;
        context.breaks += usize::from(trouble.is_break());
        let may = context.breaks < limits.breaks_max && context.tried.len() + 1 < limits.tries_max;
        let can_replay = context.body.as_ref().is_some_and(|body| body.can_replay());
        if trouble == Trouble::StaleConnection && can_replay {
            context.reconnected = true;
        } else if may && can_replay {
            context.move_on()?;
        } else {
            let replica = context.lease.as_ref().map_or_else(String::new, |lease| lease.replica().name.clone());
            return Err(Refusal::ReplicaFailed { replica });
        }
        self.routing.metrics.retries.with_label_values(&[trouble.as_str()]).inc();
        Ok(())
    }

    /// Tells the log and the balancer what was wrong with a replica.
    fn note(&self, context: &Context, trouble: Trouble) {
        let (Some(request), Some(lease)) = (&context.request, &context.lease) else { return };
        let (model, replica) = (&request.model.name, &lease.replica().name);
        match trouble.evidence() {
            Some(evidence) => {
                warn!("model={model} replica={replica} answered a turn with nothing: {}", trouble.as_str());
                self.observe(context, evidence);
            }
            None => debug!("model={model} replica={replica} has to be connected to again: {}", trouble.as_str()),
        }
    }

    /// Tells the balancer what was seen of the turn's replica.
    pub(super) fn observe(&self, context: &Context, evidence: Evidence) {
        let (Some(request), Some(lease)) = (&context.request, &context.lease) else { return };
        // What it changes, the dispatcher logs.
        request.model.dispatcher.with(|balancer, now| balancer.observe(lease.id(), evidence, now));
    }

    /// The first byte of an answer is on its way to the client: nothing is tried again from here on.
    pub(super) async fn begun(&self, session: &ServerSession, context: &mut Context) {
        learn_late(&self.routing, session, context);
        if context.first_byte().is_some() {
            context.kept = None;
            self.departure.teach().await;
        }
    }

    /// The request begins to go out.
    pub(super) fn sent(&self, context: &mut Context) {
        if let (Some(took), Some(request)) = (context.sent(), &context.request) {
            let labels = [request.model.name.as_str()];
            self.routing.metrics.overhead.with_label_values(&labels).observe(took.as_secs_f64());
        }
    }

    /// The first token is on its way to the client.
    pub(super) fn first_token(&self, context: &Context) {
        if let (Some(request), Some(lease), Some(took)) = (&context.request, &context.lease, context.first_token) {
            let labels = [request.model.name.as_str(), lease.decision().as_str()];
            self.routing.metrics.time_to_first_byte.with_label_values(&labels).observe(took.as_secs_f64());
        }
    }

    /// What watches an answer with such a head.
    pub(super) fn meter(&self, context: &Context, head: &ResponseHeader) -> Option<Meter> {
        let model = context.request.as_ref()?.model.name.as_str();
        Meter::of(head, self.routing.metrics.time_between_tokens.with_label_values(&[model]))
    }
}
