//! One request's story: read it whole, write it down, judge it, answer it.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, SERVER, VARY};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};

use super::answer::{Collected, Cut, EventStream, Terms, collect};
use super::call::{self, Api, Call, Delivery};
use super::dialect::{Chat, Completions, Dialect, Heading, Messages, Responses, UsageEvents};
use super::failure::Failure;
use super::journal::ArrivalId;
use super::rank::{Generation, Rank};
use super::refusal::{Refusal, Shape};
use super::route::{self, Miss, Route};
use super::{Site, facts};
use crate::sim::request::SubmitError;

/// The largest body that is read. vLLM has no such limit; this one keeps a faulty test from filling the memory.
const LARGEST_BODY: usize = 64 << 20;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

/// The body of any answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, Cut>;

type Answer = Response<AnswerBody>;

/// Answers one request; an error closes the connection without an answer.
pub async fn serve(site: Arc<Site>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let (parts, body) = request.into_parts();
    let route = route::find(&parts.method, parts.uri.path());
    let body = match Limited::new(body, LARGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            site.journal.record(&parts, None);
            let too_large = error.is::<LengthLimitError>();
            return if too_large { Ok(detail(StatusCode::PAYLOAD_TOO_LARGE, "Payload Too Large")) } else { Err(Cut) };
        }
    };
    let arrival = match route {
        // What polls the server would push everything else out of the journal.
        Ok(Route::Metrics | Route::Health | Route::Arrivals | Route::Running) => None,
        Ok(_) | Err(_) => Some(site.journal.record(&parts, Some(&body))),
    };
    if !shows_key(&site, &parts) {
        return Ok(whole(StatusCode::UNAUTHORIZED, JSON, r#"{"error":"Unauthorized"}"#.to_owned()));
    }
    match (route, arrival) {
        (Ok(Route::Generate(api)), Some(arrival)) => Turn { site, api, arrival }.answer(&parts.headers, &body).await,
        (Ok(Route::Health), _) => {
            let delay = site.manner.lock().health_delay;
            tokio::time::sleep(delay).await;
            Ok(health(&site))
        }
        (Ok(route), _) => Ok(plain(&site, route, &parts, &body)),
        (Err(miss), _) => Ok(missed(miss, &parts)),
    }
}

/// Whether a request shows the key where one is asked for. vLLM takes it as a bearer token only.
fn shows_key(site: &Site, parts: &Parts) -> bool {
    let Some(key) = site.options.api_key.as_ref().filter(|_| route::is_guarded(parts.uri.path())) else { return true };
    let shown = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
    shown.is_some_and(|(scheme, shown)| scheme.eq_ignore_ascii_case("bearer") && shown == key)
}

/// A request for a generation.
struct Turn {
    site: Arc<Site>,
    api: Api,
    arrival: ArrivalId,
}

impl Turn {
    async fn answer(self, headers: &HeaderMap, body: &Bytes) -> Result<Answer, Cut> {
        let read = call::json_object(headers, body).and_then(|body| {
            self.site.journal.note_offered_tools(self.arrival, call::offered_tools(&body));
            call::parse(self.api, &body, self.site.limits())
        });
        match read {
            Ok(call) => self.generate(headers, call).await,
            Err(refusal) => Ok(refused(&refusal, self.api.shape())),
        }
    }

    async fn generate(self, headers: &HeaderMap, call: Call) -> Result<Answer, Cut> {
        let failure = *self.site.failure.borrow();
        let terms = self.terms(&call, failure);
        let heading = self.heading(headers);
        let delivery = call.delivery;
        match (self.start(headers, call, failure), delivery) {
            (Ok(generation), Delivery::Stream(usage)) => {
                let stream = EventStream::new(terms, self.dialect(&heading, usage), generation);
                Ok(respond(StatusCode::OK, EVENTS, stream.with_keep_alive(self.keep_alive()).boxed_unsync()))
            }
            (Ok(generation), Delivery::Whole) => match collect(&terms, generation).await? {
                Collected::Whole(text, usage) => {
                    let spoken = terms.reply.spoken(&text, usage.completion.completion_tokens);
                    let body = self.dialect(&heading, UsageEvents::Absent).whole(spoken, &usage);
                    Ok(whole(StatusCode::OK, JSON, body))
                }
                Collected::Died => Ok(refused(&Refusal::engine_dead(), self.api.shape())),
            },
            (Err(Late(refusal)), Delivery::Stream(usage)) => {
                let stream = EventStream::failed(terms, self.dialect(&heading, usage), &refusal);
                Ok(respond(StatusCode::OK, EVENTS, stream.boxed_unsync()))
            }
            (Err(Late(refusal) | AtOnce(refusal)), _) => Ok(refused(&refusal, self.api.shape())),
        }
    }

    /// Hands the call to a rank, unless something stands against it.
    fn start(&self, headers: &HeaderMap, call: Call, failure: Failure) -> Result<Generation, Refused> {
        match failure {
            Failure::Busy => return Err(AtOnce(Refusal::busy())),
            Failure::BusyInStream => return Err(Late(Refusal::busy())),
            Failure::Draining => return Err(AtOnce(Refusal::draining())),
            Failure::EngineDead => return Err(AtOnce(Refusal::engine_dead())),
            Failure::None | Failure::Frozen | Failure::CutAfter(_) => {}
        }
        let number = self.rank_number(headers).map_err(Late)?;
        let (prompt, generate) = (call.request.prompt.len(), call.request.generate);
        let generation = self.site.ranks[number].submit(call.request).map_err(|error| {
            AtOnce(match error {
                SubmitError::EmptyPrompt => Refusal::empty_prompt(),
                SubmitError::NothingToGenerate => Refusal::no_tokens_asked("max_tokens", 0),
                SubmitError::TooLong(_) => {
                    Refusal::context_overflow(prompt, generate, self.site.options.engine.max_model_len)
                }
            })
        })?;
        self.site.journal.note_rank(self.arrival, number);
        Ok(generation)
    }

    /// The rank that the client names; without one the idlest. vLLM 0.32 doesn't look at the header of a response.
    fn rank_number(&self, headers: &HeaderMap) -> Result<usize, Refusal> {
        let ranks = self.site.ranks.len();
        match call::named_rank(headers).filter(|_| self.api != Api::Responses) {
            Some(named) => usize::try_from(named)
                .ok()
                .filter(|rank| *rank < ranks)
                .ok_or_else(|| Refusal::rank_out_of_range(named, ranks)),
            None => Ok(idlest(&self.site.ranks, self.site.rotate())),
        }
    }

    fn terms(&self, call: &Call, failure: Failure) -> Terms {
        let cut_after = match failure {
            Failure::CutAfter(tokens) => Some(tokens),
            Failure::None
            | Failure::Busy
            | Failure::BusyInStream
            | Failure::Draining
            | Failure::EngineDead
            | Failure::Frozen => None,
        };
        let prompt_tokens = call.request.prompt.len() as u32;
        Terms {
            site: Arc::clone(&self.site),
            arrival: self.arrival,
            prompt_tokens,
            reply: call.reply.clone(),
            cut_after,
        }
    }

    /// vLLM takes the client's request id into the answer's, except for responses.
    fn heading(&self, headers: &HeaderMap) -> Heading {
        let own = format!("{:016x}", self.arrival.number());
        let given = headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let named = given.unwrap_or_else(|| own.clone());
        let id = match self.api {
            Api::Chat | Api::Messages => format!("chatcmpl-{named}"),
            Api::Completions => format!("cmpl-{named}"),
            Api::Responses => format!("resp_{own}"),
        };
        Heading { id, model: self.site.options.model.clone(), created: facts::unix_seconds() as u64 }
    }

    fn dialect(&self, heading: &Heading, usage: UsageEvents) -> Box<dyn Dialect> {
        match self.api {
            Api::Chat => Box::new(Chat::new(heading, usage)),
            Api::Completions => Box::new(Completions::new(heading, usage)),
            Api::Messages => Box::new(Messages::new(heading)),
            Api::Responses => Box::new(Responses::new(heading)),
        }
    }

    /// vLLM writes its comments into these two APIs only.
    fn keep_alive(&self) -> Option<std::time::Duration> {
        let period = self.site.options.sse_keep_alive;
        period.filter(|_| matches!(self.api, Api::Chat | Api::Completions))
    }
}

/// Why a generation doesn't start.
enum Refused {
    /// Known before the head is sent.
    AtOnce(Refusal),
    /// Found out by the engine, when a stream's head has gone.
    Late(Refusal),
}

use Refused::{AtOnce, Late};

/// The rank with the fewest requests; among equals the first from `start` on.
fn idlest(ranks: &[Arc<Rank>], start: usize) -> usize {
    let order = (0..ranks.len()).map(|offset| (start + offset) % ranks.len());
    let load = |rank: &usize| {
        let (running, waiting) = ranks[*rank].load();
        running + waiting
    };
    order.min_by_key(load).unwrap_or(0)
}

/// Answers what needs no engine.
fn plain(site: &Site, route: Route, parts: &Parts, body: &Bytes) -> Answer {
    let of_body = |answer: fn(&Site, &Map<String, Value>) -> Result<String, Refusal>| {
        let read = call::json_object(&parts.headers, body);
        read.and_then(|body| answer(site, &body))
    };
    let (answer, shape) = match route {
        Route::CountTokens => (of_body(facts::count_tokens), Shape::Anthropic),
        Route::Tokenize => (of_body(facts::tokenize), Shape::OpenAi),
        Route::Detokenize => (of_body(facts::detokenize), Shape::OpenAi),
        Route::Embeddings => (of_body(facts::embeddings), Shape::OpenAi),
        Route::Models => (Ok(facts::models(site)), Shape::OpenAi),
        Route::Version => (Ok(facts::version()), Shape::OpenAi),
        Route::Load => (Ok(r#"{"server_load":0}"#.into()), Shape::OpenAi),
        Route::Arrivals => return json_or_500(serde_json::to_string(&site.journal.arrivals())),
        Route::Running => (Ok(facts::running(site)), Shape::OpenAi),
        Route::Metrics => return metrics(site),
        Route::Health => return health(site),
        Route::ServerInfo if site.options.dev_mode => (Ok(facts::server_info(site, parts.uri.query())), Shape::OpenAi),
        Route::ServerInfo => return detail(StatusCode::NOT_FOUND, "Not Found"),
        // Only a recorded request generates, and every request of that route is recorded.
        Route::Generate(_) => {
            return detail(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
        }
    };
    match answer {
        Ok(body) => whole(StatusCode::OK, JSON, body),
        Err(refusal) => refused(&refusal, shape),
    }
}

fn metrics(site: &Site) -> Answer {
    match facts::metrics(site) {
        Ok(page) => whole(StatusCode::OK, "text/plain; version=1.0.0; charset=utf-8", page),
        Err(_) => detail(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"),
    }
}

fn health(site: &Site) -> Answer {
    let dead = *site.failure.borrow() == Failure::EngineDead;
    let status = if dead { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let mut answer = respond(status, JSON, full(Bytes::new()));
    answer.headers_mut().remove(CONTENT_TYPE);
    answer
}

fn missed(miss: Miss, parts: &Parts) -> Answer {
    match miss {
        Miss::NotFound => detail(StatusCode::NOT_FOUND, "Not Found"),
        Miss::MethodNotAllowed(allowed) => {
            let mut answer = detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            answer
        }
        Miss::Moved(path) => {
            let mut answer = respond(StatusCode::TEMPORARY_REDIRECT, JSON, full(Bytes::new()));
            let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
            if let Ok(location) = HeaderValue::try_from(format!("http://{host}{path}")) {
                answer.headers_mut().insert(LOCATION, location);
            }
            answer
        }
    }
}

fn json_or_500(body: serde_json::Result<String>) -> Answer {
    match body {
        Ok(body) => whole(StatusCode::OK, JSON, body),
        Err(_) => detail(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"),
    }
}

fn refused(refusal: &Refusal, shape: Shape) -> Answer {
    whole(refusal.status, JSON, refusal.body(shape))
}

/// An error of the framework rather than of vLLM's routes.
fn detail(status: StatusCode, text: &str) -> Answer {
    whole(status, JSON, format!(r#"{{"detail":"{text}"}}"#))
}

fn whole(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    respond(status, content_type, full(Bytes::from(body)))
}

fn full(body: Bytes) -> AnswerBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

fn respond(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_static("Origin"));
    answer
}
