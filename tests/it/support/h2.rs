//! A client that speaks HTTP/2 over TLS, stream by stream. It is h2's, as kvpin's server side is: what either of them could get
//! wrong together, curl and nghttp2 are there for (`tests/edge`).

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

use super::call::{Call, Framing};
use super::client::{Head, Piece, Reply};
use super::secure::{HOST, secure};
use super::within;

/// A connection of a client.
pub struct Client {
    requests: SendRequest<Bytes>,
    /// Ends with the connection, and says how.
    connection: JoinHandle<Ended>,
    pause: oneshot::Sender<()>,
}

/// Why a connection is driven no longer.
enum Ended {
    Paused(Box<Wire>),
    Closed(Result<(), h2::Error>),
}

type Wire = Connection<TlsStream<TcpStream>, Bytes>;

/// A request that has begun, and its response.
pub struct Stream {
    response: Option<ResponseFuture>,
    outgoing: SendStream<Bytes>,
    incoming: Option<RecvStream>,
}

/// How a body's end is told that has no length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its last frame.
    WithLast,
    /// With an empty frame, as many clients do that stream.
    Empty,
    Trailers,
}

impl Client {
    pub async fn connect(address: SocketAddr, config: ClientConfig) -> Self {
        Client::with(address, config, Builder::new()).await
    }

    /// With settings of its own.
    pub async fn with(address: SocketAddr, config: ClientConfig, settings: Builder) -> Self {
        let stream = secure(address, config).await;
        assert_eq!(super::secure::protocol(&stream).as_deref(), Some("h2"));
        let (requests, connection) = within("an HTTP/2 handshake", settings.handshake(stream)).await.expect("HTTP/2");
        Client::driving(requests, connection)
    }

    fn driving(requests: SendRequest<Bytes>, mut wire: Wire) -> Self {
        let (pause, paused) = oneshot::channel();
        let connection = tokio::spawn(async move {
            tokio::select! {
                closed = &mut wire => Ended::Closed(closed),
                Ok(()) = paused => Ended::Paused(Box::new(wire)),
            }
        });
        Client { requests, connection, pause }
    }

    /// From here on nothing is read and nothing is sent, until the client goes on with what this returns.
    pub async fn pause(self) -> impl FnOnce() -> Client {
        let Client { requests, connection, pause } = self;
        pause.send(()).expect("it is connected");
        match within("a pause", connection).await.expect("no panic") {
            Ended::Paused(wire) => move || Client::driving(requests, *wire),
            Ended::Closed(closed) => panic!("the connection has ended: {closed:?}"),
        }
    }

    /// Sends the whole request and waits for the whole response.
    pub async fn call(&mut self, call: &Call) -> Reply {
        self.send(call, Ending::WithLast).await.reply().await
    }

    /// Sends the whole request.
    pub async fn send(&mut self, call: &Call, ending: Ending) -> Stream {
        let mut stream = self.begin(call).await;
        match call.framing {
            Framing::Absent => {}
            Framing::Length => stream.send(&call.body, true),
            Framing::Chunks(size) => {
                let frames = call.body.chunks(size).count();
                for (number, frame) in call.body.chunks(size).enumerate() {
                    stream.send(frame, ending == Ending::WithLast && number + 1 == frames);
                }
                match ending {
                    Ending::WithLast if frames > 0 => {}
                    Ending::WithLast | Ending::Empty => stream.send(b"", true),
                    Ending::Trailers => stream.send_trailers(),
                }
            }
        }
        stream
    }

    /// Sends the head. The body is for the test to send.
    pub async fn begin(&mut self, call: &Call) -> Stream {
        let mut ready = within("room for a stream", self.requests.clone().ready()).await.expect("a connection");
        let has_no_body = call.framing == Framing::Absent;
        let (response, outgoing) = ready.send_request(request(call), has_no_body).expect("a request");
        Stream { response: Some(response), outgoing, incoming: None }
    }

    /// Whether the server takes another stream, or has said that it takes none.
    pub async fn takes_more(&mut self) -> bool {
        within("room for a stream", self.requests.clone().ready()).await.is_ok()
    }

