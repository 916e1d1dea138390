//! A connection to a replica whose two directions are used at the same time.
//!
//! Pingora's HTTP/1.1 client reads and writes through one `&mut`, so that a response which comes while a piece of the body is
//! being written is seen only afterwards, and never if the replica takes no more. A [`Duplex`] is given to it to read from,
//! and its clone to [`super::upload`] to write to.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One of the handles on a connection. Both are polled by the one task of a request, so the lock is never waited for.
#[derive(Clone, Debug)]
pub struct Duplex(Arc<Mutex<Stream>>);

impl Duplex {
    pub fn new(stream: Stream) -> Self {
        Duplex(Arc::new(Mutex::new(stream)))
    }

    /// The connection, if this is its last handle.
    pub fn into_stream(self) -> Option<Stream> {
        Arc::into_inner(self.0).map(Mutex::into_inner)
    }
}

impl AsyncRead for Duplex {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Duplex {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
    }
}

// What else Pingora wants of a stream. It has asked all of it when the connection was made, except for the digests.

#[async_trait]
impl Shutdown for Duplex {
    async fn shutdown(&mut self) {
        // Nobody is left to tell if that fails.
        std::future::poll_fn(|cx| Pin::new(&mut *self.0.lock()).poll_shutdown(cx)).await.ok();
    }
}

impl UniqueID for Duplex {
    fn id(&self) -> UniqueIDType {
        self.0.lock().id()
    }
}

impl GetTimingDigest for Duplex {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.0.lock().get_timing_digest()
    }
}

impl GetProxyDigest for Duplex {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.0.lock().get_proxy_digest()
    }
}

impl GetSocketDigest for Duplex {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.0.lock().get_socket_digest()
    }
}

impl Ssl for Duplex {}

impl Peek for Duplex {}
