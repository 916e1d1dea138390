//! Who may come in, and what a body has to be where that depends on its model.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};

use crate::dispatch::Table;
use crate::keys::{Caller, OverLimit, Presented, TwoKeys, Verdict, presented};

use super::refusal::Refusal;
use super::search::BodySearch;

/// Who asks. Judged by the head alone: of a request without a right nothing more is read.
pub fn caller(table: &Table, headers: &HeaderMap) -> Result<Caller, Refusal> {
    let Some(keys) = &table.keys else { return Ok(Caller::default()) };
    match presented(headers)? {
        Presented::Nothing => Err(Refusal::NoKey),
        Presented::TooLong => Err(Refusal::UnknownKey),
        Presented::Key(key) => keys.find(key).ok_or(Refusal::UnknownKey),
    }
}

/// Whether a body, read to its end, can only be read as kvpin has read it: the engine sees the model that was allowed. What
/// kvpin can't look into, or what two parsers could read in two ways, is refused where not every model is allowed.
pub fn check_whole(headers: &HeaderMap, body: &BodySearch) -> Result<(), Refusal> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_of_its_type = match (types.next(), types.next()) {
        (None, _) => true,
        (Some(media_type), None) => body.is_form() || is_json(media_type),
        // The engine may go by the other one.
        (Some(_), Some(_)) => false,
    };
    if is_of_its_type && body.has_one_reading() { Ok(()) } else { Err(Refusal::UncheckableBody) }
}

/// What is no form is read as JSON. An engine that goes by the type, such as that of URL-encoded forms, may find another text
/// in it.
fn is_json(media_type: &HeaderValue) -> bool {
    let essence = media_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    essence.to_ascii_lowercase().ends_with(b"json")
}

/// What counts for a key, once its request has ended. `is_for_engine`: it was let in to be given to a replica.
pub fn verdict(refusal: Option<&Refusal>, is_for_engine: bool) -> Option<Verdict> {
    match refusal {
        None => is_for_engine.then_some(Verdict::Passed),
        Some(refusal) => Some(refusal.verdict()),
    }
}

impl From<TwoKeys> for Refusal {
    fn from(TwoKeys: TwoKeys) -> Self {
        Refusal::TwoKeys
    }
}

impl From<OverLimit> for Refusal {
    fn from(over: OverLimit) -> Self {
        Refusal::OverLimit(over)
    }
}
