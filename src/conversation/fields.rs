//! What a body was found to say, and how far the search for it is.

use std::fmt;
use std::ops::Range;

use super::literal::Fault;
use super::path::{ROOT, Target};
use super::session::SessionValue;
use super::shape::Shape;

/// How far a search is after the bytes fed so far. Depends on the bytes only, not on how they were
/// cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Bytes to come may change the answer.
    More,
    /// No byte to come can change the answer. Feeding on is allowed: it finds repeated model names
    /// and the end.
    Answered,
    /// The body's own end was consumed: the brace that closes the root object, or the last boundary
    /// of a form. What follows is white space at most, and is not looked at.
    Closed,
    /// Not a JSON object or not a form, or broken here. The fields found before stay; no more will
    /// be.
    Unreadable,
}

/// What the body says of its model. The first one said is the one that counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Model {
    #[default]
    Absent,
    Named(String),
    /// A number, an object, null ... or, in a form, a file.
    NotText,
    /// Over 1024 bytes.
    TooLong,
    /// Half a surrogate pair, an unknown escape, or bytes that are not UTF-8.
    Undecodable,
}

impl Model {
    pub fn name(&self) -> Option<&str> {
        match self {
            Model::Named(name) => Some(name),
            Model::Absent | Model::NotText | Model::TooLong | Model::Undecodable => None,
        }
    }
}

impl From<Result<&str, Fault>> for Model {
    fn from(text: Result<&str, Fault>) -> Self {
        match text {
            Ok(name) => Model::Named(name.to_owned()),
            Err(Fault::TooLong) => Model::TooLong,
            Err(Fault::Undecodable) => Model::Undecodable,
        }
    }
}

/// What a body says of itself. Session fields hold the first usable value of their kind; see
/// [`SessionValue`] for what makes a value unusable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub model: Model,
    /// The body names a model more than once. Engines take the last one where this crate takes the
    /// first, so such a body would be served by a model that it was not admitted for.
    pub duplicate_model: bool,
    /// The known keys that came more than once. `input` beside `messages` counts as one of them, since it says the same.
    pub duplicates: RootKeys,
    /// The session inside `metadata.user_id`, in whichever of its three forms.
    pub metadata_session: Option<SessionValue>,
    pub session_id: Option<SessionValue>,
    /// `conversation`, or `conversation.id` where it is an object.
    pub conversation: Option<SessionValue>,
    pub conversation_id: Option<SessionValue>,
    pub prompt_cache_key: Option<SessionValue>,
    /// Where in the body the model's value stands: byte offsets. With its quotes in a JSON body, where it is a string;
    /// the bare value in a form. `None` where no text is there to be replaced.
    pub model_span: Option<Range<usize>>,
    pub shape: Shape,
}

impl Fields {
    /// Notes the text found for a target. Of a session field the first usable value stays.
    pub(super) fn note_text(&mut self, target: Target, text: Result<&str, Fault>) {
        let slot = match target {
            Target::Model => {
                self.model = Model::from(text);
                return;
            }
            Target::UserId | Target::MetadataSession => &mut self.metadata_session,
            Target::SessionId => &mut self.session_id,
            Target::Conversation | Target::IdInConversation => &mut self.conversation,
            Target::ConversationId => &mut self.conversation_id,
            Target::PromptCacheKey => &mut self.prompt_cache_key,
            Target::Nothing
            | Target::Metadata
            | Target::Messages
            | Target::Input
            | Target::System
            | Target::Instructions
            | Target::Tools
            | Target::Thinking
            | Target::ThinkingType
            | Target::OutputConfig
            | Target::OutputFormat
            | Target::OutputFormatType
            | Target::ResponseFormat
            | Target::ResponseFormatType
            | Target::TextConfig
            | Target::TextFormat
            | Target::TextFormatType => return,
        };
        let parse = if target == Target::UserId { SessionValue::from_user_id } else { SessionValue::parse };
        if slot.is_none() {
            *slot = text.ok().and_then(parse);
        }
    }

    /// Notes that a target's value is no text.
    pub(super) fn note_not_text(&mut self, target: Target) {
        if target == Target::Model {
            self.model = Model::NotText;
        }
    }

    /// Notes a key or a part that says the model. True where it is the first, whose value is the
    /// one to read.
    pub(super) fn note_model_said(&mut self) -> bool {
        let first = self.model == Model::Absent;
        if !first {
            self.duplicate_model = true;
            self.duplicates.insert(Target::Model);
        }
        first
    }
}

/// A set of the keys that are known in the root of a body.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RootKeys(u32);

impl RootKeys {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn names(self) -> impl Iterator<Item = &'static str> {
        ROOT.iter().filter(move |(_, target)| self.contains(*target)).map(|(name, _)| *name)
    }

    pub(super) fn contains(self, target: Target) -> bool {
        self.0 & Self::bit(target) != 0
    }

    /// True where the key was not in the set.
    pub(super) fn insert(&mut self, target: Target) -> bool {
        let bit = Self::bit(target);
        let is_new = self.0 & bit == 0;
        self.0 |= bit;
        is_new
    }

    fn bit(target: Target) -> u32 {
        1 << target as u32
    }
}

impl fmt::Debug for RootKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
