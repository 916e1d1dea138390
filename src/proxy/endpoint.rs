//! The paths that kvpin serves. Anything else is answered 404: vLLM's own port also offers routes that run the engine
//! without a model's name, change it or read its memory, and none of them is for an edge.
//!
//! Paths are compared as they arrived, without the query and without decoding. An encoded spelling of a served path is
//! not served, so there is nothing to decode wrongly.

use http::Method;

use crate::balancer::{Ranks, TurnKind};
use crate::conversation::Api;

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
    /// Claude Code's warm-up before its first request: `HEAD /` or `HEAD /api/hello`.
    Hello,
}

/// Why a method and a path are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServed {
    Path,
    /// The path exists for the methods named, as in an `Allow` header.
    Method {
        allowed: &'static str,
    },
}

const GET: &str = "GET, HEAD";
const POST: &str = "POST";

impl Endpoint {
    /// Whether it is for callers with a key only, where there are keys. Who looks whether kvpin serves, such as a monitor or
    /// Claude Code before its first request, has none, and learns nothing but that.
    pub fn needs_key(self) -> bool {
        match self {
            Endpoint::Engine(_) | Endpoint::Local(Local::Models) => true,
            Endpoint::Local(Local::Health | Local::Hello) => false,
        }
    }

    /// Looks a request up. `path` is without the query.
    pub fn find(method: &Method, path: &str) -> Result<Endpoint, NotServed> {
        let endpoint = Self::of_path(path).ok_or(NotServed::Path)?;
        let allowed = match endpoint {
            Endpoint::Engine(_) => POST,
            Endpoint::Local(_) => GET,
        };
        let fits = match endpoint {
            Endpoint::Engine(_) => method == Method::POST,
            Endpoint::Local(_) => method == Method::GET || method == Method::HEAD,
        };
        if fits { Ok(endpoint) } else { Err(NotServed::Method { allowed }) }
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

    #[test]
    fn a_turn_endpoint_takes_post_only() {
        assert!(matches!(Endpoint::find(&Method::POST, "/v1/messages"), Ok(Endpoint::Engine(_))));
        assert_eq!(Endpoint::find(&Method::GET, "/v1/messages"), Err(NotServed::Method { allowed: "POST" }));
    }

    #[test]
    fn dangerous_and_disguised_paths_are_not_served() {
        for path in [
            "/metrics",
            "/invocations",
            "/sleep",
            "/v1/load_lora_adapter",
            "/%76%31/messages",
            "/v1//messages",
            "/v1/messages/",
            "/v1/../metrics",
            "//v1/messages",
            "/docs",
            "/inference/v1/generate",
            "",
        ] {
            assert_eq!(Endpoint::find(&Method::POST, path), Err(NotServed::Path), "{path}");
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
