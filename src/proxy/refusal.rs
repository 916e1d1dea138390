//! What kvpin answers when it does not pass a request on: every reason, and one place that turns it into HTTP in the
//! caller's dialect.

use std::sync::Arc;

use crate::balancer;
use crate::dispatch::Model;
use crate::keys::{Caller, OverLimit, Verdict};

use super::endpoint::Dialect;

/// Why a request is not, or no longer, passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    UnknownPath,
    WrongMethod {
        allowed: String,
    },
    /// The head could be read in two ways.
    MalformedHead {
        what: &'static str,
    },
    /// The body has a transfer coding that isn't undone here.
    UnknownCoding,
    /// The body's chunks could not be read.
    MalformedBody,
    /// More came from the client after its body, while its answer was waited for.
    BytesAfterBody,
    /// As many requests as may be at a time are being served.
    TooManyStreams {
        streams_max: usize,
    },
    HeadTooLarge {
        bytes_max: usize,
    },
    /// An API key is needed and none was shown.
    NoKey,
    /// It shows two API keys that differ.
    TwoKeys,
    UnknownKey,
    /// The key's requests may not use the model.
    ModelNotAllowed {
        named: String,
        allowed: Vec<String>,
    },
    /// The key may not use every model, and the body can't be read for certain.
    UncheckableBody,
    /// The key is over one of its limits.
    OverLimit(OverLimit),
    BodyTooLarge {
        bytes_max: usize,
    },
    BodyTimedOut,
    /// The client stopped sending before the body was complete.
    BodyCutShort,
    /// No model was named, and several are served.
    NoModel {
        served: Vec<String>,
    },
    /// The body is compressed, so that its model can't be read, and several are served.
    CompressedBody {
        served: Vec<String>,
    },
    UnknownModel {
        named: String,
        served: Vec<String>,
    },
    /// The body names a model twice, so kvpin and the engine could read different ones.
    TwoModels,
    /// The client named a replica that does not exist.
    UnknownReplica {
        named: String,
        known: Vec<String>,
    },
    /// The request memory of all turns together is used up.
    OutOfMemory,
    /// The balancer has no replica for the turn.
    NoReplica {
        reason: balancer::Refusal,
        model: String,
        /// What is wrong with each of the replicas.
        outage: String,
    },
    /// A replica was reached but broke off before it answered, and the turn can't go elsewhere.
    ReplicaFailed {
        replica: String,
    },
    /// A replica has not even sent a head in all the time that it may take.
    ResponseTimedOut {
        after_s: u64,
    },
    /// kvpin itself went wrong.
    Internal,
}

/// An answer of kvpin's own, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Seconds, for `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// The methods for `Allow`.
    pub allow: Option<String>,
    /// How to ask with a key, for `WWW-Authenticate`.
    pub authenticate: Option<&'static str>,
    pub body: String,
}

/// The type of an error in each dialect.
struct Kind {
    status: u16,
    openai: &'static str,
    anthropic: &'static str,
}

/// A replica that is down is probed every second, so the next look is never far.
const RETRY_AFTER_S: u32 = 1;

impl Refusal {
    /// The model's balancer has no replica for the turn.
    pub fn no_replica(reason: balancer::Refusal, model: &Model) -> Self {
        let outage = model.dispatcher.with(|balancer, now| balancer.outage(now));
        Refusal::NoReplica { reason, model: model.name.clone(), outage: outage.to_string() }
    }

