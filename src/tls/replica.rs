//! TLS towards a replica: who it has to be, and as whom it is spoken to.

use std::fmt;
use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::{RootCertStore, client};
use sha2::{Digest as _, Sha256};

use super::{Authority, Certificate, MinVersion, provider};

/// The one protocol that vLLM speaks.
const PROTOCOL: &[u8] = b"http/1.1";

/// Whose certificates are believed.
#[derive(Clone)]
pub enum Roots {
    /// Of a file.
    File(Authority),
    /// Those that the operating system has. `SSL_CERT_FILE` and `SSL_CERT_DIR` name others.
    System(Arc<RootCertStore>),
}

/// How connections to a replica's server are secured.
#[derive(Clone)]
pub struct ReplicaTls {
    server_name: ServerName<'static>,
    roots: Roots,
    certificate: Option<Certificate>,
    client: Arc<ClientConfig>,
    pool: u64,
}

impl Roots {
    /// The operating system's. What can't be used of them is passed over, as everybody does.
    ///
    /// # Errors
    /// When there is none that can be used.
    pub fn of_system() -> Result<Self, String> {
        let missing = "this machine has no certificates of authorities: install ca-certificates, or give a ca_file";
        let certificates = pingora::tls::load_native_certs().map_err(|error| format!("{missing} ({error})"))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() { Err(missing.to_owned()) } else { Ok(Roots::System(Arc::new(roots))) }
    }

    fn store(&self) -> Arc<RootCertStore> {
        match self {
            Roots::File(authority) => authority.roots(),
            Roots::System(roots) => Arc::clone(roots),
        }
    }
}

impl ReplicaTls {
    /// `host` is a name, or an IP address without brackets: the replica's certificate must be for it. `certificate` is shown to
    /// a replica that asks for one.
    ///
    /// # Errors
    /// When the host is neither, or the library refuses what it is given.
    pub fn new(host: &str, roots: Roots, certificate: Option<Certificate>) -> Result<Self, String> {
        let server_name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("`{host}` is no name that a certificate could be for"))?;
        let builder = ClientConfig::builder_with_provider(provider());
        let builder =
            builder.with_protocol_versions(MinVersion::Tls12.versions()).map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(roots.store());
        let mut client = match &certificate {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let identity = Arc::clone(certificate.identity());
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(identity)))
            }
        };
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = client::Resumption::in_memory_sessions(RESUMED_MAX);
        let pool = pool(&server_name, &roots, certificate.as_ref());
        Ok(ReplicaTls { server_name, roots, certificate, client: Arc::new(client), pool })
    }

    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// The host, as a handshake wants it.
    pub fn host(&self) -> String {
        self.server_name.to_str().into_owned()
    }

    /// Tells connections apart that were secured otherwise. Never 0, and different where anything else is.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    pub fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }
}

/// Sessions that can be taken up again, for one server.
const RESUMED_MAX: usize = 8;

/// The highest bit is set, which no counter reaches.
fn pool(server_name: &ServerName<'_>, roots: &Roots, certificate: Option<&Certificate>) -> u64 {
    let mut hash = Sha256::new();
    hash.update(server_name.to_str().as_bytes());
    match roots {
        Roots::File(authority) => authority.certificates().iter().for_each(|der| hash.update(der)),
        Roots::System(roots) => roots.roots.iter().for_each(|anchor| hash.update(&anchor.subject_public_key_info)),
    }
    if let Some(certificate) = certificate {
        certificate.identity().cert.iter().for_each(|der| hash.update(der));
    }
    let mut bits = [0; 8];
    bits.copy_from_slice(&hash.finalize()[..8]);
    u64::from_be_bytes(bits) | 1 << 63
}

impl PartialEq for ReplicaTls {
    fn eq(&self, other: &Self) -> bool {
        self.pool == other.pool && self.certificate == other.certificate
    }
}

impl Eq for ReplicaTls {}

/// As the report of a reload has it.
impl fmt::Display for ReplicaTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.roots {
            Roots::File(authority) => write!(f, "ca_file {authority}")?,
            Roots::System(_) => f.write_str("the system's authorities")?,
        }
        match &self.certificate {
            Some(certificate) => write!(f, ", as {certificate}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ReplicaTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaTls({self}, pool {:x})", self.pool)
    }
}
