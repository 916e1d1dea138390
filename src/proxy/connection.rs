//! A client's connection, from its accept to its end: TLS where its listener wants it, then HTTP/1.1 or, where client and
//! kvpin have agreed on it in the handshake, HTTP/2.
//!
//! Pingora's own listeners could do the handshake too. They take certificates and authorities once, at the start, and give
//! every client a minute. Here a handshake goes by the configuration that is current when the connection comes, and is a part
//! of what has to be there within `head_timeout_s`.

use std::sync::Arc;

use async_trait::async_trait;
use log::debug;
use pingora::apps::ServerApp;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::{ALPN, Stream};
use pingora::server::ShutdownWatch;
use tokio::time::timeout_at;

use crate::dispatch::Routing;
use crate::tls::ListenerTls;

use super::accept::Connections;
use super::context::OpenRequests;
use super::head_guard::HeadGuard;
use super::watchdog::Watchdog;
use super::{Departure, Proxy, h1, h2};

/// What serves the connections of a listener.
pub struct Listener {
    pub proxy: Arc<Proxy>,
    pub routing: Arc<Routing>,
    pub open: OpenRequests,
    pub departure: Arc<Departure>,
    /// Those of all listeners.
    pub connections: Arc<Connections>,
    /// Its place among the configured listeners, which no reload changes.
    pub at: usize,
}

#[async_trait]
impl ServerApp for Listener {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let address = stream.get_socket_digest().and_then(|digest| Some(digest.peer_addr()?.as_inet()?.ip()));
        let _counted = match self.connections.enter(address, &self.routing.table().config) {
            Ok(counted) => counted,
            Err(too_many) => {
                self.refused(too_many.as_str());
                return None;
            }
        };
        let _connected = self.departure.enter();
        let watchdog = Watchdog::new();
        tokio::select! {
            biased;
            () = watchdog.over(self.serve(stream, &watchdog, shutdown)) => {
                if watchdog.head_was_too_large() {
                    self.refused("head_too_large");
                }
            }
            // What loses the race is dropped, and the connection is closed with it.
            () = watchdog.out_of_patience(&self.routing) => {
                if watchdog.heads() == 0 {
                    self.refused("head_timed_out");
                }
            }
        }
        None
    }

    /// Called when nothing is accepted any more. What is idle is closed then, and at once.
    async fn cleanup(&self) {
        self.departure.idle_time_is_over().await;
        self.departure.close_idle();
    }
}

impl Listener {
    /// Counts a connection that is closed for what it did, or because there are too many.
    fn refused(&self, reason: &str) {
        self.routing.metrics.connections_refused.with_label_values(&[reason]).inc();
    }

    /// What only some connections need is boxed: every idle one would have room for it (`tests/crowds`).
    async fn serve(&self, stream: Stream, watchdog: &Arc<Watchdog>, shutdown: &ShutdownWatch) {
        let table = self.routing.table();
        let tls = table.config.listen.get(self.at).and_then(|listener| listener.tls.as_ref());
        let stream = match tls {
            None => stream,
            Some(tls) => {
                let deadline = watchdog.accepted + table.config.limits.head_timeout;
                let (outcome, secured) = match timeout_at(deadline, Box::pin(secured(stream, tls))).await {
                    Ok(Some(secured)) => ("done", Some(secured)),
                    Ok(None) => ("failed", None),
                    Err(_) => ("timed_out", None),
                };
                self.routing.metrics.tls_handshakes.with_label_values(&[outcome]).inc();
                let Some(secured) = secured else { return };
                secured
            }
        };
        let head_bytes_max = table.config.limits.head_bytes_max;
        // A connection may last for days, and would keep the whole table.
        drop(table);
        if matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            Box::pin(h2::serve(self, stream, watchdog.accepted, shutdown)).await;
        } else {
            let stream = HeadGuard::new(stream, Arc::clone(watchdog), head_bytes_max);
            h1::serve(self, stream, shutdown).await;
        }
    }
}

/// The connection with TLS in it; `None` if there is none to be had with this client. That is no news: scanners, clients that
/// speak plain HTTP and those without a certificate come by all day.
async fn secured(stream: Stream, tls: &ListenerTls) -> Option<Stream> {
    let stream = stream.into_any().downcast::<TcpStream>().ok()?;
    match Acceptor::from_server_config(tls.server()).tls_handshake(*stream).await {
        Ok(secured) => Some(Box::new(secured)),
        Err(error) => {
            debug!("a client could not be spoken to over TLS: {error}");
            None
        }
    }
}
