//! A certificate with its key: who it is for, until when, and what an operator should know of it.

use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use x509_parser::prelude::{ASN1Time, FromDer as _, GeneralName, X509Certificate};

use super::{Unusable, fingerprint, pem, provider};

/// One that can be shown to the other side, with the key that proves it.
#[derive(Clone)]
pub struct Certificate {
    path: PathBuf,
    key_path: PathBuf,
    identity: Arc<CertifiedKey>,
    /// In lower case.
    names: Vec<String>,
    not_before: ASN1Time,
    not_after: ASN1Time,
    concerns: Vec<Concern>,
}

/// What works, and was most likely not meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concern {
    Expired,
    NotYetValid,
    /// Every user of the machine can read the key.
    KeyIsPublic,
}

impl Certificate {
    /// Reads a certificate, with those that lead from it to its authority behind it, and its key.
    ///
    /// # Errors
    /// The file that can't be used, and why: it can't be read, there is nothing in it, or the two don't belong together. One
    /// that has expired is a concern and no error: whoever has to change something else just then must be able to.
    pub fn load(path: &Path, key_path: &Path) -> Result<Self, Unusable> {
        let chain = pem::certificates(path)?;
        let facts = Facts::of(&chain[0]).map_err(|error| Unusable::new(path, error))?;
        let key = pem::key(key_path)?;
        let identity = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                Unusable::new(key_path, format!("it is not the key of the certificate in {}", path.display()))
            }
            error => Unusable::new(key_path, error),
        })?;
        let mut concerns = facts.concerns(SystemTime::now());
        if is_public(key_path) {
            concerns.push(Concern::KeyIsPublic);
        }
        let Facts { names, not_before, not_after } = facts;
        Ok(Certificate {
            path: path.to_owned(),
            key_path: key_path.to_owned(),
            identity: Arc::new(identity),
            names,
            not_before,
            not_after,
            concerns,
        })
    }

    /// The hosts that it is for, in lower case. One that begins with `*.` is for every host one label below.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// When it runs out, in seconds since 1970.
    pub fn expires_s(&self) -> i64 {
        self.not_after.timestamp()
    }

    /// What an operator should know of it, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let (path, key_path) = (self.path.display(), self.key_path.display());
        let concerns = self.concerns.iter();
        concerns
            .map(|concern| match concern {
                Concern::Expired => format!("{path}: the certificate ran out on {}", date(self.not_after)),
                Concern::NotYetValid => {
                    format!("{path}: the certificate is not valid before {}", date(self.not_before))
                }
                Concern::KeyIsPublic => {
                    format!("{key_path}: every user of this machine can read the key; chmod o-r keeps it private")
                }
            })
            .collect()
    }

    /// The file that it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn identity(&self) -> &Arc<CertifiedKey> {
        &self.identity
    }
}

/// The same certificates, and so the same key: any other would have been refused.
impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.identity.cert == other.identity.cert && self.concerns == other.concerns
    }
}

impl Eq for Certificate {}

/// Who it is for and until when; never its key.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = if self.names.is_empty() { "no host".to_owned() } else { self.names.join(", ") };
        let fingerprint = fingerprint(&self.identity.cert);
        write!(f, "{names} until {} ({}, sha256 {fingerprint})", date(self.not_after), self.path.display())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({self})")
    }
}

/// What a certificate says.
struct Facts {
    names: Vec<String>,
    not_before: ASN1Time,
    not_after: ASN1Time,
}

impl Facts {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| format!("it is no certificate: {error}"))?;
        let alternatives = parsed.subject_alternative_name().map_err(|error| format!("its names: {error}"))?;
        let names = alternatives.iter().flat_map(|extension| &extension.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        let validity = parsed.validity();
        Ok(Facts { names: names.collect(), not_before: validity.not_before, not_after: validity.not_after })
    }

    fn concerns(&self, now: SystemTime) -> Vec<Concern> {
        let now_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        [
            (self.not_after.timestamp() < now_s, Concern::Expired),
            (self.not_before.timestamp() > now_s, Concern::NotYetValid),
        ]
        .into_iter()
        .filter_map(|(holds, concern)| holds.then_some(concern))
        .collect()
    }
}

/// Whether users who have nothing to do with a file can read it. One whose mode can't be asked for was just read by its owner.
fn is_public(path: &Path) -> bool {
    const OTHERS_READ: u32 = 0o004;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & OTHERS_READ != 0)
}

fn date(time: ASN1Time) -> String {
    time.to_rfc2822().unwrap_or_else(|_| time.to_string())
}
