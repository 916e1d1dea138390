//! From a request to what the balancer needs: the model, the conversation, and the replica if the client names one.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use crate::balancer::{Balancer, ReplicaId, TurnKind};
use crate::conversation::{AUXILIARY_BYTES_MAX, Chain, ConversationKey, Explicit, Fields, Identity, Purpose, Wanted};
use crate::dispatch::{Model, Named, Routing, Table};
use crate::keys::Caller;

use super::body::announced_length;
use super::context::EngineRequest;
use super::endpoint::Route;
use super::refusal::{Refusal, served_names};
use super::search::BodySearch;
use super::splice::Splice;

/// Names the replica that a client wants.
pub const REPLICA_HEADER: &str = "x-kvpin-replica";
/// vLLM's own header for a data-parallel rank.
pub const RANK_HEADER: &str = "x-data-parallel-rank";

/// Claude Code sends it with the first turn after it has replaced a conversation's history by a summary.
const COMPACTED_HEADER: &str = "x-claude-code-context-compacted";

/// What a request's head says of what is asked.
pub struct Head {
    pub route: Route,
    /// The conversation, if the head names it.
    named: Option<Explicit>,
    purpose: Purpose,
    /// Whether the history begins anew with this turn, so that what was known of it is of no use any more.
    is_compacted: bool,
}

/// How much of a body is looked at once its model is known, and its conversation if it names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nothing more could change the decision.
    NoFurther,
    /// What is at hand may tell the history of a conversation that isn't known, or begins anew, and is not waited for.
    Further,
    /// Only all of it tells a side call from a turn.
    ToTheEnd,
}

impl Head {
    pub fn read(route: Route, table: &Table, headers: &HeaderMap) -> Self {
        let other = |route, purpose| Head { route, named: None, purpose, is_compacted: false };
        if route.kind != TurnKind::Conversation {
            return other(route, Purpose::Turn);
        }
        match Purpose::of(headers, route.api) {
            Purpose::Auxiliary => other(Route { kind: TurnKind::Side, ..route }, Purpose::Auxiliary),
            purpose => Head {
                route,
                named: table.identity.headers_name_session(headers),
                purpose,
                is_compacted: headers.contains_key(COMPACTED_HEADER),
            },
        }
    }

    /// What makes a side call of the request, where it is one.
    pub fn side_by(&self) -> &'static str {
        match self.purpose {
            Purpose::Auxiliary => "hint",
            Purpose::ByShape => "shape",
            Purpose::Turn => "endpoint",
        }
    }

    /// What the body is searched for.
    pub fn wanted(&self) -> Wanted {
        match (self.route.kind, &self.named) {
            (TurnKind::Side | TurnKind::Stateless, _) => Wanted::Model,
            (TurnKind::Conversation, Some(_)) => Wanted::ModelFirst,
            (TurnKind::Conversation, None) => Wanted::ModelAndSession,
        }
    }
}

/// The model that a request is for, if the caller may use it.
pub fn choose_model(table: &Table, caller: &Caller, body: &BodySearch) -> Result<Named, Refusal> {
    let fields = body.fields();
    if fields.duplicate_model {
        return Err(Refusal::TwoModels);
    }
    let served = || served_names(&table.models, caller);
    let name = fields.model.name();
    let named = match name {
        Some(name) => {
            let unknown = || Refusal::UnknownModel { named: name.to_owned(), served: served() };
            table.find(name).cloned().ok_or_else(unknown)?
        }
        // vLLM serves a request without a model too, and judges a body that kvpin can't read.
        None => match &table.fallback {
            Some(model) => Named { model: model.clone(), upstream: None },
            None if body.is_compressed() => return Err(Refusal::CompressedBody { served: served() }),
            None => return Err(Refusal::NoModel { served: served() }),
        },
    };
    let name = name.unwrap_or(&named.model.name);
    if !caller.may_use(name) {
        return Err(Refusal::ModelNotAllowed { named: name.to_owned(), allowed: served() });
    }
    Ok(named)
}

/// One request on its way to an engine, as far as it is known.
pub struct Asked<'a> {
    pub routing: &'a Routing,
    pub table: &'a Table,
    pub caller: &'a Caller,
    pub headers: &'a HeaderMap,
    pub head: &'a Head,
    pub named: &'a Named,
    pub body: &'a BodySearch,
}

