//! The loopback listener for operators: metrics for Prometheus, the status as JSON, liveness, and draining.
//!
//! Every page is rendered from one snapshot of each model's balancer, taken when it is asked for. No session, key or path
//! of a request stands on any of them.

pub mod books;
pub mod check;
pub mod conversations;
pub mod drain;
pub mod history;
pub mod lately;
pub mod metrics;
pub mod status;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http::{Method, Response, StatusCode, Uri, header};
use log::error;
use pingora::apps::http_app::ServeHttp;
use pingora::listeners::{L4BufferSettings, ListenerConfig};
use pingora::protocols::http::ServerSession;
use pingora::services::listening::Service;
use serde_json::json;

use crate::balancer::{Order, Snapshot};
use crate::dispatch::{Model, Routing};

pub use lately::Lately;
pub use status::Status;

use lately::{ReloadStatus, UpgradeStatus};

use conversations::{CONVERSATIONS_MAX, ConversationStatus, ModelConversations};
use history::{History, Range};

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
}

/// The admin listener's application.
pub struct Admin {
    routing: Arc<Routing>,
    proxied: Proxied,
    history: Arc<History>,
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
}

/// A page, before it is an HTTP response.
struct Page {
    status: StatusCode,
    content_type: &'static str,
    /// The methods that would have been right, where the one that was used isn't.
    allow: Option<&'static str>,
    body: Vec<u8>,
}

const EXPLAIN: &str = "/api/v1/explain";
pub const DRAIN: &str = "/api/v1/drain";
pub const UNDRAIN: &str = "/api/v1/undrain";
pub const CHECK: &str = "/api/v1/check";
pub const UPGRADE: &str = "/api/v1/upgrade";
/// The most bytes of an order that says nothing but that it is one.
const EMPTY_ORDER_BYTES_MAX: usize = 64;
/// The most bytes of an order to drain: two names, of at most 256 and 128 bytes, in JSON.
const ORDER_BYTES_MAX: usize = 4_096;
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// The version of the exposition format, as Prometheus wants it named.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What `/` answers.
const CONTENTS: &str = concat!(
    "kvpin ",
    env!("CARGO_PKG_VERSION"),
    "\n\n\
     /metrics               for Prometheus\n\
     /api/v1/status         models and replicas as JSON\n\
     /api/v1/history        what the models did, ?range=1h in 10 s steps or ?range=1w in 5 min steps\n\
     /api/v1/conversations  where the newest conversations are pinned, as JSON\n\
     /api/v1/explain        what would become of a raw request: POST it, or use kvpin explain\n\
     /api/v1/drain          POST {\"model\": NAME, \"replica\": NAME}: it takes nothing new; or use kvpin drain\n\
     /api/v1/undrain        the same the other way round\n\
     /api/v1/check          what a reload would do with a configuration: POST {\"text\": YAML}; or use kvpin check --against running\n\
     /api/v1/upgrade        POST {}: a new process takes over; or use kvpin upgrade\n\
     /health                200 as long as the process lives\n"
);

/// The admin listener as one of Pingora's services.
pub fn service(routing: Arc<Routing>, address: SocketAddr, proxied: Proxied, history: Arc<History>) -> Service<Admin> {
    let mut service = Service::new("kvpin admin".to_owned(), Admin { routing, proxied, history });
    // Without a write buffer the head of a response leaves even if no body follows it.
    let buffer = L4BufferSettings::default().write(0);
    service.add_listener(ListenerConfig::tcp(address.to_string()).l4_buffer(buffer));
    service
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        let posted = match (&head.method, head.uri.path()) {
            (&Method::POST, EXPLAIN) => Some(self.explain(session).await),
            (&Method::POST, DRAIN) => Some(self.order(session, Order::Drain).await),
            (&Method::POST, UNDRAIN) => Some(self.order(session, Order::Undrain).await),
            (&Method::POST, CHECK) => Some(self.check(session).await),
            (&Method::POST, UPGRADE) => Some(self.upgrade(session).await),
            _ => None,
        };
        if let Some(page) = posted {
            return page.response(false);
        }
        let head = session.req_header();
        let page = self.page(&head.method, &head.uri);
        let is_head = head.method == Method::HEAD;
        if page.allow.is_some() {
            // The request may have a body, which nobody is going to read.
            session.set_keepalive(None);
        }
        page.response(is_head)
    }
}

