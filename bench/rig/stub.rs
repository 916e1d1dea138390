//! An upstream that costs next to nothing: it reads a request and answers it at once, or with events at a pace. Every event
//! carries the time at which it was written.
//!
//! How turns are answered is said to the stub and not in the request, so that no proxy can lose or change it on the way.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::MODEL;

/// Between two events. A fast engine's tokens for one stream, at 200 a second.
pub const EVENT_GAP: Duration = Duration::from_millis(5);

/// Stands in front of the time in an event, which has [`TIME_DIGITS`] digits.
pub const TIME_KEY: &str = "\"sent_ns\":";
pub const TIME_DIGITS: usize = 20;

/// What follows an event of vLLM's but its text.
const EVENT_REST: &str = r#""id":"chatcmpl-8f2f7d0f3c6b4a0d9d3f0a7c5c1b2e4d","object":"chat.completion.chunk","created":1770000000,"model":"bench","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}"#;

const CHAT: &str = r#"{"id":"chatcmpl-8f2f7d0f3c6b4a0d9d3f0a7c5c1b2e4d","object":"chat.completion","created":1770000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":2,"total_tokens":1002}}"#;

/// The same in the Messages API.
const MESSAGE: &str = r#"{"id":"msg_8f2f7d0f3c6b4a0d9d3f0a7c5c1b2e4d","type":"message","role":"assistant","model":"bench","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1000,"output_tokens":2}}"#;

/// What an engine with a cache larger than any bench fills says of itself.
const METRICS: &str = r#"# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="bench"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.1
"#;

/// The longest head that is read.
const HEAD_BYTES_MAX: usize = 64 * 1024;

thread_local! {
    /// What is read goes here and is forgotten: thousands of connections share it, and it stays in the processor's cache.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 256 * 1024]);
}

/// How a turn is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With one JSON object.
    Json,
    /// With a stream of so many, [`EVENT_GAP`] apart.
    Events { count: usize },
    /// With an event at once, and the last one when the stub is told to.
    Held,
    /// With the end of the connection, once the turn has been read.
    HangUp,
}

/// A listening stub.
pub struct Stub {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    answer: Mutex<Answer>,
    /// What event times count from.
    epoch: Instant,
    /// Turns that were read to their end.
    turns: AtomicUsize,
    /// How often streams were told to end.
    released: watch::Sender<u64>,
}

/// A request as far as the stub cares.
struct Request {
    kind: Kind,
    head_bytes: usize,
    body_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With the JSON object that is its answer.
    Turn(&'static str),
    Models,
    Metrics,
    /// `/render` and `/tokenize`, which some routers ask for before they place a turn.
    Tokens,
    Probe,
}

/// What came of a read.
enum Piece {
    None,
    Head(Request, usize),
    End,
}

impl Stub {
    /// A stub that serves for as long as the runtime lives that this is called on.
    pub async fn start(answer: Answer, epoch: Instant) -> io::Result<Stub> {
        let listener = tokio::net::TcpSocket::new_v4()?;
        listener.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let listener: TcpListener = listener.listen(4096)?;
        let address = listener.local_addr()?;
        let (released, _) = watch::channel(0);
        let shared = Arc::new(Shared { answer: Mutex::new(answer), epoch, turns: AtomicUsize::new(0), released });
        let served = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A connection that breaks is the client's to notice.
                tokio::spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Ok(Stub { address, shared })
    }

    /// How turns are answered from here on.
    pub fn answer_with(&self, answer: Answer) {
        *self.shared.answer.lock() = answer;
    }

    /// Ends the streams that are held.
    pub fn release(&self) {
        self.shared.released.send_modify(|times| *times += 1);
    }

    pub fn turns(&self) -> usize {
        self.shared.turns.load(Ordering::Relaxed)
    }