impl Asked<'_> {
    /// How much more of the body is worth looking at. `length` is what the client announced.
    pub fn look(&self, length: Option<usize>) -> Look {
        if self.head.route.kind != TurnKind::Conversation {
            return Look::NoFurther;
        }
        if self.head.purpose == Purpose::ByShape && length.is_some_and(|length| length <= AUXILIARY_BYTES_MAX) {
            return Look::ToTheEnd;
        }
        let is_news = self.head.is_compacted || !self.is_known();
        if self.named.model.affinity && is_news { Look::Further } else { Look::NoFurther }
    }

    /// What the balancer needs to know, once the body has been looked at as far as `look` says. `bytes` of it were read.
    pub fn engine_request(&self, look: Look, bytes: usize) -> Result<EngineRequest, Refusal> {
        let model = &self.named.model;
        // Who may not name a replica and does has it passed over: an agent that sends the header by habit is served all the same.
        let may_pin = model.client_pins && self.caller.may_pin();
        let client_pin = if may_pin { client_pin(model, self.headers)? } else { None };
        let kind = self.kind(bytes);
        let identity = match kind {
            TurnKind::Conversation => self.identity(look),
            TurnKind::Side | TurnKind::Stateless => Identity::default(),
        };
        Ok(EngineRequest {
            model: model.clone(),
            kind,
            ranks: self.head.route.ranks,
            conversation: identity.conversation.as_ref().map(|id| self.key(id)),
            aliases: identity.aliases.iter().map(|id| self.key(id)).collect(),
            parent: identity.parent.as_ref().map(|id| self.key(id)),
            chain: self.chain(kind),
            source: identity.conversation.map(|id| id.source),
            client_pin,
            body_bytes: body_bytes(self.headers, bytes),
        })
    }

    /// The change of the body that the model's name calls for.
    pub fn splice(&self) -> Option<Splice> {
        let upstream = self.named.upstream.as_deref()?;
        let span = self.body.fields().model_span.clone()?;
        Some(Splice::new(span, self.body.model_value(upstream)))
    }

    fn kind(&self, bytes: usize) -> TurnKind {
        let judged = self.head.purpose == Purpose::ByShape && self.body.is_complete();
        if judged && self.body.fields().shape.is_auxiliary(bytes) { TurnKind::Side } else { self.head.route.kind }
    }

    /// Who is speaking. Of a conversation that the balancer knows, the head alone is asked for more than its id.
    pub fn identity(&self, look: Look) -> Identity {
        let rules = &self.table.identity;
        match (look, &self.head.named) {
            (Look::NoFurther, Some(_)) => rules.identify(self.headers, &Fields::default()),
            (Look::NoFurther, None) | (Look::Further | Look::ToTheEnd, _) => {
                rules.identify(self.headers, self.body.fields())
            }
        }
    }

    fn is_known(&self) -> bool {
        let from_body = || self.table.identity.identify(self.headers, self.body.fields()).conversation;
        let Some(conversation) = self.head.named.clone().or_else(from_body) else { return false };
        let key = self.key(&conversation);
        self.named.model.dispatcher.with(|balancer, now| balancer.knows(key, now))
    }

    pub fn key(&self, conversation: &Explicit) -> ConversationKey {
        self.routing.key_secret().key(self.caller.scope(), &self.named.model.name, conversation)
    }

    fn chain(&self, kind: TurnKind) -> Option<Chain> {
        let wanted = kind == TurnKind::Conversation && self.named.model.affinity;
        let history = self.body.history().filter(|_| wanted)?;
        Some(self.routing.key_secret().chain(self.caller.scope(), &self.named.model.name, history))
    }
}

/// The replica that the client names: kvpin's own header first, then a rank, if the model has ranks.
fn client_pin(model: &Model, headers: &HeaderMap) -> Result<Option<ReplicaId>, Refusal> {
    if let Some(value) = headers.get(REPLICA_HEADER) {
        let named = String::from_utf8_lossy(value.as_bytes()).into_owned();
        return model.dispatcher.with(|balancer, _| match balancer.replica_named(&named) {
            Some(id) => Ok(Some(id)),
            None => Err(Refusal::UnknownReplica { named, known: replica_names(balancer) }),
        });
    }
    let Some(value) = headers.get(RANK_HEADER) else { return Ok(None) };
    let named = String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
    model.dispatcher.with(|balancer, _| replica_of_rank(balancer, named))
}

fn replica_of_rank(balancer: &Balancer, named: String) -> Result<Option<ReplicaId>, Refusal> {
    let ranked: Vec<_> = balancer.specs().filter_map(|(id, spec)| Some((id, spec.rank?))).collect();
    if ranked.is_empty() {
        return Ok(None);
    }
    let rank = named.parse::<u16>().ok();
    let mut matching = ranked.iter().filter(|(_, known)| Some(*known) == rank);
    match (matching.next(), matching.next()) {
        (Some((id, _)), None) => Ok(Some(*id)),
        // Several servers have that rank, or none has it: only a replica's name can tell.
        (Some(_), Some(_)) | (None, _) => Err(Refusal::UnknownReplica { named, known: replica_names(balancer) }),
    }
}

fn replica_names(balancer: &Balancer) -> Vec<String> {
    balancer.specs().map(|(_, spec)| spec.name.clone()).collect()
}
/// How long the body is that an engine reads; 0 where that can't be known beforehand. `read` of it are here already.
fn body_bytes(headers: &HeaderMap, read: usize) -> u64 {
    if headers.contains_key(CONTENT_ENCODING) {
        return 0;
    }
    // A chunked body tells no length.
    announced_length(headers).unwrap_or(0).max(read) as u64
}
