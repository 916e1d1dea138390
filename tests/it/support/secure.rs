//! A TLS connection of a client.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::within;

/// What the certificates in these tests are for.
pub const HOST: &str = "kvpin.test";

/// Connects, and says why it could not.
pub async fn try_secure(
    address: SocketAddr,
    config: ClientConfig,
    host: &str,
) -> Result<TlsStream<TcpStream>, std::io::Error> {
    let stream = within("a connection", TcpStream::connect(address)).await.expect("connects");
    stream.set_nodelay(true).expect("sets TCP_NODELAY");
    let host = ServerName::try_from(host.to_owned()).expect("a host's name");
    within("a handshake", TlsConnector::from(Arc::new(config)).connect(host, stream)).await
}

pub async fn secure(address: SocketAddr, config: ClientConfig) -> TlsStream<TcpStream> {
    try_secure(address, config, HOST).await.expect("a handshake")
}

/// The certificate that a server has shown.
pub fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let chain = stream.get_ref().1.peer_certificates().expect("the server's certificate");
    chain[0].clone().into_owned()
}

pub fn version(stream: &TlsStream<TcpStream>) -> ProtocolVersion {
    stream.get_ref().1.protocol_version().expect("a version")
}

/// What was agreed on in the handshake.
pub fn protocol(stream: &TlsStream<TcpStream>) -> Option<String> {
    stream.get_ref().1.alpn_protocol().map(|protocol| String::from_utf8_lossy(protocol).into_owned())
}