    pub fn epoch(&self) -> Instant {
        self.shared.epoch
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(request) = read_request(&stream).await? {
        match request.kind {
            Kind::Turn(json) => {
                shared.turns.fetch_add(1, Ordering::Relaxed);
                let answer = *shared.answer.lock();
                match answer {
                    Answer::Json => stream.write_all(json_response(json).as_bytes()).await?,
                    Answer::Events { count } => write_events(&mut stream, shared.epoch, count).await?,
                    Answer::Held => write_held(&mut stream, &shared).await?,
                    Answer::HangUp => break,
                }
            }
            Kind::Models => stream.write_all(json_response(&models()).as_bytes()).await?,
            Kind::Metrics => stream.write_all(response("text/plain; version=0.0.4", METRICS).as_bytes()).await?,
            Kind::Tokens => stream.write_all(json_response(&tokens(request.body_bytes)).as_bytes()).await?,
            Kind::Probe => stream.write_all(json_response("{}").as_bytes()).await?,
        }
    }
    Ok(())
}

/// Reads a head and its body; `None` at the end of the connection. The bodies have lengths, and nothing is pipelined.
async fn read_request(stream: &TcpStream) -> io::Result<Option<Request>> {
    // What came of the head, where it came in pieces.
    let mut begun = Vec::new();
    let (request, filled) = loop {
        stream.readable().await?;
        match read_piece(stream, &mut begun)? {
            Piece::None => {}
            Piece::Head(request, filled) => break (request, filled),
            Piece::End => return Ok(None),
        }
    };
    let mut missing = request.body_bytes.saturating_sub(filled - request.head_bytes);
    while missing > 0 {
        stream.readable().await?;
        match SCRATCH.with_borrow_mut(|scratch| stream.try_read(scratch)) {
            Ok(0) => return Ok(None),
            Ok(read) => missing = missing.saturating_sub(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(request))
}

fn read_piece(stream: &TcpStream, begun: &mut Vec<u8>) -> io::Result<Piece> {
    SCRATCH.with_borrow_mut(|scratch| {
        let read = match stream.try_read(scratch) {
            Ok(0) => return Ok(Piece::End),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Piece::None),
            Err(error) => return Err(error),
        };
        if begun.is_empty()
            && let Some(request) = Request::parse(&scratch[..read])
        {
            return Ok(Piece::Head(request, read));
        }
        begun.extend_from_slice(&scratch[..read]);
        match Request::parse(begun) {
            Some(request) => Ok(Piece::Head(request, begun.len())),
            None if begun.len() > HEAD_BYTES_MAX => Err(io::Error::other("a head without an end")),
            None => Ok(Piece::None),
        }
    })
}

impl Request {
    /// `None` while the head is not whole.
    fn parse(bytes: &[u8]) -> Option<Request> {
        let head_bytes = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&bytes[..head_bytes]);
        let (line, headers) = head.split_once("\r\n")?;
        Some(Request { kind: Kind::of(line), head_bytes, body_bytes: content_length(headers) })
    }
}

impl Kind {
    fn of(request_line: &str) -> Kind {
        let mut words = request_line.split(' ');
        let method = words.next().unwrap_or_default();
        match (method, words.next().unwrap_or_default()) {
            ("POST", path) if path.ends_with("/render") || path.ends_with("/tokenize") => Kind::Tokens,
            ("POST", path) if path.ends_with("/messages") => Kind::Turn(MESSAGE),
            ("POST", _) => Kind::Turn(CHAT),
            (_, "/v1/models") => Kind::Models,
            (_, "/metrics") => Kind::Metrics,
            _ => Kind::Probe,
        }
    }
}

fn content_length(headers: &str) -> usize {
    headers
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0)
}

fn response(content_type: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn json_response(body: &str) -> String {
    response("application/json", body)
}

fn models() -> String {
    format!(
        r#"{{"object":"list","data":[{{"id":"{MODEL}","object":"model","created":1770000000,"owned_by":"vllm","root":"{MODEL}","parent":null,"max_model_len":1048576}}]}}"#
    )
}

/// A token for every four bytes that were asked about, in the shapes of both paths.
fn tokens(body_bytes: usize) -> String {
    let ids: Vec<String> = (0..body_bytes / 4).map(|at| (at * 7919 % 100_000).to_string()).collect();
    let (count, ids) = (ids.len(), ids.join(","));
    format!(
        r#"{{"request_id":"chatcmpl-1","token_ids":[{ids}],"count":{count},"max_model_len":1048576,"tokens":[{ids}]}}"#
    )
}

const EVENTS_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

async fn write_events(stream: &mut TcpStream, epoch: Instant, count: usize) -> io::Result<()> {
    stream.write_all(EVENTS_HEAD.as_bytes()).await?;
    let mut pace = tokio::time::interval(EVENT_GAP);
    for _ in 0..count {
        pace.tick().await;
        write_event(stream, epoch).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}

async fn write_held(stream: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut released = shared.released.subscribe();
    stream.write_all(EVENTS_HEAD.as_bytes()).await?;
    write_event(stream, shared.epoch).await?;
    // An error only when the stub is gone, and then nobody reads on.
    if released.changed().await.is_ok() {
        write_event(stream, shared.epoch).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}

async fn write_event(stream: &mut TcpStream, epoch: Instant) -> io::Result<()> {
    let sent = epoch.elapsed().as_nanos();
    let event = format!("data: {{{TIME_KEY}{sent:0TIME_DIGITS$},{EVENT_REST}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}
