//! Bounds the time a connection may sit without a complete request head: after it was accepted, between requests, and
//! inside a head that trickles in.
//!
//! Pingora 0.9.1 bounds single reads only, and no read at all after a connection's first request. This wraps its
//! application: one task a connection, raced with a timer. A request tells the timer nothing. The timer looks at what it
//! left behind whenever it runs out, and goes on for what is left of the patience, so a busy connection is woken for it once
//! in a patience and not twice a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until};

use crate::dispatch::Routing;

use super::Proxy;
use super::accept::Connections;
use super::head_guard::HeadGuard;

/// The proxy with a watchdog on each of its connections.
pub struct Watched {
    pub inner: Arc<HttpProxy<Proxy>>,
    pub routing: Arc<Routing>,
    pub connections: Arc<Connections>,
}

/// What the requests of a connection leave behind for its watchdog.
#[derive(Debug)]
pub struct Watchdog {
    accepted: Instant,
    /// Milliseconds from the accept to the moment since which no request is handled; [`BUSY`] while one is.
    idle_since_ms: AtomicU64,
    /// Requests whose head was complete.
    heads: AtomicU64,
    /// Whether it was closed for a head over the limit.
    head_was_too_large: AtomicBool,
}

const BUSY: u64 = u64::MAX;

tokio::task_local! {
    static WATCHDOG: Arc<Watchdog>;
}

/// Says that a complete head has come and the request is being handled.
pub fn disarm() {
    set_busy(true);
}

/// Says that the request is done and the connection waits for the next one.
pub fn arm() {
    set_busy(false);
}

fn set_busy(is_busy: bool) {
    let told = WATCHDOG.try_with(|watchdog| watchdog.set_busy(is_busy));
    debug_assert!(told.is_ok(), "a request is handled on a connection that nothing watches");
}

impl Watchdog {
    pub fn new() -> Arc<Self> {
        Arc::new(Watchdog {
            accepted: Instant::now(),
            idle_since_ms: AtomicU64::new(0),
            heads: AtomicU64::new(0),
            head_was_too_large: AtomicBool::new(false),
        })
    }

    /// Whether a request is being handled.
    pub fn is_busy(&self) -> bool {
        self.idle_since_ms.load(Ordering::Relaxed) == BUSY
    }

    /// How many requests there were so far.
    pub fn heads(&self) -> u64 {
        self.heads.load(Ordering::Relaxed)
    }

    /// A complete head has come, or its request is done.
    pub fn set_busy(&self, is_busy: bool) {
        if is_busy {
            self.heads.fetch_add(1, Ordering::Relaxed);
        }
        // At least 1: 0 stands for a connection that has served nothing yet.
        let idle_since_ms = if is_busy { BUSY } else { (self.accepted.elapsed().as_millis() as u64).max(1) };
        self.idle_since_ms.store(idle_since_ms, Ordering::Relaxed);
    }

    pub fn note_head_too_large(&self) {
        self.head_was_too_large.store(true, Ordering::Relaxed);
    }

    /// Whether it was closed for a head over the limit.
    pub fn head_was_too_large(&self) -> bool {
        self.head_was_too_large.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl ServerApp for Watched {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let table = self.routing.table();
        let address = stream.get_socket_digest().and_then(|digest| Some(digest.peer_addr()?.as_inet()?.ip()));
        let _counted = match self.connections.enter(address, &table.config) {
            Ok(counted) => counted,
            Err(too_many) => {
                self.refused(too_many.as_str());
                return None;
            }
        };
        let watchdog = Watchdog::new();
        let stream = HeadGuard::new(stream, Arc::clone(&watchdog), table.config.limits.head_bytes_max);
        // A connection may last for days, and would keep the whole table.
        drop(table);
        let serve = WATCHDOG.scope(Arc::clone(&watchdog), self.inner.process_new(Box::new(stream), shutdown));
        tokio::select! {
            biased;
            stream = serve => {
                if watchdog.head_was_too_large() {
                    self.refused("head_too_large");
                }
                stream
            }
            // What loses the race is dropped, and the connection is closed with it.
            () = self.out_of_patience(&watchdog) => None,
        }
    }

    async fn cleanup(&self) {
        ServerApp::cleanup(&*self.inner).await;
    }
}

impl Watched {
    /// Ends when the connection has been without a request for longer than it may.
    async fn out_of_patience(&self, watchdog: &Watchdog) {
        let mut look_at = watchdog.accepted + self.patience(0);
        loop {
            sleep_until(look_at).await;
            let idle_since_ms = watchdog.idle_since_ms.load(Ordering::Relaxed);
            let idle_since = match idle_since_ms {
                BUSY => Instant::now(),
                since => watchdog.accepted + Duration::from_millis(since),
            };
            look_at = idle_since + self.patience(idle_since_ms);
            if look_at <= Instant::now() {
                if idle_since_ms == 0 {
                    self.refused("head_timed_out");
                }
                return;
            }
        }
    }

    /// Counts a connection that is closed for what it did, or because there are too many.
    fn refused(&self, reason: &str) {
        self.routing.metrics.connections_refused.with_label_values(&[reason]).inc();
    }

    /// A connection that has just been accepted owes a head; one that has served may keep quiet for longer.
    fn patience(&self, idle_since_ms: u64) -> Duration {
        let limits = &self.routing.table().config.limits;
        if idle_since_ms == 0 { limits.head_timeout } else { limits.keepalive_timeout }
    }
}
