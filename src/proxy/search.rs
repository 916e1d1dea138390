//! Looking for the model and the session in a body as it arrives, whatever its media type.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::conversation::{Fields, FormScanner, History, Model, Progress, Scanner, Wanted};

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
        let encodings = headers.get_all(CONTENT_ENCODING).iter();
        if encodings.into_iter().any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return BodySearch::Opaque(Fields::default());
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        match text(CONTENT_TYPE).and_then(FormScanner::new) {
            Some(form) => BodySearch::Form(form),
            None => BodySearch::Json(Scanner::new(wanted)),
        }
    }

    /// Looks through a chunk up to the byte that ends the search, and returns how many bytes that took. `feed` can go on
    /// from there.
    pub fn search(&mut self, chunk: &[u8]) -> usize {
        match self {
            BodySearch::Json(scanner) => scanner.search(chunk),
            BodySearch::Form(_) | BodySearch::Opaque(_) => {
                self.feed(chunk);
                chunk.len()
            }
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

    /// Whether nothing that is still to come could be read.
    pub fn is_over_for_good(&self) -> bool {
        matches!(self.progress(), Progress::Closed | Progress::Unreadable)
    }

    /// Whether the whole body was seen and could be read.
    pub fn is_complete(&self) -> bool {
        self.progress() == Progress::Closed
    }

    /// Whether the whole body was seen, and says the same of its model to whatever parser reads it.
    pub fn has_one_reading(&self) -> bool {
        let is_plain = match self {
            BodySearch::Json(_) => true,
            BodySearch::Form(form) => form.is_plain(),
            BodySearch::Opaque(_) => false,
        };
        let is_clear = match self.fields().model {
            // To an engine, too, what is no text names no model.
            Model::Absent | Model::NotText | Model::Named(_) => true,
            Model::TooLong | Model::Undecodable => false,
        };
        self.is_complete() && is_plain && is_clear
    }

    pub fn is_form(&self) -> bool {
        matches!(self, BodySearch::Form(_))
    }

    /// Whether kvpin can't look into the body.
    pub fn is_compressed(&self) -> bool {
        matches!(self, BodySearch::Opaque(_))
    }

    /// The conversation's past, where the whole body was seen and holds messages.
    pub fn history(&self) -> Option<&History> {
        match self {
            BodySearch::Json(scanner) => scanner.history(),
            BodySearch::Form(_) | BodySearch::Opaque(_) => None,
        }
    }

    /// The bytes that stand for the name of a model in a body of this kind.
    pub fn model_value(&self, name: &str) -> String {
        match self {
            BodySearch::Json(_) => serde_json::Value::from(name).to_string(),
            BodySearch::Form(_) | BodySearch::Opaque(_) => name.to_owned(),
        }
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
