//! Who may reach what: an address that other machines reach is served with keys, or because the file says that it needs none.

use std::net::SocketAddr;

use super::addresses::Place;
use super::error::Problems;
use super::file::File;
use super::listen::Listener;
use super::locate::Path;
use super::{Config, ListenConfig};
use crate::tls::ListenerTls;

/// Checks the listeners against what the file says of keys and of the admin token. Where clients need a certificate, that is
/// their key.
pub(super) fn validate(listen: &[Listener], admin: Option<&Place>, file: &File, problems: &mut Problems) {
    let has_keys = file.keys_file.is_some();
    let allow_anonymous = file.allow_anonymous.unwrap_or(false);
    if has_keys && allow_anonymous {
        let reason = "it lets everybody in, but keys_file says who may ask; remove one of them";
        problems.add(Path::default().key("allow_anonymous"), reason);
    }
    let is_open = |listener: &&Listener| !has_keys && !allow_anonymous && !listener.wants_certificates;
    for place in listen.iter().filter(is_open).map(|listener| &listener.place).filter(|place| is_reachable(place)) {
        let reason = format!(
            "other machines reach {}, and whoever does could use the GPUs: give `keys_file: FILE` (`kvpin keys add NAME --file \
             FILE` makes one), have clients need a certificate (`tls.client_ca`), or say `allow_anonymous: true`",
            place.address
        );
        problems.add(place.path.clone(), reason);
    }
    if let Some(place) = admin.filter(|place| is_reachable(place) && file.admin_token_file.is_none()) {
        let reason = format!(
            "other machines reach {}, and whoever does could drain replicas: give `admin_token_file: FILE`, or an address of \
             this machine alone, like 127.0.0.1:9180",
            place.address
        );
        problems.add(place.path.clone(), reason);
    }
}

fn is_reachable(place: &Place) -> bool {
    reaches_beyond(place.address)
}

/// Whether other machines reach an address.
fn reaches_beyond(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

impl Config {
    /// What works but lets in, or shows, more than may be meant.
    pub(super) fn access_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for ListenConfig { address, tls } in &self.listen {
            let wants_certificates = tls.as_ref().is_some_and(|tls| tls.client_ca().is_some());
            if reaches_beyond(*address) && self.keys.is_none() && !wants_certificates {
                warnings.push(format!(
                    "listen {address}: anyone who reaches this address can use the GPUs, as allow_anonymous says"
                ));
            }
            if reaches_beyond(*address) && tls.is_none() {
                warnings.push(format!("listen {address}: keys and prompts pass unencrypted; tls would encrypt them"));
            }
            let of_certificates = tls.iter().flat_map(ListenerTls::warnings);
            warnings.extend(of_certificates.map(|line| format!("listen {address}: {line}")));
        }
        if let Some(address) = self.admin.filter(|address| reaches_beyond(*address)) {
            warnings.push(format!("admin {address}: the token and the pages pass unencrypted"));
        }
        warnings.extend(self.keys.iter().flat_map(|keys| keys.warnings.iter().cloned()));
        warnings.extend(self.unserved_names());
        let secrets = self.admin_token.iter().chain(self.models.iter().filter_map(|model| model.upstream_key.as_ref()));
        warnings.extend(secrets.filter_map(|secret| secret.warning.clone()));
        warnings
    }

    /// Models that keys may use and that nobody serves. It may be that they come later, or went.
    fn unserved_names(&self) -> impl Iterator<Item = String> {
        let is_served = |name: &str| {
            self.models.iter().any(|model| model.name == name || model.aliases.iter().any(|alias| alias.name == name))
        };
        let keys = self.keys.iter().flat_map(|keys| &keys.keys);
        keys.flat_map(move |key| {
            let names = key.models.iter().flatten().filter(move |name| !is_served(name));
            names.map(|name| format!("key {}: it may use `{name}`, and no model or alias has that name", key.name))
        })
    }
}
