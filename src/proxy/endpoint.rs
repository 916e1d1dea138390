//! The paths that kvpin serves. Anything else is answered 404: vLLM's own port also offers routes that run the engine
//! without a model's name, change it or read its memory, and none of them is for an edge.
//!
//! A path that isn't spelled as in the table is looked up by what it means ([`super::path`]), and the table's spelling is what
//! goes to the engine.

use std::borrow::Cow;

use http::Method;

use crate::balancer::{Ranks, TurnKind};
use crate::config::AllowedPath;
use crate::conversation::Api;

use super::path::meant_by;

/// Whose shape the errors on a path have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Anthropic,
    OpenAi,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Goes to a replica.
    Engine(Route),
    /// Answered by kvpin.
    Local(Local),
}

/// What an endpoint of the engine means for the choice of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub api: Api,
    pub kind: TurnKind,
    pub ranks: Ranks,
}

/// What kvpin answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// `/health`: 200 while at least one replica can serve.
    Health,
    /// `/v1/models`: the models of this listener.
    Models,
    /// `/v1/models/NAME`: one of them.
    Model,
    /// Claude Code's warm-up before its first request: `HEAD /` or `HEAD /api/hello`.
    Hello,
}

/// An endpoint and the path that it stands under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    pub endpoint: Endpoint,
    /// What the client's path means. The engine gets this one.
    pub path: Cow<'a, str>,
    /// The method of a path that the operator has added.
    method: Option<Method>,
}

/// Why a method and a path are not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotServed {
    Path,
    /// The path exists for the methods named, as in an `Allow` header.
    Method {
        allowed: String,
    },
}

/// What the path of a single model begins with.
pub const ONE_MODEL: &str = "/v1/models/";

const GET: &str = "GET, HEAD";
const POST: &str = "POST";

impl Endpoint {
    /// Whether it is for callers with a key only, where there are keys. Who looks whether kvpin serves, such as a monitor or
    /// Claude Code before its first request, has none, and learns nothing but that.
    pub fn needs_key(self) -> bool {
        match self {
            Endpoint::Engine(_) | Endpoint::Local(Local::Models | Local::Model) => true,
            Endpoint::Local(Local::Health | Local::Hello) => false,
        }
    }

    /// Looks a request up. `path` is without the query; `extra` are the operator's own.
    pub fn find<'a>(method: &Method, path: &'a str, extra: &[AllowedPath]) -> Result<Found<'a>, NotServed> {
        let found = match Self::of_path(path) {
            Some(endpoint) => Found { endpoint, path: Cow::Borrowed(path), method: None },
            None => Self::of_meaning(path, extra).ok_or(NotServed::Path)?,
        };
        let (allowed, fits) = match (&found.endpoint, &found.method) {
            (_, Some(own)) => (own.as_str().to_owned(), method == own),
            (Endpoint::Engine(_), None) => (POST.to_owned(), method == Method::POST),
            (Endpoint::Local(_), None) => (GET.to_owned(), method == Method::GET || method == Method::HEAD),
        };
        if fits { Ok(found) } else { Err(NotServed::Method { allowed }) }
    }

    /// What a path leads to that isn't spelled as in the table, or is the operator's.
    fn of_meaning(path: &str, extra: &[AllowedPath]) -> Option<Found<'static>> {
        let path = meant_by(path)?;
        let known = Self::of_path(&path).or_else(|| {
            let model = path.strip_prefix(ONE_MODEL)?;
            (!model.is_empty()).then_some(Endpoint::Local(Local::Model))
        });
        if let Some(endpoint) = known {
            return Some(Found { endpoint, path: Cow::Owned(path), method: None });
        }
        let allowed = extra.iter().find(|allowed| allowed.path == path)?;
        let route = Route { api: Api::OpenAi, kind: TurnKind::Stateless, ranks: Ranks::Ignored };
        let method = Some(allowed.method.clone());
        Some(Found { endpoint: Endpoint::Engine(route), path: Cow::Owned(path), method })
    }

    fn of_path(path: &str) -> Option<Endpoint> {
        use TurnKind::{Conversation, Side, Stateless};
        let api = match Dialect::of_path(path) {
            Dialect::Anthropic => Api::Messages,
            Dialect::OpenAi => Api::OpenAi,
        };
        let engine = |kind, ranks| Some(Endpoint::Engine(Route { api, kind, ranks }));
        match path {
            "/v1/messages" | "/v1/chat/completions" | "/v1/completions" => engine(Conversation, Ranks::Obeyed),
            // vLLM up to 0.32 takes no rank from the header on these, wherever the turn ought to go.
            "/v1/responses" => engine(Conversation, Ranks::Ignored),
            "/v1/embeddings"
            | "/v2/embed"
            | "/pooling"
            | "/classify"
            | "/v1/rerank"
            | "/v2/rerank"
            | "/rerank"
            | "/v1/score"
            | "/score"
            | "/v1/audio/transcriptions"
            | "/v1/audio/translations" => engine(Stateless, Ranks::Ignored),
            "/v1/messages/count_tokens"
            | "/v1/messages/render"
            | "/v1/chat/completions/render"
            | "/v1/completions/render"
            | "/v1/responses/render"
            | "/tokenize"
            | "/detokenize" => engine(Side, Ranks::Ignored),
            "/health" => Some(Endpoint::Local(Local::Health)),
            "/v1/models" => Some(Endpoint::Local(Local::Models)),
            "/" | "/api/hello" => Some(Endpoint::Local(Local::Hello)),
            _ => None,
        }
    }
}

