//! What stands in a line. The fields stay: some are added, none is renamed or given another meaning. Units are in the names.

use std::fmt::{self, Write as _};
use std::time::Duration;

use jiff::Timestamp;
use pingora::protocols::http::ServerSession;

use crate::balancer::Bill;
use crate::config::AccessLogFormat;

use super::super::context::Context;

/// The fields of a request that has ended, in their order.
pub struct Line {
    fields: [(&'static str, Field); 22],
}

/// What most lines are shorter than.
const LINE_BYTES: usize = 512;

#[derive(Debug)]
enum Field {
    Unknown,
    Word(&'static str),
    Text(String),
    Count(u64),
    /// In milliseconds, to a tenth.
    Millis(f64),
    Yes(bool),
}

struct AsText<'a>(&'a Field);

struct AsJson<'a>(&'a Field);

impl Line {
    pub fn of(session: &ServerSession, context: &Context) -> Self {
        let lease = context.lease.as_ref();
        let decision = lease.map(|lease| lease.decision());
        let refusal = context.refusal.as_ref().map(|refusal| refusal.as_str());
        let conversation = context.conversation();
        let bill = context.bill.as_ref();
        let tokens = |of: fn(&Bill) -> u64| Field::or_unknown(bill, |bill| Field::Count(of(bill)));
        let millis = |time: Duration| Field::Millis(time.as_secs_f64() * 1e3);
        let model = context.request.as_ref().map(|request| &request.model.name);
        Line {
            fields: [
                ("time", Field::Text(format!("{:.3}", Timestamp::now()))),
                ("model", Field::or_unknown(model, |name| Field::Text(name.clone()))),
                ("replica", Field::or_unknown(lease, |lease| Field::Text(lease.replica().name.clone()))),
                ("decision", Field::or_unknown(decision, |decision| Field::Word(decision.as_str()))),
                ("reason", Field::or_unknown(refusal.or(decision.and_then(|d| d.reason())), Field::Word)),
                ("outcome", Field::or_unknown(lease, |lease| Field::Word(lease.outcome().as_str()))),
                ("status", Field::Count(session.response_written().map_or(0, |head| head.status.as_u16().into()))),
                ("held_ms", millis(context.held)),
                ("first_byte_ms", Field::or_unknown(context.first_token, millis)),
                ("total_ms", millis(context.started.elapsed())),
                ("cached", tokens(|bill| bill.cached)),
                ("computed", tokens(|bill| bill.computed)),
                ("completion", tokens(|bill| bill.completion)),
                // What the engine didn't count.
                ("estimated", Field::or_unknown(bill, |bill| Field::Yes(!bill.is_measured))),
                ("cold", Field::or_unknown(bill.and_then(|bill| bill.cold), |cold| Field::Word(cold.reason.as_str()))),
                ("request_bytes", Field::Count(session.body_bytes_read() as u64)),
                ("response_bytes", Field::Count(session.body_bytes_sent() as u64)),
                ("tries", Field::Count(context.tried.len() as u64 + 1)),
                ("conversation", Field::or_unknown(conversation, |(key, _)| Field::Text(key.to_string()))),
                ("source", Field::or_unknown(conversation, |(_, named)| Field::Word(named))),
                ("key", Field::or_unknown(context.caller.name(), |name| Field::Text(name.to_owned()))),
                ("client", Field::or_unknown(session.client_addr(), |address| Field::Text(address.to_string()))),
            ],
        }
    }

    /// With its end.
    pub fn render(&self, format: AccessLogFormat) -> String {
        let mut text = String::with_capacity(LINE_BYTES);
        for (at, (name, field)) in self.fields.iter().enumerate() {
            // A String takes all that is written.
            match format {
                AccessLogFormat::Text => write!(text, "{}{name}={}", if at == 0 { "" } else { " " }, AsText(field)),
                AccessLogFormat::Json => {
                    write!(text, "{}\"{name}\":{}", if at == 0 { "{" } else { "," }, AsJson(field))
                }
            }
            .unwrap_or_default();
        }
        text.push_str(match format {
            AccessLogFormat::Text => "\n",
            AccessLogFormat::Json => "}\n",
        });
        text
    }
}

impl Field {
    fn or_unknown<T>(value: Option<T>, field: impl FnOnce(T) -> Field) -> Field {
        value.map_or(Field::Unknown, field)
    }
}

/// A word is bare; whatever else it has in it, it stays one value of one line.
impl fmt::Display for AsText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Field::Unknown => f.write_str("-"),
            Field::Word(word) => f.write_str(word),
            Field::Text(text) if is_bare(text) => f.write_str(text),
            Field::Text(text) => f.write_str(&quoted(text)),
            Field::Count(count) => count.fmt(f),
            Field::Millis(millis) => write!(f, "{millis:.1}"),
            Field::Yes(yes) => yes.fmt(f),
        }
    }
}

impl fmt::Display for AsJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Field::Unknown => f.write_str("null"),
            Field::Word(word) => f.write_str(&quoted(word)),
            Field::Text(text) => f.write_str(&quoted(text)),
            Field::Count(count) => count.fmt(f),
            Field::Millis(millis) => write!(f, "{millis:.1}"),
            Field::Yes(yes) => yes.fmt(f),
        }
    }
}

fn is_bare(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| !c.is_control() && !c.is_whitespace() && !matches!(c, '"' | '=' | '\\'))
}

/// As JSON has it: control characters and line ends are escaped.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn line(model: &str) -> Line {
        let mut fields = [const { ("x", Field::Unknown) }; 22];
        fields[0] = ("model", Field::Text(model.to_owned()));
        fields[1] = ("status", Field::Count(200));
        fields[2] = ("total_ms", Field::Millis(12.345));
        fields[3] = ("estimated", Field::Yes(false));
        fields[4] = ("decision", Field::Word("sticky"));
        Line { fields }
    }

    #[test]
    fn a_name_of_any_characters_stays_one_value_of_one_line() {
        for model in ["qwen", "a b", "\"quoted\"", "a=b", "new\nline\r\u{2028}", "\\", "\u{1}\u{7f}", "模型", ""] {
            let json = line(model).render(AccessLogFormat::Json);
            assert_eq!(json.matches('\n').count(), 1, "{json:?}");
            let value: Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(
                (&value["model"], &value["status"], &value["total_ms"]),
                (&model.into(), &200.into(), &12.3.into())
            );
            assert_eq!(
                (&value["estimated"], &value["decision"], &value["x"]),
                (&false.into(), &"sticky".into(), &Value::Null)
            );

            let text = line(model).render(AccessLogFormat::Text);
            assert_eq!(text.matches('\n').count(), 1, "{text:?}");
            let rest = text.strip_prefix("model=").expect("it begins with the model");
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let read = if rest.starts_with('"') { values.next().and_then(Result::ok) } else { None };
            assert_eq!(read.as_deref().unwrap_or_else(|| rest.split(' ').next().unwrap_or_default()), model);
            assert!(text.contains(" status=200 total_ms=12.3 estimated=false decision=sticky x=- "), "{text}");
        }
    }
}
