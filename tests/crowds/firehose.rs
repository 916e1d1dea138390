//! A replica whose answers never end, and come as fast as they are taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::call::chunk_of;
use crate::support::reserved::ReservedPort;

const PIECE: usize = 64 * 1024;

/// One that runs.
pub struct Firehose {
    port: ReservedPort,
    counts: Arc<Counts>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    /// Answers that were begun.
    begun: AtomicUsize,
    /// Answers that are being sent.
    streams: AtomicUsize,
    /// Bytes that were taken, of all answers.
    taken: AtomicUsize,
}

impl Firehose {
    pub fn start() -> Self {
        let port = ReservedPort::new();
        let (listener, counts) = (port.listen(), Arc::<Counts>::default());
        let counted = Arc::clone(&counts);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                connections.spawn(serve(stream, Arc::clone(&counted)));
            }
        });
        Firehose { port, counts, serving }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn begun(&self) -> usize {
        self.counts.begun.load(Ordering::Relaxed)
    }

    pub fn streams(&self) -> usize {
        self.counts.streams.load(Ordering::Relaxed)
    }

    pub fn taken(&self) -> usize {
        self.counts.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Firehose {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, counts: Arc<Counts>) {
    let mut request = vec![0; 16 * 1024];
    // Requests here come in one read.
    let Ok(bytes @ 1..) = stream.read(&mut request).await else { return };
    if request[..bytes].starts_with(b"GET ") {
        // Nobody is left to tell if the watcher has gone.
        stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await.ok();
        return;
    }
    counts.begun.fetch_add(1, Ordering::Relaxed);
    counts.streams.fetch_add(1, Ordering::Relaxed);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let first = [head.as_bytes(), &chunk_of(b"data: {\"content\":1}\n\n")].concat();
    let piece = chunk_of(&[b'x'; PIECE]);
    let mut next = &first;
    while stream.write_all(next).await.is_ok() {
        counts.taken.fetch_add(next.len(), Ordering::Relaxed);
        next = &piece;
    }
    counts.streams.fetch_sub(1, Ordering::Relaxed);
}
