//! The listener for operators, on loopback or behind a token: a page for the browser, metrics for Prometheus, the status as
//! JSON, liveness, and draining.
//!
//! Every answer is rendered from one snapshot of each model's balancer, taken when it is asked for. No session, key or path
//! of a request stands on any of them, only the names of API keys.

mod access;
pub mod admission;
pub mod affinity;
mod answer;
pub mod books;
pub mod check;
pub mod conversations;
pub mod drain;
pub mod gpus;
pub mod history;
pub mod lately;
pub mod live;
pub mod metrics;
mod page;
pub mod status;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use http::{Method, StatusCode, header};
use log::debug;
use pingora::Result;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream};
use pingora::http::RequestHeader;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::services::listening::Service;
use serde_json::json;

use crate::balancer::{Order, Snapshot};
use crate::dispatch::{Model, Routing};
use crate::gpu::{Board, Gpus};
use crate::keys::{KeyRing, KeySnapshot};

pub use lately::Lately;
pub use status::Status;

use lately::{ReloadStatus, UpgradeStatus};

use answer::{Answer, JSON};
use conversations::{CONVERSATIONS_MAX, ConversationStatus, ModelConversations};
use history::{History, Range};
use live::Live;
use page::Page;

/// Explains a raw request as JSON, or says why it is none.
pub type Explain = dyn Fn(&[u8]) -> Result<String, String> + Send + Sync;

/// Puts another process in the place of this one. Gives its process id, or says why it came to nothing.
pub type Upgrade = dyn Fn() -> Pin<Box<dyn Future<Output = Result<u32, String>> + Send>> + Send + Sync;

/// What the admin listener knows of the proxy and the process: the edges don't know each other, so the server hands it over.
pub struct Proxied {
    /// Counts the requests that the proxy is handling at this moment.
    pub count_open: Box<dyn Fn() -> usize + Send + Sync>,
    pub explain: Box<Explain>,
    pub lately: Arc<Lately>,
    pub upgrade: Box<Upgrade>,
    pub gpus: Arc<Board>,
}

/// The admin listener's application.
pub struct Admin {
    routing: Arc<Routing>,
    proxied: Proxied,
    history: Arc<History>,
    live: Live,
    page: Page,
    /// Held while a configuration is compared.
    checking: tokio::sync::Mutex<()>,
}

/// What every page is made from.
pub struct View {
    pub uptime: Duration,
    /// Requests that the proxy is handling, waiting ones and side calls included.
    pub open_requests: usize,
    pub last_reload: Option<ReloadStatus>,
    pub last_failed_upgrade: Option<UpgradeStatus>,
    /// In the order of the configuration.
    pub models: Vec<(Arc<Model>, Snapshot)>,
    /// In the order of the keys file; empty where there is none.
    pub keys: Vec<KeySnapshot>,
    pub gpus: Gpus,
}

const EXPLAIN: &str = "/api/v1/explain";
pub const DRAIN: &str = "/api/v1/drain";
pub const UNDRAIN: &str = "/api/v1/undrain";
/// Before the model's name, percent-encoded where it has a slash, and `/affinity`.
pub const MODELS: &str = "/api/v1/models/";
pub const CHECK: &str = "/api/v1/check";
pub const UPGRADE: &str = "/api/v1/upgrade";
/// The most bytes of an order that says nothing but that it is one.
const EMPTY_ORDER_BYTES_MAX: usize = 64;
/// The most bytes of an order to drain: two names, of at most 256 and 128 bytes, in JSON.
const ORDER_BYTES_MAX: usize = 4_096;
/// How long a connection may be idle between two requests.
const KEEPALIVE_S: u64 = 60;
const LIVE: &str = "/api/v1/live";
const TEXT: &str = "text/plain; charset=utf-8";
/// The version of the exposition format, as Prometheus wants it named.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What `/api` answers.
const CONTENTS: &str = concat!(
    "kvpin ",
    env!("CARGO_PKG_VERSION"),
    "\n\n\
     /                      the page, for a browser\n\
     /metrics               for Prometheus\n\
     /api/v1/status         models and replicas as JSON\n\
     /api/v1/live           the same once a second, as server-sent events\n\
     /api/v1/history        what the models did, ?range=1h in 10 s steps or ?range=1w in 5 min steps\n\
     /api/v1/conversations  where the newest conversations are pinned, as JSON\n\
     /api/v1/explain        what would become of a raw request: POST it, or use kvpin explain\n\
     /api/v1/drain          POST {\"model\": NAME, \"replica\": NAME}: it takes nothing new; or use kvpin drain\n\
     /api/v1/undrain        the same the other way round\n\
     /api/v1/models/NAME/affinity  POST {\"affinity\": false} or true: until the next reload\n\
     /api/v1/check          what a reload would do with a configuration: POST {\"path\": FILE, \"text\": YAML}; or use kvpin check --against running\n\
     /api/v1/upgrade        POST {}: a new process takes over; or use kvpin upgrade\n\
     /health                200 as long as the process lives\n"
);

