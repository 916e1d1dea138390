//! Bounds the time a connection may sit without a complete request head: after it was accepted, between requests, and
//! inside a head that trickles in.
//!
//! Pingora 0.9.1 bounds single reads only, and no read at all after a connection's first request. This wraps its
//! application: one task a connection, raced with a timer. A request tells the timer nothing. The timer looks at what it
//! left behind whenever it runs out, and goes on for what is left of the patience, so a busy connection is woken for it once
//! in a patience and not twice a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::time::{Instant, sleep_until};

use crate::dispatch::Routing;

use super::{Departure, Proxy};

/// The proxy with a watchdog on each of its connections.
pub struct Watched {
    pub inner: Arc<HttpProxy<Proxy>>,
    pub routing: Arc<Routing>,
    pub departure: Arc<Departure>,
}

/// What the requests of a connection leave behind for its watchdog.
struct Watchdog {
    accepted: Instant,
    /// Milliseconds from the accept to the moment since which no request is handled; [`BUSY`] while one is.
    idle_since_ms: AtomicU64,
}

const BUSY: u64 = u64::MAX;

tokio::task_local! {
    static WATCHDOG: Arc<Watchdog>;
}

/// Says that a complete head has come and the request is being handled.
pub fn disarm() {
    tell(|_| BUSY);
}

/// Says that the request is done and the connection waits for the next one.
pub fn arm() {
    // At least 1: 0 stands for a connection that has served nothing yet.
    tell(|watchdog| (watchdog.accepted.elapsed().as_millis() as u64).max(1));
}

fn tell(idle_since_ms: impl Fn(&Watchdog) -> u64) {
    let told = WATCHDOG.try_with(|watchdog| watchdog.idle_since_ms.store(idle_since_ms(watchdog), Ordering::Relaxed));
    debug_assert!(told.is_ok(), "a request is handled on a connection that nothing watches");
}

#[async_trait]
impl ServerApp for Watched {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let _connected = self.departure.enter();
        let watchdog = Arc::new(Watchdog { accepted: Instant::now(), idle_since_ms: AtomicU64::new(0) });
        let serve = WATCHDOG.scope(Arc::clone(&watchdog), self.inner.process_new(stream, shutdown));
        tokio::select! {
            biased;
            stream = serve => stream,
            // What loses the race is dropped, and the connection is closed with it.
            () = self.out_of_patience(&watchdog) => None,
        }
    }

    /// Called when nothing is accepted any more. Pingora then closes what is idle, and at once.
    async fn cleanup(&self) {
        self.departure.idle_time_is_over().await;
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
                return;
            }
        }
    }

    /// A connection that has just been accepted owes a head; one that has served may keep quiet for longer.
    fn patience(&self, idle_since_ms: u64) -> Duration {
        let limits = &self.routing.table().config.limits;
        if idle_since_ms == 0 { limits.head_timeout } else { limits.keepalive_timeout }
    }
}