    /// Breaks the connection off, with everything on it.
    pub async fn leave(self) {
        drop(self.pause().await);
    }

    /// How the connection ends without this side ending it. Waits for that.
    pub async fn ended_by_server(self) -> Option<Reason> {
        let Client { requests, connection, pause: _pause } = self;
        let ended = closed(connection).await;
        drop(requests);
        ended
    }

    /// How the connection ends: in peace (`None`), or for a reason that the server gives. Waits for that.
    pub async fn ended(self) -> Option<Reason> {
        let Client { requests, connection, pause: _pause } = self;
        drop(requests);
        closed(connection).await
    }
}

impl Stream {
    pub fn send(&mut self, data: &[u8], is_last: bool) {
        // The server may have answered and want no more of it.
        self.outgoing.send_data(Bytes::copy_from_slice(data), is_last).ok();
    }

    pub fn send_trailers(&mut self) {
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("1"))]);
        self.outgoing.send_trailers(trailers).expect("sends trailers");
    }

    pub fn reset(&mut self, reason: Reason) {
        self.outgoing.send_reset(reason);
    }

    /// The response's head.
    pub async fn head(&mut self) -> Head {
        self.try_head().await.unwrap_or_else(|error| panic!("no response: {error}"))
    }

    pub async fn try_head(&mut self) -> Result<Head, h2::Error> {
        let response = within("a response", self.response.take().expect("asked for once")).await?;
        let (parts, incoming) = response.into_parts();
        self.incoming = Some(incoming);
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        Ok(Head::of(parts.status.as_u16(), headers.collect()))
    }

    /// The next piece of the response's body, taken so that there is room for more.
    pub async fn piece(&mut self) -> Piece {
        let incoming = self.incoming.as_mut().expect("the head came first");
        match within("a piece of the response", incoming.data()).await {
            None => Piece::End,
            Some(Err(_)) => Piece::Cut,
            Some(Ok(data)) => {
                incoming.flow_control().release_capacity(data.len()).expect("gives room back");
                if data.is_empty() { Box::pin(self.piece()).await } else { Piece::Data(data) }
            }
        }
    }

    /// Waits until bytes of the body have come, and leaves them there.
    pub async fn take_without_room(&mut self) -> Piece {
        let incoming = self.incoming.as_mut().expect("the head came first");
        match within("a piece of the response", incoming.data()).await {
            None => Piece::End,
            Some(Err(_)) => Piece::Cut,
            Some(Ok(data)) => Piece::Data(data),
        }
    }

    pub async fn reply(mut self) -> Reply {
        let head = self.head().await;
        let mut pieces = Vec::new();
        loop {
            match self.piece().await {
                Piece::Data(data) => pieces.push(data),
                Piece::End => return Reply { head, pieces, is_whole: true },
                Piece::Cut => return Reply { head, pieces, is_whole: false },
            }
        }
    }

    /// The error that ends the response.
    pub async fn error(&mut self) -> h2::Error {
        if self.incoming.is_none() {
            match self.try_head().await {
                Ok(_) => {}
                Err(error) => return error,
            }
        }
        let incoming = self.incoming.as_mut().expect("a head");
        loop {
            match within("the stream's end", incoming.data()).await {
                Some(Ok(data)) => incoming.flow_control().release_capacity(data.len()).expect("gives room back"),
                Some(Err(error)) => return error,
                None => panic!("the response came to a proper end"),
            }
        }
    }
}

async fn closed(connection: JoinHandle<Ended>) -> Option<Reason> {
    match within("the connection's end", connection).await.expect("no panic") {
        // When both say goodbye at once, one of them finds nobody there any more.
        Ended::Closed(closed) => closed.err().and_then(|error| error.reason()),
        Ended::Paused(_) => panic!("nobody has asked for a pause"),
    }
}

fn request(call: &Call) -> Request<()> {
    let mut request = Request::builder().method(call.method).uri(format!("https://{HOST}{}", call.path));
    for (name, value) in &call.headers {
        request = request.header(name.as_str(), value.as_slice());
    }
    if call.framing == Framing::Length {
        request = request.header("content-length", call.body.len());
    }
    request.body(()).expect("a request")
}
