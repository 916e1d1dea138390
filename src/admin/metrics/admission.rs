//! The families of admission: who waits for room in the caches, and who has it.

use crate::balancer::{ReplicaSnapshot, RoomSnapshot, Snapshot};

use super::families::one;
use super::{Family, Kind};

/// Labels: model.
pub(super) const MODEL: &[Family<Snapshot>] = &[
    Family {
        name: "kvpin_held_turns",
        kind: Kind::Gauge,
        help: "Turns that wait until their conversations fit into a cache.",
        label: "",
        values: |model| one(f64::from(model.door.held)),
    },
    Family {
        name: "kvpin_longest_hold_seconds",
        kind: Kind::Gauge,
        help: "How long the first of them has waited; 0 where none waits.",
        label: "",
        values: |model| one(model.door.longest.as_secs_f64()),
    },
    Family {
        name: "kvpin_held_needed_tokens",
        kind: Kind::Gauge,
        help: "Tokens of KV cache that the conversations of those turns need.",
        label: "",
        values: |model| one(model.door.needed_tokens as f64),
    },
    Family {
        name: "kvpin_held_turns_total",
        kind: Kind::Counter,
        help: "Turns that had to wait until their conversations fit.",
        label: "",
        values: |model| one(model.door.counters.held as f64),
    },
    Family {
        name: "kvpin_forced_turns_total",
        kind: Kind::Counter,
        help: "Turns that were let in over the limit, because they had waited for hold_max_s.",
        label: "",
        values: |model| one(model.door.counters.forced as f64),
    },
    Family {
        name: "kvpin_left_while_held_turns_total",
        kind: Kind::Counter,
        help: "Turns whose client left while they waited.",
        label: "",
        values: |model| one(model.door.counters.left as f64),
    },
    Family {
        name: "kvpin_parked_conversations_total",
        kind: Kind::Counter,
        help: "Conversations that had to make room for others before they had gone silent for long enough.",
        label: "",
        values: |model| one(model.door.counters.parked as f64),
    },
];

/// Labels: model, replica.
pub(super) const REPLICA: &[Family<ReplicaSnapshot>] = &[
    Family {
        name: "kvpin_resident_conversations",
        kind: Kind::Gauge,
        help: "Conversations that were let in on the replica and have kept their room since; no series where nobody is held for it.",
        label: "",
        values: |replica| of_room(replica, |room| f64::from(room.residents)),
    },
    Family {
        name: "kvpin_resident_tokens",
        kind: Kind::Gauge,
        help: "Tokens of the replica's cache that they and the turns of others take; to be held against kvpin_admission_limit_tokens.",
        label: "",
        values: |replica| of_room(replica, |room| room.working_set_tokens as f64),
    },
    Family {
        name: "kvpin_admission_limit_tokens",
        kind: Kind::Gauge,
        help: "Up to how many tokens conversations are let in on the replica.",
        label: "",
        values: |replica| of_room(replica, |room| room.limit_tokens as f64),
    },
];

/// A value of the room that residents have, where anybody would be held for it.
fn of_room(replica: &ReplicaSnapshot, value: impl Fn(&RoomSnapshot) -> f64) -> Vec<(&'static str, f64)> {
    replica.room.iter().flat_map(|room| one(value(room))).collect()
}
