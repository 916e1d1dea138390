//! A strict HTTP/1.1 client on a bare socket: it shows every chunk as it came, and whether a response came to its end.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::call::Call;
use super::within;

/// One connection of a client.
pub struct Wire {
    reader: Reader,
    writer: Box<dyn AsyncWrite + Send + Unpin>,
}

/// A response's head.
#[derive(Clone, Debug)]
pub struct Head {
    pub status: u16,
    headers: Vec<(String, String)>,
}

/// A whole response, or what came of it.
#[derive(Debug)]
pub struct Reply {
    pub head: Head,
    /// One entry a chunk, or a read where the response isn't chunked.
    pub pieces: Vec<Bytes>,
    /// Whether the response came to its proper end.
    pub is_whole: bool,
}

/// What comes next of a response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Data(Bytes),
    /// The body's proper end.
    End,
    /// The connection ended before the body did.
    Cut,
}

struct Reader {
    stream: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
    body: Body,
}

/// What is still to come of a response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Nothing,
    Length(usize),
    Chunked,
    UntilClose,
}

/// Makes one call on a connection of its own.
pub async fn call(address: SocketAddr, call: &Call) -> Reply {
    Wire::connect(address).await.call(call).await
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> Self {
        Wire::try_connect(address).await.expect("connects")
    }

    /// A connection, or why there is none.
    pub async fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = within("a connection", TcpStream::connect(address)).await?;
        stream.set_nodelay(true).expect("sets TCP_NODELAY");
        let (reader, writer) = stream.into_split();
        Ok(Wire::of(reader, writer))
    }

    /// Over a connection that is secured already.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Wire::of(reader, writer)
    }

    fn of(reader: impl AsyncRead + Send + Unpin + 'static, writer: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        let reader = Reader { stream: Box::new(reader), buffer: BytesMut::new(), body: Body::Nothing };
        Wire { reader, writer: Box::new(writer) }
    }

    /// Sends the whole request and waits for the whole response.
    pub async fn call(&mut self, call: &Call) -> Reply {
        self.exchange(call.method, &call.bytes()).await
    }

    /// The connection for the next request: this one, or another if the response said that this one closes, and it has.
    pub async fn or_anew(mut self, reply: &Reply, connect: impl AsyncFnOnce() -> Wire) -> Self {
        if reply.header("connection") != Some("close") {
            return self;
        }
        assert!(self.ends().await, "nothing comes after an answer that closes");
        connect().await
    }

    /// Sends the rest of a POST and waits for the whole response.
    pub async fn rest(&mut self, bytes: &[u8]) -> Reply {
        self.exchange("POST", bytes).await
    }

    /// Sends while it waits, so that neither blocks the other.
    async fn exchange(&mut self, method: &str, bytes: &[u8]) -> Reply {
        let sending = async {
            // A response that comes before the request has ended may close the way for the rest of it.
            self.writer.write_all(bytes).await.ok()
        };
        let (_, reply) = tokio::join!(sending, self.reader.reply(method));
        reply.unwrap_or_else(|| panic!("the connection was closed without a response to a {method}"))
    }

    /// Sends the request and waits for the head of the response.
    pub async fn begin(&mut self, call: &Call) -> Head {
        self.send(&call.bytes()).await;
        self.head(call.method).await
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        within("sending", self.writer.write_all(bytes)).await.expect("sends");
    }

    /// Sends, and says whether the other side still takes it.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        within("sending", self.writer.write_all(bytes)).await.is_ok()
    }

    /// Ends the sending side.
    pub async fn half_close(&mut self) {
        within("closing", self.writer.shutdown()).await.expect("half-closes");
    }

    /// The response's head to a request of that method.
    pub async fn head(&mut self, method: &str) -> Head {
        within("a response head", self.reader.head(method)).await.expect("a response instead of the connection's end")
    }

    /// The next piece of the response body.
    pub async fn piece(&mut self) -> Piece {
        within("a piece of the response", self.reader.piece()).await
    }

    /// The whole response, or `None` if the connection ends before one begins.
    pub async fn reply(&mut self, method: &str) -> Option<Reply> {
        self.reader.reply(method).await
    }

    /// Whether nothing more comes before the connection's end. Waits for that.
    pub async fn ends(&mut self) -> bool {
        let mut rest = self.reader.buffer.to_vec();
        // A reset is an end too.
        within("the connection's end", self.reader.stream.read_to_end(&mut rest)).await.ok();
        rest.is_empty()
    }
}

impl Reader {
    async fn reply(&mut self, method: &str) -> Option<Reply> {
        within("a response", async {
            let head = self.head(method).await?;
            let mut pieces = Vec::new();
            loop {
                match self.piece().await {
                    Piece::Data(data) => pieces.push(data),
                    Piece::End => return Some(Reply { head, pieces, is_whole: true }),
                    Piece::Cut => return Some(Reply { head, pieces, is_whole: false }),
                }
            }
        })
        .await
    }

