//! What would become of a request, by the code that decides it for real, and without a trace of it left.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::balancer::{self, Foreseen, Recognised, TurnKind};
use crate::conversation::Explicit;
use crate::dispatch::{Named, Routing};
use crate::keys::Caller;

use super::authorise::{self, check_whole};
use super::body::{SECOND_MODEL_BYTES, announced_length};
use super::context::EngineRequest;
use super::endpoint::{Dialect, Endpoint, Local, NotServed};
use super::identify::{Asked, Head, Look, RANK_HEADER, REPLICA_HEADER, choose_model};
use super::refusal::Refusal;
use super::search::BodySearch;

/// The most header lines that a request may have here: what vLLM takes.
const HEADERS_MAX: usize = 256;

/// What kvpin makes of one request. Has no id of a session in it, only keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub method: String,
    /// Without the query, which may hold secrets.
    pub path: String,
    /// What the request is: `turn`, `side`, `stateless`, `local` or `refused`.
    pub kind: String,
    /// What makes it a side call: `endpoint`, `hint` or `shape`.
    pub side_by: Option<String>,
    /// The name of the API key that it shows.
    pub key_name: Option<String>,
    pub model: Option<ModelFound>,
    /// What named the conversation: the word of the access log.
    pub rule: Option<String>,
    /// Whether the conversation is an agent's within the session that was named.
    pub is_agent_of_session: bool,
    /// The conversation's key, which differs from process to process.
    pub key: Option<String>,
    /// Other ids that name it.
    pub aliases: Vec<IdFound>,
    /// The key of the conversation that started it.
    pub parent: Option<String>,
    pub history: Option<HistoryFound>,
    /// How many bytes of the body it took to decide.
    pub looked_at_bytes: usize,
    pub decision: Option<String>,
    pub reason: Option<String>,
    pub replica: Option<String>,
    pub refusal: Option<RefusalFound>,
    /// What the sender may not have meant.
    pub notes: Vec<String>,
}

/// The model that a request is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFound {
    pub name: String,
    /// What the request calls it; `None` where it names none.
    pub asked_for: Option<String>,
    /// What the engine is told instead.
    pub sent_as: Option<String>,
}

/// An id of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdFound {
    pub rule: String,
    pub key: String,
}

/// The messages of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryFound {
    /// From the first one of the user on.
    pub messages: usize,
    pub text_bytes: u32,
    /// Whether it holds an answer, so that the conversation began earlier.
    pub is_continued: bool,
    /// Names the whole of it.
    pub key: String,
}

/// Why kvpin would answer a request itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalFound {
    pub status: u16,
    pub reason: String,
    pub answer: String,
}

/// The bytes are no HTTP request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotARequest {
    #[error("this is no HTTP request: {0}")]
    Unreadable(httparse::Error),
    #[error("the head has no end: there has to be an empty line behind it, with or without a body after that")]
    HeadUnfinished,
    #[error("the request line names no path")]
    NoPath,
    #[error("the body is chunked; give it as it is, without Transfer-Encoding")]
    Chunked,
}

/// A request as bytes, taken apart.
struct Request<'a> {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: &'a [u8],
}

/// Explains one request, given as the bytes that a client would send. The table and its balancers stay as they are.
pub fn explain(routing: &Routing, raw: &[u8]) -> Result<Explanation, NotARequest> {
    let request = Request::parse(raw)?;
    let mut explanation = Explanation {
        method: request.method.to_string(),
        path: request.path.clone(),
        notes: request.notes(),
        ..Explanation::default()
    };
    let dialect = Dialect::of_path(&request.path);
    if let Err(refusal) = explanation.follow(routing, &request) {
        explanation.refuse(&refusal, dialect);
    }
    Ok(explanation)
}

