//! The value that everything behind this module knows a conversation by.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use super::history::{Chain, ChainKey, History, Link, Step};
use super::identity::Explicit;

/// A conversation, under one API key and one model. Prints as 16 hexadecimal digits, the only form
/// of a session id that may leave the process.
///
/// 64 bits: among a million pins the chance of one collision is 3 in 10⁸, and its price is a shared
/// pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationKey(pub u64);

impl fmt::Display for ConversationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Makes keys that cannot be foreseen or inverted: who does not know it can neither aim for another
/// conversation's key nor find an id by trying. Pins outlive the process only if the secret does.
#[derive(Clone)]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The secret itself, for the next process.
    pub fn to_bytes(&self) -> [u8; 16] {
        self.0
    }

    /// The key of a conversation within a scope (whatever tells one API key from another; empty
    /// where there are none) and a model, by its served name and never by an alias.
    ///
    /// The kind of the source is left out, so that an id means one conversation wherever a client
    /// puts it: Claude Code names the same session in a header and in `metadata.user_id`, and
    /// gateways drop the one or the other.
    pub fn key(&self, scope: &[u8], model: &str, conversation: &Explicit) -> ConversationKey {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for part in [scope, model.as_bytes(), conversation.session.as_str().as_bytes()] {
            write_part(&mut hasher, part);
        }
        // An agent's id is never empty, so the empty part says that there is none.
        let agent = conversation.agent.as_ref().map_or("", |agent| agent.as_str());
        write_part(&mut hasher, agent.as_bytes());
        ConversationKey(hasher.finish())
    }

    /// The history of a turn within a scope and a model, as in [`KeySecret::key`].
    pub fn chain(&self, scope: &[u8], model: &str, history: &History) -> Chain {
        let mut root = SipHasher24::new_with_key(&self.0);
        write_part(&mut root, scope);
        write_part(&mut root, model.as_bytes());
        root.write(&history.system.to_le_bytes());
        let link = |step: &Step| {
            let mut hasher = root;
            hasher.write(&step.hash.to_le_bytes());
            Link { key: ChainKey(hasher.finish()), text_bytes: step.text_bytes }
        };
        Chain {
            links: history.steps.iter().map(link).collect(),
            is_continued: history.is_continued,
            last_answer: history.last_answer,
        }
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(..)")
    }
}

/// The length goes first, so that no two lists of parts run together into the same bytes.
fn write_part(hasher: &mut SipHasher24, part: &[u8]) {
    hasher.write(&(part.len() as u64).to_le_bytes());
    hasher.write(part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::{SessionValue, Source};

    const SECRET: KeySecret = KeySecret([7; 16]);

    fn conversation(session: &str, agent: Option<&str>) -> Explicit {
        let agent = agent.map(|agent| SessionValue::parse(agent).unwrap());
        Explicit { session: SessionValue::parse(session).unwrap(), agent, source: Source::ClaudeCodeSession }
    }

    #[test]
    fn a_key_depends_on_every_part_and_on_where_the_parts_meet() {
        let keys = [
            SECRET.key(b"", "model", &conversation("session", None)),
            SECRET.key(b"", "model", &conversation("session", Some("agent"))),
            SECRET.key(b"", "model", &conversation("sessionagent", None)),
            SECRET.key(b"", "models", &conversation("ession", None)),
            SECRET.key(b"m", "odel", &conversation("session", None)),
            SECRET.key(b"model", "", &conversation("session", None)),
            SECRET.key(b"scope", "model", &conversation("session", None)),
            SECRET.key(b"", "other", &conversation("session", None)),
            KeySecret::new([8; 16]).key(b"", "model", &conversation("session", None)),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn an_id_means_one_conversation_in_the_head_and_in_the_body() {
        let head = conversation("session", Some("agent"));
        let body = Explicit { source: Source::BodyMetadata, ..head.clone() };
        assert_eq!(SECRET.key(b"", "model", &head), SECRET.key(b"", "model", &body));
    }

    /// The digits were worked out by another implementation of SipHash-2-4, over the parts as
    /// `write_part` lays them out.
    #[test]
    fn a_key_is_the_same_in_every_build() {
        let key = SECRET.key(b"scope", "qwen3-4b", &conversation("be1bd76a-8294-49e0-b3d2-e58bc1e620a9", Some("a1")));
        assert_eq!(key.to_string(), "1747906b3e11bb03", "snapshots of pins from before would lose their conversations");
    }

    #[test]
    fn a_key_prints_as_16_digits_and_a_secret_not_at_all() {
        assert_eq!(ConversationKey(0xAB).to_string(), "00000000000000ab");
        assert_eq!(format!("{SECRET:?}"), "KeySecret(..)");
    }
}
