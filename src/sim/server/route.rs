//! Which path is what. Paths are matched after decoding, as vLLM's framework does: `/%6detrics` is `/metrics`.

use http::Method;

use super::call::Api;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A generation.
    Generate(Api),
    /// The length of a prompt of Anthropic's API.
    CountTokens,
    /// The tokens of a prompt.
    Tokenize,
    /// The text of tokens.
    Detokenize,
    /// A vector for a text.
    Embeddings,
    /// The served models.
    Models,
    /// Whether the engine lives.
    Health,
    /// The version of vLLM that is simulated.
    Version,
    /// The series.
    Metrics,
    /// vLLM's request counter, which is off.
    Load,
    /// The configuration, in developer mode.
    ServerInfo,
    /// The journal of arrivals.
    Arrivals,
    /// Requests in the engines at this moment.
    Running,
}

/// Why a request is for nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Miss {
    /// No such path.
    NotFound,
    /// The path takes another method.
    MethodNotAllowed(&'static str),
    /// The path exists without its last slash.
    Moved(String),
}

const ROUTES: &[(&str, &str, Route)] = &[
    ("POST", "/v1/chat/completions", Route::Generate(Api::Chat)),
    ("POST", "/v1/completions", Route::Generate(Api::Completions)),
    ("POST", "/v1/messages", Route::Generate(Api::Messages)),
    ("POST", "/v1/responses", Route::Generate(Api::Responses)),
    ("POST", "/v1/messages/count_tokens", Route::CountTokens),
    ("POST", "/tokenize", Route::Tokenize),
    ("POST", "/detokenize", Route::Detokenize),
    ("POST", "/v1/embeddings", Route::Embeddings),
    ("GET", "/v1/models", Route::Models),
    ("GET", "/health", Route::Health),
    ("GET", "/ping", Route::Health),
    ("POST", "/ping", Route::Health),
    ("GET", "/version", Route::Version),
    ("GET", "/metrics", Route::Metrics),
    ("GET", "/load", Route::Load),
    ("GET", "/server_info", Route::ServerInfo),
    ("GET", "/sim/requests", Route::Arrivals),
    ("GET", "/sim/running", Route::Running),
];

/// What `method` on the undecoded `path` is for.
pub fn find(method: &Method, path: &str) -> Result<Route, Miss> {
    let path = decoded(path);
    let mut miss = Miss::NotFound;
    for (allowed, known, route) in ROUTES {
        // vLLM mounts its metrics on the prefix.
        let matches = path == *known || (*route == Route::Metrics && path.starts_with(known));
        if matches && method.as_str() == *allowed {
            return Ok(*route);
        }
        if matches {
            miss = Miss::MethodNotAllowed(allowed);
        } else if path.strip_suffix('/') == Some(known) {
            miss = Miss::Moved((*known).into());
        }
    }
    Err(miss)
}

/// Whether vLLM's `--api-key` guards an undecoded path. It goes by how the path begins, and leaves the others open.
pub fn is_guarded(path: &str) -> bool {
    let path = decoded(path);
    ["/v1", "/v2", "/inference", "/cohere"].iter().any(|guarded| path.starts_with(guarded))
}

fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(hex_byte);
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_matched_after_decoding() {
        assert_eq!(find(&Method::GET, "/%6detrics"), Ok(Route::Metrics));
        assert_eq!(find(&Method::GET, "/%6Detrics"), Ok(Route::Metrics));
        assert_eq!(find(&Method::GET, "/metricsANYTHING"), Ok(Route::Metrics));
        assert_eq!(find(&Method::GET, "/%zz%"), Err(Miss::NotFound));
    }

    #[test]
    fn a_miss_says_what_is_wrong() {
        assert_eq!(find(&Method::HEAD, "/health"), Err(Miss::MethodNotAllowed("GET")));
        assert_eq!(find(&Method::GET, "/v1/messages"), Err(Miss::MethodNotAllowed("POST")));
        assert_eq!(find(&Method::GET, "/health/"), Err(Miss::Moved("/health".into())));
        assert_eq!(find(&Method::GET, "/v1"), Err(Miss::NotFound));
    }

    #[test]
    fn a_key_guards_paths_by_their_beginning() {
        for path in ["/v1/models", "/v1", "/v1anything", "/%761/messages", "/v2/rerank"] {
            assert!(is_guarded(path), "{path}");
        }
        for path in ["/health", "/metrics", "/tokenize", "/server_info", "/sim/running"] {
            assert!(!is_guarded(path), "{path}");
        }
    }

    #[test]
    fn every_route_is_found() {
        for (method, path, route) in ROUTES {
            assert_eq!(find(&method.parse().expect("a method"), path), Ok(*route));
        }
    }
}
