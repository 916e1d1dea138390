//! What kvpin answers without an engine: its health, its models, and the warm-up of Claude Code.

use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use serde_json::{Value, json};

use crate::dispatch::Table;
use crate::keys::Caller;

use super::downstream;
use super::endpoint::{Dialect, Local};
use super::refusal::{Answer, served_names};

/// Answers a local endpoint.
pub async fn serve(session: &mut Session, table: &Table, caller: &Caller, local: Local) -> Result<()> {
    let (status, body) = match local {
        Local::Hello => (200, json!({ "name": "kvpin", "version": env!("CARGO_PKG_VERSION") })),
        Local::Models => {
            let in_anthropics = session.req_header().headers.contains_key("anthropic-version");
            let dialect = if in_anthropics { Dialect::Anthropic } else { Dialect::OpenAi };
            (200, models(table, caller, dialect))
        }
        Local::Health => health(table),
    };
    let answer = Answer { status, retry_after_s: None, allow: None, authenticate: None, body: body.to_string() };
    write(session, answer).await
}

/// Writes an answer of kvpin's own. To a `HEAD` request only its head.
pub async fn write(session: &mut Session, answer: Answer) -> Result<()> {
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
    if !is_head {
        session.write_response_body(Some(answer.body.into()), true).await?;
    }
    Ok(())
}

/// The names that the caller may use, in the shape of a caller's API. Both shapes want a date of creation; the epoch says that none is
/// known.
fn models(table: &Table, caller: &Caller, dialect: Dialect) -> Value {
    let names = served_names(&table.models, caller);
    match dialect {
        Dialect::Anthropic => {
            let entry = |name: &String| json!({ "type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z" });
            let data: Vec<_> = names.iter().map(entry).collect();
            json!({ "data": data, "has_more": false, "first_id": names.first(), "last_id": names.last() })
        }
        Dialect::OpenAi => {
            let entry = |name: &String| json!({ "id": name, "object": "model", "created": 0, "owned_by": "kvpin" });
            json!({ "object": "list", "data": names.iter().map(entry).collect::<Vec<_>>() })
        }
    }
}

fn health(table: &Table) -> (u16, Value) {
    let ready = table.models.iter().any(|model| model.dispatcher.with(|balancer, _| balancer.is_ready()));
    if ready { (200, json!({ "status": "ok" })) } else { (503, json!({ "status": "no replica can serve" })) }
}
