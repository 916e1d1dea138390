//! What kvpin says to a client that it refuses: what is wrong, and what to do about it.

use crate::balancer;
use crate::keys::OverLimit;

use super::refusal::Refusal;

/// The most names that an error lists.
const NAMES_MAX: usize = 20;

impl Refusal {
    /// For whoever reads the error.
    pub(super) fn message(&self) -> String {
        match self {
            Refusal::UnknownPath => "This path is not served here.".into(),
            Refusal::WrongMethod { allowed } => format!("This path takes {allowed} only."),
            Refusal::MalformedHead { what } => format!("The request head is malformed: {what}."),
            Refusal::UnknownCoding => "The only transfer coding that is understood here is `chunked`.".into(),
            Refusal::MalformedBody => "The request body's chunks are malformed.".into(),
            Refusal::BytesAfterBody => {
                "More was sent after the request's body. Pipelining is not supported: wait for the answer first.".into()
            }
            Refusal::TooManyStreams { streams_max } => {
                format!("{streams_max} requests are being served, which is the limit; try again.")
            }
            Refusal::HeadTooLarge { bytes_max } => {
                format!("The request head is over the limit of {bytes_max} bytes.")
            }
            Refusal::NoKey => {
                "This takes an API key: send it as `Authorization: Bearer KEY` or as `x-api-key: KEY`.".into()
            }
            Refusal::TwoKeys => {
                "The request has two API keys that differ (`Authorization: Bearer` and `x-api-key`): send one.".into()
            }
            Refusal::UnknownKey => "This API key is not known here.".into(),
            Refusal::ModelNotAllowed { named, allowed } => {
                format!("This API key may not use the model `{named}`. It may use: {}.", names(allowed))
            }
            Refusal::UncheckableBody => {
                "This API key may not use every model, so its request bodies have to show which one \
                 they are for: one JSON object or one plain form, of the Content-Type that says so, whole and not compressed."
                    .into()
            }
            Refusal::OverLimit(OverLimit::InFlight { max }) => {
                format!("This API key has {max} requests in flight, as many as it may; try again when one has ended.")
            }
            Refusal::OverLimit(OverLimit::PerMinute { max, retry_after_s }) => {
                format!(
                    "This API key has sent {max} requests within a minute, as many as it may; try again in {retry_after_s} s."
                )
            }
            Refusal::BodyTooLarge { bytes_max } => {
                format!("The request body is over the limit of {bytes_max} bytes.")
            }
            Refusal::BodyTimedOut => "The request body stopped arriving, or arrived too slowly.".into(),
            Refusal::BodyCutShort => "The request body ended before its announced length.".into(),
            Refusal::NoModel { served } => format!(
                "No `model` was found in the request body, and several models are served here: {}.",
                names(served)
            ),
            Refusal::CompressedBody { served } => format!(
                "The request body is compressed (Content-Encoding), so that its `model` can't be read, and several models \
                 are served here: {}. Send the body uncompressed, or have `default_model` configured.",
                names(served)
            ),
            Refusal::UnknownModel { named, served } => {
                format!("The model `{named}` is not served here. Served: {}.", names(served))
            }
            Refusal::TwoModels => "The request body names `model` more than once.".into(),
            Refusal::UnknownReplica { named, known } => {
                format!("There is no replica `{named}` of this model. Replicas: {}.", names(known))
            }
            Refusal::OutOfMemory => "Too many request bodies are being held at once; try again.".into(),
            Refusal::NoReplica { reason, model, outage } => no_replica(*reason, model, outage),
            Refusal::ReplicaFailed { replica } => {
                format!("The replica {replica} broke off before it answered.")
            }
            Refusal::ResponseTimedOut { after_s } => format!("The replica has not answered within {after_s} s."),
            Refusal::Internal => "kvpin failed to handle this request.".into(),
        }
    }
}

fn no_replica(reason: balancer::Refusal, model: &str, outage: &str) -> String {
    match reason {
        balancer::Refusal::NoReplicaUp => format!("no healthy replica of {model}: {outage}"),
        balancer::Refusal::EveryReplicaFailed => {
            format!("Every healthy replica of {model} failed this request ({outage}); try again.")
        }
        balancer::Refusal::LineFull => {
            format!(
                "Every replica of {model} has as many conversations as its cache holds, and too many wait already; try again later."
            )
        }
        balancer::Refusal::ClientPinDown => {
            format!("The replica that the request names takes no turns ({outage}); try again, or name no replica.")
        }
    }
}

fn names(names: &[String]) -> String {
    let mut text = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMES_MAX));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_names_is_cut() {
        let many: Vec<_> = (0..50).map(|n| format!("m{n}")).collect();
        assert!(names(&many).ends_with("m19 and 30 more"));
    }
}
