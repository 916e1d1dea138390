//! Who may reach what: an address that other machines reach is served with keys, or because the file says that it needs none.

use super::Config;
use super::addresses::Place;
use super::error::Problems;
use super::file::File;
use super::locate::Path;

/// Checks the listeners against what the file says of keys and of the admin token.
pub(super) fn validate(listen: &[Place], admin: Option<&Place>, file: &File, problems: &mut Problems) {
    let has_keys = file.keys_file.is_some();
    let allow_anonymous = file.allow_anonymous.unwrap_or(false);
    if has_keys && allow_anonymous {
        let reason = "it lets everybody in, but keys_file says who may ask; remove one of them";
        problems.add(Path::default().key("allow_anonymous"), reason);
    }
    for place in listen.iter().filter(|place| is_reachable(place) && !has_keys && !allow_anonymous) {
        let reason = format!(
            "other machines reach {}, and whoever does could use the GPUs: give `keys_file: FILE` (`kvpin keys add NAME --file \
             FILE` makes one), or say `allow_anonymous: true`",
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
    !place.address.ip().to_canonical().is_loopback()
}

impl Config {
    /// What works but lets in, or shows, more than may be meant.
    pub(super) fn access_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.keys.is_none() {
            for address in self.listen.iter().filter(|address| !address.ip().to_canonical().is_loopback()) {
                warnings.push(format!(
                    "listen {address}: anyone who reaches this address can use the GPUs, as allow_anonymous says"
                ));
            }
        }
        if let Some(address) = self.admin.filter(|address| !address.ip().to_canonical().is_loopback()) {
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
