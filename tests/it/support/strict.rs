//! A replica that reads by the letter of HTTP/1.1, and remembers every byte that it can't read so.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};

use super::reserved::ReservedPort;

/// One that runs.
pub struct Strict {
    port: ReservedPort,
    record: Arc<Mutex<Record>>,
    serving: JoinHandle<()>,
}

/// What has arrived, but for what kvpin asks by itself.
#[derive(Debug, Default)]
pub struct Record {
    pub requests: Vec<Request>,
    /// What was no request.
    pub faults: Vec<String>,
}

/// A whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Lines of the head, without the empty one.
    pub head: Vec<String>,
    pub body: Vec<u8>,
}

impl Strict {
    pub fn start() -> Self {
        let port = ReservedPort::new();
        let (listener, record) = (port.listen(), Arc::<Mutex<Record>>::default());
        let recorded = Arc::clone(&record);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                connections.spawn(serve(stream, Arc::clone(&recorded)));
            }
        });
        Strict { port, record, serving }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("the record")
    }

    /// The requests since the last time.
    pub fn take(&self) -> Vec<Request> {
        let mut record = self.record();
        assert!(record.faults.is_empty(), "{:?}", record.faults);
        std::mem::take(&mut record.requests)
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Request {
    pub fn target(&self) -> &str {
        self.head[0].split(' ').nth(1).expect("a target")
    }

    /// The values of a header.
    pub fn all(&self, wanted: &str) -> Vec<&str> {
        let fields = self.head[1..].iter().filter_map(|line| line.split_once(": "));
        fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value).collect()
    }
}

async fn serve(mut stream: TcpStream, record: Arc<Mutex<Record>>) {
    stream.set_nodelay(true).expect("sets TCP_NODELAY");
    let mut buffer = Vec::new();
    loop {
        match read_request(&mut stream, &mut buffer).await {
            Ok(Some(request)) => {
                let own = |line: &String| line.to_ascii_lowercase().starts_with("user-agent: kvpin/");
                let is_watch = request.head[0].starts_with("GET ") && request.head.iter().any(own);
                let body = format!("{{\"bytes\":{}}}", request.body.len());
                if !is_watch {
                    record.lock().expect("the record").requests.push(request);
                }
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(fault) => return record.lock().expect("the record").faults.push(fault),
        }
    }
}

/// The next request; `None` if the connection ends, between two requests or in the middle of one: that is no request at all.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<Request>, String> {
    let Some(head) = read_until(stream, buffer, b"\r\n\r\n").await else { return Ok(None) };
    let head = parse_head(&head)?;
    let request = Request { head, body: Vec::new() };
    let (lengths, codings) = (request.all("content-length"), request.all("transfer-encoding"));
    let body = match (&lengths[..], &codings[..]) {
        ([], []) => Some(Vec::new()),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            read_exactly(stream, buffer, length.parse().map_err(|_| format!("a length of {length}"))?).await
        }
        ([], ["chunked"]) => read_chunks(stream, buffer).await?,
        _ => return Err(format!("framed by {lengths:?} and {codings:?}: {:?}", request.head)),
    };
    Ok(body.map(|body| Request { body, ..request }))
}

/// A request line, and headers without anything that some reader could stumble over.
fn parse_head(head: &[u8]) -> Result<Vec<String>, String> {
    let shown = || String::from_utf8_lossy(head).into_owned();
    let text = head.strip_suffix(b"\r\n\r\n").ok_or_else(shown)?;
    let mut lines = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
            return Err(format!("a control byte in {:?}", shown()));
        }
        lines.push(String::from_utf8_lossy(line).into_owned());
    }
    // Each but the last was split off with its CR.
    if text.iter().filter(|byte| **byte == b'\n').count() != text.windows(2).filter(|pair| pair == b"\r\n").count() {
        return Err(format!("a bare LF in {:?}", shown()));
    }
    let parts: Vec<_> = lines[0].split(' ').collect();
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b":()<>@,;\\\"/[]?={}".contains(&byte))
    };
    if parts.len() != 3 || !is_token(parts[0]) || !parts[1].starts_with('/') || parts[2] != "HTTP/1.1" {
        return Err(format!("the request line {:?}", lines[0]));
    }
    for line in &lines[1..] {
        let name = line.split_once(": ").map(|(name, _)| name);
        if !name.is_some_and(is_token) {
            return Err(format!("the header {line:?}"));
        }
    }
    let hosts = lines[1..].iter().filter(|line| line.to_ascii_lowercase().starts_with("host:")).count();
    if hosts == 1 { Ok(lines) } else { Err(format!("{hosts} hosts in {lines:?}")) }
}

/// Chunks without extensions and trailers.
async fn read_chunks(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
    let mut body = Vec::new();
    loop {
        let Some(line) = read_until(stream, buffer, b"\r\n").await else { return Ok(None) };
        let digits = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(&digits, 16).ok().filter(|_| is_number);
        let size = size.ok_or_else(|| format!("a chunk of size {digits:?}"))?;
        let Some(chunk) = read_exactly(stream, buffer, size + 2).await else { return Ok(None) };
        if !chunk.ends_with(b"\r\n") {
            return Err(format!("a chunk that ends with {:?}", &chunk[size..]));
        }
        if size == 0 {
            return Ok(Some(body));
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

async fn read_exactly(stream: &mut TcpStream, buffer: &mut Vec<u8>, bytes: usize) -> Option<Vec<u8>> {
    while buffer.len() < bytes {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let rest = buffer.split_off(bytes);
    Some(std::mem::replace(buffer, rest))
}

async fn read_until(stream: &mut TcpStream, buffer: &mut Vec<u8>, mark: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(mark.len()).position(|window| window == mark) {
            return read_exactly(stream, buffer, at + mark.len()).await;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
