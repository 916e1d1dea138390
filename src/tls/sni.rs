//! Which certificate a client is shown: the one for the host that it asks for.

use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::Certificate;

/// The certificates of a listener, in the order of the configuration. Asking for none, or for a host that none is for, gets
/// the first.
#[derive(Debug)]
pub(super) struct ByName {
    certificates: Vec<Certificate>,
}

/// How well a certificate fits the host that a client asks for. The best is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    OtherHost,
    Wildcard,
    Exact,
}

impl ByName {
    pub(super) fn new(certificates: Vec<Certificate>) -> Self {
        ByName { certificates }
    }

    /// The best fit among those that the client can check, as there may be one of each kind of key for the same host; where
    /// it can check none, the best fit, which will tell it so.
    pub(super) fn choose(&self, host: Option<&str>, can_check: impl Fn(&CertifiedKey) -> bool) -> Option<&Certificate> {
        let best = |among: &mut dyn Iterator<Item = &'_ Certificate>| -> Option<usize> {
            let fits = among.map(|certificate| fit(certificate.names(), host)).enumerate();
            // Of equal ones the first.
            fits.max_by(|(i, a), (j, b)| a.cmp(b).then(j.cmp(i))).map(|(index, _)| index)
        };
        let checkable: Vec<_> =
            self.certificates.iter().filter(|certificate| can_check(certificate.identity())).collect();
        match best(&mut checkable.iter().copied()) {
            Some(index) => checkable.get(index).copied(),
            None => best(&mut self.certificates.iter()).and_then(|index| self.certificates.get(index)),
        }
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let chosen = self.choose(hello.server_name(), |identity| identity.key.choose_scheme(schemes).is_some());
        chosen.map(|certificate| Arc::clone(certificate.identity()))
    }
}

/// `names` are in lower case; rustls gives the host as the client has written it.
fn fit(names: &[String], host: Option<&str>) -> Fit {
    let Some(host) = host else { return Fit::OtherHost };
    let host = host.to_ascii_lowercase();
    let below = host.split_once('.').filter(|(label, _)| !label.is_empty()).map(|(_, parent)| parent);
    let one = |name: &String| match name.strip_prefix("*.") {
        None if *name == host => Fit::Exact,
        Some(parent) if below == Some(parent) => Fit::Wildcard,
        None | Some(_) => Fit::OtherHost,
    };
    names.iter().map(one).max().unwrap_or(Fit::OtherHost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_its_host_and_a_wildcard_every_host_one_label_below() {
        let names = ["gpu.example".to_owned(), "*.lab.example".to_owned()];
        for (host, expected) in [
            (Some("gpu.example"), Fit::Exact),
            (Some("GPU.Example"), Fit::Exact),
            (Some("a.lab.example"), Fit::Wildcard),
            (Some("a.b.lab.example"), Fit::OtherHost),
            (Some("lab.example"), Fit::OtherHost),
            (Some("agpu.example"), Fit::OtherHost),
            (Some("a.gpu.example"), Fit::OtherHost),
            (Some(".lab.example"), Fit::OtherHost),
            (Some(""), Fit::OtherHost),
            (None, Fit::OtherHost),
        ] {
            assert_eq!(fit(&names, host), expected, "{host:?}");
        }
        assert_eq!(fit(&[], Some("gpu.example")), Fit::OtherHost);
    }
}