/// The admin listener as one of Pingora's services.
pub fn service(routing: Arc<Routing>, address: SocketAddr, proxied: Proxied, history: Arc<History>) -> Service<Admin> {
    let mut service = Service::new("kvpin admin".to_owned(), Admin::new(routing, proxied, history));
    // Without a write buffer the head of a response leaves even if no body follows it.
    let buffer = L4BufferSettings::default().write(0);
    service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffer));
    service
}

#[async_trait]
impl HttpServerApp for Admin {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        match session.read_request().await {
            Ok(true) => {}
            // The client has gone, or what it sent is no request.
            Ok(false) | Err(_) => return None,
        }
        session.set_keepalive(if *shutdown.borrow() { None } else { Some(KEEPALIVE_S) });
        if let Err(error) = self.serve(&mut session, shutdown).await {
            debug!("an admin page was not read to its end: {}", error.etype().as_str());
            return None;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}

impl Admin {
    fn new(routing: Arc<Routing>, proxied: Proxied, history: Arc<History>) -> Self {
        Admin {
            routing,
            proxied,
            history,
            live: Live::new(),
            page: Page::new(),
            checking: tokio::sync::Mutex::default(),
        }
    }

    async fn serve(&self, session: &mut ServerSession, shutdown: &ShutdownWatch) -> Result<()> {
        let head = session.req_header();
        if let Err(answer) = self.admit(head) {
            // The request may have a body, which nobody is going to read.
            session.set_keepalive(None);
            return answer.write(session).await;
        }
        let answer = match (&head.method, head.uri.path()) {
            (&Method::POST, EXPLAIN) => self.explain(session).await,
            (&Method::POST, DRAIN) => self.order(session, Order::Drain).await,
            (&Method::POST, UNDRAIN) => self.order(session, Order::Undrain).await,
            (&Method::POST, path) if affinity::model_of(path).is_some() => self.switch_affinity(session).await,
            (&Method::POST, CHECK) => self.check(session).await,
            (&Method::POST, UPGRADE) => self.upgrade(session).await,
            (&Method::GET, LIVE) => match self.live.seat() {
                Ok(_seat) => return self.live(session, shutdown).await,
                Err(answer) => answer,
            },
            _ => self.read_only(head),
        };
        if answer.status == StatusCode::METHOD_NOT_ALLOWED {
            session.set_keepalive(None);
        }
        answer.write(session).await
    }

    /// Whether whoever sent this may have an answer to it.
    fn admit(&self, head: &RequestHeader) -> std::result::Result<(), Answer> {
        let table = self.routing.table();
        let token = table.config.admin_token.as_ref().map(|token| &token.secret);
        access::check(head, token)
    }

    /// Streams the status for as long as the reader may have it: a reload may have changed the token.
    async fn live(&self, session: &mut ServerSession, shutdown: &ShutdownWatch) -> Result<()> {
        let head = session.req_header().clone();
        self.live.stream(session, shutdown, || self.admit(&head).is_ok(), || self.status_json()).await
    }

