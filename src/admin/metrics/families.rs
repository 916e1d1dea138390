//! Every family that is rendered from a snapshot: name, kind, help, labels and source side by side.

use crate::balancer::{Health, ReplicaSnapshot, Scrape, Snapshot};
use crate::keys::KeySnapshot;

use super::super::View;
use super::{Family, Kind};

/// The words of [`Health::as_str`].
const HEALTHS: [&str; 6] = ["unknown", "up", "suspect", "down", "draining", "sleeping"];

/// Of the process.
pub(super) const PROCESS: &[Family<View>] = &[
    Family {
        name: "kvpin_build_info",
        kind: Kind::Gauge,
        help: "1, with the version of kvpin.",
        label: "version",
        values: |_| vec![(env!("CARGO_PKG_VERSION"), 1.0)],
    },
    Family {
        name: "kvpin_uptime_seconds",
        kind: Kind::Gauge,
        help: "Time since the process began to serve.",
        label: "",
        values: |view| one(view.uptime.as_secs_f64()),
    },
    Family {
        name: "kvpin_open_requests",
        kind: Kind::Gauge,
        help: "Requests that are being handled, whatever they are for.",
        label: "",
        values: |view| one(view.open_requests as f64),
    },
];

/// Labels: model.
pub(super) const MODEL: &[Family<Snapshot>] = &[
    Family {
        name: "kvpin_refused_turns_total",
        kind: Kind::Counter,
        help: "Turns that got no replica.",
        label: "reason",
        values: |model| model.refused.iter().map(|(reason, count)| (reason.as_str(), *count as f64)).collect(),
    },
    Family {
        name: "kvpin_known_histories",
        kind: Kind::Gauge,
        help: "Histories by which turns without an id, and forks, are recognised.",
        label: "",
        values: |model| one(model.histories as f64),
    },
    Family {
        name: "kvpin_known_aliases",
        kind: Kind::Gauge,
        help: "Ids that lead to a conversation beside the one it is pinned under.",
        label: "",
        values: |model| one(model.conversation_aliases as f64),
    },
];

/// Label: key, the name of an API key, of which the keys file has so many.
pub(super) const KEY: &[Family<KeySnapshot>] = &[
    Family {
        name: "kvpin_key_requests_total",
        kind: Kind::Counter,
        help: "Requests with the API key, by whether they were passed on, forbidden, over a limit of the key or refused otherwise.",
        label: "outcome",
        values: |key| key.requests.iter().map(|(verdict, count)| (verdict.as_str(), *count as f64)).collect(),
    },
    Family {
        name: "kvpin_key_in_flight_requests",
        kind: Kind::Gauge,
        help: "Requests with the API key that are being handled.",
        label: "",
        values: |key| one(f64::from(key.in_flight)),
    },
];

