//! TLS of a listener: its certificates, who may connect, and which versions are spoken.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::Ticketer;
use rustls::server::WebPkiClientVerifier;

use super::sni::ByName;
use super::{Authority, Certificate, MinVersion, provider};

/// What is spoken above TLS, the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// How connections to a listener are secured. One that is replaced by a reload serves the connections that it has accepted.
#[derive(Clone)]
pub struct ListenerTls {
    certificates: Vec<Certificate>,
    client_ca: Option<Authority>,
    min_version: MinVersion,
    server: Arc<ServerConfig>,
}

impl ListenerTls {
    /// `certificates` in the order of preference: the first is for clients that ask for no host, or for one that none is for.
    ///
    /// # Errors
    /// When there is no certificate, or the library refuses what it is given.
    pub fn new(
        certificates: Vec<Certificate>,
        client_ca: Option<Authority>,
        min_version: MinVersion,
    ) -> Result<Self, String> {
        if certificates.is_empty() {
            return Err("no certificate is given".to_owned());
        }
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(min_version.versions()).map_err(|error| error.to_string())?;
        let builder = match &client_ca {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots(), provider()).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| format!("{authority}: {error}"))?)
            }
        };
        let mut server = builder.with_cert_resolver(Arc::new(ByName::new(certificates.clone())));
        server.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        // A client that comes back is spared the signature. The tickets' keys die with this configuration: after a reload
        // nobody gets in by a certificate of an authority that is no longer believed.
        server.ticketer = Ticketer::new().map_err(|error| error.to_string())?;
        Ok(ListenerTls { certificates, client_ca, min_version, server: Arc::new(server) })
    }

    /// What a handshake goes by.
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    /// What an operator should know of its certificates, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let nameless = |certificate: &Certificate| {
            let path = certificate.path().display();
            let line = format!("{path}: the certificate is for no host (subject alternative name): clients refuse it");
            certificate.names().is_empty().then_some(line)
        };
        let certificates = self.certificates.iter();
        certificates.flat_map(|certificate| certificate.warnings().into_iter().chain(nameless(certificate))).collect()
    }

    /// Whose certificates clients must have; `None` if they need none.
    pub fn client_ca(&self) -> Option<&Authority> {
        self.client_ca.as_ref()
    }

    pub fn min_version(&self) -> MinVersion {
        self.min_version
    }
}

impl PartialEq for ListenerTls {
    fn eq(&self, other: &Self) -> bool {
        let ListenerTls { certificates, client_ca, min_version, server: _ } = self;
        *certificates == other.certificates && *client_ca == other.client_ca && *min_version == other.min_version
    }
}

impl Eq for ListenerTls {}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenerTls { certificates, client_ca, min_version, server: _ } = self;
        write!(f, "ListenerTls({certificates:?}, {client_ca:?}, {min_version:?})")
    }
}
