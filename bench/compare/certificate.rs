//! The certificate that the proxies show, and a client that believes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

/// The host that it is for.
const HOST: &str = "bench.test";

/// Where a certificate of its own (ECDSA, P-256) and its key are.
pub struct Certificate {
    files: TempDir,
    client: Arc<ClientConfig>,
}

impl Certificate {
    pub fn make() -> anyhow::Result<Certificate> {
        let made = rcgen::generate_simple_self_signed([HOST.to_owned()])?;
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let files = TempDir::new()?;
        std::fs::write(files.path().join("certificate.pem"), &certificate)?;
        std::fs::write(files.path().join("key.pem"), &key)?;
        // As HAProxy wants it.
        std::fs::write(files.path().join("both.pem"), format!("{certificate}{key}"))?;
        for secret in ["key.pem", "both.pem"] {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(files.path().join(secret), std::fs::Permissions::from_mode(0o600))?;
        }
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let mut client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Every connection is to be a whole handshake.
        client.resumption = Resumption::disabled();
        Ok(Certificate { files, client: Arc::new(client) })
    }

    pub fn certificate(&self) -> PathBuf {
        self.path().join("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.path().join("key.pem")
    }

    /// The certificate and its key in one file.
    pub fn both(&self) -> PathBuf {
        self.path().join("both.pem")
    }

    pub fn connector(&self) -> TlsConnector {
        TlsConnector::from(Arc::clone(&self.client))
    }

    pub fn host() -> anyhow::Result<ServerName<'static>> {
        Ok(ServerName::try_from(HOST)?)
    }

    fn path(&self) -> &Path {
        self.files.path()
    }
}
