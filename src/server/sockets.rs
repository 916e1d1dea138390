//! The listening sockets: bound here, or taken over from the process before this one.
//!
//! Pingora gets duplicates. As long as this process has the sockets themselves it can give them to another one, or begin to
//! accept on them again; connections that come meanwhile wait in the kernel.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::Context as _;
use log::info;
use parking_lot::Mutex;
use pingora::server::{Fds, ListenFds};

use crate::config::Config;

/// All sockets of a process.
#[derive(Debug)]
pub struct Sockets {
    pub listen: Vec<Socket>,
    pub admin: Option<Socket>,
}

/// One listening socket.
#[derive(Debug)]
pub struct Socket {
    /// As the configuration has it. The port may be 0.
    configured: SocketAddr,
    /// With the port that the kernel chose.
    pub address: SocketAddr,
    listener: TcpListener,
}

impl Sockets {
    /// Opens what is configured: takes it from `inherited`, or binds it. What nobody wants any more of `inherited` is closed.
    ///
    /// # Errors
    /// When an address can't be bound.
    pub fn open(config: &Config, mut inherited: Vec<Socket>) -> anyhow::Result<Sockets> {
        let mut open = |address: SocketAddr| match inherited.iter().position(|socket| socket.configured == address) {
            Some(at) => Ok(inherited.swap_remove(at)),
            None => Socket::bind(address),
        };
        let listen = config.listen.iter().map(|listener| open(listener.address)).collect::<anyhow::Result<Vec<_>>>()?;
        let admin = config.admin.map(open).transpose()?;
        for socket in inherited {
            info!("{} is not listened on any more", socket.address);
        }
        Ok(Sockets { listen, admin })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Socket> {
        self.listen.iter().chain(&self.admin)
    }

    /// Closes those that another process doesn't listen on.
    pub fn keep_only(&mut self, configured: &[SocketAddr]) {
        self.listen.retain(|socket| configured.contains(&socket.configured));
        self.admin.take_if(|socket| !configured.contains(&socket.configured));
    }

    /// Duplicates of them for another process, with the addresses that they are configured as.
    pub fn for_another_process(&self) -> io::Result<Vec<(SocketAddr, OwnedFd)>> {
        self.iter().map(|socket| Ok((socket.configured, socket.listener.try_clone()?.into()))).collect()
    }

    /// Duplicates of them, for Pingora to accept on.
    pub fn duplicates(&self) -> anyhow::Result<ListenFds> {
        let mut table = Fds::new();
        for socket in self.iter() {
            table.add(socket.address.to_string(), socket.listener.try_clone()?.into_raw_fd());
        }
        Ok(Arc::new(Mutex::new(table)))
    }
}

impl Socket {
    /// A socket that another process has bound.
    pub fn inherited(configured: SocketAddr, descriptor: OwnedFd) -> anyhow::Result<Socket> {
        Socket::of(configured, TcpListener::from(descriptor))
    }

    /// Binds an address here rather than in Pingora, which panics where it can't, and can't say which port it got.
    fn bind(address: SocketAddr) -> anyhow::Result<Socket> {
        let listener = TcpListener::bind(address).with_context(|| format!("can't listen on {address}"))?;
        Socket::of(address, listener)
    }

    fn of(configured: SocketAddr, listener: TcpListener) -> anyhow::Result<Socket> {
        listener.set_nonblocking(true)?;
        let address =
            listener.local_addr().with_context(|| format!("what is to listen on {configured} is no socket"))?;
        Ok(Socket { configured, address, listener })
    }
}
