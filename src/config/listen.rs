//! Where clients connect.

use super::addresses::Place;
use super::error::Problems;
use super::file::{Listen, ListenerFile};
use super::locate::Path;
use super::validate::{LISTEN_DEFAULT, place};
use super::{ListenConfig, Surroundings, tls};
use crate::tls::ListenerTls;

/// A listener, and where the file has its address.
pub(super) struct Listener {
    pub(super) place: Place,
    /// Whether the file says so; `tls` is `None` too where something is wrong with it.
    pub(super) wants_certificates: bool,
    tls: Option<ListenerTls>,
}

impl Listener {
    pub(super) fn config(self) -> ListenConfig {
        ListenConfig { address: self.place.address, tls: self.tls }
    }
}

/// The listeners as far as they can be made out; what is wrong with them is added to `problems`.
pub(super) fn validate(file: Option<Listen>, around: Surroundings<'_>, problems: &mut Problems) -> Vec<Listener> {
    let path = Path::default().key("listen");
    let given: Vec<(Path, ListenerFile)> = match file {
        None => {
            return vec![Listener {
                place: Place { path, address: LISTEN_DEFAULT },
                wants_certificates: false,
                tls: None,
            }];
        }
        Some(Listen::One(listener)) => vec![(path, listener)],
        Some(Listen::Many(listeners)) if listeners.is_empty() => {
            problems.add(path, "the list is empty; nobody could connect");
            return Vec::new();
        }
        Some(Listen::Many(listeners)) => {
            listeners.into_iter().enumerate().map(|(i, listener)| (path.index(i), listener)).collect()
        }
    };
    given.into_iter().filter_map(|(path, file)| listener(path, file, around, problems)).collect()
}

fn listener(path: Path, file: ListenerFile, around: Surroundings<'_>, problems: &mut Problems) -> Option<Listener> {
    let wants_certificates = file.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let tls = file.tls.and_then(|file| tls::listener(&path.key("tls"), file, around, problems));
    let place = place(path, &file.address, problems)?;
    Some(Listener { place, wants_certificates, tls })
}
