//! An answer of the admin listener, before it is an HTTP response.

use std::fmt::Display;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use log::error;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use serde::Serialize;
use serde_json::json;

pub(super) const JSON: &str = "application/json";

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub status: StatusCode,
    content_type: &'static str,
    /// Beside those that every answer has. One of these replaces `Cache-Control: no-store`.
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
}

impl Answer {
    pub fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Answer { status: StatusCode::OK, content_type, headers: Vec::new(), body: body.into() }
    }

    pub fn json(body: &impl Serialize) -> Self {
        serde_json::to_vec(body).map_or_else(Answer::failed, |body| Answer::ok(JSON, body))
    }

    pub fn error(status: StatusCode, message: &str) -> Self {
        let body = json!({ "error": { "message": message, "code": status.as_u16() } }).to_string();
        Answer { status, ..Answer::ok(JSON, body) }
    }

    pub fn not_found() -> Self {
        Answer::error(StatusCode::NOT_FOUND, "there is no such page; /api lists those that there are")
    }

    pub fn wrong_method(allow: &'static str, message: &str) -> Self {
        Answer::error(StatusCode::METHOD_NOT_ALLOWED, message).with(header::ALLOW, HeaderValue::from_static(allow))
    }

    /// A fault of kvpin's own.
    pub fn failed(error: impl Display) -> Self {
        error!("an admin page could not be rendered: {error}");
        Answer::error(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be rendered; the log says why")
    }

    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Writes it; to a `HEAD` request only its head.
    pub async fn write(self, session: &mut ServerSession) -> Result<()> {
        let is_head = session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(self.head()?)).await?;
        if !is_head && !self.body.is_empty() {
            session.write_response_body(self.body, true).await?;
        }
        Ok(())
    }

    fn head(&self) -> Result<ResponseHeader> {
        let mut head = ResponseHeader::build(self.status, Some(8))?;
        // One that says that nothing has changed has no body, nor says how long it would have been.
        if self.status != StatusCode::NOT_MODIFIED {
            head.insert_header(header::CONTENT_TYPE, self.content_type)?;
            head.insert_header(header::CONTENT_LENGTH, self.body.len())?;
        }
        head.insert_header(header::CACHE_CONTROL, "no-store")?;
        head.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
        for (name, value) in &self.headers {
            head.insert_header(name, value)?;
        }
        Ok(head)
    }
}
