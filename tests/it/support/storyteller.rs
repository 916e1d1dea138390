//! A replica without an engine that tells a stream whose every byte follows from the bytes of the request, so that a client
//! that knows what it has sent knows what has to come, byte for byte.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Interval, interval};

use super::recorder::sha256;
use super::reserved::ReservedPort;

/// Events of a stream, the last one left aside.
const EVENTS: usize = 20;

/// Between two events.
const GAP: Duration = Duration::from_millis(5);

/// A running replica.
pub struct Storyteller {
    port: ReservedPort,
    serving: Option<JoinHandle<()>>,
    /// When its process started, as its figures have it.
    started_s: u32,
}

impl Storyteller {
    pub fn start() -> Self {
        let mut storyteller = Storyteller { port: ReservedPort::new(), serving: None, started_s: 1_700_000_000 };
        storyteller.serve();
        storyteller
    }

    pub fn start_many(count: usize) -> Vec<Self> {
        (0..count).map(|_| Storyteller::start()).collect()
    }

    /// Ends it, and starts it anew on the same port, with an empty cache.
    pub async fn restart(&mut self) {
        self.end().await;
        self.started_s += 100;
        self.serve();
    }

    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    fn serve(&mut self) {
        self.serving = Some(tokio::spawn(serve(self.port.listen(), self.started_s)));
    }

    async fn end(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            assert!(serving.await.is_err_and(|error| error.is_cancelled()), "the replica had not failed before");
        }
    }
}

impl Drop for Storyteller {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }
}

/// A stream that is being told.
struct Told {
    events: VecDeque<Bytes>,
    gap: Interval,
}

/// The stream that answers a request with this body.
pub fn told_to(body: &[u8]) -> String {
    events_to(body).concat()
}

fn events_to(body: &[u8]) -> Vec<String> {
    let theme = sha256(body);
    let event = |number: usize| {
        let word = &sha256(format!("{theme}{number}").as_bytes())[..16];
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word} \"}}}}]}}\n\n")
    };
    (0..EVENTS).map(event).chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// Serves until it is dropped, which closes every connection.
async fn serve(listener: TcpListener, started_s: u32) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("accepts");
        stream.set_nodelay(true).expect("sets TCP_NODELAY");
        connections.spawn(async move {
            let service = service_fn(move |request| answer(request, started_s));
            // A connection that breaks off is the peer's affair.
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(
    request: Request<Incoming>,
    started_s: u32,
) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    if request.method() == Method::GET {
        let figures = format!("process_start_time_seconds {started_s}\nvllm:num_requests_running{{engine=\"0\"}} 0\n");
        let body = if request.uri().path() == "/metrics" { figures } else { "{}".to_owned() };
        return Ok(Response::new(Full::from(body).boxed()));
    }
    let body = request.into_body().collect().await?.to_bytes();
    let events = events_to(&body).into_iter().map(Bytes::from).collect();
    let response = Response::builder().header("content-type", "text/event-stream; charset=utf-8");
    Ok(response.body(Told { events, gap: interval(GAP) }.boxed()).expect("a response"))
}

impl Body for Told {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.gap.poll_tick(context));
        Poll::Ready(self.events.pop_front().map(|event| Ok(Frame::data(event))))
    }
}
