//! A client that does no more than it must: raw requests on one kept connection, and the times of what comes back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::arm::MODEL;
use crate::stub::{EVENTS_HEADER, TIME_DIGITS, TIME_KEY};

/// Longer than any answer here takes by far; a proxy that hangs must not hang the bench.
const PATIENCE: Duration = Duration::from_secs(20);

/// The conversation of a request, where it doesn't matter.
pub const SESSION: &str = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";

/// One kept connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
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
}

/// A response with a length.
pub struct Reply {
    pub first_byte: Instant,
    pub status: u16,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; 64 * 1024] })
    }

    pub async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await??)
    }

    /// Reads a response with a length to its end.
    pub async fn reply(&mut self) -> anyhow::Result<Reply> {
        let mut filled = self.read(0).await?;
        let first_byte = Instant::now();
        let head_bytes = loop {
            if let Some(end) = memchr::memmem::find(&self.buffer[..filled], b"\r\n\r\n") {
                break end + 4;
            }
            filled += self.read(filled).await?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..head_bytes]).to_ascii_lowercase();
        let status = head.get(9..12).context("no status")?.parse()?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")).context("no length")?;
        let total = head_bytes + length.trim().parse::<usize>()?;
        while filled < total {
            filled += self.read(filled).await?;
        }
        Ok(Reply { first_byte, status })
    }

    /// Reads a chunked stream of events to its end. The events of a read are those whose time is complete with it.
    pub async fn events(&mut self) -> anyhow::Result<Vec<Read>> {
        let mut reads = Vec::new();
        let mut kept = 0;
        loop {
            let filled = kept + self.read(kept).await?;
            let at = Instant::now();
            let bytes = &self.buffer[..filled];
            let (sent_ns, used) = times(bytes)?;
            let ended = bytes.ends_with(b"\r\n0\r\n\r\n");
            reads.push(Read { at, sent_ns });
            if ended {
                return Ok(reads);
            }
            self.buffer.copy_within(used..filled, 0);
            kept = filled - used;
        }
    }

    async fn read(&mut self, from: usize) -> anyhow::Result<usize> {
        ensure!(from < self.buffer.len(), "a response is longer than the buffer");
        match tokio::time::timeout(PATIENCE, self.stream.read(&mut self.buffer[from..])).await?? {
            0 => bail!("the connection was closed inside a response"),
            read => Ok(read),
        }
    }
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

/// A request for one JSON object, with a body of so many bytes.
pub fn json_request(body_bytes: usize, model_at: ModelAt, session: &str) -> Vec<u8> {
    request(&format!("x-session-id: {session}\r\n"), &body(body_bytes, model_at))
}

/// A request for a stream of so many events, with a body of so many bytes.
pub fn events_request(count: usize, body_bytes: usize) -> Vec<u8> {
    request(&format!("x-session-id: {SESSION}\r\n{EVENTS_HEADER}: {count}\r\n"), &body(body_bytes, ModelAt::First))
}

fn request(headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: bench/1.0\r\naccept: */*\r\n\
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
