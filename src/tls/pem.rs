//! Reading PEM files.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Unusable;

/// The bundle of every public authority has a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The certificates of a file, in its order; at least one. Other things in it are passed over.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let bytes = read(path)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(Unusable::new(path, "there is no certificate in it")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(Unusable::new(path, error)),
    }
}

/// The private key of a file.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, Unusable> {
    let bytes = read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        PemError::NoItemsFound if is_encrypted(&bytes) => {
            Unusable::new(path, "the key is encrypted, and nobody is there to ask for its passphrase")
        }
        PemError::NoItemsFound => Unusable::new(path, "there is no private key in it"),
        error => Unusable::new(path, error),
    })
}

fn is_encrypted(pem: &[u8]) -> bool {
    memchr::memmem::find(pem, b"BEGIN ENCRYPTED PRIVATE KEY").is_some()
}

fn read(path: &Path) -> Result<Vec<u8>, Unusable> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Ok(count) if count as u64 > FILE_BYTES_MAX => {
            Err(Unusable::new(path, format!("it is larger than {FILE_BYTES_MAX} bytes")))
        }
        Ok(_) => Ok(bytes),
        Err(error) => Err(Unusable::new(path, error)),
    }
}
