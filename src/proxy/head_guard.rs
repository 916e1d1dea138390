//! Bounds what a connection may send before a request's head is complete.
//!
//! Pingora 0.9.1 reads on until a head has a megabyte, and parses all of it again after every read. So each connection without
//! a request could hold a megabyte, and cost a thousand times the work of a normal head. This sits between the socket and
//! Pingora, and ends a connection whose head is over the limit or comes in crumbs. A head that is only a little over it still
//! gets through, so that kvpin can say what is wrong, in the caller's dialect.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf as _, Bytes, BytesMut};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::{SslDigest, TlsRef};
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::watchdog::Watchdog;

/// How far a head may be over the limit and still be answered in full. What is read of a body together with its head counts too.
const SLACK_BYTES: usize = 64 * 1024;

/// The most reads that a head may come in. A real one comes in one or two, and a large one over a slow line in some dozens.
const READS_MAX: usize = 512;

/// The first read of a request: a head, and a small body with it. What Pingora would begin with too.
const FIRST_READ: usize = 4096;

/// What a client is told whose head is over the limit by far. It may still be sending, and then may miss it.
const TOO_LARGE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// How long, and for how many bytes, a connection stays that kvpin has ended, so that the client can take the last answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_READ: usize = 16 * 1024;
const LINGER_READS: usize = 64;

/// A client's connection.
#[derive(Debug)]
pub struct HeadGuard {
    inner: Stream,
    watchdog: Arc<Watchdog>,
    bytes_max: usize,
    /// The requests so far, and what was read behind the head of the last one while none was handled.
    heads: u64,
    bytes: usize,
    reads: usize,
    /// What has been read of a request and not been handed on yet.
    held: Bytes,
    /// What was written and goes out with what is written next.
    corked: BytesMut,
}

/// Pieces that are written at once: what was corked, and the parts of a chunk in its frame.
const SLICES_MAX: usize = 4;

impl HeadGuard {
    pub fn new(inner: Stream, watchdog: Arc<Watchdog>, head_bytes_max: usize) -> Self {
        HeadGuard {
            inner,
            watchdog,
            bytes_max: head_bytes_max + SLACK_BYTES,
            heads: 0,
            bytes: 0,
            reads: 0,
            held: Bytes::new(),
            corked: BytesMut::new(),
        }
    }

    /// Waits for the first bytes of a request, without keeping a buffer for them meanwhile. Says whether any came before the
    /// connection's end.
    pub async fn begins(&mut self) -> bool {
        poll_fn(|cx| {
            let mut room = [const { MaybeUninit::uninit() }; FIRST_READ];
            let mut buffer = ReadBuf::uninit(&mut room);
            let read = ready!(Pin::new(&mut *self).poll_read(cx, &mut buffer));
            self.held = Bytes::copy_from_slice(buffer.filled());
            Poll::Ready(read.is_ok() && !self.held.is_empty())
        })
        .await
    }

    /// Writes what was corked, and behind it as much of these slices as goes out with it; says how much of them.
    fn poll_uncork(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        while !self.corked.is_empty() {
            let mut all = [IoSlice::new(&[]); SLICES_MAX];
            all[0] = IoSlice::new(&self.corked);
            let behind = slices.len().min(SLICES_MAX - 1);
            all[1..=behind].copy_from_slice(&slices[..behind]);
            let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, &all[..=behind]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_corked = written.min(self.corked.len());
            self.corked.advance(of_corked);
            if self.corked.is_empty() {
                // A connection may be idle for long after this.
                self.corked = BytesMut::new();
                return Poll::Ready(Ok(written - of_corked));
            }
        }
        Poll::Ready(Ok(0))
    }

    fn cut(&mut self, cx: &mut Context<'_>) -> io::Error {
        self.watchdog.note_head_too_large();
        // As much as goes out at once: nobody waits for the client to take it.
        if let Poll::Ready(Ok(_)) = Pin::new(&mut self.inner).poll_write(cx, TOO_LARGE) {
            drop(Pin::new(&mut self.inner).poll_flush(cx));
        }
        io::Error::other("a head without end")
    }
}

impl AsyncRead for HeadGuard {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            let fits = self.held.len().min(buffer.remaining());
            buffer.put_slice(&self.held.split_to(fits));
            return Poll::Ready(Ok(()));
        }
        if self.heads != self.watchdog.heads() {
            (self.heads, self.bytes, self.reads) = (self.watchdog.heads(), 0, 0);
        }
        if self.watchdog.is_busy() {
            return Pin::new(&mut self.inner).poll_read(cx, buffer);
        }
        if self.bytes > self.bytes_max || self.reads > READS_MAX {
            return Poll::Ready(Err(self.cut(cx)));
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        self.bytes += buffer.filled().len() - before;
        self.reads += 1;
        Poll::Ready(read)
    }
}

impl AsyncWrite for HeadGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.corked.is_empty() && !self.watchdog.is_corked() {
            return Pin::new(&mut self.inner).poll_write(cx, bytes);
        }
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.watchdog.is_corked() {
            let before = self.corked.len();
            slices.iter().for_each(|slice| self.corked.extend_from_slice(slice));
            return Poll::Ready(Ok(self.corked.len() - before));
        }
        match ready!(self.poll_uncork(cx, slices))? {
            0 => Pin::new(&mut self.inner).poll_write_vectored(cx, slices),
            written => Poll::Ready(Ok(written)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.watchdog.is_corked() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_uncork(cx, &[]))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_uncork(cx, &[]))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

// What else Pingora wants of a stream, it gets from the one within.

