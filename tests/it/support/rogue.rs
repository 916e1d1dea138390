//! A replica that misbehaves as it is told, and remembers every byte that it sent, so that clients can be held against it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::call::chunk_of;
use super::hand::STREAM_HEAD;
use super::reserved::ReservedPort;

/// How it treats what arrives, and what is already there and waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Good,
    /// Nothing listens; what runs is reset.
    Refuses,
    ResetsBeforeHead,
    ResetsMidBody,
    /// Until its manner changes, and then goes on well.
    StallsBeforeHead,
    StallsMidStream,
    Answers(u16),
    Garbage,
    /// As long as it lasts `/health` is not answered.
    HealthHangs,
    /// `/metrics` are those of another engine: one of [`LIES`].
    Lies(usize),
    /// Its engine sleeps, says its `/metrics`.
    Sleeps,
    /// Its process is another one, with nothing in its cache.
    Restarted,
}

/// What stands in `/metrics` instead of vLLM's.
pub const LIES: [&str; 5] = [
    "",
    "vllm:num_requests_running{engine=\"0\"} NaN\nvllm:kv_cache_usage_perc{engine=\"0\"} -Inf\n",
    "sglang:num_running_reqs 3\n",
    "# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running{engine=\"0\" 1\n\0\u{7f}",
    // Stands for megabytes of it.
    "vllm:noise{engine=\"0\"} 1\n",
];
const LIE_BYTES: usize = 10 << 20;

/// One that runs, or that is away.
pub struct Rogue {
    port: ReservedPort,
    told: watch::Sender<Manner>,
    record: Arc<Mutex<Record>>,
    serving: Option<JoinHandle<()>>,
}

/// What it counts itself.
#[derive(Debug, Default)]
pub struct Record {
    /// Requests that are there now.
    pub in_flight: usize,
    /// Requests whose head arrived.
    pub begun: usize,
    /// Requests that arrived to their last byte.
    pub whole: usize,
    /// Requests that the other side left before their response had ended.
    pub cancelled: usize,
    /// Responses by the request's id: the body as far as it was sent, and whether it was ended properly.
    pub sent: BTreeMap<String, (Vec<u8>, bool)>,
    steps: u64,
    starts: u64,
}

/// A request that is there: counted until it is dropped.
struct Present {
    record: Arc<Mutex<Record>>,
    id: String,
}

/// A connection has come to its end, whoever ended it.
struct Ended;

impl Rogue {
    pub fn start() -> Self {
        let (told, _) = watch::channel(Manner::Good);
        let mut rogue = Rogue { port: ReservedPort::new(), told, record: Arc::default(), serving: None };
        rogue.listen();
        rogue
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.port.address())
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("the record")
    }

    /// Behaves otherwise from now on.
    pub async fn tell(&mut self, manner: Manner) {
        if matches!(manner, Manner::Restarted | Manner::Refuses) {
            let mut record = self.record();
            record.starts += 1;
            record.steps = 0;
        }
        self.told.send_replace(manner);
        match manner {
            Manner::Refuses => self.go_away().await,
            _ if self.serving.is_none() => self.listen(),
            _ => {}
        }
    }

    fn listen(&mut self) {
        let (listener, told, record) = (self.port.listen(), self.told.subscribe(), Arc::clone(&self.record));
        self.serving = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                connections.spawn(serve(stream, told.clone(), Arc::clone(&record)));
            }
        }));
    }

    async fn go_away(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            assert!(serving.await.is_err_and(|error| error.is_cancelled()), "the rogue had not failed before");
        }
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }
}

impl Present {
    fn new(record: &Arc<Mutex<Record>>, id: String) -> Self {
        let mut counted = record.lock().expect("the record");
        counted.in_flight += 1;
        counted.begun += 1;
        Present { record: Arc::clone(record), id }
    }

    /// Sends a piece of the body; noted before it is sent, since the client may have it before this side knows.
    async fn send(&self, stream: &mut TcpStream, head: &[u8], data: &[u8], tail: &[u8]) -> Result<(), Ended> {
        {
            let mut record = self.record.lock().expect("the record");
            record.steps += 1;
            let sent = record.sent.entry(self.id.clone()).or_default();
            sent.0.extend_from_slice(data);
            sent.1 = !tail.is_empty();
        }
        let piece = if data.is_empty() { Vec::new() } else { chunk_of(data) };
        stream.write_all(&[head, &piece, tail].concat()).await.map_err(|_| self.was_left())
    }

    fn was_left(&self) -> Ended {
        self.record.lock().expect("the record").cancelled += 1;
        Ended
    }

    /// Waits until it is told something else. The other side may leave meanwhile.
    async fn stall(&self, stream: &mut TcpStream, told: &mut watch::Receiver<Manner>) -> Result<(), Ended> {
        let stalled_by = *told.borrow_and_update();
        tokio::select! {
            // A request isn't pipelined: what can be read here is the end.
            _ = stream.read_u8() => Err(self.was_left()),
            changed = told.wait_for(|manner| *manner != stalled_by) => changed.map(|_| ()).map_err(|_| Ended),
        }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.record.lock().expect("the record").in_flight -= 1;
    }
}

