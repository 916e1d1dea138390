//! The certificates, keys and authorities that a file names. They are read here, so that one that can't be used refuses the
//! file, with the path and the reason.

use super::error::Problems;
use super::file::{CertificateFile, TlsFile};
use super::locate::Path;
use super::{Surroundings, bounds};
use crate::tls::{Authority, Certificate, ListenerTls, MinVersion, ReplicaTls, Roots};

/// What the file says of TLS towards a replica.
pub(super) struct ReplicaTlsFile {
    pub(super) ca_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_key: Option<String>,
}

/// Two files that belong together, each with the place that names it.
struct Pair<'a> {
    certificate: (Path, &'a str),
    key: (Path, &'a str),
}

/// The TLS of a listener, if everything that is named can be used.
pub(super) fn listener(
    path: &Path,
    file: TlsFile,
    around: Surroundings<'_>,
    problems: &mut Problems,
) -> Option<ListenerTls> {
    let TlsFile { certificate, key, certificates, client_ca, min_version } = file;
    let files = match certificate_files(path, certificate, key, certificates) {
        Ok(files) => files,
        Err(reason) => {
            problems.add(path.clone(), reason);
            return None;
        }
    };
    // Every one of them is tried, so that all problems are told at once.
    let loaded: Vec<_> = files.iter().map(|(at, file)| Pair::of_listener(at, file).load(around, problems)).collect();
    let client_ca = match client_ca {
        Some(file) => Some(authority(path.key("client_ca"), &file, around, problems)?),
        None => None,
    };
    let certificates = loaded.into_iter().collect::<Option<Vec<_>>>()?;
    let min_version = min_version.map_or(MinVersion::Tls12, |version| version.0);
    let made = ListenerTls::new(certificates, client_ca, min_version);
    made.map_err(|reason| problems.add(path.clone(), reason)).ok()
}

/// The TLS of a replica that is given as an https URL, if everything that is named can be used.
pub(super) fn replica(
    path: &Path,
    host: &str,
    file: &ReplicaTlsFile,
    around: Surroundings<'_>,
    problems: &mut Problems,
) -> Option<ReplicaTls> {
    let certificate = match (&file.client_certificate, &file.client_key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(Pair::of_replica(path, certificate, key).load(around, problems)?),
        (Some(_), None) => {
            problems.add(path.key("client_certificate"), "the certificate's key is missing: write client_key");
            return None;
        }
        (None, Some(_)) => {
            problems.add(path.key("client_key"), "the key's certificate is missing: write client_certificate");
            return None;
        }
    };
    let roots = match &file.ca_file {
        Some(file) => Roots::File(authority(path.key("ca_file"), file, around, problems)?),
        None => match around.system_roots.get_or_init(Roots::of_system) {
            Ok(roots) => roots.clone(),
            Err(reason) => {
                problems.add(path.key("url"), reason.clone());
                return None;
            }
        },
    };
    let made = ReplicaTls::new(host, roots, certificate);
    made.map_err(|reason| problems.add(path.key("url"), reason)).ok()
}

/// Refuses for a replica that is spoken to in the clear what would make one believe that it is not.
pub(super) fn refuse_without_tls(path: &Path, file: &ReplicaTlsFile, problems: &mut Problems) {
    let ReplicaTlsFile { ca_file, client_certificate, client_key } = file;
    let given = [("ca_file", ca_file), ("client_certificate", client_certificate), ("client_key", client_key)];
    for (key, _) in given.iter().filter(|(_, value)| value.is_some()) {
        problems.add(path.key(key), "it is for TLS, but the url is http; write https, or remove it");
    }
}

impl<'a> Pair<'a> {
    fn of_listener(path: &Path, file: &'a CertificateFile) -> Self {
        Pair { certificate: (path.key("certificate"), &file.certificate), key: (path.key("key"), &file.key) }
    }

    fn of_replica(path: &Path, certificate: &'a str, key: &'a str) -> Self {
        Pair { certificate: (path.key("client_certificate"), certificate), key: (path.key("client_key"), key) }
    }

    fn load(self, around: Surroundings<'_>, problems: &mut Problems) -> Option<Certificate> {
        let (certificate, key) = (around.path(self.certificate.1), around.path(self.key.1));
        let loaded = Certificate::load(&certificate, &key);
        loaded
            .map_err(|unusable| {
                let at = if unusable.path == key { self.key.0 } else { self.certificate.0 };
                problems.add(at, unusable.to_string());
            })
            .ok()
    }
}

fn authority(path: Path, file: &str, around: Surroundings<'_>, problems: &mut Problems) -> Option<Authority> {
    Authority::load(&around.path(file)).map_err(|unusable| problems.add(path, unusable.to_string())).ok()
}

/// One certificate is written without a list.
fn certificate_files(
    path: &Path,
    certificate: Option<String>,
    key: Option<String>,
    list: Option<Vec<CertificateFile>>,
) -> Result<Vec<(Path, CertificateFile)>, String> {
    match (certificate, key, list) {
        (Some(certificate), Some(key), None) => Ok(vec![(path.clone(), CertificateFile { certificate, key })]),
        (None, None, Some(list)) if list.len() > bounds::CERTIFICATES_MAX => {
            Err(format!("{} certificates are more than {}", list.len(), bounds::CERTIFICATES_MAX))
        }
        (None, None, Some(list)) if !list.is_empty() => {
            let at = path.key("certificates");
            Ok(list.into_iter().enumerate().map(|(i, file)| (at.index(i), file)).collect())
        }
        (None, None, Some(_) | None) => Err("no certificate is given: write certificate and key".to_owned()),
        (Some(_), None, None) => Err("the certificate's key is missing: write key".to_owned()),
        (None, Some(_), None) => Err("the key's certificate is missing: write certificate".to_owned()),
        (_, _, Some(_)) => {
            Err("certificate and key are for one, certificates is for several; remove either".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path as FilePath;

    use super::super::{Config, ConfigError};
    use crate::tls::MinVersion;
    use crate::tls::tests::{directory, issue};

    const MODELS: &str = "models: {m: {max_num_seqs: 8, replicas: [http://127.0.0.1:2]}}\n";

    fn read(directory: &FilePath, text: &str) -> Result<Config, ConfigError> {
        let file = directory.join("kvpin.yaml");
        std::fs::write(&file, text).expect("writes the configuration");
        Config::load(&file)
    }

    fn with_listener(tls: &str) -> String {
        format!("listen: {{address: '127.0.0.1:1', tls: {tls}}}\n{MODELS}")
    }

    fn with_replica(keys: &str) -> String {
        format!("models:\n  m:\n    max_num_seqs: 8\n    replicas: [{{{keys}}}]\n")
    }

    #[test]
    fn a_listener_has_one_certificate_or_several_and_paths_begin_beside_the_file() {
        let directory = directory();
        let files = issue(directory.path(), "a", &["a.example"]);
        issue(directory.path(), "b", &["b.example"]);
        let absolute = format!("{{certificate: '{}', key: a-key.pem}}", files.certificate.display());
        for (tls, names, min_version) in [
            ("{certificate: a.pem, key: a-key.pem}", vec!["a.example"], MinVersion::Tls12),
            (&absolute, vec!["a.example"], MinVersion::Tls12),
            ("{certificate: a.pem, key: a-key.pem, min_version: 1.3}", vec!["a.example"], MinVersion::Tls13),
            ("{certificate: a.pem, key: a-key.pem, min_version: '1.2'}", vec!["a.example"], MinVersion::Tls12),
            (
                "{certificates: [{certificate: b.pem, key: b-key.pem}, {certificate: a.pem, key: a-key.pem}], client_ca: a.pem}",
                vec!["b.example", "a.example"],
                MinVersion::Tls12,
            ),
        ] {
            let config = read(directory.path(), &with_listener(tls)).unwrap_or_else(|error| panic!("{tls}: {error}"));
            let listener = config.listen[0].tls.as_ref().expect("TLS");
            let found: Vec<_> = listener.certificates().iter().flat_map(|certificate| certificate.names()).collect();
            assert_eq!(found, names, "{tls}");
            assert_eq!(listener.min_version(), min_version, "{tls}");
            assert_eq!(listener.client_ca().is_some(), tls.contains("client_ca"), "{tls}");
            assert_eq!(config.warnings(), [""; 0], "{tls}");
        }
    }

    #[test]
    fn a_refusal_names_the_key_of_the_file_that_cant_be_used() {
        let directory = directory();
        issue(directory.path(), "a", &["a.example"]);
        issue(directory.path(), "b", &["b.example"]);
        let many = vec!["{certificate: a.pem, key: a-key.pem}"; 65].join(", ");
        for (text, said) in [
            (with_listener("{}"), "line 1: listen.tls: no certificate is given: write certificate and key"),
            (with_listener("{certificates: []}"), "listen.tls: no certificate is given"),
            (with_listener("{certificate: a.pem}"), "listen.tls: the certificate's key is missing"),
            (with_listener("{key: a-key.pem}"), "listen.tls: the key's certificate is missing"),
            (
                with_listener(
                    "{certificate: a.pem, key: a-key.pem, certificates: [{certificate: a.pem, key: a-key.pem}]}",
                ),
                "listen.tls: certificate and key are for one",
            ),
            (with_listener("{certificate: c.pem, key: a-key.pem}"), "listen.tls.certificate: "),
            (with_listener("{certificate: c.pem, key: a-key.pem}"), "/c.pem: No such file"),
            (with_listener("{certificate: a.pem, key: b-key.pem}"), "listen.tls.key: "),
            (
                with_listener("{certificate: a.pem, key: b-key.pem}"),
                "/b-key.pem: it is not the key of the certificate in",
            ),
            (
                with_listener(
                    "{certificates: [{certificate: a.pem, key: a-key.pem}, {certificate: b.pem, key: c.pem}]}",
                ),
                "listen.tls.certificates[1].key: ",
            ),
            (with_listener(&format!("{{certificates: [{many}]}}")), "listen.tls: 65 certificates are more than 64"),
            (with_listener("{certificate: a.pem, key: a-key.pem, client_ca: c.pem}"), "listen.tls.client_ca: "),
            (with_listener("{certificate: a.pem, key: a-key.pem, min_version: 1.1}"), "expected 1.2 or 1.3"),
            (with_listener("{certificate: a.pem, key: a-key.pem, min_version: 1}"), "expected 1.2 or 1.3"),
            (format!("listen: [{{tls: {{}}}}]\n{MODELS}"), "missing field `address`"),
            (with_replica("url: 'http://127.0.0.1:1', ca_file: a.pem"), "replicas[0].ca_file: it is for TLS"),
            (with_replica("url: 'http://127.0.0.1:1', client_key: a.pem"), "replicas[0].client_key: it is for TLS"),
            (with_replica("url: 'https://127.0.0.1:1', ca_file: c.pem"), "replicas[0].ca_file: "),
            (
                with_replica("url: 'https://127.0.0.1:1', ca_file: a.pem, client_certificate: a.pem"),
                "replicas[0].client_certificate: the certificate's key is missing",
            ),
            (
                with_replica("url: 'https://127.0.0.1:1', ca_file: a.pem, client_key: a-key.pem"),
                "replicas[0].client_key: the key's certificate is missing",
            ),
            (
                with_replica(
                    "url: 'https://127.0.0.1:1', ca_file: a.pem, client_certificate: a.pem, client_key: b-key.pem",
                ),
                "replicas[0].client_key: ",
            ),
        ] {
            let refusal = read(directory.path(), &text).expect_err(&text).to_string();
            assert!(refusal.contains(said), "{text}: {refusal}");
        }
    }

    #[test]
    fn every_file_that_cant_be_used_is_told_of_at_once() {
        let directory = directory();
        let text = "listen: [{address: '127.0.0.1:1', tls: {certificates: [{certificate: x, key: y}, {certificate: z, key: y}]}}]\n\
                    models: {m: {replicas: [{url: 'https://127.0.0.1:1', ca_file: w}]}}\n";
        let refusal = read(directory.path(), text).expect_err("three files are missing");
        let paths: Vec<_> = refusal.problems().iter().map(|problem| &*problem.path).collect();
        assert_eq!(
            paths,
            [
                "listen[0].tls.certificates[0].certificate",
                "listen[0].tls.certificates[1].certificate",
                "models.m.replicas[0].ca_file"
            ]
        );
    }

    #[test]
    fn a_renewed_certificate_is_a_change_and_takes_no_restart() {
        let directory = directory();
        issue(directory.path(), "a", &["a.example"]);
        issue(directory.path(), "ca", &[]);
        let text = |tls: &str| with_listener(&format!("{{certificate: a.pem, key: a-key.pem{tls}}}"));
        let running = read(directory.path(), &text("")).expect("a configuration");
        assert_eq!(running.changes(&read(directory.path(), &text("")).expect("the same")), [""; 0]);
        issue(directory.path(), "a", &["a.example", "b.example"]);
        let renewed = read(directory.path(), &text(", client_ca: ca.pem, min_version: 1.3")).expect("a configuration");
        assert_eq!(running.restart_needed(&renewed), [""; 0]);
        let changes = running.changes(&renewed);
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert!(changes[0].starts_with("listen 127.0.0.1:1: tls.certificates: [a.example until "), "{changes:?}");
        assert!(changes[0].contains(" -> [a.example, b.example until "), "{changes:?}");
        assert!(changes[1].starts_with("listen 127.0.0.1:1: tls.client_ca: none -> "), "{changes:?}");
        assert_eq!(changes[2], "listen 127.0.0.1:1: tls.min_version: 1.2 -> 1.3");
        let plain = read(directory.path(), &format!("listen: 127.0.0.1:1\n{MODELS}")).expect("a configuration");
        assert_eq!(running.restart_needed(&plain), ["listen"]);
        assert_eq!(running.changes(&plain), ["listen: [127.0.0.1:1 with tls] -> [127.0.0.1:1]"]);
    }

    #[test]
    fn where_clients_need_a_certificate_they_need_no_other_key() {
        let directory = directory();
        issue(directory.path(), "a", &["a.example"]);
        let text = |more: &str| {
            let tls = format!("{{certificate: a.pem, key: a-key.pem{more}}}");
            with_listener(&tls).replace("127.0.0.1:1'", "0.0.0.0:1'")
        };
        let refusal = read(directory.path(), &text("")).expect_err("everybody could use the GPUs").to_string();
        assert!(refusal.contains("have clients need a certificate (`tls.client_ca`)"), "{refusal}");
        let config = read(directory.path(), &text(", client_ca: a.pem")).expect("a configuration");
        assert_eq!(config.warnings(), [""; 0]);
    }
}
