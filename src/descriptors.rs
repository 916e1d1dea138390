//! File descriptors: each connection has one, and a service is often given 1,024 of them though it may have more.

use log::warn;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Limits;

/// For listeners, probes, logs and idle connections to replicas.
const RESERVE: u64 = 2048;

/// Raises the limit of open files as far as it goes, and warns if that is too little for what the configuration allows. At the
/// limit no connection is taken until one ends, and none to a replica can be made.
pub fn raise(limits: &Limits) {
    let granted = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: granted.maximum, maximum: granted.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("the limit of open files stays as it is: {error}");
    }
    let have = getrlimit(Resource::Nofile).current;
    let need = (limits.connections_max + limits.streams_max) as u64 + RESERVE;
    if let Some(have) = have.filter(|have| *have < need) {
        warn!(
            "{have} files may be open at a time (ulimit -Hn, LimitNOFILE=): connections_max {} and streams_max {} may take {need}",
            limits.connections_max, limits.streams_max
        );
    }
}
