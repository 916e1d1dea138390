//! Connections to the replicas' servers, TCP or TLS, and the pool of those that are idle.
//!
//! Pingora's own connector makes a configuration of TLS anew for every connection, with every authority parsed again and
//! nothing remembered of the last session, and it reads the system's authorities when it is made, and panics where one of
//! them can't be read. So here it only connects and pools, and the handshake goes by what the configuration has prepared.

use std::sync::Arc;
use std::time::Duration;

use pingora::connectors::{ConnectorOptions, TransportConnector};
use pingora::protocols::l4::stream::Stream as TcpStream;
use pingora::protocols::{Stream, tls as handshakes};
use pingora::tls::TlsConnector;
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use pingora::{Error, ErrorType, Result};
use tokio::time::timeout;

use crate::balancer::DownReason;
use crate::tls::ReplicaTls;

/// A file without authorities, for Pingora's connectors, which believe nobody then.
const NO_AUTHORITIES: &str = "/dev/null";

/// Makes connections and keeps them.
pub struct Connector {
    transport: TransportConnector,
}

/// A server: its address with the options for a connection to it, and how it is secured.
pub struct Destination<'a> {
    /// Without TLS, whatever `tls` is: the handshake isn't Pingora's.
    pub peer: HttpPeer,
    tls: Option<&'a ReplicaTls>,
}

impl<'a> Destination<'a> {
    /// `peer` has the options. Connections that were secured otherwise are in pools of their own.
    pub fn new(mut peer: HttpPeer, tls: Option<&'a Arc<ReplicaTls>>) -> Self {
        let tls = tls.map(Arc::as_ref);
        peer.group_key = tls.map_or(COMMON_POOL, ReplicaTls::pool);
        Destination { peer, tls }
    }
}

/// Of connections without TLS.
const COMMON_POOL: u64 = 0;

impl Connector {
    /// One that pools so many idle connections.
    pub fn new(pooled_max: usize) -> Self {
        let mut options = ConnectorOptions::new(pooled_max);
        options.ca_file = Some(NO_AUTHORITIES.to_owned());
        Connector { transport: TransportConnector::new(Some(options)) }
    }

    /// A connection, and whether it is a pooled one.
    ///
    /// # Errors
    /// When there is none within the time that the options give for it, or the server isn't who it has to be; see
    /// [`down_reason`].
    pub async fn connect(&self, to: &Destination<'_>) -> Result<(Stream, bool)> {
        if let Some(stream) = self.transport.reused_stream(&to.peer).await {
            return Ok((stream, true));
        }
        // Boxed: a turn has room for all that it could come to wait for, as long as it lasts, and most turns have a pooled one.
        let stream = Box::pin(self.connect_anew(to)).await?;
        Ok((stream, false))
    }

    async fn connect_anew(&self, to: &Destination<'_>) -> Result<Stream> {
        match (to.tls, to.peer.total_connection_timeout()) {
            (None, _) => self.transport.new_stream(&to.peer).await,
            (Some(tls), None) => self.secured(to, tls).await,
            (Some(tls), Some(patience)) => timeout(patience, self.secured(to, tls)).await.unwrap_or_else(|_| {
                Error::e_explain(ErrorType::ConnectTimedout, format!("no TLS within {patience:?}"))
            }),
        }
    }

    /// Keeps a connection that can be used again.
    pub fn release(&self, stream: Stream, to: &Destination<'_>, idle_max: Duration) {
        self.transport.release_stream(stream, to.peer.reuse_hash(), Some(idle_max));
    }

    async fn secured(&self, to: &Destination<'_>, tls: &ReplicaTls) -> Result<Stream> {
        let stream = self.transport.new_stream(&to.peer).await?;
        let Ok(stream) = stream.into_any().downcast::<TcpStream>() else {
            return Error::e_explain(ErrorType::InternalError, "a connection that is no socket");
        };
        let connector = TlsConnector::from(tls.client());
        let secured = handshakes::client::handshake(&connector, &tls.host(), *stream).await?;
        Ok(Box::new(secured))
    }
}

/// What a failure to connect says of a server; `None` if what failed is on this machine.
pub fn down_reason(error: &Error) -> Option<DownReason> {
    match error.etype() {
        ErrorType::ConnectTimedout => Some(DownReason::ConnectTimedOut),
        ErrorType::ConnectRefused | ErrorType::ConnectNoRoute => Some(DownReason::ConnectRefused),
        ErrorType::TLSHandshakeFailure if tls_cause(error).contains(BAD_CERTIFICATE) => {
            Some(DownReason::CertificateRefused)
        }
        ErrorType::TLSHandshakeFailure => Some(DownReason::TlsFailed),
        _ => None,
    }
}

/// How rustls begins to say that a certificate is not believed. Pingora passes its words on and not its error.
const BAD_CERTIFICATE: &str = "invalid peer certificate";

/// Why a handshake failed, in the words of the library.
pub fn tls_cause(error: &Error) -> String {
    let said = error.to_string();
    let cause = said.rsplit_once("cause: ").map_or(said.as_str(), |(_, cause)| cause);
    let cause = cause.rsplit_once(", SNI: ").map_or(cause, |(cause, _)| cause);
    cause.trim().to_owned()
}
