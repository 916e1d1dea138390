//! Placeholder until the conversation branch lands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConversationKey(pub u64);
