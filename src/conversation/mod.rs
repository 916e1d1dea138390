//! Who is speaking: what a request says of its model and its conversation.
pub mod key;
pub use key::ConversationKey;
