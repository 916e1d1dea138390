//! Certificates for a test, and the authority that they are from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// Issues certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key.
pub struct Issued {
    pub certificate: Certificate,
    pub key: KeyPair,
}

/// Where a certificate and its key are.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = named(name);
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("signs itself") }
    }

    /// A certificate for hosts, or for IP addresses, that is valid for decades.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.issue_for_years(names, 2020, 2099)
    }

    /// One that is valid from the first day of one year to that of another.
    pub fn issue_for_years(&self, names: &[&str], from: i32, to: i32) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        params.distinguished_name = named("issued for a test");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        Issued { certificate, key }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes its own certificate.
    pub fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        std::fs::write(&path, self.pem()).expect("writes a certificate");
        path
    }

    /// For a client that believes this authority alone, and speaks the first of `protocols` that the server knows.
    pub fn client(&self, protocols: &[&str]) -> ClientConfig {
        with_protocols(ClientConfig::builder().with_root_certificates(self.roots()).with_no_client_auth(), protocols)
    }

    /// The same for a client that has a certificate of its own.
    pub fn client_as(&self, issued: &Issued, protocols: &[&str]) -> ClientConfig {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        let identity = builder.with_client_auth_cert(vec![issued.der()], issued.key_der());
        with_protocols(identity.expect("a certificate with its key"), protocols)
    }

    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("an authority");
        Arc::new(roots)
    }
}

impl Issued {
    /// Writes both, the key for its owner alone.
    pub fn write(&self, directory: &Path, name: &str) -> Files {
        let files = Files {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}-key.pem")),
        };
        std::fs::write(&files.certificate, self.certificate.pem()).expect("writes a certificate");
        std::fs::write(&files.key, self.key.serialize_pem()).expect("writes a key");
        set_mode(&files.key, 0o600);
        files
    }

    pub fn der(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }

    pub fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.serialize_pem().as_bytes()).expect("a key")
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("sets the mode");
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn with_protocols(mut config: ClientConfig, protocols: &[&str]) -> ClientConfig {
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}
