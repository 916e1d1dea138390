//! A port that stays reserved while nobody listens on it, so that a replica can go and come back on it.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// A port of this process. While nobody listens on it, connections to it are refused.
pub struct ReservedPort {
    address: SocketAddr,
    /// Bound and never listening: the kernel gives the port to nobody else, and lets others of this process bind it too.
    _holder: TcpSocket,
}

impl ReservedPort {
    pub fn new() -> Self {
        let holder = TcpSocket::new_v4().expect("a socket");
        holder.set_reuseaddr(true).expect("sets SO_REUSEADDR");
        holder.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        ReservedPort { address: holder.local_addr().expect("its address"), _holder: holder }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens on the port. Dropping the listener has connections refused again.
    pub fn listen(&self) -> TcpListener {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("sets SO_REUSEADDR");
        socket.bind(self.address).expect("the reserved port");
        socket.listen(1024).expect("listens")
    }
}