impl<'a> Request<'a> {
    fn parse(raw: &'a [u8]) -> Result<Self, NotARequest> {
        let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut parsed = httparse::Request::new(&mut lines);
        let head_bytes = match parsed.parse(raw).map_err(NotARequest::Unreadable)? {
            httparse::Status::Complete(bytes) => bytes,
            httparse::Status::Partial => return Err(NotARequest::HeadUnfinished),
        };
        let mut headers = HeaderMap::new();
        for line in parsed.headers.iter() {
            let name = HeaderName::from_bytes(line.name.as_bytes());
            let value = HeaderValue::from_bytes(line.value);
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        if headers.contains_key(http::header::TRANSFER_ENCODING) {
            return Err(NotARequest::Chunked);
        }
        let method = parsed.method.and_then(|method| method.parse().ok()).ok_or(NotARequest::NoPath)?;
        let uri: Uri = parsed.path.and_then(|path| path.parse().ok()).ok_or(NotARequest::NoPath)?;
        Ok(Request { method, path: uri.path().to_owned(), headers, body: &raw[head_bytes..] })
    }

    fn notes(&self) -> Vec<String> {
        let given = self.body.len();
        match announced_length(&self.headers) {
            Some(length) if length != given => {
                vec![format!("the head announces a body of {length} bytes, and {given} are here")]
            }
            Some(_) | None => Vec::new(),
        }
    }
}

impl Explanation {
    /// Goes the way of a request from its endpoint to its replica.
    fn follow(&mut self, routing: &Routing, request: &Request<'_>) -> Result<(), Refusal> {
        let table = routing.table();
        let found = Endpoint::find(&request.method, &request.path, &table.config.allow_paths);
        let endpoint = found.map(|found| found.endpoint).map_err(|reason| match reason {
            NotServed::Path => Refusal::UnknownPath,
            NotServed::Method { allowed } => Refusal::WrongMethod { allowed },
        })?;
        let caller = match endpoint.needs_key() {
            true => authorise::caller(&table, &request.headers)?,
            false => Caller::default(),
        };
        self.key_name = caller.name().map(str::to_owned);
        let route = match endpoint {
            Endpoint::Engine(route) => route,
            Endpoint::Local(Local::Health | Local::Models | Local::Model | Local::Hello) => {
                self.kind = "local".to_owned();
                return Ok(());
            }
        };
        let head = Head::read(route, &table, &request.headers);
        let mut body = BodySearch::new(&request.headers, head.wanted());
        self.looked_at_bytes = body.search(request.body);
        let (seen, unseen) = request.body.split_at(request.body.len().min(self.looked_at_bytes + SECOND_MODEL_BYTES));
        body.feed(&seen[self.looked_at_bytes..]);
        let named = choose_model(&table, &caller, &body)?;
        self.note_model(&body, &named);
        let headers = &request.headers;
        let (table, caller) = (&*table, &caller);
        let asked = Asked { routing, table, caller, headers, head: &head, named: &named, body: &body };
        let look = asked.look(Some(request.body.len()));
        if look != Look::NoFurther || caller.is_limited() {
            body.feed(unseen);
            self.looked_at_bytes = request.body.len();
        }
        if caller.is_limited() {
            check_whole(headers, &body)?;
            choose_model(table, caller, &body)?;
        }
        let asked = Asked { routing, table, caller, headers, head: &head, named: &named, body: &body };
        let engine_request = asked.engine_request(look, request.body.len())?;
        self.note_kind(&head, &engine_request);
        self.note_pin(&asked);
        self.note_identity(&asked, &engine_request);
        let turn = engine_request.turn(&[]);
        let model = &named.model;
        let foreseen = model.dispatcher.with(|balancer, now| {
            let foreseen = balancer.foresee(&turn, now)?;
            let spec = balancer.specs().find(|(id, _)| *id == foreseen.replica).map(|(_, spec)| spec.name.clone());
            Ok::<_, balancer::Refusal>((foreseen, spec))
        });
        let (foreseen, replica) = foreseen.map_err(|reason| Refusal::no_replica(reason, model))?;
        self.note_decision(&foreseen, replica);
        Ok(())
    }

    fn note_model(&mut self, body: &BodySearch, named: &Named) {
        let fields = body.fields();
        self.model = Some(ModelFound {
            name: named.model.name.clone(),
            asked_for: fields.model.name().map(str::to_owned),
            sent_as: named.upstream.as_deref().map(str::to_owned),
        });
        if body.is_compressed() {
            self.looked_at_bytes = 0;
            self.notes.push("the body is compressed: it is not looked into, and the head alone decides".to_owned());
        }
    }

    fn note_kind(&mut self, head: &Head, request: &EngineRequest) {
        let kind = match request.kind {
            TurnKind::Conversation => "turn",
            TurnKind::Stateless => "stateless",
            TurnKind::Side => {
                self.side_by = Some(head.side_by().to_owned());
                "side"
            }
        };
        self.kind = kind.to_owned();
    }

    fn note_pin(&mut self, asked: &Asked<'_>) {
        let names_one = [REPLICA_HEADER, RANK_HEADER].into_iter().find(|name| asked.headers.contains_key(*name));
        if let Some(name) = names_one.filter(|_| !asked.caller.may_pin()) {
            self.notes.push(format!("{name} is passed over: this API key may not name a replica (may_pin)"));
        }
    }

    fn note_identity(&mut self, asked: &Asked<'_>, request: &EngineRequest) {
        if request.kind != TurnKind::Conversation {
            return;
        }
        // All ids, though of a known conversation the balancer is told the first one only.
        let identity = asked.identity(Look::Further);
        if let Some(conversation) = &identity.conversation {
            self.rule = Some(conversation.source.as_str().to_owned());
            self.is_agent_of_session = conversation.agent.is_some();
        }
        let found = |id: &Explicit| IdFound { rule: id.source.as_str().to_owned(), key: asked.key(id).to_string() };
        self.aliases = identity.aliases.iter().map(found).collect();
        self.parent = request.parent.map(|key| key.to_string());
        self.history = request.chain.as_ref().and_then(|chain| {
            let last = chain.links.last()?;
            Some(HistoryFound {
                messages: chain.links.len(),
                text_bytes: last.text_bytes,
                is_continued: chain.is_continued,
                key: last.key.to_string(),
            })
        });
        let twice = asked.body.fields().duplicates.names();
        self.notes.extend(twice.map(|key| format!("`{key}` stands in the body more than once; the first one decides")));
    }

    fn note_decision(&mut self, foreseen: &Foreseen, replica: Option<String>) {
        self.key = foreseen.conversation.map(|key| key.to_string());
        if foreseen.recognised == Some(Recognised::Fingerprint) {
            self.rule = Some(Recognised::Fingerprint.as_str().to_owned());
        }
        self.decision = Some(foreseen.decision.as_str().to_owned());
        self.reason = foreseen.decision.reason().map(str::to_owned);
        self.replica = replica;
    }

    fn refuse(&mut self, refusal: &Refusal, dialect: Dialect) {
        let answer = refusal.answer(dialect);
        self.kind = "refused".to_owned();
        self.refusal =
            Some(RefusalFound { status: answer.status, reason: refusal.as_str().to_owned(), answer: answer.body });
    }
}
