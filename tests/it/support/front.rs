//! TLS in front of a replica.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::authority::{Authority, Issued};

/// Passes on what comes over TLS.
pub struct Front {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Front {
    /// Shows `issued`; clients need a certificate of `clients` if there is such an authority.
    pub async fn start(to: SocketAddr, issued: &Issued, clients: Option<&Authority>) -> Self {
        let builder = match clients {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(authority) => ServerConfig::builder().with_client_cert_verifier(
                WebPkiClientVerifier::builder(authority.roots()).build().expect("a verifier"),
            ),
        };
        let mut config = builder.with_single_cert(vec![issued.der()], issued.key_der()).expect("a certificate");
        // What it would rather speak, if kvpin could.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let accepted: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&accepted);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                count.fetch_add(1, Ordering::Relaxed);
                connections.spawn(pass_on(stream, acceptor.clone(), to));
            }
        });
        Front { address, accepted, serving }
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// As kvpin knows it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn name(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Until either side ends it. A client that doesn't believe the certificate ends it at once.
async fn pass_on(stream: TcpStream, acceptor: TlsAcceptor, to: SocketAddr) {
    let Ok(mut secured) = acceptor.accept(stream).await else { return };
    let Ok(mut replica) = TcpStream::connect(to).await else { return };
    replica.set_nodelay(true).expect("sets TCP_NODELAY");
    copy_bidirectional(&mut secured, &mut replica).await.ok();
}
