//! What goes into a decision and what comes out of it.

use crate::conversation::{Chain, ConversationKey, Link};

use super::aliases::ALIASES_MAX;
use super::replica::ReplicaId;

/// One request that needs a replica, as the balancer sees it.
#[derive(Clone, Debug)]
pub struct Turn<'a> {
    /// The conversation the turn belongs to, if the client named one.
    pub conversation: Option<ConversationKey>,
    /// Other ids in the same request that name the same conversation.
    pub aliases: &'a [ConversationKey],
    /// The conversation that this one is a subagent or a child session of.
    pub parent: Option<ConversationKey>,
    /// The turn's history, where its whole body was at hand: names a conversation that has no id, and finds the
    /// conversation that a new one was forked from.
    pub chain: Option<&'a Chain>,
    pub kind: TurnKind,
    /// The replica that the client itself named.
    pub client_pin: Option<ReplicaId>,
    /// Whether the engine obeys a rank on this turn's endpoint.
    pub ranks: Ranks,
    /// The length of its body, as far as that is known; else 0.
    pub body_bytes: u64,
    /// Replicas that this turn has already failed on; they are not chosen again.
    pub tried: &'a [ReplicaId],
}

/// Whether a turn belongs to a conversation's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnKind {
    /// Generates from a history that the next turn will extend.
    Conversation,
    /// Token counting, title generation and the like: it neither makes, moves nor refreshes a pin.
    Side,
    /// Embeddings, transcriptions and the like: work of its own that leaves no history behind.
    Stateless,
}

/// Whether `X-data-parallel-rank` reaches the rank it names.
///
/// vLLM up to 0.32 ignores the header on `/v1/responses`, so a turn there can't be pinned to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    Obeyed,
    Ignored,
}

/// How the conversation of a turn was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// By the id that the client gave.
    Explicit,
    /// By another id that came with that one, in this turn or in an earlier one.
    Alias,
    /// By the turn's history.
    Fingerprint,
}

/// Why a turn goes where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Served where its conversation is pinned.
    Sticky,
    /// Its conversation got a pin, or a new one.
    Placed { reason: Placement },
    /// Served elsewhere for this one turn; the pin stays at `from`.
    Spilled { from: ReplicaId },
    /// The client named the replica.
    ClientPinned,
    /// Placed by load, with nothing to remember.
    Unpinned { reason: Unpinned },
    /// A side call, sent to the idlest replica.
    Side,
}

/// Why a conversation was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The conversation wasn't known.
    New,
    /// It wasn't known either, and shares its history with a conversation on the replica it was given.
    Forked,
    /// The replica it was pinned to is down.
    HomeDown,
    /// The replica it was pinned to is no longer configured.
    HomeRemoved,
    /// The replica it was pinned to failed this very turn before answering.
    HomeFailed,
    /// The replica it was pinned to was restarted since: its cache is empty, so nothing speaks for it.
    HomeRestarted,
    /// The replica it was pinned to takes nothing new.
    HomeDraining,
    /// The engine of the replica it was pinned to sleeps.
    HomeSleeping,
    /// The replica it was pinned to has nothing left of it in its cache and no room for it, and another one has.
    HomeFull,
}

/// Why a turn could not be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpinned {
    /// The request named no conversation, and its history could not be read.
    NoSession,
    /// The endpoint keeps no history that a later request could extend.
    NoHistory,
    /// The model is configured without affinity.
    AffinityOff,
    /// The endpoint ignores the rank header and the chosen replica is a rank.
    RankIgnored,
}

/// Why no replica could be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// Every replica of the model is down, asleep or draining.
    NoReplicaUp,
    /// Every replica that is up has failed this turn.
    EveryReplicaFailed,
    /// The replica that the client named is down, asleep or draining, or has failed this turn.
    ClientPinDown,
    /// Too many turns wait for their conversations to fit.
    LineFull,
}

