//! A replica without an engine: it remembers every request as it arrived, and answers with the body's hash.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::reserved::ReservedPort;

/// A running recorder, or one that is away.
pub struct Recorder {
    port: ReservedPort,
    arrivals: Arrivals,
    serving: Option<JoinHandle<()>>,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Path and query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub sha256: String,
}

type Arrivals = Arc<Mutex<Vec<Arrival>>>;

impl Recorder {
    pub fn start() -> Self {
        let mut recorder = Recorder::away();
        recorder.come_back();
        recorder
    }

    /// One whose port refuses connections.
    pub fn away() -> Self {
        Recorder { port: ReservedPort::new(), arrivals: Arrivals::default(), serving: None }
    }

    pub fn come_back(&mut self) {
        self.serving = Some(tokio::spawn(serve(self.port.listen(), Arc::clone(&self.arrivals))));
    }

    /// Closes the port and every connection.
    pub async fn go_away(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            assert!(serving.await.is_err_and(|error| error.is_cancelled()), "the recorder had not failed before");
        }
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

    /// Requests so far, without health checks and scrapes.
    pub fn count(&self) -> usize {
        self.arrivals.lock().expect("the arrivals").len()
    }

    pub fn last(&self) -> Arrival {
        self.arrivals.lock().expect("the arrivals").last().expect("a request arrived").clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }
}

impl Arrival {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a header of text"))
    }
}

/// SHA-256 in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves until it is dropped, which closes every connection.
async fn serve(listener: TcpListener, arrivals: Arrivals) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("accepts");
        stream.set_nodelay(true).expect("sets TCP_NODELAY");
        let arrivals = Arc::clone(&arrivals);
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, &arrivals));
            // A connection that breaks off is the peer's affair; what arrived whole is in the record.
            http1::Builder::new().max_buf_size(1 << 20).serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

async fn answer(request: Request<Incoming>, arrivals: &Arrivals) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let respond = |status, body: String| {
        let response = Response::builder().status(status).header("content-type", "application/json");
        Ok(response.body(Full::from(body)).expect("a response"))
    };
    if request.method() == Method::GET {
        let known = request.uri().path() == "/health";
        return respond(if known { StatusCode::OK } else { StatusCode::NOT_FOUND }, "{}".to_owned());
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let arrival = Arrival {
        path: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: parts.headers,
        sha256: sha256(&body),
        body,
    };
    let said = json!({ "sha256": arrival.sha256, "bytes": arrival.body.len() }).to_string();
    arrivals.lock().expect("the arrivals").push(arrival);
    respond(StatusCode::OK, said)
}
