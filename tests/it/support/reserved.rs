//! A port that stays reserved while nobody listens on it, so that a replica can go and come back on it.

use std::net::{Ipv4Addr, SocketAddr};

use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

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

    /// Listens with its backlog filled, so that further connections are neither accepted nor refused.
    pub async fn listen_without_accepting(&self) -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("sets SO_REUSEADDR");
        socket.bind(self.address).expect("the reserved port");
        let listener = socket.listen(1).expect("listens");
        let mut waiting = Vec::new();
        // The first that isn't answered shows that the backlog is full.
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(self.address)).await {
            waiting.push(stream.expect("connects"));
        }
        (listener, waiting)
    }
}
