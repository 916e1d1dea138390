//! Where in a body the wanted values are: the whole map of keys that the scanner knows.

use super::tree::Subject;

/// An object whose keys are read. Every other object is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Root,
    Metadata,
    UserId,
    Conversation,
    Thinking,
    OutputConfig,
    OutputFormat,
    ResponseFormat,
    TextConfig,
    TextFormat,
}

/// What the value after a key is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Nothing,
    Model,
    Metadata,
    UserId,
    MetadataSession,
    SessionId,
    Conversation,
    /// `conversation.id`; the Responses API takes both forms.
    IdInConversation,
    ConversationId,
    PromptCacheKey,
    Messages,
    /// `messages` of the Responses API.
    Input,
    System,
    /// `system` of the Responses API.
    Instructions,
    Tools,
    Thinking,
    ThinkingType,
    /// The Messages API's place for the format of an answer.
    OutputConfig,
    OutputFormat,
    OutputFormatType,
    /// The Chat Completions API's.
    ResponseFormat,
    ResponseFormatType,
    /// The Responses API's.
    TextConfig,
    TextFormat,
    TextFormatType,
}

/// The keys of the root that are known.
pub(super) const ROOT: [(&str, Target); 15] = [
    ("model", Target::Model),
    ("messages", Target::Messages),
    ("input", Target::Input),
    ("system", Target::System),
    ("instructions", Target::Instructions),
    ("tools", Target::Tools),
    ("thinking", Target::Thinking),
    ("output_config", Target::OutputConfig),
    ("response_format", Target::ResponseFormat),
    ("text", Target::TextConfig),
    ("metadata", Target::Metadata),
    ("session_id", Target::SessionId),
    ("conversation", Target::Conversation),
    ("conversation_id", Target::ConversationId),
    ("prompt_cache_key", Target::PromptCacheKey),
];

/// Bytes of the longest key; a longer one needs no reading to its end.
pub(super) const LONGEST_KEY: usize = "prompt_cache_key".len();

impl Scope {
    pub(super) fn target(self, key: &str) -> Target {
        match (self, key) {
            (Scope::Root, key) => {
                ROOT.iter().find(|(known, _)| *known == key).map_or(Target::Nothing, |(_, target)| *target)
            }
            (Scope::Metadata, "user_id") => Target::UserId,
            (Scope::UserId, "session_id") => Target::MetadataSession,
            (Scope::Conversation, "id") => Target::IdInConversation,
            (Scope::Thinking, "type") => Target::ThinkingType,
            (Scope::OutputConfig, "format") => Target::OutputFormat,
            (Scope::OutputFormat, "type") => Target::OutputFormatType,
            (Scope::ResponseFormat, "type") => Target::ResponseFormatType,
            (Scope::TextConfig, "format") => Target::TextFormat,
            (Scope::TextFormat, "type") => Target::TextFormatType,
            (
                Scope::Metadata
                | Scope::UserId
                | Scope::Conversation
                | Scope::Thinking
                | Scope::OutputConfig
                | Scope::OutputFormat
                | Scope::ResponseFormat
                | Scope::TextConfig
                | Scope::TextFormat,
                _,
            ) => Target::Nothing,
        }
    }

    /// The object around this one; `None` for the root.
    pub(super) fn parent(self) -> Option<Scope> {
        match self {
            Scope::Root => None,
            Scope::Metadata
            | Scope::Conversation
            | Scope::Thinking
            | Scope::OutputConfig
            | Scope::ResponseFormat
            | Scope::TextConfig => Some(Scope::Root),
            Scope::UserId => Some(Scope::Metadata),
            Scope::OutputFormat => Some(Scope::OutputConfig),
            Scope::TextFormat => Some(Scope::TextConfig),
        }
    }
}

/// What can be made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Nothing,
    Text,
    /// Each step leads deeper, so the scopes nest three deep at most.
    Object(Scope),
    TextOrObject(Scope),
    History(Subject),
}

impl Target {
    fn purpose(self) -> Use {
        match self {
            Target::Nothing | Target::Tools => Use::Nothing,
            Target::Model
            | Target::MetadataSession
            | Target::SessionId
            | Target::IdInConversation
            | Target::ConversationId
            | Target::PromptCacheKey
            | Target::ThinkingType
            | Target::OutputFormatType
            | Target::ResponseFormatType
            | Target::TextFormatType => Use::Text,
            Target::Metadata => Use::Object(Scope::Metadata),
            Target::UserId => Use::TextOrObject(Scope::UserId),
            Target::Conversation => Use::TextOrObject(Scope::Conversation),
            Target::Thinking => Use::Object(Scope::Thinking),
            Target::OutputConfig => Use::Object(Scope::OutputConfig),
            Target::OutputFormat => Use::Object(Scope::OutputFormat),
            Target::ResponseFormat => Use::Object(Scope::ResponseFormat),
            Target::TextConfig => Use::Object(Scope::TextConfig),
            Target::TextFormat => Use::Object(Scope::TextFormat),
            Target::Messages | Target::Input => Use::History(Subject::Messages),
            Target::System | Target::Instructions => Use::History(Subject::System),
        }
    }

    pub(super) fn takes_text(self) -> bool {
        match self.purpose() {
            Use::Text | Use::TextOrObject(_) => true,
            Use::Nothing | Use::Object(_) | Use::History(_) => false,
        }
    }

    /// The object to read where the value is one.
    pub(super) fn object(self) -> Option<Scope> {
        match self.purpose() {
            Use::Object(scope) | Use::TextOrObject(scope) => Some(scope),
            Use::Nothing | Use::Text | Use::History(_) => None,
        }
    }

    /// The part of the history that a value is which begins with this byte.
    pub(super) fn history(self, byte: u8) -> Option<Subject> {
        match (self.purpose(), byte) {
            (Use::History(subject), b'[') => Some(subject),
            (Use::History(subject), b'"') if self != Target::Messages => Some(subject),
            (Use::History(_) | Use::Nothing | Use::Text | Use::Object(_) | Use::TextOrObject(_), _) => None,
        }
    }
}