/// One request after the other, until either side ends the connection.
async fn serve(mut stream: TcpStream, mut told: watch::Receiver<Manner>, record: Arc<Mutex<Record>>) {
    stream.set_nodelay(true).expect("sets TCP_NODELAY");
    while let Some((head, mut body)) = read_head(&mut stream).await {
        let answered = if head.starts_with("GET ") {
            watched(&mut stream, &head, &mut told, &record).await
        } else {
            let present = Present::new(&record, header(&head, "x-request-id"));
            let length = header(&head, "content-length").parse().expect("a length");
            turn(&mut stream, &present, &mut body, length, &mut told).await
        };
        if answered.is_err() {
            // Without lingering the connection is reset.
            stream.set_zero_linger().expect("sets SO_LINGER");
            return;
        }
    }
}

/// Answers a turn as it is told to. The body of a good response is made of its request's id alone.
async fn turn(
    stream: &mut TcpStream,
    present: &Present,
    body: &mut Vec<u8>,
    length: usize,
    told: &mut watch::Receiver<Manner>,
) -> Result<(), Ended> {
    while body.len() < length {
        if stream.read_buf(body).await.map_err(|_| present.was_left())? == 0 {
            return Err(present.was_left());
        }
    }
    present.record.lock().expect("the record").whole += 1;
    // What an earlier try sent was thrown away, or there would be none after it.
    present.record.lock().expect("the record").sent.remove(&present.id);
    let manner = *told.borrow_and_update();
    match manner {
        Manner::ResetsBeforeHead | Manner::Refuses => return Err(Ended),
        Manner::Garbage => {
            stream.write_all(b"\x00\x01\x02 no HTTP\r\n\r\n").await.map_err(|_| present.was_left())?;
            return Err(Ended);
        }
        Manner::Answers(status) => return error(stream, present, status).await,
        Manner::StallsBeforeHead => present.stall(stream, told).await?,
        _ => {}
    }
    let events = good_events(&present.id);
    let (last, first) = events.split_last().expect("events");
    for (number, event) in first.iter().enumerate() {
        let head = if number == 0 { STREAM_HEAD } else { "" };
        present.send(stream, head.as_bytes(), event.as_bytes(), b"").await?;
        if number == first.len() / 2 {
            match manner {
                Manner::ResetsMidBody => return Err(Ended),
                Manner::StallsMidStream => present.stall(stream, told).await?,
                _ => {}
            }
        }
    }
    present.send(stream, b"", last.as_bytes(), b"0\r\n\r\n").await
}

/// Events of a chat that nobody else is sent.
pub fn good_events(id: &str) -> Vec<String> {
    let event = |number| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{id} {number}\"}}}}]}}\n\n");
    (0..id.len() % 7 + 3).map(event).chain(["data: [DONE]\n\n".to_owned()]).collect()
}

async fn error(stream: &mut TcpStream, present: &Present, status: u16) -> Result<(), Ended> {
    let body = format!(r#"{{"error":{{"message":"{}","type":"Bad","param":null,"code":{status}}}}}"#, present.id);
    let head = format!(
        "HTTP/1.1 {status} Bad\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    present.record.lock().expect("the record").sent.insert(present.id.clone(), (body.clone().into_bytes(), true));
    stream.write_all((head + &body).as_bytes()).await.map_err(|_| present.was_left())
}

/// Answers what kvpin asks for itself.
async fn watched(
    stream: &mut TcpStream,
    head: &str,
    told: &mut watch::Receiver<Manner>,
    record: &Arc<Mutex<Record>>,
) -> Result<(), Ended> {
    let manner = *told.borrow_and_update();
    let page = match (head.starts_with("GET /metrics "), manner) {
        (false, Manner::HealthHangs) => {
            told.changed().await.map_err(|_| Ended)?;
            String::new()
        }
        (false, _) if !head.starts_with("GET /health ") => {
            let answer = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
            return answer.map_err(|_| Ended);
        }
        (false, _) => String::new(),
        (true, Manner::Lies(which)) if which + 1 == LIES.len() => LIES[which].repeat(LIE_BYTES / LIES[which].len()),
        (true, Manner::Lies(which)) => LIES[which].to_owned(),
        (true, _) => metrics(&record.lock().expect("the record"), manner == Manner::Sleeps),
    };
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
    stream.write_all(answer.as_bytes()).await.map_err(|_| Ended)
}

fn metrics(record: &Record, is_asleep: bool) -> String {
    let labels = "engine=\"0\",model_name=\"m\"";
    format!(
        "process_start_time_seconds {}\nvllm:num_requests_running{{{labels}}} {}\nvllm:num_requests_waiting{{{labels}}} 0\n\
         vllm:kv_cache_usage_perc{{{labels}}} 0.5\nvllm:iteration_tokens_total_count{{{labels}}} {}\n\
         vllm:engine_sleep_state{{{labels},sleep_state=\"awake\"}} {}\n",
        1_700_000_000 + record.starts,
        record.in_flight,
        record.steps,
        u8::from(!is_asleep),
    )
}

/// A request's head and what came with it of its body; `None` at the connection's end.
async fn read_head(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            return Some((String::from_utf8(bytes).expect("a head of text"), body));
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn header(head: &str, wanted: &str) -> String {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim());
    values.next().unwrap_or_default().to_owned()
}
