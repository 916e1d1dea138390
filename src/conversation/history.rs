//! The fingerprint of a conversation without an id: a chain of hashes over its messages.
//!
//! An agent sends its whole history every turn, but not in the same bytes: a marker of the cache moves on, a block of
//! text becomes a string. What is hashed is therefore the canonical value:
//!
//! 1. The messages are `messages`, or `input` of the Responses API, where a string is one message of the user. Each
//!    extends the chain by its hash. The system prompt (`system`, or `instructions`) stands behind the messages in some
//!    bodies and is hashed apart.
//! 2. Of an object the members count in any order, of an array the items in theirs. Strings count by what they decode
//!    to, everything else as it is written. What is nested more than 24 deep counts by its bytes.
//! 3. `cache_control` counts nowhere.
//! 4. A string as `content` or as system prompt is a list with one block of text. `text`, `input_text` and `output_text`
//!    are one type.
//! 5. A block of the system prompt that begins with `x-anthropic-billing-header` does not count: it differs between
//!    conversations, and vLLM takes it out.
//! 6. In the first message of the user, a text that is injected (`<system-reminder>` and its like) does not count where
//!    other text follows in that message, and neither does the part of a text before the user's own words. It is equal in
//!    different conversations and changes within one.
//!
//! A chain has a step for each message from the user's first on: what stands before it is no conversation yet.

use std::fmt;

use super::digest::{self, NO_ITEMS, mix};

/// Steps that are kept, the latest. The longest sessions that agents report have some hundred turns of two or three messages;
/// a conversation is found again by its last steps.
const STEPS: usize = 4096;

/// What the chain begins with.
const NO_MESSAGES: u64 = digest::text(b"messages");

/// What a whole body says of its conversation's past, as hashes only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Over the canonical text of the system prompt.
    pub(super) system: u64,
    /// One for each message from the first of the user on, each over all messages up to it. Of more than 4096 the last.
    pub(super) steps: Vec<Step>,
    /// Whether a message of the assistant is among them: the conversation did not begin with this turn.
    pub(super) is_continued: bool,
}

impl Default for History {
    /// Without a system prompt, which is as good as an empty one.
    fn default() -> Self {
        Self { system: digest::array(NO_ITEMS), steps: Vec::new(), is_continued: false }
    }
}

/// The messages up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) hash: u64,
    /// Bytes of canonical text so far, without the system prompt: all strings but ids, types and what is no text, such as
    /// pictures.
    pub(super) text_bytes: u32,
}

/// Names the messages up to one of them, under one API key and one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainKey(pub u64);

/// One step of a [`Chain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub key: ChainKey,
    /// Bytes of canonical text up to here, without the system prompt.
    pub text_bytes: u32,
}

/// The history of a turn, keyed: the last link stands for the whole, those before it for what earlier turns of the
/// same conversation sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// From the first message of the user on.
    pub links: Vec<Link>,
    /// Whether the conversation did not begin with this turn.
    pub is_continued: bool,
}

impl History {
    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }
}

impl fmt::Display for ChainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaker {
    User,
    Assistant,
    Other,
}

/// What a message says beside its hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    speaker: Option<Speaker>,
    /// An item of the Responses API that only an assistant makes.
    is_of_assistant: bool,
    pub(super) bytes: u64,
    /// Bytes that do not count in the user's first message.
    pub(super) left_out: u64,
}

impl Said {
    /// Of several roles the first counts.
    pub(super) fn note_role(&mut self, role: &[u8]) {
        self.speaker.get_or_insert(match role {
            b"user" => Speaker::User,
            b"assistant" => Speaker::Assistant,
            _ => Speaker::Other,
        });
    }

    /// Calls of tools have types such as `function_call`, their results such as `function_call_output`.
    pub(super) fn note_type(&mut self, item: &[u8]) {
        self.is_of_assistant |= item == b"reasoning" || item.ends_with(b"_call") || item.ends_with(b"_call_output");
    }

    pub(super) fn is_first_of_user(&self, before: &Messages) -> bool {
        before.awaits_user() && self.speaker == Some(Speaker::User)
    }
}

/// The messages so far.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    chain: u64,
    text_bytes: u64,
    user_spoke: bool,
    history: History,
}

impl Default for Messages {
    fn default() -> Self {
        Self { chain: NO_MESSAGES, text_bytes: 0, user_spoke: false, history: History::default() }
    }
}

impl Messages {
    pub(super) fn awaits_user(&self) -> bool {
        !self.user_spoke
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn note_system(&mut self, hash: u64) {
        self.history.system = hash;
    }

    /// The next message, by its hash.
    pub(super) fn add(&mut self, hash: u64, said: &Said) {
        let left_out = if said.is_first_of_user(self) { said.left_out } else { 0 };
        self.chain = mix(self.chain, hash);
        self.text_bytes += said.bytes - left_out;
        self.user_spoke |= said.speaker == Some(Speaker::User);
        self.history.is_continued |= said.is_of_assistant || said.speaker == Some(Speaker::Assistant);
        if self.user_spoke {
            let text_bytes = u32::try_from(self.text_bytes).unwrap_or(u32::MAX);
            self.history.steps.push(Step { hash: self.chain, text_bytes });
            // Cut by as many as are kept, so that a step is moved once at most.
            if self.history.steps.len() == 2 * STEPS {
                self.history.steps.drain(..STEPS);
            }
        }
    }

    /// There are no more messages.
    pub(super) fn end(&mut self) {
        let surplus = self.history.steps.len().saturating_sub(STEPS);
        self.history.steps.drain(..surplus);
    }
}