/// How a turn that had a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The whole response went through.
    Completed,
    /// The engine answered with an error status.
    Rejected,
    /// The replica failed and the client got an error or a cut response.
    Failed,
    /// The client went away.
    Abandoned,
    /// The replica failed before the response began; the turn goes on elsewhere.
    MovedOn,
}

impl Turn<'static> {
    /// The turn of a conversation, or of none, of which nothing else is known.
    pub fn of(conversation: Option<ConversationKey>) -> Self {
        Turn {
            conversation,
            aliases: &[],
            parent: None,
            chain: None,
            kind: TurnKind::Conversation,
            client_pin: None,
            ranks: Ranks::Obeyed,
            body_bytes: 0,
            tried: &[],
        }
    }
}

impl Turn<'_> {
    /// The other ids of the turn's conversation that count. The parent's is none of them: clients name it beside the
    /// child's, and child and parent are two conversations.
    pub(super) fn other_names(&self) -> impl Iterator<Item = ConversationKey> {
        self.aliases.iter().take(ALIASES_MAX).copied().filter(|name| Some(*name) != self.parent)
    }

    /// The turn's history and its last link, which stands for the whole.
    pub(super) fn history(&self) -> Option<(&Chain, Link)> {
        let chain = self.chain?;
        Some((chain, *chain.links.last()?))
    }
}

impl Recognised {
    /// The word used in logs and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            Recognised::Explicit => "explicit",
            Recognised::Alias => "alias",
            Recognised::Fingerprint => "fingerprint",
        }
    }
}

impl Decision {
    /// Whether the turn has a say in where its conversation is pinned. A client's own choice and a side call say nothing
    /// about where its history is.
    pub(super) fn binds(self) -> bool {
        match self {
            Decision::Sticky | Decision::Placed { .. } | Decision::Spilled { .. } => true,
            Decision::ClientPinned | Decision::Unpinned { .. } | Decision::Side => false,
        }
    }

    /// The word used in logs, metric labels and the response header.
    pub fn as_str(self) -> &'static str {
        match self {
            Decision::Sticky => "sticky",
            Decision::Placed { .. } => "placed",
            Decision::Spilled { .. } => "spilled",
            Decision::ClientPinned => "client_pinned",
            Decision::Unpinned { .. } => "unpinned",
            Decision::Side => "side",
        }
    }

    /// The word for the reason behind it, where there is one to tell.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Decision::Placed { reason } => Some(match reason {
                Placement::New => "new",
                Placement::Forked => "forked",
                Placement::HomeDown => "home_down",
                Placement::HomeRemoved => "home_removed",
                Placement::HomeFailed => "home_failed",
                Placement::HomeRestarted => "home_restarted",
                Placement::HomeDraining => "home_draining",
                Placement::HomeSleeping => "home_sleeping",
                Placement::HomeFull => "home_full",
            }),
            Decision::Spilled { .. } => Some("over_threshold"),
            Decision::Unpinned { reason } => Some(match reason {
                Unpinned::NoSession => "no_session",
                Unpinned::NoHistory => "no_history",
                Unpinned::AffinityOff => "affinity_off",
                Unpinned::RankIgnored => "rank_ignored",
            }),
            Decision::Sticky | Decision::ClientPinned | Decision::Side => None,
        }
    }
}

impl Refusal {
    /// Every refusal, in the order in which they are reported.
    pub const ALL: [Refusal; 4] =
        [Refusal::NoReplicaUp, Refusal::EveryReplicaFailed, Refusal::ClientPinDown, Refusal::LineFull];

    /// The word used in logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::NoReplicaUp => "no_replica_up",
            Refusal::EveryReplicaFailed => "every_replica_failed",
            Refusal::ClientPinDown => "client_pin_down",
            Refusal::LineFull => "line_full",
        }
    }
}

impl Outcome {
    /// The word used in logs and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Rejected => "rejected",
            Outcome::Failed => "failed",
            Outcome::Abandoned => "abandoned",
            Outcome::MovedOn => "moved_on",
        }
    }
}
