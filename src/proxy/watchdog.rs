//! Bounds the time a connection may sit without a complete request head: after it was accepted, while it becomes a secure
//! one, between requests, and inside a head that trickles in.
//!
//! Pingora 0.9.1 bounds single reads only, and no read at all after a connection's first request. So one task a connection is
//! raced with a timer. A request tells the timer nothing. The timer looks at what it left behind whenever it runs out, and goes
//! on for what is left of the patience, so a busy connection is woken for it once in a patience and not twice a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::dispatch::Routing;

/// What the requests of a connection leave behind.
#[derive(Debug)]
pub(super) struct Watchdog {
    pub(super) accepted: Instant,
    /// Milliseconds from the accept to the moment since which no request is handled; [`BUSY`] while one is.
    idle_since_ms: AtomicU64,
    /// Requests whose head was complete.
    heads: AtomicU64,
    /// Whether it was closed for a head over the limit.
    head_was_too_large: AtomicBool,
    /// Whether what is written waits for what is written next.
    is_corked: AtomicBool,
}

/// Whether a stream's client has left before its request was answered.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned(Arc<AtomicBool>);

/// Who is told how a request goes.
enum Watch {
    /// A connection that has one request at a time.
    Connection(Arc<Watchdog>),
    /// One of many requests of a connection that watches over its streams itself.
    Stream(Abandoned),
}

const BUSY: u64 = u64::MAX;

tokio::task_local! {
    static WATCH: Watch;
}

/// Says that a complete head has come and the request is being handled.
pub fn disarm() {
    tell(|watchdog| watchdog.set_busy(true), |_| {});
}

/// Says that the request is done and the connection waits for the next one.
pub fn arm() {
    tell(|watchdog| watchdog.set_busy(false), |_| {});
}

/// What is written to the client while this lives goes out with what is written after it: a head with the body that is at hand.
/// On HTTP/2 the connection sees to that by itself.
#[must_use]
pub struct Cork(());

impl Cork {
    pub fn new() -> Self {
        tell(|watchdog| watchdog.is_corked.store(true, Ordering::Relaxed), |_| {});
        Cork(())
    }
}

impl Drop for Cork {
    fn drop(&mut self) {
        tell(|watchdog| watchdog.is_corked.store(false, Ordering::Relaxed), |_| {});
    }
}

/// Says that the client has left in the middle of its request.
pub fn abandoned() {
    tell(|_| {}, |abandoned| abandoned.0.store(true, Ordering::Relaxed));
}

fn tell(connection: impl FnOnce(&Watchdog), stream: impl FnOnce(&Abandoned)) {
    let told = WATCH.try_with(|watch| match watch {
        Watch::Connection(watchdog) => connection(watchdog),
        Watch::Stream(abandoned) => stream(abandoned),
    });
    debug_assert!(told.is_ok(), "a request is handled on a connection that nothing watches");
}

impl Watchdog {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Watchdog {
            accepted: Instant::now(),
            idle_since_ms: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            head_was_too_large: AtomicBool::new(false),
            is_corked: AtomicBool::new(false),
        })
    }

    /// Whether a request is being handled.
    pub(super) fn is_busy(&self) -> bool {
        self.idle_since_ms.load(Ordering::Relaxed) == BUSY
    }

    /// How many requests there were so far.
    pub(super) fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    /// A complete head has come, or its request is done.
    pub(super) fn set_busy(&self, is_busy: bool) {
        if is_busy {
            self.heads.fetch_add(1, Ordering::Relaxed);
        }
        // At least 1: 0 stands for a connection that has served nothing yet.
        let idle_since_ms = if is_busy { BUSY } else { (self.accepted.elapsed().as_millis() as u64).max(1) };
        self.idle_since_ms.store(idle_since_ms, Ordering::Relaxed);
    }

    pub(super) fn is_corked(&self) -> bool {
        self.is_corked.load(Ordering::Relaxed)
    }

    pub(super) fn note_head_too_large(&self) {
        self.head_was_too_large.store(true, Ordering::Relaxed);
    }

    /// Whether it was closed for a head over the limit.
    pub(super) fn head_was_too_large(&self) -> bool {
        self.head_was_too_large.load(Ordering::Relaxed)
    }

    /// Serves a connection. Requests that are handled within it tell this watchdog.
    pub(super) fn over<F: Future>(self: &Arc<Self>, serving: F) -> impl Future<Output = F::Output> {
        // As a function that is async itself it would have room for `serving` twice.
        WATCH.scope(Watch::Connection(Arc::clone(self)), serving)
    }

    /// Ends when the connection has been without a request for longer than it may.
    pub(super) async fn out_of_patience(&self, routing: &Routing) {
        let mut look_at = self.accepted + patience(routing, 0);
        loop {
            sleep_until(look_at).await;
            let idle_since_ms = self.idle_since_ms.load(Ordering::Relaxed);
            let idle_since = match idle_since_ms {
                BUSY => Instant::now(),
                since => self.accepted + Duration::from_millis(since),
            };
            look_at = idle_since + patience(routing, idle_since_ms);
            if look_at <= Instant::now() {
                return;
            }
        }
    }
}

impl Abandoned {
    /// Handles the request of a stream.
    pub(super) async fn over<F: Future>(&self, handling: F) -> F::Output {
        WATCH.scope(Watch::Stream(self.clone()), handling).await
    }

    pub(super) fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that has just been accepted owes a head; one that has served may keep quiet for longer.
fn patience(routing: &Routing, idle_since_ms: u64) -> Duration {
    let limits = &routing.table().config.limits;
    if idle_since_ms == 0 { limits.head_timeout } else { limits.keepalive_timeout }
}
