//! Which addresses can't stand in one file together: two listeners on one socket, a replica that is kvpin itself, a server given twice.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::error::Problems;
use super::locate::Path;

/// An address with the place in the file that gave it.
pub(super) struct Place {
    pub(super) path: Path,
    pub(super) address: SocketAddr,
}

/// A server of a model; its ranks share it.
pub(super) struct ServerPlace {
    pub(super) model: String,
    pub(super) at: Place,
}

/// Checks the listeners and the admin listener against each other, and the replicas' servers against both and each other.
pub(super) fn validate<'a>(
    listen: impl Iterator<Item = &'a Place>,
    admin: Option<&'a Place>,
    servers: &[ServerPlace],
    problems: &mut Problems,
) {
    let own: Vec<&Place> = listen.chain(admin).collect();
    for (i, later) in own.iter().enumerate() {
        if let Some(earlier) = own[..i].iter().find(|e| overlap(e.address, later.address)) {
            let reason = format!("{} overlaps {} of {}", later.address, earlier.address, earlier.path);
            problems.add(later.path.clone(), reason);
        }
    }
    for server in servers {
        if let Some(listener) = own.iter().find(|o| reaches(server.at.address, o.address)) {
            let reason = format!(
                "{} is kvpin's own address ({}): requests would go round in a loop",
                server.at.address, listener.path
            );
            problems.add(server.at.path.clone(), reason);
        }
    }
    once(servers, problems);
}

/// A server twice would be counted as two caches and get twice the load.
fn once(servers: &[ServerPlace], problems: &mut Problems) {
    let mut first: BTreeMap<SocketAddr, &ServerPlace> = BTreeMap::new();
    for server in servers {
        let address = canonical(server.at.address);
        let Some(earlier) = first.get(&address) else {
            first.insert(address, server);
            continue;
        };
        let hint = if earlier.model == server.model {
            "for its ranks use data_parallel_size"
        } else {
            "to serve it under another name use aliases"
        };
        let reason = format!("{address} is given at {} already; {hint}", earlier.at.path);
        problems.add(server.at.path.clone(), reason);
    }
}

/// Whether the kernel would refuse to listen on both. Port 0 is another port each time.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.port() != 0 && (covers(a.ip(), b.ip()) || covers(b.ip(), a.ip()))
}

/// Whether listening on `wide` takes connections to `narrow`. The IPv6 wildcard takes IPv4 too: that is the kernel's default
/// (net.ipv6.bindv6only) and Pingora leaves it.
fn covers(wide: IpAddr, narrow: IpAddr) -> bool {
    match wide.to_canonical() {
        IpAddr::V6(ip) if ip.is_unspecified() => true,
        IpAddr::V4(ip) if ip.is_unspecified() => narrow.to_canonical().is_ipv4(),
        exact => exact == narrow.to_canonical(),
    }
}

/// Whether a connect to `server` arrives at `listener`. A wildcard listener is certain to be reached at loopback addresses only: which
/// others are this machine's is not for the file to tell.
fn reaches(server: SocketAddr, listener: SocketAddr) -> bool {
    let (to, at) = (canonical(server), canonical(listener));
    let certain = to.ip() == at.ip() || to.ip().is_loopback();
    to.port() == at.port() && certain && covers(at.ip(), to.ip())
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect(text)
    }

    #[test]
    fn listeners_overlap_where_the_kernel_would_refuse_the_second() {
        for (a, b, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", true),
            ("127.0.0.1:8080", "127.0.0.1:8081", false),
            ("127.0.0.1:8080", "127.0.0.2:8080", false),
            ("0.0.0.0:8080", "127.0.0.1:8080", true),
            ("0.0.0.0:8080", "[::1]:8080", false),
            ("[::]:8080", "127.0.0.1:8080", true),
            ("[::]:8080", "0.0.0.0:8080", true),
            ("[::ffff:127.0.0.1]:8080", "127.0.0.1:8080", true),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:0", "127.0.0.1:0", false),
        ] {
            assert_eq!(overlap(address(a), address(b)), expected, "{a} and {b}");
            assert_eq!(overlap(address(b), address(a)), expected, "{b} and {a}");
        }
    }

    #[test]
    fn a_replica_is_a_loop_only_if_it_is_certain_to_reach_the_listener() {
        for (server, listener, expected) in [
            ("127.0.0.1:8080", "127.0.0.1:8080", true),
            ("10.0.0.5:8080", "10.0.0.5:8080", true),
            ("127.0.0.1:8080", "0.0.0.0:8080", true),
            ("127.0.0.1:8080", "[::]:8080", true),
            ("[::1]:8080", "0.0.0.0:8080", false),
            ("10.0.0.5:8080", "0.0.0.0:8080", false),
            ("127.0.0.1:8000", "0.0.0.0:8080", false),
            ("127.0.0.1:8080", "127.0.0.1:0", false),
        ] {
            let found = reaches(address(server), address(listener));
            assert_eq!(found, expected, "{server} towards {listener}");
        }
    }
}
