//! An upstream that costs next to nothing: it reads a request and answers it at once, or with events at a pace that the
//! request asks for. Every event carries the time at which it was written.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Asks for so many events instead of one JSON object.
pub const EVENTS_HEADER: &str = "x-bench-events";

/// Between two events. A fast engine's tokens for one stream, at 200 a second.
pub const EVENT_GAP: Duration = Duration::from_millis(5);

/// Stands in front of the time in an event, which has [`TIME_DIGITS`] digits.
pub const TIME_KEY: &str = "\"sent_ns\":";
pub const TIME_DIGITS: usize = 20;

/// What follows an event of vLLM's but its text.
const EVENT_REST: &str = r#""id":"chatcmpl-8f2f7d0f3c6b4a0d9d3f0a7c5c1b2e4d","object":"chat.completion.chunk","created":1770000000,"model":"bench","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}"#;

const JSON: &str = r#"{"id":"chatcmpl-8f2f7d0f3c6b4a0d9d3f0a7c5c1b2e4d","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":2,"total_tokens":1002}}"#;

/// A listening stub.
pub struct Stub {
    pub address: SocketAddr,
    /// What event times count from.
    pub epoch: Instant,
    /// Requests with a body that were read to their end.
    requests: Arc<AtomicUsize>,
}

/// What it does once a request is there.
#[derive(Clone, Copy)]
enum Manner {
    Answer {
        epoch: Instant,
    },
    /// Hangs up without a word.
    HangUp,
}

/// A request as far as the stub cares.
struct Request {
    body_bytes: usize,
    events: usize,
}

impl Stub {
    pub async fn start() -> io::Result<Stub> {
        let epoch = Instant::now();
        Self::listen(Manner::Answer { epoch }, epoch).await
    }

    /// A replica that reads a request whole and then hangs up.
    pub async fn start_broken() -> io::Result<Stub> {
        Self::listen(Manner::HangUp, Instant::now()).await
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    async fn listen(manner: Manner, epoch: Instant) -> io::Result<Stub> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A connection that breaks is the client's to notice.
                tokio::spawn(serve(stream, manner, Arc::clone(&counted)));
            }
        });
        Ok(Stub { address, epoch, requests })
    }
}

async fn serve(mut stream: TcpStream, manner: Manner, requests: Arc<AtomicUsize>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        // Without a body it is a scrape or a probe, which even the broken one answers.
        if request.body_bytes > 0 {
            requests.fetch_add(1, Ordering::Relaxed);
        }
        match manner {
            Manner::Answer { epoch } if request.events > 0 => write_events(&mut stream, epoch, request.events).await?,
            Manner::HangUp if request.body_bytes > 0 => break,
            Manner::Answer { .. } | Manner::HangUp => stream.write_all(json_response().as_bytes()).await?,
        }
    }
    Ok(())
}

/// Reads a head and its body; `None` at the end of the connection. The bodies have lengths, and nothing is pipelined.
async fn read_request(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<Request>> {
    let mut filled = 0;
    let head_bytes = loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(None);
        }
        filled += read;
        if let Some(end) = memchr::memmem::find(&buffer[..filled], b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_bytes]).to_ascii_lowercase();
    let request = Request { body_bytes: number(&head, "content-length"), events: number(&head, EVENTS_HEADER) };
    let mut missing = request.body_bytes.saturating_sub(filled - head_bytes);
    while missing > 0 {
        let read = stream.read(buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        missing = missing.saturating_sub(read);
    }
    Ok(Some(request))
}

fn number(head: &str, name: &str) -> usize {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| *key == name)
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

fn json_response() -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{JSON}", JSON.len())
}

async fn write_events(stream: &mut TcpStream, epoch: Instant, count: usize) -> io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut pace = tokio::time::interval(EVENT_GAP);
    for _ in 0..count {
        pace.tick().await;
        let sent = epoch.elapsed().as_nanos();
        let event = format!("data: {{{TIME_KEY}{sent:0TIME_DIGITS$},{EVENT_REST}\n\n");
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}
