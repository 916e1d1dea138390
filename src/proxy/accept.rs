//! How many connections clients may have: all of them together, and those of one address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;

use crate::config::Config;

use super::arrival::is_trusted;

/// The connections of clients at this moment.
#[derive(Debug)]
pub struct Connections {
    counts: Mutex<Counts>,
    /// Shows how many there are.
    gauge: IntGauge,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Connection {
    all: Arc<Connections>,
    of: Option<IpAddr>,
}

/// Why a connection isn't taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    InAll,
    OfAddress,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

impl Connections {
    pub fn new(gauge: IntGauge) -> Arc<Self> {
        Arc::new(Connections { counts: Mutex::default(), gauge })
    }

    /// One more, from an address if it has one. A trusted proxy's count only together with all others.
    pub fn enter(self: &Arc<Self>, address: Option<IpAddr>, config: &Config) -> Result<Connection, TooMany> {
        let of = address.filter(|address| !is_trusted(*address, &config.trusted_proxies)).map(household);
        let mut counts = self.counts.lock();
        if counts.all >= config.limits.connections_max {
            return Err(TooMany::InAll);
        }
        if let Some(of) = of {
            let count = counts.of.entry(of).or_default();
            if *count >= config.limits.connections_per_address_max {
                return Err(TooMany::OfAddress);
            }
            *count += 1;
        }
        counts.all += 1;
        self.gauge.set(counts.all as i64);
        Ok(Connection { all: Arc::clone(self), of })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut counts = self.all.counts.lock();
        counts.all -= 1;
        self.all.gauge.set(counts.all as i64);
        if let Some(of) = self.of
            && let Some(count) = counts.of.get_mut(&of)
        {
            *count -= 1;
            if *count == 0 {
                counts.of.remove(&of);
            }
        }
    }
}

impl TooMany {
    /// The word used in metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            TooMany::InAll => "connections_max",
            TooMany::OfAddress => "connections_per_address_max",
        }
    }
}

/// Whose connections are counted together. In IPv6 a household has a /64, and an address for every connection if it likes.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(all: usize, of_address: usize) -> Config {
        let text = format!(
            "limits: {{connections_max: {all}, connections_per_address_max: {of_address}}}\n\
             trusted_proxies: [10.9.0.0/16]\nmodels: {{m: {{replicas: ['http://127.0.0.1:1']}}}}"
        );
        Config::from_yaml(&text).unwrap()
    }

    fn connections() -> Arc<Connections> {
        Connections::new(IntGauge::new("connections", "Connections.").unwrap())
    }

    fn at(address: &str) -> Option<IpAddr> {
        Some(address.parse().unwrap())
    }

    #[test]
    fn the_limits_hold_in_all_and_for_an_address_and_an_end_makes_room() {
        let (connections, config) = (connections(), limited(3, 2));
        let enter = |address| connections.enter(at(address), &config);
        let first = enter("10.0.0.1").unwrap();
        let _second = enter("10.0.0.1").unwrap();
        assert_eq!(enter("10.0.0.1").unwrap_err(), TooMany::OfAddress);
        assert_eq!(enter("::ffff:10.0.0.1").unwrap_err(), TooMany::OfAddress, "the same address");
        let _third = enter("10.0.0.2").unwrap();
        assert_eq!(enter("10.0.0.3").unwrap_err(), TooMany::InAll);
        drop(first);
        drop(enter("10.0.0.1").unwrap());
        assert_eq!(connections.gauge.get(), 2);
        assert_eq!(connections.counts.lock().of.len(), 2);
    }

    #[test]
    fn nothing_is_left_of_those_that_have_gone() {
        let (connections, config) = (connections(), limited(3, 2));
        let taken: Vec<_> = ["10.0.0.1", "fe80::1"].map(|address| connections.enter(at(address), &config)).into();
        drop(taken);
        let counts = connections.counts.lock();
        assert!(counts.all == 0 && counts.of.is_empty() && connections.gauge.get() == 0);
    }

    #[test]
    fn a_household_of_ipv6_is_one_address_and_a_trusted_proxy_is_none() {
        let (connections, config) = (connections(), limited(9, 1));
        let _first = connections.enter(at("2001:db8:1:2::1"), &config).unwrap();
        assert_eq!(connections.enter(at("2001:db8:1:2:3::4"), &config).unwrap_err(), TooMany::OfAddress);
        let _other = connections.enter(at("2001:db8:1:3::1"), &config).unwrap();
        let proxied: Vec<_> = (0..7).map(|_| connections.enter(at("10.9.1.1"), &config).unwrap()).collect();
        assert_eq!(proxied.len(), 7);
        assert_eq!(connections.enter(at("10.9.1.1"), &config).unwrap_err(), TooMany::InAll);
    }
}
