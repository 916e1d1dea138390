//! Where in a body the wanted values are: the whole map of keys that the scanner knows.

/// An object whose keys are read. Every other object is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Root,
    Metadata,
    UserId,
    Conversation,
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
}

/// Bytes of the longest key below; a longer one needs no reading to its end.
pub(super) const LONGEST_KEY: usize = "prompt_cache_key".len();

impl Scope {
    pub(super) fn target(self, key: &str) -> Target {
        match (self, key) {
            (Scope::Root, "model") => Target::Model,
            (Scope::Root, "metadata") => Target::Metadata,
            (Scope::Root, "session_id") => Target::SessionId,
            (Scope::Root, "conversation") => Target::Conversation,
            (Scope::Root, "conversation_id") => Target::ConversationId,
            (Scope::Root, "prompt_cache_key") => Target::PromptCacheKey,
            (Scope::Metadata, "user_id") => Target::UserId,
            (Scope::UserId, "session_id") => Target::MetadataSession,
            (Scope::Conversation, "id") => Target::IdInConversation,
            (Scope::Root | Scope::Metadata | Scope::UserId | Scope::Conversation, _) => Target::Nothing,
        }
    }

    /// The object around this one; `None` for the root.
    pub(super) fn parent(self) -> Option<Scope> {
        match self {
            Scope::Root => None,
            Scope::Metadata | Scope::Conversation => Some(Scope::Root),
            Scope::UserId => Some(Scope::Metadata),
        }
    }
}

impl Target {
    pub(super) fn takes_text(self) -> bool {
        match self {
            Target::Nothing | Target::Metadata => false,
            Target::Model
            | Target::UserId
            | Target::MetadataSession
            | Target::SessionId
            | Target::Conversation
            | Target::IdInConversation
            | Target::ConversationId
            | Target::PromptCacheKey => true,
        }
    }

    /// The object to read where the value is one. Each step leads deeper, so the scopes nest three
    /// deep at most.
    pub(super) fn object(self) -> Option<Scope> {
        match self {
            Target::Metadata => Some(Scope::Metadata),
            Target::UserId => Some(Scope::UserId),
            Target::Conversation => Some(Scope::Conversation),
            Target::Nothing
            | Target::Model
            | Target::MetadataSession
            | Target::SessionId
            | Target::IdInConversation
            | Target::ConversationId
            | Target::PromptCacheKey => None,
        }
    }
}
