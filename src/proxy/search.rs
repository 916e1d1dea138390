//! Looking for the model and the session in a body as it arrives, whatever its media type.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::conversation::{Fields, FormScanner, Progress, Scanner, Wanted};

/// How far behind the answer a second model is looked for. A scan of a whole agent body costs as much as everything else
/// kvpin does for a turn (`bench/hot_path.rs`), and a second model that isn't seen harms nobody: the first one decides.
const SECOND_MODEL_BYTES: usize = 4096;

/// A search in one body.
#[derive(Debug)]
pub enum BodySearch {
    Json(Scanner),
    /// `multipart/form-data`: audio uploads.
    Form(FormScanner),
    /// A compressed body: kvpin doesn't look into it.
    Opaque(Fields),
}

impl BodySearch {
    /// Chooses by the media type. Anything that isn't a form is taken for JSON, as vLLM does.
    pub fn new(headers: &HeaderMap, wanted: Wanted) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if text(CONTENT_ENCODING).is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return BodySearch::Opaque(Fields::default());
        }
        match text(CONTENT_TYPE).and_then(FormScanner::new) {
            Some(form) => BodySearch::Form(form),
            None => BodySearch::Json(Scanner::new(wanted)),
        }
    }

    /// Looks through a chunk as far as it takes, and a little further for a second model. What comes after is not looked
    /// at, so no chunk may follow once the search is over.
    pub fn skim(&mut self, chunk: &[u8]) {
        match self {
            BodySearch::Json(scanner) => {
                let used = scanner.search(chunk);
                let rest = &chunk[used..];
                scanner.feed(&rest[..rest.len().min(SECOND_MODEL_BYTES)]);
            }
            BodySearch::Form(_) | BodySearch::Opaque(_) => self.feed(chunk),
        }
    }

    /// Looks through a whole chunk, so that the end of the body is seen.
    pub fn feed(&mut self, chunk: &[u8]) {
        match self {
            BodySearch::Json(scanner) => {
                scanner.feed(chunk);
            }
            BodySearch::Form(form) => {
                form.feed(chunk);
            }
            BodySearch::Opaque(_) => {}
        }
    }

    /// Whether more of the body could not change what is known.
    pub fn is_over(&self) -> bool {
        self.progress() != Progress::More
    }

    /// Whether the body surely goes on: its JSON or its form has not ended.
    pub fn is_inside(&self) -> bool {
        matches!(self.progress(), Progress::More | Progress::Answered)
    }

    fn progress(&self) -> Progress {
        match self {
            BodySearch::Json(scanner) => scanner.progress(),
            BodySearch::Form(form) => form.progress(),
            BodySearch::Opaque(_) => Progress::Unreadable,
        }
    }

    pub fn fields(&self) -> &Fields {
        match self {
            BodySearch::Json(scanner) => scanner.fields(),
            BodySearch::Form(form) => form.fields(),
            BodySearch::Opaque(fields) => fields,
        }
    }
}