    /// The word used in logs and metric labels.
    pub fn as_str(&self) -> &'static str {
        match self {
            Refusal::UnknownPath => "unknown_path",
            Refusal::WrongMethod { .. } => "wrong_method",
            Refusal::MalformedHead { .. } => "malformed_head",
            Refusal::UnknownCoding => "unknown_coding",
            Refusal::MalformedBody => "malformed_body",
            Refusal::BytesAfterBody => "bytes_after_body",
            Refusal::TooManyStreams { .. } => "too_many_streams",
            Refusal::HeadTooLarge { .. } => "head_too_large",
            Refusal::NoKey => "no_key",
            Refusal::TwoKeys => "two_keys",
            Refusal::UnknownKey => "unknown_key",
            Refusal::ModelNotAllowed { .. } => "model_not_allowed",
            Refusal::UncheckableBody => "uncheckable_body",
            Refusal::OverLimit(OverLimit::InFlight { .. }) => "key_in_flight",
            Refusal::OverLimit(OverLimit::PerMinute { .. }) => "key_per_minute",
            Refusal::BodyTooLarge { .. } => "body_too_large",
            Refusal::BodyTimedOut => "body_timed_out",
            Refusal::BodyCutShort => "body_cut_short",
            Refusal::NoModel { .. } => "no_model",
            Refusal::CompressedBody { .. } => "compressed_body",
            Refusal::UnknownModel { .. } => "unknown_model",
            Refusal::TwoModels => "two_models",
            Refusal::UnknownReplica { .. } => "unknown_replica",
            Refusal::OutOfMemory => "out_of_memory",
            Refusal::NoReplica { reason, .. } => reason.as_str(),
            Refusal::ReplicaFailed { .. } => "replica_failed",
            Refusal::ResponseTimedOut { .. } => "response_timed_out",
            Refusal::Internal => "internal",
        }
    }

    /// Whether the request itself is what was wrong.
    pub fn is_clients_fault(&self) -> bool {
        self.kind().status < 500
    }

    /// The answer in a dialect.
    pub fn answer(&self, dialect: Dialect) -> Answer {
        let kind = self.kind();
        let message = self.message();
        let body = match dialect {
            Dialect::Anthropic => serde_json::json!({
                "type": "error",
                "error": { "type": kind.anthropic, "message": message },
            }),
            Dialect::OpenAi => serde_json::json!({
                "error": { "message": message, "type": kind.openai, "param": self.param(), "code": self.as_str() },
            }),
        };
        Answer {
            status: kind.status,
            retry_after_s: match self {
                Refusal::OverLimit(OverLimit::PerMinute { retry_after_s, .. }) => Some(*retry_after_s),
                _ => matches!(kind.status, 429 | 503).then_some(RETRY_AFTER_S),
            },
            allow: match self {
                Refusal::WrongMethod { allowed } => Some(allowed.clone()),
                _ => None,
            },
            authenticate: match self {
                Refusal::NoKey => Some("Bearer"),
                Refusal::TwoKeys | Refusal::UnknownKey => Some("Bearer error=\"invalid_token\""),
                _ => None,
            },
            body: body.to_string(),
        }
    }

    /// Whether what is left of the request body is worth reading to keep the connection.
    pub fn keeps_connection(&self) -> bool {
        match self {
            Refusal::HeadTooLarge { .. }
            | Refusal::MalformedHead { .. }
            | Refusal::UnknownCoding
            | Refusal::MalformedBody
            | Refusal::BytesAfterBody
            // Whoever tries keys is to connect anew for each.
            | Refusal::NoKey
            | Refusal::TwoKeys
            | Refusal::UnknownKey
            | Refusal::BodyTooLarge { .. }
            | Refusal::BodyTimedOut
            | Refusal::BodyCutShort
            | Refusal::OutOfMemory
            | Refusal::ReplicaFailed { .. }
            | Refusal::ResponseTimedOut { .. }
            | Refusal::Internal => false,
            Refusal::UnknownPath
            | Refusal::WrongMethod { .. }
            | Refusal::ModelNotAllowed { .. }
            | Refusal::UncheckableBody
            | Refusal::OverLimit(_)
            | Refusal::NoModel { .. }
            | Refusal::CompressedBody { .. }
            | Refusal::UnknownModel { .. }
            | Refusal::TwoModels
            | Refusal::UnknownReplica { .. }
            | Refusal::TooManyStreams { .. }
            | Refusal::NoReplica { .. } => true,
        }
    }

    /// Whether the client may still be sending its body when it is answered.
    pub fn leaves_body_coming(&self) -> bool {
        !matches!(
            self,
            Refusal::BodyTimedOut | Refusal::BodyCutShort | Refusal::MalformedBody | Refusal::BytesAfterBody
        )
    }

    /// What it counts as for the key of the request.
    pub fn verdict(&self) -> Verdict {
        match self {
            Refusal::ModelNotAllowed { .. } | Refusal::UncheckableBody => Verdict::Forbidden,
            Refusal::OverLimit(_) => Verdict::Limited,
            Refusal::UnknownPath
            | Refusal::WrongMethod { .. }
            | Refusal::MalformedHead { .. }
            | Refusal::UnknownCoding
            | Refusal::MalformedBody
            | Refusal::BytesAfterBody
            | Refusal::TooManyStreams { .. }
            | Refusal::HeadTooLarge { .. }
            | Refusal::NoKey
            | Refusal::TwoKeys
            | Refusal::UnknownKey
            | Refusal::BodyTooLarge { .. }
            | Refusal::BodyTimedOut
            | Refusal::BodyCutShort
            | Refusal::NoModel { .. }
            | Refusal::CompressedBody { .. }
            | Refusal::UnknownModel { .. }
            | Refusal::TwoModels
            | Refusal::UnknownReplica { .. }
            | Refusal::OutOfMemory
            | Refusal::NoReplica { .. }
            | Refusal::ReplicaFailed { .. }
            | Refusal::ResponseTimedOut { .. }
            | Refusal::Internal => Verdict::Refused,
        }
    }

    fn kind(&self) -> Kind {
        let kind = |status, openai, anthropic| Kind { status, openai, anthropic };
        let bad_request = |status| kind(status, "invalid_request_error", "invalid_request_error");
        match self {
            Refusal::UnknownPath | Refusal::UnknownModel { .. } => kind(404, "not_found_error", "not_found_error"),
            Refusal::WrongMethod { .. } => bad_request(405),
            Refusal::HeadTooLarge { .. } => bad_request(431),
            Refusal::NoKey | Refusal::TwoKeys | Refusal::UnknownKey => {
                kind(401, "authentication_error", "authentication_error")
            }
            Refusal::ModelNotAllowed { .. } => kind(403, "permission_error", "permission_error"),
            Refusal::OverLimit(_) => kind(429, "rate_limit_error", "rate_limit_error"),
            Refusal::BodyTooLarge { .. } => kind(413, "invalid_request_error", "request_too_large"),
            Refusal::BodyTimedOut => bad_request(408),
            Refusal::UnknownCoding => bad_request(501),
            Refusal::MalformedHead { .. }
            | Refusal::MalformedBody
            | Refusal::BytesAfterBody
            | Refusal::BodyCutShort
            | Refusal::NoModel { .. }
            | Refusal::CompressedBody { .. }
            | Refusal::TwoModels
            | Refusal::UncheckableBody
            | Refusal::UnknownReplica { .. } => bad_request(400),
            Refusal::OutOfMemory | Refusal::TooManyStreams { .. } | Refusal::NoReplica { .. } => {
                kind(503, "server_error", "overloaded_error")
            }
            Refusal::ReplicaFailed { .. } => kind(502, "server_error", "api_error"),
            Refusal::ResponseTimedOut { .. } => kind(504, "server_error", "timeout_error"),
            Refusal::Internal => kind(500, "server_error", "api_error"),
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            Refusal::NoModel { .. }
            | Refusal::CompressedBody { .. }
            | Refusal::UnknownModel { .. }
            | Refusal::ModelNotAllowed { .. }
            | Refusal::TwoModels => Some("model"),
            _ => None,
        }
    }
}

