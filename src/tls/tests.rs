//! Files of every kind, and what becomes of them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm, date_time_ymd};
use rustls::SignatureScheme;
use tempfile::TempDir;

use super::sni::ByName;
use super::*;

/// A certificate that has signed itself, and its key, as files.
pub(crate) struct Files {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

pub(crate) fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Writes a certificate for hosts.
pub(crate) fn issue(directory: &Path, name: &str, hosts: &[&str]) -> Files {
    issue_with(directory, name, hosts, &PKCS_ECDSA_P256_SHA256, (2020, 2099))
}

fn issue_with(
    directory: &Path,
    name: &str,
    hosts: &[&str],
    algorithm: &'static SignatureAlgorithm,
    (from, to): (i32, i32),
) -> Files {
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(hosts).expect("names");
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    let key = KeyPair::generate_for(algorithm).expect("a key");
    let certificate = params.self_signed(&key).expect("signs itself");
    let files =
        Files { certificate: directory.join(format!("{name}.pem")), key: directory.join(format!("{name}-key.pem")) };
    fs::write(&files.certificate, certificate.pem()).expect("writes");
    fs::write(&files.key, key.serialize_pem()).expect("writes");
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).expect("sets the mode");
    files
}

fn load(files: &Files) -> Certificate {
    Certificate::load(&files.certificate, &files.key).unwrap_or_else(|unusable| panic!("{unusable}"))
}

#[test]
fn a_certificate_tells_its_hosts_and_its_end_and_never_its_key() {
    let directory = directory();
    let files = issue(directory.path(), "a", &["Gpu.Example", "*.lab.example", "10.0.0.1"]);
    let certificate = load(&files);
    assert_eq!(certificate.names(), ["gpu.example", "*.lab.example"], "an address is no host's name");
    assert_eq!(certificate.expires_s(), 4_070_908_800);
    assert_eq!(certificate.warnings(), [""; 0]);
    let shown = format!("{certificate} {certificate:?}");
    assert!(shown.contains("gpu.example, *.lab.example until Thu, 01 Jan 2099"), "{shown}");
    let key = fs::read_to_string(&files.key).expect("the key");
    let secret = key.lines().nth(1).expect("its first line");
    assert!(!shown.contains(&secret[..16]), "{shown}");
}

#[test]
fn a_file_that_cant_be_used_is_named_with_the_reason() {
    let directory = directory();
    let path = |name: &str| directory.path().join(name);
    let good = issue(directory.path(), "good", &["a.example"]);
    let other = issue(directory.path(), "other", &["a.example"]);
    let pem = fs::read_to_string(&good.certificate).expect("a certificate");
    fs::write(path("empty"), "").expect("writes");
    fs::write(path("text"), "no PEM at all").expect("writes");
    fs::write(path("cut"), &pem[..pem.len() / 2]).expect("writes");
    fs::write(path("garbage"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("writes");
    fs::write(path("encrypted"), "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
        .expect("writes");
    fs::write(path("huge"), vec![b' '; 2 << 20]).expect("writes");
    for (certificate, key, at, reason) in [
        (path("missing"), good.key.clone(), path("missing"), "No such file"),
        (good.certificate.clone(), path("missing"), path("missing"), "No such file"),
        (path(""), good.key.clone(), path(""), "directory"),
        (path("empty"), good.key.clone(), path("empty"), "no certificate in it"),
        (path("text"), good.key.clone(), path("text"), "no certificate in it"),
        (path("cut"), good.key.clone(), path("cut"), "section end"),
        (path("garbage"), good.key.clone(), path("garbage"), "it is no certificate"),
        (good.key.clone(), good.key.clone(), good.key.clone(), "no certificate in it"),
        (good.certificate.clone(), good.certificate.clone(), good.certificate.clone(), "no private key in it"),
        (good.certificate.clone(), path("encrypted"), path("encrypted"), "encrypted"),
        (good.certificate.clone(), path("huge"), path("huge"), "larger than 1048576 bytes"),
        (good.certificate.clone(), other.key.clone(), other.key.clone(), "not the key of the certificate in"),
    ] {
        let unusable = Certificate::load(&certificate, &key).expect_err(reason);
        assert_eq!(unusable.path, at, "{unusable}");
        assert!(unusable.reason.contains(reason), "{unusable}");
    }
    for (file, reason) in [
        (path("missing"), "No such file"),
        (path("empty"), "no certificate in it"),
        (path("garbage"), "its certificate 1"),
    ] {
        let unusable = Authority::load(&file).expect_err(reason);
        assert!(unusable.path == file && unusable.reason.contains(reason), "{unusable}");
    }
}

#[test]
fn a_certificate_out_of_its_time_and_a_key_for_everybody_are_used_and_told_of() {
    let directory = directory();
    for (name, years, said) in [
        ("past", (2000, 2001), "ran out on Mon, 01 Jan 2001"),
        ("future", (2098, 2099), "not valid before Wed, 01 Jan 2098"),
    ] {
        let files = issue_with(directory.path(), name, &["a.example"], &PKCS_ECDSA_P256_SHA256, years);
        let warnings = load(&files).warnings();
        assert!(warnings.len() == 1 && warnings[0].contains(said), "{warnings:?}");
        assert!(warnings[0].starts_with(&files.certificate.display().to_string()), "{warnings:?}");
    }
    let files = issue(directory.path(), "public", &["a.example"]);
    for (mode, count) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o604, 1)] {
        fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).expect("sets the mode");
        let warnings = load(&files).warnings();
        assert_eq!(warnings.len(), count, "{mode:o}: {warnings:?}");
        assert!(warnings.iter().all(|line| line.contains("every user of this machine can read the key")));
    }
    let nameless = load(&issue(directory.path(), "nameless", &[]));
    let tls = ListenerTls::new(vec![nameless], None, MinVersion::Tls12).expect("it is used");
    assert!(tls.warnings().iter().any(|line| line.contains("for no host")), "{:?}", tls.warnings());
}

