//! One data-parallel rank: an engine, the task that drives it, and the generations that listen to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::clock::Clock;
use super::failure::Failure;
use crate::sim::config::{EngineConfig, EngineConfigError};
use crate::sim::engine::Engine;
use crate::sim::request::{Request, RequestId, SubmitError, TokenEvent};
use crate::sim::stats::{Counters, Gauges};

/// An engine that several connections use.
#[derive(Debug)]
pub struct Rank {
    active: Mutex<Active>,
    wake: Notify,
}

#[derive(Debug)]
struct Active {
    engine: Engine,
    /// The channels are unbounded because the engine must not wait for a slow reader, as vLLM's doesn't; what one holds is
    /// bounded by the longest reply.
    listeners: BTreeMap<RequestId, UnboundedSender<TokenEvent>>,
}

/// A request in an engine. Dropping it aborts the request.
#[derive(Debug)]
pub struct Generation {
    rank: Arc<Rank>,
    request: RequestId,
    events: UnboundedReceiver<TokenEvent>,
}

impl Rank {
    /// An idle rank; nothing moves until `drive` runs.
    pub fn new(config: EngineConfig) -> Result<Self, EngineConfigError> {
        let active = Active { engine: Engine::new(config)?, listeners: BTreeMap::new() };
        Ok(Self { active: Mutex::new(active), wake: Notify::new() })
    }

    /// Hands a request to the engine.
    pub fn submit(self: &Arc<Self>, request: Request) -> Result<Generation, SubmitError> {
        let (sender, events) = unbounded_channel();
        let mut active = self.active.lock();
        let request = active.engine.submit(request)?;
        active.listeners.insert(request, sender);
        drop(active);
        self.wake.notify_one();
        Ok(Generation { rank: Arc::clone(self), request, events })
    }

    /// Requests running and waiting at this moment.
    pub fn load(&self) -> (usize, usize) {
        self.active.lock().engine.load()
    }

    /// What /metrics shows of this rank.
    pub fn stats(&self) -> (Gauges, Counters) {
        let active = self.active.lock();
        (active.engine.gauges(), active.engine.counters().clone())
    }

    /// Ends every generation without a last token.
    pub fn fail_all(&self) {
        let mut active = self.active.lock();
        for (request, _) in std::mem::take(&mut active.listeners) {
            active.engine.abort(request);
        }
    }

    /// Makes step after step, each as long as the engine says; between two steps it holds while the engine is frozen.
    pub async fn drive(self: Arc<Self>, clock: Clock, mut failure: watch::Receiver<Failure>) {
        let mut at = clock.now();
        loop {
            // The sender lives as long as the server, whose end also ends this task.
            if failure.wait_for(|failure| *failure != Failure::Frozen).await.is_err() {
                return;
            }
            match self.begin_step(at) {
                Some(ends) => {
                    clock.sleep_until(ends).await;
                    self.end_step();
                    at = clock.resume(ends);
                }
                None => {
                    self.wake.notified().await;
                    at = clock.now();
                }
            }
        }
    }

    fn begin_step(&self, now: Duration) -> Option<Duration> {
        self.active.lock().engine.begin_step(now)
    }

    fn end_step(&self) {
        let mut active = self.active.lock();
        for event in active.engine.end_step() {
            let (request, last) = (event.request, event.finished.is_some());
            let Some(listener) = active.listeners.get(&request) else {
                continue;
            };
            let gone = listener.send(event).is_err();
            if gone || last {
                active.listeners.remove(&request);
            }
            if gone {
                active.engine.abort(request);
            }
        }
    }

    fn abort(&self, request: RequestId) {
        let mut active = self.active.lock();
        active.engine.abort(request);
        active.listeners.remove(&request);
    }
}

impl Generation {
    /// The next token; None when no more come. The last one says so itself, so a None before it means that the engine died.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        self.events.poll_recv(context)
    }

    /// The same for callers that can wait.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        self.events.recv().await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.rank.abort(self.request);
    }
}