/// The names that the caller may use, for an error that lists them.
pub fn served_names(models: &[Arc<Model>], caller: &Caller) -> Vec<String> {
    let names = models.iter().flat_map(|model| std::iter::once(&model.name).chain(&model.aliases));
    names.filter(|name| caller.may_use(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_is_503_with_a_retry_in_both_dialects() {
        let outage = "r0 down (connection refused) for 12 s, r1 draining".to_owned();
        let refusal = Refusal::NoReplica { reason: balancer::Refusal::NoReplicaUp, model: "m".to_owned(), outage };
        let anthropic = refusal.answer(Dialect::Anthropic);
        assert_eq!((anthropic.status, anthropic.retry_after_s), (503, Some(1)));
        assert!(anthropic.body.contains(r#""type":"overloaded_error""#), "{}", anthropic.body);
        let openai = refusal.answer(Dialect::OpenAi);
        assert_eq!(openai.status, 503);
        assert!(openai.body.contains(r#""code":"no_replica_up""#), "{}", openai.body);
        let said = "no healthy replica of m: r0 down (connection refused) for 12 s, r1 draining";
        assert!(anthropic.body.contains(said) && openai.body.contains(said), "{}", openai.body);
    }

    #[test]
    fn an_unknown_model_is_told_what_is_served() {
        let refusal = Refusal::UnknownModel { named: "gpt\"".into(), served: vec!["qwen".into(), "glm".into()] };
        let answer = refusal.answer(Dialect::OpenAi);
        let body: serde_json::Value = serde_json::from_str(&answer.body).expect("the body is JSON");
        assert_eq!(answer.status, 404);
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains("gpt\"") && message.contains("qwen, glm"), "{message}");
    }
}