/// Labels: model, replica.
pub(super) const REPLICA: &[Family<ReplicaSnapshot>] = &[
    Family {
        name: "kvpin_replica_up",
        kind: Kind::Gauge,
        help: "1 if the replica has been seen up and can be given turns, suspect or not, else 0.",
        label: "",
        values: |replica| one(f64::from(u8::from(matches!(replica.health, Health::Up | Health::Suspect(_))))),
    },
    Family {
        name: "kvpin_replica_health",
        kind: Kind::Gauge,
        help: "1 for the health that the replica has, 0 for the others.",
        label: "health",
        values: |replica| {
            HEALTHS.map(|health| (health, f64::from(u8::from(replica.health.as_str() == health)))).to_vec()
        },
    },
    Family {
        name: "kvpin_replica_health_reason",
        kind: Kind::Gauge,
        help: "1 for the reason why the replica is suspect, down or draining; no series where it is none of these.",
        label: "reason",
        values: |replica| replica.health.reason().map(|reason| (reason, 1.0)).into_iter().collect(),
    },
    Family {
        name: "kvpin_replica_draining",
        kind: Kind::Gauge,
        help: "1 if an operator or the configuration wants the replica to take nothing new, whatever its health, else 0.",
        label: "",
        values: |replica| one(f64::from(u8::from(replica.drain.is_some()))),
    },
    Family {
        name: "kvpin_replica_ramp_ratio",
        kind: Kind::Gauge,
        help: "Share of its work that the replica is given: less than 1 for a while after it came back or was restarted.",
        label: "",
        values: |replica| one(f64::from(replica.ramp_percent) / 100.0),
    },
    Family {
        name: "kvpin_replica_restarts_total",
        kind: Kind::Counter,
        help: "Restarts of the replica's engine that were seen; its cache was lost with each.",
        label: "",
        values: |replica| one(replica.counters.restarts as f64),
    },
    Family {
        name: "kvpin_turns_total",
        kind: Kind::Counter,
        help: "Turns that the replica served, by why they came to it. A spilled turn counts where it landed.",
        label: "decision",
        values: |replica| decisions(replica).to_vec(),
    },
    Family {
        name: "kvpin_turn_outcomes_total",
        kind: Kind::Counter,
        help: "Turns that the replica was given, by how they ended there.",
        label: "outcome",
        values: |replica| outcomes(replica).to_vec(),
    },
    Family {
        name: "kvpin_replaced_conversations_total",
        kind: Kind::Counter,
        help: "Conversations that were placed on the replica because another one had lost them.",
        label: "",
        values: |replica| one(replica.counters.replaced as f64),
    },
    Family {
        name: "kvpin_forked_conversations_total",
        kind: Kind::Counter,
        help: "New conversations that were placed on the replica because the history they begin with is there.",
        label: "",
        values: |replica| one(replica.counters.forked as f64),
    },
    Family {
        name: "kvpin_in_flight_turns",
        kind: Kind::Gauge,
        help: "Turns that the replica is serving for kvpin.",
        label: "",
        values: |replica| one(f64::from(replica.in_flight)),
    },
    Family {
        name: "kvpin_conversations",
        kind: Kind::Gauge,
        help: "Conversations that are pinned to the replica. Idle ones had no turn for a minute; lost ones none since its cache was lost.",
        label: "state",
        values: |replica| {
            let held = &replica.held;
            [("active", held.active), ("idle", held.idle), ("lost", held.lost)]
                .map(|(state, count)| (state, f64::from(count)))
                .to_vec()
        },
    },
    Family {
        name: "kvpin_related_conversations",
        kind: Kind::Gauge,
        help: "Of the active conversations pinned to the replica: those that another one started.",
        label: "",
        values: |replica| one(f64::from(replica.held.relatives)),
    },
    Family {
        name: "kvpin_spill_threshold_turns",
        kind: Kind::Gauge,
        help: "Turns in flight from which on a pinned turn may be served elsewhere.",
        label: "",
        values: |replica| one(f64::from(replica.spill_threshold)),
    },
    Family {
        name: "kvpin_scrape_age_seconds",
        kind: Kind::Gauge,
        help: "Age of the newest figures of the replica's engine.",
        label: "",
        values: |replica| replica.scrape.iter().map(|(_, age)| ("", age.as_secs_f64())).collect(),
    },
    Family {
        name: "kvpin_engine_requests",
        kind: Kind::Gauge,
        help: "Requests that the engine itself reports, kvpin's and others.",
        label: "state",
        values: |replica| {
            let states = |scrape: &Scrape| [("running", scrape.running), ("waiting", scrape.waiting)];
            let states = replica.scrape.iter().flat_map(|(scrape, _)| states(scrape));
            states.map(|(state, count)| (state, f64::from(count))).collect()
        },
    },
    Family {
        name: "kvpin_engine_kv_use_ratio",
        kind: Kind::Gauge,
        help: "Share of the engine's KV cache that running requests hold. What is only cached does not count.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.kv_use),
    },
    Family {
        name: "kvpin_engine_kv_capacity_tokens",
        kind: Kind::Gauge,
        help: "Tokens that the engine's KV cache holds; 0 where the engine doesn't say.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.kv_capacity_tokens as f64),
    },
    Family {
        name: "kvpin_engine_prefix_queries_tokens_total",
        kind: Kind::Counter,
        help: "Tokens that the engine has looked up in its prefix cache since it started.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.prefix_queries_tokens as f64),
    },
    Family {
        name: "kvpin_engine_prefix_hits_tokens_total",
        kind: Kind::Counter,
        help: "Tokens that the engine has found in its prefix cache since it started.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.prefix_hits_tokens as f64),
    },
    Family {
        name: "kvpin_engine_prompt_tokens_total",
        kind: Kind::Counter,
        help: "Prompt tokens that the engine has processed since it started, kvpin's and others'.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.prompt_tokens as f64),
    },
    Family {
        name: "kvpin_engine_generation_tokens_total",
        kind: Kind::Counter,
        help: "Tokens that the engine has generated since it started, for kvpin and others.",
        label: "",
        values: |replica| of_engine(replica, |scrape| scrape.generation_tokens as f64),
    },
    Family {
        name: "kvpin_prompt_tokens_total",
        kind: Kind::Counter,
        help: "Prompt tokens of the turns that the replica served: found in its cache or computed, by the engine's count; or \
               estimated, where the engine didn't count.",
        label: "source",
        values: |replica| {
            let ledger = &replica.ledger;
            [("cached", ledger.cached), ("computed", ledger.computed), ("estimated", ledger.estimated)]
                .map(|(source, tokens)| (source, tokens as f64))
                .to_vec()
        },
    },
    Family {
        name: "kvpin_completion_tokens_total",
        kind: Kind::Counter,
        help: "Tokens that were generated for the turns that the replica served.",
        label: "",
        values: |replica| one(replica.ledger.completion as f64),
    },
    Family {
        name: "kvpin_booked_turns_total",
        kind: Kind::Counter,
        help: "Turns whose cost was booked: whole if the engine told it, untold if it didn't say what it found in its cache, \
               unmeasured if it said nothing.",
        label: "measure",
        values: |replica| {
            let ledger = &replica.ledger;
            let whole = ledger.measured_turns - ledger.untold_turns;
            [("whole", whole), ("untold", ledger.untold_turns), ("unmeasured", ledger.unmeasured_turns)]
                .map(|(measure, turns)| (measure, turns as f64))
                .to_vec()
        },
    },
    Family {
        name: "kvpin_cold_turns_total",
        kind: Kind::Counter,
        help: "Turns that found less in the cache than their conversation had left there, by why.",
        label: "reason",
        values: |replica| replica.ledger.cold().map(|(reason, line)| (reason.as_str(), line.turns as f64)).collect(),
    },
    Family {
        name: "kvpin_cold_tokens_total",
        kind: Kind::Counter,
        help: "Prompt tokens of those turns that had to be computed again.",
        label: "reason",
        values: |replica| replica.ledger.cold().map(|(reason, line)| (reason.as_str(), line.tokens as f64)).collect(),
    },
    Family {
        name: "kvpin_cold_survived_tokens_total",
        kind: Kind::Counter,
        help: "Prompt tokens of those turns that were found in the cache all the same.",
        label: "reason",
        values: |replica| replica.ledger.cold().map(|(reason, line)| (reason.as_str(), line.survived as f64)).collect(),
    },
    Family {
        name: "kvpin_working_set_tokens",
        kind: Kind::Gauge,
        help: "Tokens of the active conversations pinned to the replica, as far as they were measured; to be held against \
               kvpin_engine_kv_capacity_tokens.",
        label: "",
        values: |replica| one(replica.held.active_tokens as f64),
    },
];

fn decisions(replica: &ReplicaSnapshot) -> [(&'static str, f64); 6] {
    let counters = &replica.counters;
    [
        ("sticky", counters.sticky),
        ("placed", counters.placed),
        ("spilled", counters.spilled_in),
        ("client_pinned", counters.client_pinned),
        ("unpinned", counters.unpinned),
        ("side", counters.side),
    ]
    .map(|(decision, count)| (decision, count as f64))
}

fn outcomes(replica: &ReplicaSnapshot) -> [(&'static str, f64); 5] {
    let counters = &replica.counters;
    [
        ("completed", counters.completed),
        ("rejected", counters.rejected),
        ("failed", counters.failed),
        ("abandoned", counters.abandoned),
        ("moved_on", counters.moved_on),
    ]
    .map(|(outcome, count)| (outcome, count as f64))
}

/// A value of the engine's newest scrape, if there is one.
fn of_engine(replica: &ReplicaSnapshot, value: impl Fn(&Scrape) -> f64) -> Vec<(&'static str, f64)> {
    replica.scrape.iter().flat_map(|(scrape, _)| one(value(scrape))).collect()
}

pub(super) fn one(value: f64) -> Vec<(&'static str, f64)> {
    vec![("", value)]
}