impl Admin {
    fn page(&self, method: &Method, uri: &Uri) -> Page {
        let render: fn(&Self, &str) -> Result<Page, Page> = match uri.path() {
            "/" => |_, _| Ok(Page::ok(TEXT, CONTENTS)),
            "/health" => |_, _| Ok(Page::ok(JSON, r#"{"status":"ok"}"#)),
            "/metrics" => |admin, _| admin.metrics(),
            "/api/v1/status" => |admin, _| admin.status(),
            "/api/v1/conversations" => |admin, _| admin.conversations(),
            "/api/v1/history" => Self::history,
            EXPLAIN => return Page::wrong_method("POST", "POST a raw HTTP request"),
            DRAIN | UNDRAIN => return Page::wrong_method("POST", "POST a model and a replica"),
            CHECK => return Page::wrong_method("POST", "POST the text of a configuration as application/json"),
            UPGRADE => return Page::wrong_method("POST", "POST {} as application/json"),
            _ => return Page::error(StatusCode::NOT_FOUND, "there is no such page; / lists those that there are"),
        };
        if *method != Method::GET && *method != Method::HEAD {
            return Page::wrong_method("GET, HEAD", "this page can only be read");
        }
        render(self, uri.query().unwrap_or_default()).unwrap_or_else(|page| page)
    }

    /// Explains the raw request that is the body of this one.
    async fn explain(&self, session: &mut ServerSession) -> Page {
        let limits = &self.routing.table().config.limits;
        let request = match read(session, limits.head_bytes_max + limits.body_bytes_max).await {
            Ok(request) => request,
            Err(page) => return page,
        };
        match (self.proxied.explain)(&request) {
            Ok(explanation) => Page::ok(JSON, explanation),
            Err(reason) => Page::error(StatusCode::BAD_REQUEST, &reason),
        }
    }

    /// Drains the replica that the body names, or lets it serve again.
    async fn order(&self, session: &mut ServerSession, order: Order) -> Page {
        let body = match read_json(session, ORDER_BYTES_MAX).await {
            Ok(body) => body,
            Err(page) => return page,
        };
        match drain::order(&self.routing.table(), order, &body) {
            Ok(answer) => serde_json::to_vec(&answer).map_or_else(Page::failed, |answer| Page::ok(JSON, answer)),
            Err(refused) => Page::error(refused.status, &refused.message),
        }
    }

    /// Says what a reload with the configuration in the body would do.
    async fn check(&self, session: &mut ServerSession) -> Page {
        let request = match read_json(session, check::REQUEST_BYTES_MAX).await {
            Ok(request) => request,
            Err(page) => return page,
        };
        match check::check(self.routing.table(), &request).await {
            Ok(answer) => serde_json::to_vec(&answer).map_or_else(Page::failed, |answer| Page::ok(JSON, answer)),
            Err(reason) => Page::error(StatusCode::BAD_REQUEST, &reason),
        }
    }

    /// Has a new process take over, and answers when it has.
    async fn upgrade(&self, session: &mut ServerSession) -> Page {
        if let Err(page) = read_json(session, EMPTY_ORDER_BYTES_MAX).await {
            return page;
        }
        match (self.proxied.upgrade)().await {
            Ok(pid) => Page::ok(JSON, json!({ "pid": pid }).to_string()),
            Err(reason) => Page::error(StatusCode::CONFLICT, &reason),
        }
    }

    fn metrics(&self) -> Result<Page, Page> {
        let text = metrics::render(&self.view(), &self.routing.metrics.registry).map_err(Page::failed)?;
        Ok(Page::ok(EXPOSITION, text))
    }

    fn status(&self) -> Result<Page, Page> {
        let status = serde_json::to_vec(&Status::of(&self.view())).map_err(Page::failed)?;
        Ok(Page::ok(JSON, status))
    }

    fn conversations(&self) -> Result<Page, Page> {
        let table = self.routing.table();
        let of_model = |model: &Arc<Model>| {
            let newest = model.dispatcher.with(|balancer, now| balancer.conversations(CONVERSATIONS_MAX, now));
            let conversations = newest.iter().map(ConversationStatus::from).collect();
            ModelConversations { name: model.name.clone(), conversations }
        };
        let models: Vec<_> = table.models.iter().map(of_model).collect();
        let page = serde_json::to_vec(&json!({ "models": models })).map_err(Page::failed)?;
        Ok(Page::ok(JSON, page))
    }

    fn history(&self, query: &str) -> Result<Page, Page> {
        let word = query.split('&').find_map(|pair| pair.strip_prefix("range=")).unwrap_or("1h");
        let range = Range::parse(word)
            .ok_or_else(|| Page::error(StatusCode::BAD_REQUEST, "the range is 1h (the default) or 1w"))?;
        let now = SystemTime::now();
        let events = self.routing.events.since(now - range.length());
        let page = serde_json::to_vec(&self.history.page(range, &events, now)).map_err(Page::failed)?;
        Ok(Page::ok(JSON, page))
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
        }
    }
}

/// The whole body of an order. Only JSON that says that it is JSON is taken: a page in an operator's browser can't send such
/// a request to another origin without asking first.
async fn read_json(session: &mut ServerSession, bytes_max: usize) -> Result<Vec<u8>, Page> {
    let content_type = session.req_header().headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if !content_type.is_some_and(|value| value.starts_with(JSON)) {
        session.set_keepalive(None);
        return Err(Page::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the content-type has to be application/json"));
    }
    read(session, bytes_max).await
}

/// The whole body of a request.
async fn read(session: &mut ServerSession, bytes_max: usize) -> Result<Vec<u8>, Page> {
    let mut body = Vec::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= bytes_max => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Ok(Some(_)) | Err(_) => {
                session.set_keepalive(None);
                return Err(Page::error(StatusCode::BAD_REQUEST, "the request is too large or did not come whole"));
            }
        }
    }
}

impl Page {
    fn ok(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Page { status: StatusCode::OK, content_type, allow: None, body: body.into() }
    }

    fn error(status: StatusCode, message: &str) -> Self {
        let body = json!({ "error": { "message": message, "code": status.as_u16() } });
        Page { status, content_type: JSON, allow: None, body: body.to_string().into_bytes() }
    }

    fn wrong_method(allow: &'static str, message: &str) -> Self {
        Page { allow: Some(allow), ..Page::error(StatusCode::METHOD_NOT_ALLOWED, message) }
    }

    /// A fault of kvpin's own.
    fn failed(error: impl std::fmt::Display) -> Self {
        error!("an admin page could not be rendered: {error}");
        Page::error(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered; the log says why")
    }

    /// The page as a response, to a `HEAD` request without its body.
    fn response(self, is_head: bool) -> Response<Vec<u8>> {
        let length = self.body.len();
        let mut response = Response::new(if is_head { Vec::new() } else { self.body });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(self.content_type));
        headers.insert(header::CONTENT_LENGTH, length.into());
        headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        if let Some(methods) = self.allow {
            headers.insert(header::ALLOW, header::HeaderValue::from_static(methods));
        }
        response
    }
}
