//! What the caller holds of a turn: what would be decided for it, and the slot that it was given.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::admission::Claim;
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
    /// What is learned once it is served, and `None` from then on. Most turns have nothing to teach but that they are
    /// there.
    pub(super) lesson: Option<Box<Lesson>>,
    pub(super) counted: bool,
    /// What it takes of its replica's room.
    pub(super) claim: Claim,
    /// When it was given its slot, and when the first byte of its answer came.
    pub(super) seated: Duration,
    pub(super) first: Option<Duration>,
}

/// What a turn teaches of its conversation.
#[derive(Debug)]
pub(super) struct Lesson {
    pub aliases: [Option<ConversationKey>; ALIASES_MAX],
    pub extension: Option<Extension>,
    /// The name under which the turn joins its conversation.
    pub joining: Option<ConversationKey>,
}

impl Ticket {
    pub(super) fn new(choice: &Choice, turn: &Turn<'_>) -> Self {
        let speaker = choice.speaker.as_ref();
        Ticket {
            replica: choice.replica,
            decision: choice.decision,
            conversation: speaker.map(|speaker| speaker.conversation),
            recognised: speaker.map(|speaker| speaker.recognised),
            lesson: speaker
                .filter(|_| choice.decision.binds())
                .and_then(|speaker| Lesson::of(turn, speaker.extension, speaker.joining())),
            counted: false,
            claim: Claim::default(),
            seated: Duration::ZERO,
            first: None,
        }
    }

    /// The conversation in whose pin the turn has a say.
    pub(super) fn bound(&self) -> Option<ConversationKey> {
        self.conversation.filter(|_| self.decision.binds())
    }
}

impl Lesson {
    pub fn of(turn: &Turn<'_>, extension: Option<Extension>, joining: Option<ConversationKey>) -> Option<Box<Lesson>> {
        let mut names = turn.other_names();
        let aliases: [_; ALIASES_MAX] = std::array::from_fn(|_| names.next());
        let teaches = aliases[0].is_some() || extension.is_some() || joining.is_some();
        teaches.then(|| Box::new(Lesson { aliases, extension, joining }))
    }
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