impl Dialect {
    /// The dialect of errors on a path, whether it is served or not.
    pub fn of_path(path: &str) -> Dialect {
        let is_messages =
            path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_messages { Dialect::Anthropic } else { Dialect::OpenAi }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(method: Method, path: &'a str) -> Result<Found<'a>, NotServed> {
        let extra = AllowedPath { path: "/v1/own".to_owned(), method: Method::PUT };
        Endpoint::find(&method, path, &[extra])
    }

    fn method(allowed: &str) -> NotServed {
        NotServed::Method { allowed: allowed.to_owned() }
    }

    #[test]
    fn a_path_takes_its_own_methods_only() {
        assert!(matches!(find(Method::POST, "/v1/messages").unwrap().endpoint, Endpoint::Engine(_)));
        assert_eq!(find(Method::GET, "/v1/messages"), Err(method("POST")));
        assert_eq!(find(Method::GET, "/v1/models/m").unwrap().endpoint, Endpoint::Local(Local::Model));
        assert_eq!(find(Method::POST, "/v1/models/m"), Err(method("GET, HEAD")));
        assert_eq!(find(Method::POST, "/v1/own"), Err(method("PUT")));
    }

    #[test]
    fn an_operators_path_is_an_engines_without_conversations() {
        let found = find(Method::PUT, "/v1//%6fwn").unwrap();
        let Endpoint::Engine(route) = found.endpoint else { panic!("{found:?}") };
        assert_eq!((route.kind, &*found.path), (TurnKind::Stateless, "/v1/own"));
    }

    #[test]
    fn a_disguised_path_is_served_under_its_own_spelling() {
        for path in ["/v1/messages", "/%76%31/messages", "/v1//messages", "/v1/messages/", "/v1/../v1/messages"] {
            assert_eq!(find(Method::POST, path).unwrap().path, "/v1/messages", "{path}");
        }
        let found = find(Method::GET, "/v1/models/org%2Fname").unwrap();
        assert_eq!((found.endpoint, &*found.path), (Endpoint::Local(Local::Model), "/v1/models/org/name"));
    }

    #[test]
    fn what_is_not_in_the_table_is_not_served_however_it_is_spelled() {
        for path in [
            "/metrics",
            "/%6detrics",
            "/v1/../metrics",
            "/v1/models/../../metrics",
            "/v1/models/%2e%2e/%2e%2e/sleep",
            "/v1/messages/../../invocations",
            "/invocations",
            "/sleep",
            "/v1/load_lora_adapter",
            "/v1/%256dessages",
            "/v1/messages%00",
            "/v1\\messages",
            "/V1/messages",
            "/v1/messages;x",
            "/docs",
            "/inference/v1/generate",
            "/v1/own/x",
            "*",
            "",
        ] {
            assert_eq!(find(Method::POST, path), Err(NotServed::Path), "{path}");
        }
    }

    #[test]
    fn errors_on_messages_paths_have_anthropics_shape() {
        assert_eq!(Dialect::of_path("/v1/messages/count_tokens"), Dialect::Anthropic);
        assert_eq!(Dialect::of_path("/v1/messages/nothing"), Dialect::Anthropic);
        assert_eq!(Dialect::of_path("/v1/messagesX"), Dialect::OpenAi);
        assert_eq!(Dialect::of_path("/v1/chat/completions"), Dialect::OpenAi);
    }
}
