//! What kvpin answers without an engine: its health, its models, and the warm-up of Claude Code.

use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use crate::dispatch::Table;
use crate::keys::Caller;

use super::downstream;
use super::endpoint::{Dialect, Local, ONE_MODEL};
use super::refusal::{Answer, Refusal, served_names};

/// What is asked, and by whom.
pub struct Asked<'a> {
    pub local: Local,
    pub path: &'a str,
    pub caller: &'a Caller,
}

/// Answers a local endpoint.
pub async fn serve(session: &mut ServerSession, table: &Table, asked: Asked<'_>) -> std::result::Result<(), Refusal> {
    let dialect = dialect(session);
    let (status, body) = match asked.local {
        Local::Hello => (200, json!({ "name": "kvpin", "version": env!("CARGO_PKG_VERSION") })),
        Local::Models => (200, models(table, asked.caller, dialect)),
        Local::Model => (200, model(table, dialect, &asked)?),
        Local::Health => health(table),
    };
    let answer = Answer { status, retry_after_s: None, allow: None, authenticate: None, body: body.to_string() };
    write(session, answer).await.map_err(|_| Refusal::BodyCutShort)
}

/// Whose client asks. Both APIs have paths of the same name.
pub fn dialect(session: &ServerSession) -> Dialect {
    let in_anthropics = session.req_header().headers.contains_key("anthropic-version");
    if in_anthropics { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// Writes an answer of kvpin's own. To a `HEAD` request only its head.
pub async fn write(session: &mut ServerSession, answer: Answer) -> Result<()> {
    let mut head = ResponseHeader::build(answer.status, Some(5))?;
    head.insert_header("content-type", "application/json")?;
    head.insert_header("content-length", answer.body.len().to_string())?;
    if let Some(seconds) = answer.retry_after_s {
        head.insert_header("retry-after", seconds.to_string())?;
    }
    if let Some(allow) = answer.allow {
        head.insert_header("allow", allow)?;
    }
    if let Some(scheme) = answer.authenticate {
        head.insert_header("www-authenticate", scheme)?;
    }
    let is_head = session.req_header().method == http::Method::HEAD;
    downstream::write_head(session, Box::new(head), is_head).await?;
    if is_head { Ok(()) } else { downstream::write_last(session, Some(answer.body.into())).await }
}

/// The names that the caller may use, in the shape of a caller's API.
fn models(table: &Table, caller: &Caller, dialect: Dialect) -> Value {
    let names = served_names(&table.models, caller);
    let data: Vec<_> = names.iter().map(|name| entry(name, dialect)).collect();
    match dialect {
        Dialect::Anthropic => {
            json!({ "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last() })
        }
        Dialect::OpenAi => json!({ "object": "list", "data": data }),
    }
}

/// One of them. That there is another one is none of the caller's business.
fn model(table: &Table, dialect: Dialect, asked: &Asked<'_>) -> std::result::Result<Value, Refusal> {
    let named = asked.path.strip_prefix(ONE_MODEL).unwrap_or_default();
    match table.find(named).filter(|_| asked.caller.may_use(named)) {
        Some(_) => Ok(entry(named, dialect)),
        None => {
            Err(Refusal::UnknownModel { named: named.to_owned(), served: served_names(&table.models, asked.caller) })
        }
    }
}

/// Both shapes want a date of creation; the epoch says that none is known.
fn entry(name: &str, dialect: Dialect) -> Value {
    match dialect {
        Dialect::Anthropic => {
            json!({ "type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z" })
        }
        Dialect::OpenAi => json!({ "id": name, "object": "model", "created": 0, "owned_by": "kvpin" }),
    }
}

fn health(table: &Table) -> (u16, Value) {
    let ready = table.models.iter().any(|model| model.dispatcher.with(|balancer, _| balancer.is_ready()));
    if ready { (200, json!({ "status": "ok" })) } else { (503, json!({ "status": "no replica can serve" })) }
}