    async fn head(&mut self, method: &str) -> Option<Head> {
        assert_eq!(self.body, Body::Nothing, "the response before this one was read to its end");
        let end = self.until(b"\r\n\r\n").await?;
        let text = String::from_utf8(self.buffer.split_to(end).to_vec()).expect("a head is text");
        let head = Head::parse(&text);
        self.body = head.body(method);
        Some(head)
    }

    async fn piece(&mut self) -> Piece {
        match self.body {
            Body::Nothing => Piece::End,
            Body::Length(0) => self.end(),
            Body::Length(left) => self.read_of_length(left).await,
            Body::Chunked => self.chunk().await.unwrap_or(Piece::Cut),
            Body::UntilClose => self.read_until_close().await,
        }
    }

    async fn read_of_length(&mut self, left: usize) -> Piece {
        if self.buffer.is_empty() && !self.fill().await {
            return Piece::Cut;
        }
        let data = self.buffer.split_to(left.min(self.buffer.len())).freeze();
        self.body = Body::Length(left - data.len());
        Piece::Data(data)
    }

    async fn read_until_close(&mut self) -> Piece {
        if self.buffer.is_empty() && !self.fill().await {
            return self.end();
        }
        Piece::Data(self.buffer.split().freeze())
    }

    /// `None`: the connection ended inside the chunk.
    async fn chunk(&mut self) -> Option<Piece> {
        let end = self.until(b"\r\n").await?;
        let line = self.buffer.split_to(end);
        let digits = std::str::from_utf8(&line[..end - 2]).expect("a chunk's size is text");
        let size = usize::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("a chunk's size, not {digits:?}"));
        while self.buffer.len() < size + 2 {
            if !self.fill().await {
                return None;
            }
        }
        let data = self.buffer.split_to(size).freeze();
        assert_eq!(&self.buffer[..2], b"\r\n", "a chunk ends with a line break");
        self.buffer.advance(2);
        Some(if size == 0 { self.end() } else { Piece::Data(data) })
    }

    fn end(&mut self) -> Piece {
        self.body = Body::Nothing;
        Piece::End
    }

    /// Reads until `mark` has come, and says where it ends.
    async fn until(&mut self, mark: &[u8]) -> Option<usize> {
        loop {
            if let Some(at) = self.buffer.windows(mark.len()).position(|window| window == mark) {
                return Some(at + mark.len());
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Whether more came before the connection's end.
    async fn fill(&mut self) -> bool {
        self.buffer.reserve(64 * 1024);
        self.stream.read_buf(&mut self.buffer).await.is_ok_and(|bytes| bytes > 0)
    }
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let headers = lines.take_while(|line| !line.is_empty()).map(|line| {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("a header, not {line:?}"));
            (name.to_ascii_lowercase(), value.trim().to_owned())
        });
        Head { status: status.unwrap_or_else(|| panic!("a status line, not {first:?}")), headers: headers.collect() }
    }

    /// With names in lower case.
    pub fn of(status: u16, headers: Vec<(String, String)>) -> Self {
        Head { status, headers }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The replica that served.
    pub fn replica(&self) -> &str {
        self.header("x-kvpin-replica").unwrap_or_else(|| panic!("no x-kvpin-replica in {self:?}"))
    }

    /// Why it served.
    pub fn decision(&self) -> &str {
        self.header("x-kvpin-decision").unwrap_or_else(|| panic!("no x-kvpin-decision in {self:?}"))
    }

    fn body(&self, method: &str) -> Body {
        if method == "HEAD" || matches!(self.status, 100..200 | 204 | 304) {
            return Body::Nothing;
        }
        if self.header("transfer-encoding").is_some() {
            return Body::Chunked;
        }
        match self.header("content-length") {
            Some(length) => Body::Length(length.parse().expect("a length")),
            None => Body::UntilClose,
        }
    }
}

impl Reply {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    pub fn replica(&self) -> &str {
        self.head.replica()
    }

    pub fn decision(&self) -> &str {
        self.head.decision()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.pieces.concat()).into_owned()
    }

    pub fn json(&self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?} after {:?}", self.head))
    }

    /// The message of an error in OpenAI's shape.
    pub fn openai_error(&self) -> String {
        let json = self.json();
        assert!(json["error"]["type"].is_string(), "{json}");
        json["error"]["message"].as_str().unwrap_or_else(|| panic!("no message in {json}")).to_owned()
    }

    /// Type and message of an error in Anthropic's shape.
    pub fn anthropic_error(&self) -> (String, String) {
        let json = self.json();
        assert_eq!(json["type"], "error", "{json}");
        let text =
            |field: &str| json["error"][field].as_str().unwrap_or_else(|| panic!("no {field} in {json}")).to_owned();
        (text("type"), text("message"))
    }
}
