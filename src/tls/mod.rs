//! TLS: what a listener and a connection to a replica need of certificates, made from files.
//!
//! ```text
//! PEM files --pem--> Certificate, Authority --> ListenerTls: which certificate for which name, who may connect
//!                                           `-> ReplicaTls:  who a replica has to be, and as whom it is spoken to
//! ```
//!
//! A leaf: it reads the files it is told to, and knows no other module. What is wrong with a file is found here, once, when
//! a configuration is read. A handshake reads no file.

mod authority;
mod certificate;
mod listener;
mod pem;
mod replica;
mod sni;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

pub use authority::Authority;
pub use certificate::Certificate;
pub use listener::ListenerTls;
pub use replica::{ReplicaTls, Roots};

/// The oldest version of TLS that is spoken. Anything before 1.2 is spoken to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MinVersion {
    Tls12,
    Tls13,
}

/// What is wrong with a file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}: {reason}", path.display())]
pub struct Unusable {
    pub path: PathBuf,
    pub reason: String,
}

const FINGERPRINT_BYTES: usize = 8;

static SINCE_1_2: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
static SINCE_1_3: [&SupportedProtocolVersion; 1] = [&TLS13];

impl Unusable {
    fn new(path: &Path, reason: impl fmt::Display) -> Self {
        Unusable { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl MinVersion {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            MinVersion::Tls12 => &SINCE_1_2,
            MinVersion::Tls13 => &SINCE_1_3,
        }
    }
}

/// The version's number, as the configuration has it.
impl fmt::Display for MinVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MinVersion::Tls12 => "1.2",
            MinVersion::Tls13 => "1.3",
        })
    }
}

/// Enough of the SHA-256 of the first of some certificates to tell it from others: how it begins. `openssl x509 -fingerprint
/// -sha256` says the same.
fn fingerprint(certificates: &[CertificateDer<'_>]) -> String {
    let Some(first) = certificates.first() else { return String::new() };
    Sha256::digest(first).iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// ring, as Pingora has it: it builds with a C compiler and nothing else.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
