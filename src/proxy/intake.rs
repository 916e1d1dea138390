//! Taking a request in: how much of its body is read before its replica is chosen, and what is learned from the rest.

use std::sync::Arc;

use http::HeaderMap;
use pingora::protocols::http::ServerSession;
use tokio::time::timeout;

use crate::balancer::TurnKind;
use crate::dispatch::{Named, Routing, Table};
use crate::keys::Caller;

use super::authorise::check_whole;
use super::body::{ANSWER_MAX, Reader, RequestBody};
use super::context::{Context, EngineRequest};
use super::endpoint::Route;
use super::identify::{Asked, Head, Look, choose_model};
use super::memory::Budget;
use super::refusal::Refusal;
use super::search::BodySearch;

/// What it takes to take a request in.
pub struct Intake<'a> {
    pub routing: &'a Routing,
    pub table: &'a Table,
    pub memory: &'a Arc<Budget>,
    pub caller: &'a Caller,
}

/// A request that can be given a replica.
pub struct Taken {
    pub request: EngineRequest,
    pub body: RequestBody,
    pub late: Option<Late>,
}

/// What a request was asked as, kept until its whole body has been seen.
pub struct Late {
    head: Head,
    named: Named,
}

impl Intake<'_> {
    /// Reads as much of the body as it takes to know the model and the conversation, and what is at hand of a new one's history.
    pub async fn read(&self, session: &mut ServerSession, route: Route) -> Result<Taken, Refusal> {
        let Intake { routing, table, memory, caller } = *self;
        let head = Head::read(route, table, &session.req_header().headers);
        let mut search = BodySearch::new(&session.req_header().headers, head.wanted());
        let mut reader = Reader::new(session, &mut search, &table.config.limits, memory.share())?;
        timeout(ANSWER_MAX, reader.until_answered()).await.map_err(|_| Refusal::BodyTimedOut)??;
        reader.look_a_little();
        let named = choose_model(table, caller, reader.search())?;
        if caller.is_limited() {
            // A second model in what the engine reads could be one that is not allowed.
            timeout(ANSWER_MAX, reader.until_end()).await.map_err(|_| Refusal::BodyTimedOut)??;
            check_whole(reader.headers(), reader.search())?;
            choose_model(table, caller, reader.search())?;
        }
        let (headers, body) = (reader.headers(), reader.search());
        let look = Asked { routing, table, caller, headers, head: &head, named: &named, body }.look(reader.length());
        match look {
            Look::NoFurther => reader.look_no_further(),
            Look::Further => {
                reader.look_on();
                reader.for_history().await?;
            }
            Look::ToTheEnd => timeout(ANSWER_MAX, reader.until_end()).await.map_err(|_| Refusal::BodyTimedOut)??,
        }
        let mut body = reader.finish();
        let headers = &session.req_header().headers;
        let asked = Asked { routing, table, caller, headers, head: &head, named: &named, body: &search };
        let request = asked.engine_request(look, body.bytes_read())?;
        if let Some(splice) = asked.splice() {
            body.splice(splice);
        }
        let goes_on = look == Look::Further && !search.is_over_for_good();
        let late = goes_on.then(|| {
            body.search_on(search);
            Late { head, named }
        });
        Ok(Taken { request, body, late })
    }
}

/// Learns what the rest of a body has said since its replica was chosen: the history, and more ids.
pub fn learn_late(routing: &Routing, session: &ServerSession, context: &mut Context) {
    let Some(Late { head, named }) = context.late.take() else { return };
    let Some(search) = context.body.as_mut().and_then(RequestBody::searched) else { return };
    let headers: &HeaderMap = &session.req_header().headers;
    let (table, caller) = (routing.table(), &context.caller);
    let asked = Asked { routing, table: &table, caller, headers, head: &head, named: &named, body: &search };
    // What could be wrong with a request was found when it was taken in.
    let Ok(request) = asked.engine_request(Look::Further, session.body_bytes_read()) else { return };
    match request.kind {
        TurnKind::Conversation => {
            if let Some(lease) = &mut context.lease {
                lease.learn_more(&request.turn(&[]));
            }
        }
        TurnKind::Side | TurnKind::Stateless => context.is_side_after_all = true,
    }
}
