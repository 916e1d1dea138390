//! A replica that a test plays by hand: it gets each turn as a bare connection and decides itself what to write, and when.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet};

use super::call::chunk_of;
use super::reserved::ReservedPort;
use super::within;

/// Answers health checks by itself and hands every other request out.
pub struct Hand {
    port: ReservedPort,
    turns: UnboundedReceiver<HandTurn>,
    serving: JoinHandle<()>,
}

/// A request that waits for what the test writes. Dropping it closes its connection.
pub struct HandTurn {
    pub head: String,
    /// What has been read of the body.
    pub body: Vec<u8>,
    stream: TcpStream,
}

/// The head of a streamed response.
pub const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

impl Hand {
    pub fn start() -> Self {
        let port = ReservedPort::new();
        let listener = port.listen();
        let (sender, turns) = unbounded_channel();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                connections.spawn(receive(stream, sender.clone()));
            }
        });
        Hand { port, turns, serving }
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// kvpin's name for it where the configuration gives none.
    pub fn name(&self) -> String {
        self.address().to_string()
    }

    /// The next turn, when its whole request has arrived.
    pub async fn turn(&mut self) -> HandTurn {
        let mut turn = self.arriving().await;
        turn.read_to(turn.length()).await;
        turn
    }

    /// The next turn, as soon as its head has arrived.
    pub async fn arriving(&mut self) -> HandTurn {
        within("a turn at the replica", self.turns.recv()).await.expect("the replica runs")
    }

    /// Whether a turn has arrived that was not asked for yet.
    pub fn has_turn(&mut self) -> bool {
        !self.turns.is_empty()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl HandTurn {
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        within("writing a response", self.stream.write_all(bytes.as_ref())).await.expect("writes");
    }

    pub async fn write_chunk(&mut self, data: impl AsRef<[u8]>) {
        self.write(chunk_of(data.as_ref())).await;
    }

    /// A whole small response after which the connection stays open.
    pub async fn answer(&mut self, body: &str) {
        let length = body.len();
        self.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")).await;
    }

    /// Reads until so many bytes of the body have arrived.
    pub async fn read_to(&mut self, bytes: usize) {
        while self.body.len() < bytes {
            let read = within("more of a request", self.stream.read_buf(&mut self.body)).await.expect("reads");
            assert!(read > 0, "the request ended after {} bytes of its body", self.body.len());
        }
    }

    /// Reads until the body ends with `mark`.
    pub async fn read_through(&mut self, mark: &[u8]) {
        while !self.body.ends_with(mark) {
            let more = self.body.len() + 1;
            self.read_to(more).await;
        }
    }

    /// All that comes before the other side closes the connection.
    pub async fn rest(&mut self) -> &[u8] {
        // A reset is an end too.
        within("the connection's end", self.stream.read_to_end(&mut self.body)).await.ok();
        &self.body
    }

    /// The length of the body as its head tells it.
    fn length(&self) -> usize {
        let length = self.head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
        });
        length.unwrap_or(0)
    }

    /// Waits until another request has begun on the same connection.
    pub async fn started_another(&mut self) {
        let mut first = [0; 1];
        within("another request", self.stream.read_exact(&mut first)).await.expect("reads");
    }
}

async fn receive(mut stream: TcpStream, turns: UnboundedSender<HandTurn>) {
    stream.set_nodelay(true).expect("sets TCP_NODELAY");
    let Some((head, body)) = read_head(&mut stream).await else { return };
    if head.starts_with("GET ") {
        // Nobody is left to tell if the watcher has gone.
        stream.write_all(NOT_FOUND).await.ok();
        return;
    }
    // The test may have ended meanwhile.
    turns.send(HandTurn { head, body, stream }).ok();
}

/// A request's head and what came with it of its body; `None` at the connection's end.
async fn read_head(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            return Some((String::from_utf8_lossy(&bytes).into_owned(), body));
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
