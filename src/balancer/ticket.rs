//! What the caller holds of a turn: what would be decided for it, and the slot that it was given.

use crate::conversation::ConversationKey;

use super::aliases::ALIASES_MAX;
use super::choice::Choice;
use super::histories::Extension;
use super::replica::ReplicaId;
use super::turn::{Decision, Recognised, Turn};

/// What [`super::Balancer::arrive`] would do with a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    pub replica: ReplicaId,
    pub decision: Decision,
    /// As in [`Ticket`].
    pub conversation: Option<ConversationKey>,
    pub recognised: Option<Recognised>,
}

/// A turn that holds a slot on a replica. It must go back through [`super::Balancer::finish`].
#[derive(Debug)]
#[must_use = "a ticket that is dropped leaves its slot taken for ever"]
pub struct Ticket {
    pub replica: ReplicaId,
    pub decision: Decision,
    /// The conversation that the turn belongs to, wherever it is served; `None` for one that belongs to none.
    pub conversation: Option<ConversationKey>,
    /// How the conversation was recognised.
    pub recognised: Option<Recognised>,
    /// What there is to learn once it is served; `None` where the turn has no say in its conversation's pin.
    pub(super) lesson: Option<Lesson>,
    pub(super) counted: bool,
}

/// What a turn teaches of its conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lesson {
    pub conversation: ConversationKey,
    pub aliases: [Option<ConversationKey>; ALIASES_MAX],
    pub extension: Option<Extension>,
}

impl Ticket {
    pub(super) fn new(choice: &Choice, turn: &Turn<'_>) -> Self {
        let speaker = choice.speaker.as_ref();
        let lesson = speaker.filter(|_| choice.decision.binds()).map(|speaker| Lesson {
            conversation: speaker.conversation,
            aliases: others(turn),
            extension: speaker.extension,
        });
        Ticket {
            replica: choice.replica,
            decision: choice.decision,
            conversation: speaker.map(|speaker| speaker.conversation),
            recognised: speaker.map(|speaker| speaker.recognised),
            lesson,
            counted: false,
        }
    }
}

fn others(turn: &Turn<'_>) -> [Option<ConversationKey>; ALIASES_MAX] {
    let mut names = turn.other_names();
    std::array::from_fn(|_| names.next())
}

impl From<Choice> for Foreseen {
    fn from(choice: Choice) -> Self {
        Foreseen {
            replica: choice.replica,
            decision: choice.decision,
            conversation: choice.speaker.map(|speaker| speaker.conversation),
            recognised: choice.speaker.map(|speaker| speaker.recognised),
        }
    }
}
