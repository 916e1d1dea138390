//! Bounds the time a connection may sit without a complete request head: after it was accepted, between requests, and
//! inside a head that trickles in.
//!
//! Pingora 0.9.1 bounds single reads only, and no read at all after a connection's first request. This wraps its
//! application: one task a connection, raced with a timer that runs whenever no request is being handled.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::sync::Notify;

use crate::dispatch::Routing;

use super::Proxy;

/// The proxy with a watchdog on each of its connections.
pub struct Watched {
    pub inner: Arc<HttpProxy<Proxy>>,
    pub routing: Arc<Routing>,
}

/// What the request that a connection is handling tells its watchdog.
#[derive(Default)]
struct Watchdog {
    busy: AtomicBool,
    changed: Notify,
}

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

fn set_busy(busy: bool) {
    // Outside a watched connection, in a unit test, there is nobody to tell.
    let told = WATCHDOG.try_with(|watchdog| {
        watchdog.busy.store(busy, Ordering::Relaxed);
        watchdog.changed.notify_one();
    });
    debug_assert!(told.is_ok() || cfg!(test));
}

#[async_trait]
impl ServerApp for Watched {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let proxy = &self.inner;
        let watchdog = Arc::new(Watchdog::default());
        let mut is_first = true;
        let serve = WATCHDOG.scope(Arc::clone(&watchdog), proxy.process_new(stream, shutdown));
        tokio::pin!(serve);
        loop {
            let patience = self.patience(is_first);
            let out_of_patience = async {
                if watchdog.busy.load(Ordering::Relaxed) {
                    pending::<()>().await;
                }
                tokio::time::sleep(patience).await;
            };
            tokio::select! {
                stream = &mut serve => return stream,
                () = watchdog.changed.notified() => is_first = false,
                // Dropping `serve` closes the connection.
                () = out_of_patience => return None,
            }
        }
    }

    async fn cleanup(&self) {
        ServerApp::cleanup(&*self.inner).await;
    }
}

impl Watched {
    fn patience(&self, is_first: bool) -> Duration {
        let limits = &self.routing.table().config.limits;
        if is_first { limits.head_timeout } else { limits.keepalive_timeout }
    }
}
