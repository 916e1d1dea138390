//! To the client: an answer that has shown what it is, chunk by chunk as it comes; a kept error; pings.

use bytes::Bytes;
use pingora::{Error, ErrorType, Result};
use tokio::time::{Duration, Instant};

use crate::balancer::Evidence;
use crate::dispatch::Lease;

use super::attempt::{Answer, Attempt, ERROR_WAIT, Kept};
use super::exchange::{Event, Exchange};
use super::stall::{Call, Stall};
use super::watchdog::Cork;
use super::{downstream, in_stream, response_head};

/// How often a stream that flows is told to the balancer. It takes its lock, so not with every chunk.
const FLOW_TOLD_EVERY: Duration = Duration::from_secs(1);

/// A chunk larger than this is not copied to save a system call.
const CORKED_MAX: usize = 16 * 1024;

impl Attempt<'_> {
    /// Passes an answer on to its end, byte for byte.
    ///
    /// # Errors
    /// Of the replica, if the response breaks off: the client's breaks off too. Of the client, if it has left.
    pub async fn relay(&mut self, answer: Answer, exchange: &mut Exchange) -> Result<()> {
        let Answer { mut head, begun, has_ended, is_stream } = answer;
        self.context.status = Some(head.status);
        self.context.meter = self.proxy.meter(self.context, &head);
        if self.context.kept_waiting && !is_stream {
            return self.relay_as_event(begun, has_ended, exchange).await;
        }
        let is_bare = response_head::is_bare(head.status);
        if !std::mem::take(&mut self.context.kept_waiting) {
            if !is_stream {
                response_head::for_client(&mut head, self.context, &self.table)?;
            }
            self.proxy.announce_departure(self.session);
            let _corked = (!begun.is_empty()).then(Cork::new);
            downstream::write_head(self.session, head, is_bare).await?;
        }
        if !begun.is_empty() {
            self.pass(begun, has_ended).await?;
        } else if has_ended {
            self.context.answered();
        }
        if !has_ended {
            let ping_interval = self.limits().ping_interval.filter(|_| is_stream);
            self.flow(exchange, Stall::new(ping_interval, &self.table.config)).await?;
        }
        self.context.answered();
        self.proxy.begun(self.session, self.context).await;
        if is_bare {
            return Ok(());
        }
        downstream::write_last(self.session, None).await
    }

    /// Tells the client of an engine's error that another replica could not make up for, as the engine wrote it.
    pub async fn tell(&mut self, kept: Kept) -> Result<()> {
        let Kept { head, body, status } = kept;
        self.context.answered();
        self.context.status = Some(status);
        self.proxy.begun(self.session, self.context).await;
        let body = if !std::mem::take(&mut self.context.kept_waiting) {
            self.proxy.announce_departure(self.session);
            let _corked = Cork::new();
            downstream::write_head(self.session, head, false).await?;
            body
        } else if head.status.is_success() {
            body
        } else {
            in_stream::event(self.context.dialect, &body)
        };
        downstream::write_last(self.session, Some(body)).await
    }

    /// Sends a ping, if this is the place for one.
    pub(super) async fn ping(&mut self) -> Result<()> {
        let Some(ping) = self.pings.due() else { return Ok(()) };
        self.proxy.routing.metrics.pings.inc();
        self.alarm.put_off();
        self.say(Bytes::from_static(ping)).await
    }

    /// Passes on what comes until it has come to its end.
    async fn flow(&mut self, exchange: &mut Exchange, mut stall: Stall) -> Result<()> {
        self.alarm.set(Some(stall.look_every));
        let mut told = Instant::now();
        loop {
            match exchange.next(self.session, self.context, &mut self.alarm).await? {
                Event::Data(chunk) => {
                    self.alarm.put_off();
                    stall.is_over();
                    self.pass(chunk, exchange.has_ended()).await?;
                    if self.alarm.last().duration_since(told) >= FLOW_TOLD_EVERY {
                        told = self.alarm.last();
                        self.proxy.observe(self.context, Evidence::Served);
                    }
                }
                Event::Silence => self.bear(&mut stall).await?,
                Event::End => return Ok(()),
                Event::Head(_) => return Err(Error::explain(ErrorType::InvalidHTTPHeader, "a second head").into_up()),
            }
        }
    }

    /// Waits on with the client, unless nothing can be hoped for.
    async fn bear(&mut self, stall: &mut Stall) -> Result<()> {
        let call = stall.look();
        if stall.is_unbearable() && self.context.lease.as_ref().is_some_and(Lease::is_down) {
            return Err(Error::explain(ErrorType::ReadTimedout, "silent, and its replica is down").into_up());
        }
        match call {
            Call::Ping => self.ping().await,
            Call::Wait => Ok(()),
        }
    }

    /// Passes a chunk on. A last one that is small goes out with the end of its frame.
    async fn pass(&mut self, chunk: Bytes, is_last: bool) -> Result<()> {
        if is_last {
            self.context.answered();
        }
        self.proxy.begun(self.session, self.context).await;
        if self.context.pass(&chunk) {
            self.proxy.first_token(self.context);
        }
        self.pings.passed(&chunk);
        let _corked = (is_last && chunk.len() <= CORKED_MAX).then(Cork::new);
        self.session.write_response_body(chunk, false).await.map_err(Error::into_down)
    }

    /// The client has a stream's head and gets an answer that is none: an error of the engine's, which then is an event.
    async fn relay_as_event(&mut self, begun: Bytes, has_ended: bool, exchange: &mut Exchange) -> Result<()> {
        let mut body = bytes::BytesMut::from(begun);
        self.alarm.set(Some(ERROR_WAIT));
        while !has_ended && body.len() <= super::first_event::LOOKED_AT_MAX {
            match exchange.next(self.session, self.context, &mut self.alarm).await? {
                Event::Data(chunk) => body.extend_from_slice(&chunk),
                Event::End | Event::Silence => break,
                Event::Head(_) => {}
            }
        }
        self.context.answered();
        self.proxy.begun(self.session, self.context).await;
        self.context.kept_waiting = false;
        let event = in_stream::event(self.context.dialect, &body);
        downstream::write_last(self.session, Some(event)).await
    }
}
