//! The HTTP client of agents, in the clear and over TLS.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};

pub type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// vLLM closes idle connections after 5 s; one that is about to be closed isn't worth using.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// A client for `base`. The authorities that the system believes are read only where `base` is reached over TLS.
///
/// # Errors
/// When they can't be read.
pub fn http_client(base: &str) -> io::Result<HttpClient> {
    let builder = HttpsConnectorBuilder::new();
    let builder = if base.starts_with("https:") {
        builder.with_provider_and_native_roots(rustls::crypto::ring::default_provider())?
    } else {
        let provider = rustls::crypto::ring::default_provider().into();
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(io::Error::other)?.with_root_certificates(RootCertStore::empty());
        builder.with_tls_config(config.with_no_client_auth())
    };
    let connector = builder.https_or_http().enable_http1().build();
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .build(connector))
}
