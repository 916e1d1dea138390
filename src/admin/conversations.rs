//! The conversations that were used last, and where each is pinned. They are known by their keys: no id of a client stands here.

use serde::{Deserialize, Serialize};

use crate::balancer::ConversationSnapshot;

/// The most conversations that are told of one model. Their snapshot is taken under the lock that every decision waits for.
pub const CONVERSATIONS_MAX: usize = 100;

/// The conversations of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConversations {
    pub name: String,
    /// The newest first, at most [`CONVERSATIONS_MAX`].
    pub conversations: Vec<ConversationStatus>,
}

/// One conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConversationStatus {
    /// As in the access log.
    pub key: String,
    /// The replica that it is pinned to.
    pub replica: String,
    /// The conversation that it is a subagent, a child session or a fork of.
    pub parent: Option<String>,
    pub in_flight: u16,
    /// Seconds since a turn of it last began, was served or ended.
    pub idle_s: f64,
    /// Whether the replica has served a turn of it; before that, the pin is given up if its turn fails.
    pub proven: bool,
}

impl From<&ConversationSnapshot> for ConversationStatus {
    fn from(snapshot: &ConversationSnapshot) -> Self {
        ConversationStatus {
            key: snapshot.key.to_string(),
            replica: snapshot.spec.name.clone(),
            parent: snapshot.parent.map(|key| key.to_string()),
            in_flight: snapshot.in_flight,
            idle_s: snapshot.idle.as_secs_f64(),
            proven: snapshot.is_proven,
        }
    }
}
