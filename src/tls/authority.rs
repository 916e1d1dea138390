//! The authorities of a file: whose certificates are believed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use super::{Unusable, fingerprint, pem};

/// Certificates that others are held against.
#[derive(Clone)]
pub struct Authority {
    path: PathBuf,
    certificates: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Authority {
    /// Reads every certificate of a file.
    ///
    /// # Errors
    /// When the file can't be read, has none, or has one that can't be used.
    pub fn load(path: &Path) -> Result<Self, Unusable> {
        let certificates = pem::certificates(path)?;
        let mut roots = RootCertStore::empty();
        for (number, certificate) in certificates.iter().enumerate() {
            let added = roots.add(certificate.clone());
            added.map_err(|error| Unusable::new(path, format!("its certificate {}: {error}", number + 1)))?;
        }
        Ok(Authority { path: path.to_owned(), certificates, roots: Arc::new(roots) })
    }

    /// The file that it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.roots)
    }

    pub(super) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }
}

impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Authority {}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (sha256 {})", self.path.display(), fingerprint(&self.certificates))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({self})")
    }
}