#[test]
fn the_certificate_for_the_host_is_shown_and_the_first_where_there_is_none() {
    let directory = directory();
    let all = [
        ("first", &["first.example"][..], &PKCS_ECDSA_P256_SHA256),
        ("wild", &["*.lab.example"], &PKCS_ECDSA_P256_SHA256),
        ("exact", &["a.lab.example"], &PKCS_ECDSA_P256_SHA256),
        ("edwards", &["two.example"], &PKCS_ED25519),
        ("curve", &["two.example"], &PKCS_ECDSA_P256_SHA256),
    ];
    let certificates = all
        .iter()
        .map(|(name, hosts, algorithm)| load(&issue_with(directory.path(), name, hosts, algorithm, (2020, 2099))));
    let by_name = ByName::new(certificates.collect());
    let curve = [SignatureScheme::ECDSA_NISTP256_SHA256];
    let both = [SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519];
    for (host, schemes, expected) in [
        (None, &both[..], "first"),
        (Some("elsewhere.example"), &both, "first"),
        (Some("first.example"), &both, "first"),
        (Some("b.lab.example"), &both, "wild"),
        (Some("A.Lab.Example"), &both, "exact"),
        (Some("two.example"), &both, "edwards"),
        (Some("two.example"), &curve, "curve"),
        (Some("two.example"), &[SignatureScheme::RSA_PSS_SHA256], "edwards"),
        (None, &[SignatureScheme::RSA_PSS_SHA256], "first"),
    ] {
        let chosen = by_name.choose(host, |identity| identity.key.choose_scheme(schemes).is_some());
        let chosen = chosen.expect("one of them").path().file_stem().expect("a name").to_owned();
        assert_eq!(chosen.to_str(), Some(expected), "{host:?} {schemes:?}");
    }
}

#[test]
fn the_same_files_are_the_same_and_renewed_ones_are_not() {
    let directory = directory();
    let files = issue(directory.path(), "a", &["a.example"]);
    let tls = || ListenerTls::new(vec![load(&files)], None, MinVersion::Tls12).expect("a listener's TLS");
    let before = tls();
    assert_eq!(before, tls());
    issue(directory.path(), "a", &["a.example"]);
    assert_ne!(before, tls(), "the same names and dates, and another key");
    let roots = || Roots::File(Authority::load(&files.certificate).expect("an authority"));
    let replica = |host| ReplicaTls::new(host, roots(), None).expect("a replica's TLS");
    assert_eq!(replica("a.example"), replica("a.example"));
    assert_ne!(replica("a.example").pool(), replica("b.example").pool());
    let believed = replica("a.example");
    issue(directory.path(), "a", &["a.example"]);
    assert_ne!(believed.pool(), replica("a.example").pool(), "no connection survives the loss of its trust");
    assert_ne!(believed.pool() >> 63, 0);
}

#[test]
fn a_replicas_host_is_a_name_or_an_address() {
    let directory = directory();
    let files = issue(directory.path(), "a", &["a.example"]);
    let tls = |host: &str| ReplicaTls::new(host, Roots::File(Authority::load(&files.certificate).unwrap()), None);
    for host in ["a.example", "vllm_0.local", "10.0.0.1", "::1", "localhost"] {
        assert_eq!(tls(host).expect(host).host(), host);
    }
    for host in ["", "a b", "-.example"] {
        assert!(tls(host).is_err(), "{host:?}");
    }
}
