//! One line a request. The name of an API key and never the key, no path that a client could have put a secret in, no header, no text of a prompt.

use log::info;
use pingora::proxy::Session;

use crate::balancer::Bill;

use super::context::Context;

/// The target to filter the access log by.
pub const TARGET: &str = "kvpin::access";

/// Writes the line of a request that has ended. Health checks and the like, which kvpin answers itself, have none.
pub fn write(session: &Session, context: &Context) {
    let is_local = context.request.is_none() && context.refusal.is_none();
    if is_local || !log::log_enabled!(target: TARGET, log::Level::Info) {
        return;
    }
    let request = context.request.as_ref();
    let lease = context.lease.as_ref();
    let conversation = context.conversation();
    let bill = context.bill.as_ref();
    // What the engine didn't count is an estimate.
    let tokens = |of: fn(&Bill) -> u64| {
        let sign = |bill: &Bill| if bill.is_measured { "" } else { "~" };
        bill.map_or("-".to_owned(), |bill| format!("{}{}", sign(bill), of(bill)))
    };
    let decision = lease.map(|lease| lease.decision());
    info!(
        target: TARGET,
        "model={} replica={} decision={} reason={} outcome={} status={} first_byte_ms={} total_ms={:.1} \
         cached={} computed={} completion={} cold={} request_bytes={} response_bytes={} tries={} conversation={} source={} key={} client={}",
        request.map_or("-", |request| &request.model.name),
        lease.map_or("-", |lease| &lease.replica().name),
        decision.map_or("-", |decision| decision.as_str()),
        context.refusal.as_ref().map(|refusal| refusal.as_str()).or(decision.and_then(|d| d.reason())).unwrap_or("-"),
        lease.map_or("-", |lease| lease.outcome().as_str()),
        session.response_written().map_or(0, |head| head.status.as_u16()),
        context.first_token.map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64() * 1e3)),
        context.started.elapsed().as_secs_f64() * 1e3,
        tokens(|bill| bill.cached),
        tokens(|bill| bill.computed),
        tokens(|bill| bill.completion),
        bill.and_then(|bill| bill.cold).map_or("-", |cold| cold.reason.as_str()),
        session.body_bytes_read(),
        session.body_bytes_sent(),
        context.tried.len() + 1,
        conversation.map_or("-".to_owned(), |(key, _)| key.to_string()),
        conversation.map_or("-", |(_, named)| named),
        context.caller.name().unwrap_or("-"),
        session.client_addr().map_or("-".to_owned(), |address| address.to_string()),
    );
}