    /// The answers that can only be read.
    fn read_only(&self, head: &RequestHeader) -> Answer {
        let render: fn(&Self, &RequestHeader) -> Answer = match head.uri.path() {
            "/api" => |_, _| Answer::ok(TEXT, CONTENTS),
            "/health" => |_, _| Answer::ok(JSON, r#"{"status":"ok"}"#),
            "/metrics" => |admin, _| admin.metrics(),
            "/api/v1/status" => |admin, _| admin.status(),
            "/api/v1/conversations" => |admin, _| admin.conversations(),
            "/api/v1/history" => Self::history,
            LIVE => |_, _| Answer::ok(live::CONTENT_TYPE, ""),
            path if page::has(path) => |admin, head| admin.page.answer(head),
            EXPLAIN => return Answer::wrong_method("POST", "POST a raw HTTP request"),
            DRAIN | UNDRAIN => return Answer::wrong_method("POST", "POST a model and a replica"),
            path if affinity::model_of(path).is_some() => {
                return Answer::wrong_method("POST", r#"POST {"affinity": true} or {"affinity": false}"#);
            }
            CHECK => return Answer::wrong_method("POST", "POST the text of a configuration as application/json"),
            UPGRADE => return Answer::wrong_method("POST", "POST {} as application/json"),
            _ => return Answer::not_found(),
        };
        if head.method != Method::GET && head.method != Method::HEAD {
            return Answer::wrong_method("GET, HEAD", "this page can only be read");
        }
        render(self, head)
    }

    /// Explains the raw request that is the body of this one.
    async fn explain(&self, session: &mut ServerSession) -> Answer {
        let limits = &self.routing.table().config.limits;
        let request = match read(session, limits.head_bytes_max + limits.body_bytes_max).await {
            Ok(request) => request,
            Err(answer) => return answer,
        };
        match (self.proxied.explain)(&request) {
            Ok(explanation) => Answer::ok(JSON, explanation),
            Err(reason) => Answer::error(StatusCode::BAD_REQUEST, &reason),
        }
    }

    /// Drains the replica that the body names, or lets it serve again.
    async fn order(&self, session: &mut ServerSession, order: Order) -> Answer {
        let body = match read_json(session, ORDER_BYTES_MAX).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        match drain::order(&self.routing.table(), order, &body) {
            Ok(answer) => Answer::json(&answer),
            Err(refused) => Answer::error(refused.status, &refused.message),
        }
    }

    /// Switches affinity of the model that the path names, until the next reload.
    async fn switch_affinity(&self, session: &mut ServerSession) -> Answer {
        let path = session.req_header().uri.path().to_owned();
        let body = match read_json(session, affinity::ORDER_BYTES_MAX).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        match affinity::switch(&self.routing, &path, &body) {
            Ok(answer) => Answer::json(&answer),
            Err(refused) => Answer::error(refused.status, &refused.message),
        }
    }

    /// Says what a reload with the configuration in the body would do. One at a time: the files that it names may be slow.
    async fn check(&self, session: &mut ServerSession) -> Answer {
        let request = match read_json(session, check::REQUEST_BYTES_MAX).await {
            Ok(request) => request,
            Err(answer) => return answer,
        };
        let Ok(_turn) = self.checking.try_lock() else {
            return Answer::error(StatusCode::CONFLICT, "another check goes on");
        };
        match check::check(self.routing.table(), &request).await {
            Ok(answer) => Answer::json(&answer),
            Err(reason) => Answer::error(StatusCode::BAD_REQUEST, &reason),
        }
    }

    /// Has a new process take over, and answers when it has.
    async fn upgrade(&self, session: &mut ServerSession) -> Answer {
        if let Err(answer) = read_json(session, EMPTY_ORDER_BYTES_MAX).await {
            return answer;
        }
        match (self.proxied.upgrade)().await {
            Ok(pid) => Answer::json(&json!({ "pid": pid })),
            Err(reason) => Answer::error(StatusCode::CONFLICT, &reason),
        }
    }

    fn metrics(&self) -> Answer {
        match metrics::render(&self.view(), &self.routing.metrics.registry) {
            Ok(text) => Answer::ok(EXPOSITION, text),
            Err(error) => Answer::failed(error),
        }
    }

    fn status(&self) -> Answer {
        self.status_json().map_or_else(Answer::failed, |status| Answer::ok(JSON, status))
    }

    fn status_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Status::of(&self.view()))
    }

    fn conversations(&self) -> Answer {
        let table = self.routing.table();
        let of_model = |model: &Arc<Model>| {
            let newest = model.dispatcher.with(|balancer, now| balancer.conversations(CONVERSATIONS_MAX, now));
            let conversations = newest.iter().map(ConversationStatus::from).collect();
            ModelConversations { name: model.name.clone(), conversations }
        };
        let models: Vec<_> = table.models.iter().map(of_model).collect();
        Answer::json(&json!({ "models": models }))
    }

    fn history(&self, head: &RequestHeader) -> Answer {
        let query = head.uri.query().unwrap_or_default();
        let word = query.split('&').find_map(|pair| pair.strip_prefix("range=")).unwrap_or("1h");
        let Some(range) = Range::parse(word) else {
            return Answer::error(StatusCode::BAD_REQUEST, "the range is 1h (the default) or 1w");
        };
        let now = SystemTime::now();
        let events = self.routing.events.since(now - range.length());
        Answer::json(&self.history.page(range, &events, now))
    }

    fn view(&self) -> View {
        let table = self.routing.table();
        let models = table.models.iter().map(|model| {
            let snapshot = model.dispatcher.with(|balancer, now| balancer.snapshot(now));
            (Arc::clone(model), snapshot)
        });
        let lately = &self.proxied.lately;
        View {
            uptime: self.routing.uptime(),
            open_requests: (self.proxied.count_open)(),
            last_reload: lately.reload.lock().clone(),
            last_failed_upgrade: lately.upgrade.lock().clone(),
            models: models.collect(),
            keys: table.keys.as_ref().map_or_else(Vec::new, KeyRing::snapshot),
            gpus: self.proxied.gpus.look(Instant::now()),
        }
    }
}

/// The whole body of an order. Only JSON that says that it is JSON is taken: a page in an operator's browser can't send such
/// a request to another origin without asking first.
async fn read_json(session: &mut ServerSession, bytes_max: usize) -> std::result::Result<Vec<u8>, Answer> {
    let content_type = session.req_header().headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(|value| value.starts_with(JSON)) {
        session.set_keepalive(None);
        return Err(Answer::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content-type has to be application/json"));
    }
    read(session, bytes_max).await
}

/// The whole body of a request.
async fn read(session: &mut ServerSession, bytes_max: usize) -> std::result::Result<Vec<u8>, Answer> {
    let mut body = Vec::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= bytes_max => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Ok(Some(_)) | Err(_) => {
                session.set_keepalive(None);
                return Err(Answer::error(StatusCode::BAD_REQUEST, "the request is too large or did not come whole"));
            }
        }
    }
}
