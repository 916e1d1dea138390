//! Towards the replicas: how they are connected to.

use std::net::SocketAddr;
use std::time::Duration;

use pingora::protocols::TcpKeepalive;
use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy};

use crate::config::Limits;

/// A pooled connection that was idle for longer isn't used: vLLM closes its idle ones after 5 s, and a turn that meets
/// the close would fail.
pub const UPSTREAM_IDLE: Duration = Duration::from_secs(4);

/// What finds out that a peer has vanished without a word: about half a minute.
pub const TCP_KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    count: 3,
    user_timeout: Duration::from_secs(30),
};

/// How a replica is connected to. A response may take as long as it takes, so reading has no limit.
pub fn peer(address: SocketAddr, limits: &Limits) -> HttpPeer {
    let mut peer = HttpPeer::new(address, false, String::new());
    let options = &mut peer.options;
    options.connection_timeout = Some(limits.connect_timeout);
    options.total_connection_timeout = Some(limits.connect_timeout);
    options.tcp_keepalive = Some(TCP_KEEPALIVE);
    options.http_upstream_request_policy = HttpUpstreamRequestPolicy::deny_upgrades();
    peer
}