#[async_trait]
impl Shutdown for HeadGuard {
    /// Ends the sending side, and lets what the client is still sending run out for a moment: closed with bytes unread, the
    /// connection would be reset, and the client could lose the answer that says why.
    async fn shutdown(&mut self) {
        self.inner.shutdown().await;
        let inner = &mut self.inner;
        let run_out = async move {
            let mut rest = vec![0; LINGER_READ];
            for _ in 0..LINGER_READS {
                // An error is an end too.
                if inner.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {
                    continue;
                }
                break;
            }
        };
        // The time is up: whoever is still sending has had a moment to read.
        timeout(LINGER, run_out).await.ok();
    }
}

impl UniqueID for HeadGuard {
    fn id(&self) -> UniqueIDType {
        self.inner.id()
    }
}

impl Ssl for HeadGuard {
    fn get_ssl(&self) -> Option<&TlsRef> {
        self.inner.get_ssl()
    }

    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.inner.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.inner.selected_alpn_proto()
    }
}

impl GetTimingDigest for HeadGuard {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.inner.get_timing_digest()
    }
}

impl GetProxyDigest for HeadGuard {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.inner.get_proxy_digest()
    }
}

impl GetSocketDigest for HeadGuard {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.inner.get_socket_digest()
    }
}

#[async_trait]
impl Peek for HeadGuard {
    async fn try_peek(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        self.inner.try_peek(buffer).await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::super::watchdog::Cork;
    use super::*;

    const BYTES_MAX: usize = 1000;

    fn guarded() -> (HeadGuard, Arc<Watchdog>, DuplexStream) {
        let (inner, client) = duplex(1 << 20);
        let watchdog = Watchdog::new();
        (HeadGuard::new(Box::new(inner), Arc::clone(&watchdog), BYTES_MAX), watchdog, client)
    }

    #[tokio::test]
    async fn what_is_corked_goes_out_once_and_in_front_of_what_is_written_next_however_little_is_taken_at_a_time() {
        for takes in [1, 3, 1000] {
            let (inner, mut client) = duplex(takes);
            let watchdog = Watchdog::new();
            let mut guard = HeadGuard::new(Box::new(inner), Arc::clone(&watchdog), BYTES_MAX);
            let writing = watchdog.over(async move {
                {
                    let _corked = Cork::new();
                    guard.write_all(b"head ").await.unwrap();
                    guard.flush().await.unwrap();
                    guard.write_all(b"and ").await.unwrap();
                }
                guard.write_all_buf(&mut Buf::chain(&b"a "[..], &b"body, "[..])).await.unwrap();
                let corked = Cork::new();
                guard.write_all(b"its ").await.unwrap();
                drop(corked);
                guard.flush().await.unwrap();
                let _corked = Cork::new();
                guard.write_all(b"end").await.unwrap();
                AsyncWriteExt::shutdown(&mut guard).await.unwrap();
            });
            let mut told = String::new();
            let (read, ()) = tokio::join!(client.read_to_string(&mut told), writing);
            assert!(read.is_ok());
            assert_eq!(told, "head and a body, its end", "{takes}");
        }
    }

    #[tokio::test]
    async fn what_is_no_head_in_the_end_is_cut_with_431_and_noted() {
        let (mut guard, watchdog, mut client) = guarded();
        client.write_all(&vec![b'x'; BYTES_MAX + SLACK_BYTES + 1]).await.unwrap();
        let mut taken = vec![0; BYTES_MAX + SLACK_BYTES + 1];
        guard.read_exact(&mut taken).await.unwrap();
        assert!(guard.read(&mut taken).await.is_err());
        drop(guard);
        let mut told = Vec::new();
        client.read_to_end(&mut told).await.unwrap();
        assert_eq!(told, TOO_LARGE);
        assert!(watchdog.head_was_too_large());
    }

    #[tokio::test]
    async fn crumbs_are_cut_and_a_body_may_come_in_any_number_of_them() {
        let (mut guard, watchdog, mut client) = guarded();
        let mut byte = [0];
        for request in 0..3 {
            for _ in 0..READS_MAX - 1 {
                client.write_all(b"h").await.unwrap();
                assert_eq!(guard.read(&mut byte).await.unwrap(), 1, "the head of request {request}");
            }
            watchdog.set_busy(true);
            for _ in 0..2 * READS_MAX {
                client.write_all(b"b").await.unwrap();
                assert_eq!(guard.read(&mut byte).await.unwrap(), 1, "the body of request {request}");
            }
            watchdog.set_busy(false);
        }
        for _ in 0..=READS_MAX {
            client.write_all(b"h").await.unwrap();
            assert_eq!(guard.read(&mut byte).await.unwrap(), 1);
        }
        client.write_all(b"h").await.unwrap();
        assert!(guard.read(&mut byte).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_ended_takes_what_still_comes_for_a_moment_and_no_longer() {
        let (mut guard, _, mut client) = guarded();
        client.write_all(b"more").await.unwrap();
        let begun = tokio::time::Instant::now();
        Shutdown::shutdown(&mut guard).await;
        assert_eq!(begun.elapsed(), LINGER, "the client may have more");
        client.write_all(&vec![b'x'; LINGER_READ * LINGER_READS]).await.unwrap();
        Shutdown::shutdown(&mut guard).await;
        assert_eq!(begun.elapsed(), LINGER, "so much is enough");
        drop(client);
        Shutdown::shutdown(&mut guard).await;
        assert_eq!(begun.elapsed(), LINGER, "it has gone");
    }
}
