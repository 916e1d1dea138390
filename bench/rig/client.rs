//! A client that does no more than it must: raw requests on one kept connection, and the times of what comes back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::MODEL;
use super::stub::{TIME_DIGITS, TIME_KEY};

/// Longer than any answer here takes by far; a proxy that hangs must not hang the bench.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than any answer but a stream, and than any event.
const BUFFER_BYTES: usize = 16 * 1024;

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The conversation of a request, where it doesn't matter.
pub const SESSION: &str = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";

/// One kept connection.
pub struct Connection<S = TcpStream> {
    stream: S,
    buffer: Vec<u8>,
    /// Bytes at the begin of the buffer that belong to an event which isn't whole.
    kept: usize,
}

/// Where the model stands in a body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ModelAt {
    First,
    Last,
}

/// One read of a stream: when, and the times of the events in it.
pub struct Read {
    pub at: Instant,
    pub sent_ns: Vec<u64>,
    /// Nothing comes after it.
    pub is_last: bool,
}

/// A response that is no stream.
pub struct Reply {
    pub first_byte: Instant,
    pub status: u16,
    /// Of the head and the body.
    bytes: usize,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub fn over(stream: S) -> Connection<S> {
        Connection { stream, buffer: vec![0; BUFFER_BYTES], kept: 0 }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let sending = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        Ok(tokio::time::timeout(PATIENCE, sending).await??)
    }

    /// Ends the connection from this side.
    pub async fn close(mut self) -> anyhow::Result<()> {
        Ok(tokio::time::timeout(PATIENCE, self.stream.shutdown()).await??)
    }

    /// Reads a response that is no stream to its end.
    pub async fn reply(&mut self) -> anyhow::Result<Reply> {
        let mut filled = self.read(0).await?;
        let first_byte = Instant::now();
        let head_bytes = loop {
            if let Some(end) = memchr::memmem::find(&self.buffer[..filled], b"\r\n\r\n") {
                break end + 4;
            }
            filled += self.read(filled).await?;
        };
        let (status, body) = read_head(&self.buffer[..head_bytes])?;
        while !body.is_whole(&self.buffer[head_bytes..filled]) {
            filled += self.read(filled).await?;
        }
        Ok(Reply { first_byte, status, bytes: filled })
    }

    /// The same where anything but a 200 is an error.
    pub async fn good_reply(&mut self) -> anyhow::Result<Reply> {
        let reply = self.reply().await?;
        ensure!(reply.status == 200, "answered with {}", String::from_utf8_lossy(&self.buffer[..reply.bytes]));
        Ok(reply)
    }

    /// Reads a chunked stream of events to its end.
    pub async fn events(&mut self) -> anyhow::Result<Vec<Read>> {
        let mut reads = Vec::new();
        loop {
            let read = self.next_read().await?;
            let is_last = read.is_last;
            reads.push(read);
            if is_last {
                return Ok(reads);
            }
        }
    }

    /// What comes next of a chunked stream. The events of a read are those whose time is complete with it.
    pub async fn next_read(&mut self) -> anyhow::Result<Read> {
        let filled = self.kept + self.read(self.kept).await?;
        let at = Instant::now();
        let bytes = &self.buffer[..filled];
        let (sent_ns, used) = times(bytes)?;
        let is_last = bytes.ends_with(b"\r\n0\r\n\r\n");
        self.kept = if is_last { 0 } else { filled - used };
        self.buffer.copy_within(used..used + self.kept, 0);
        Ok(Read { at, sent_ns, is_last })
    }

    async fn read(&mut self, from: usize) -> anyhow::Result<usize> {
        ensure!(from < self.buffer.len(), "a response is longer than the buffer");
        match tokio::time::timeout(PATIENCE, self.stream.read(&mut self.buffer[from..])).await?? {
            0 => bail!("the connection was closed inside a response"),
            read => Ok(read),
        }
    }
}

/// How the end of a body is told.
enum Body {
    Length(usize),
    Chunked,
}

impl Body {
    fn is_whole(&self, bytes: &[u8]) -> bool {
        match self {
            Body::Length(length) => bytes.len() >= *length,
            Body::Chunked => bytes == LAST_CHUNK || bytes.ends_with(b"\r\n0\r\n\r\n"),
        }
    }
}

/// The status, and what is said of the body.
fn read_head(head: &[u8]) -> anyhow::Result<(u16, Body)> {
    let head = std::str::from_utf8(head)?;
    let status = head.get(9..12).context("no status")?.parse()?;
    let value = |wanted: &str| {
        let mut headers = head.lines().filter_map(|line| line.split_once(':'));
        headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    let body = match value("content-length") {
        Some(length) => Body::Length(length.parse()?),
        None if value("transfer-encoding") == Some("chunked") => Body::Chunked,
        None => bail!("a response without a length"),
    };
    Ok((status, body))
}

/// The times in `bytes`, and how many bytes are done with.
fn times(bytes: &[u8]) -> anyhow::Result<(Vec<u64>, usize)> {
    let mut found = Vec::new();
    let mut used = 0;
    while let Some(at) = memchr::memmem::find(&bytes[used..], TIME_KEY.as_bytes()) {
        let begin = used + at + TIME_KEY.len();
        let Some(digits) = bytes.get(begin..begin + TIME_DIGITS) else { break };
        found.push(std::str::from_utf8(digits)?.parse()?);
        used = begin + TIME_DIGITS;
    }
    Ok((found, used))
}

/// A turn with a body of so many bytes and the session in a header.
pub fn turn(body_bytes: usize, model_at: ModelAt, session: &str) -> Vec<u8> {
    request("/v1/chat/completions", &format!("x-session-id: {session}\r\n"), &body(body_bytes, model_at))
}

/// A request with these lines among its headers.
pub fn request(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\nuser-agent: bench/1.0\r\naccept: */*\r\n\
         content-type: application/json\r\nauthorization: Bearer unused\r\n\
         {headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A chat of about so many bytes, as escaped code.
fn body(bytes: usize, model_at: ModelAt) -> String {
    let line = r#"    let greeting = \"hello\";\n"#;
    let text = line.repeat(bytes.saturating_sub(100) / line.len() + 1);
    let messages = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    match model_at {
        ModelAt::First => format!(r#"{{"model":"{MODEL}",{messages},"max_tokens":1000}}"#),
        ModelAt::Last => format!(r#"{{{messages},"max_tokens":1000,"model":"{MODEL}"}}"#),
    }
}
