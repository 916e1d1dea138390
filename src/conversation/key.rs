//! Placeholder until the conversation branch lands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ConversationKey(u64);
impl ConversationKey { pub fn from_raw(k: u64) -> Self { Self(k) } }
