//! The status: what a page, a terminal view or a program may want to show of kvpin, as one JSON object.
//!
//! The format is stable: fields are added, never renamed or given another meaning. Units stand in the names; a percentage
//! goes from 0 to 100. What is not known is `null`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::balancer::{self, MaxNumSeqsSource, Membership, ReplicaSnapshot, Scrape, Snapshot};
use crate::dispatch::Model;
use crate::gpu::Gpus;
use crate::keys::KeySnapshot;

use super::View;
use super::admission::Admission;
use super::books::{Books, FirstByte, WorkingSet};
use super::gpus::{self, GpuStatus, NvmlStatus};
use super::lately::{ReloadStatus, UpgradeStatus};

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub kvpin: Process,
    /// In the order of the configuration.
    pub models: Vec<ModelStatus>,
    /// In the order of the keys file; empty where there is none.
    #[serde(default)]
    pub keys: Vec<KeyStatus>,
    #[serde(default)]
    pub nvml: NvmlStatus,
    /// All that NVML knows of on this machine, in the order of their numbers; empty where there is none.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
}

/// An API key. Counts are of requests, since its name was first configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyStatus {
    pub name: String,
    pub in_flight: u32,
    pub in_flight_max: Option<u32>,
    pub requests_per_minute_max: Option<u32>,
    /// By outcome: `passed`, `forbidden`, `limited` or `refused`.
    pub requests: BTreeMap<String, u64>,
}

/// The process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub version: String,
    /// 0: a kvpin that doesn't say.
    #[serde(default)]
    pub pid: u32,
    pub uptime_s: f64,
    /// Requests that are being handled at this moment, whatever they are for.
    pub open_requests: usize,
    /// `null` until there was one.
    pub last_reload: Option<ReloadStatus>,
    /// The newest try to put another process in the place of this one; `null` until one came to nothing.
    pub last_failed_upgrade: Option<UpgradeStatus>,
}

/// A model. Counts are since it was first configured, without replicas that are gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    pub name: String,
    pub aliases: Vec<String>,
    pub affinity: bool,
    /// `affinity` or `least_loaded`.
    pub mode: String,
    pub spill_threshold: SpillThreshold,
    /// Conversations that are remembered, active and idle.
    pub conversations: usize,
    /// Of the turns whose conversation had a pin: the share that was served there. The others were spilled, or their
    /// conversation had to be placed anew.
    pub sticky_percent: Option<f64>,
    /// Of the tokens that the engines looked up in their prefix caches since they started: the share that was found.
    pub prefix_hit_percent: Option<f64>,
    pub in_flight: u32,
    /// The sums of the replicas' books.
    #[serde(flatten)]
    pub books: Books,
    pub first_byte: FirstByte,
    pub working_set: WorkingSet,
    #[serde(default)]
    pub admission: Admission,
    /// Turns that got no replica, by reason.
    pub refused: BTreeMap<String, u64>,
    /// What an operator should know, in words.
    pub notes: Vec<String>,
    /// The configured ones, and those that a reload took out and that still serve turns.
    pub replicas: Vec<ReplicaStatus>,
}

/// The spill threshold of a model, as configured. What it comes to is said of each replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpillThreshold {
    pub configured: ConfiguredThreshold,
}

/// `"auto"` or a number of turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConfiguredThreshold {
    Word(Auto),
    Turns(u32),
}

/// A quarter of `max_num_seqs`, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auto {
    Auto,
}

/// A replica. Counts are of turns, since it was first configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaStatus {
    pub name: String,
    pub address: String,
    /// The data-parallel rank, where the replica is one of several behind its address.
    pub rank: Option<u16>,
    /// `unknown`, `up`, `suspect`, `down`, `draining` or `sleeping`.
    pub health: String,
    /// Why it is suspect or down: `connect_refused`, `connect_timed_out`, `probe_failed`, `broke_off`, `failing` or `hung`. Why it
    /// is draining: `ordered`, `configured` or `shutting_down`.
    pub health_reason: Option<String>,
    /// How long it has had that health.
    pub health_age_s: f64,
    /// Why it takes nothing new, whatever its health: `ordered` or `configured`. It is drained when `in_flight` is 0.
    pub drain: Option<String>,
    /// How much of its work it is given, 10 to 100: less than all for a while after it came back or was restarted.
    pub ramp_percent: u32,
    /// Restarts of its engine that were seen. With each of them its cache was lost.
    pub restarts: u64,
    pub in_flight: u32,
    pub conversations: Conversations,
    /// Turns of conversations that are pinned here.
    pub sticky: u64,
    /// First turns of conversations that were pinned here.
    pub placed: u64,
    /// Those of `placed` whose conversation had to leave another replica for good.
    pub replaced: u64,
    /// Those of `placed` that began here because the conversation they were forked from is here.
    pub forked: u64,
    /// Turns of conversations that are pinned elsewhere.
    pub spilled_in: u64,
    /// Turns for which the client named this replica.
    pub client_pinned: u64,
    /// Turns that were sent here by load alone.
    pub unpinned: u64,
    /// Token counting and the like.
    pub side: u64,
    pub outcomes: Outcomes,
    #[serde(flatten)]
    pub books: Books,
    /// Tokens of the active conversations pinned here, as far as turns of them were measured.
    pub working_set_tokens: u64,
    /// Conversations that were let in and have kept their room since, at work or silent; `null`, as the next two, where
    /// nobody is held for this replica: admission is off, or the size of its cache isn't known.
    #[serde(default)]
    pub residents: Option<u32>,
    /// Tokens of its cache that they take, with what other turns in flight take. A beginning that all have in common counts once.
    #[serde(default)]
    pub resident_tokens: Option<u64>,
    /// Up to how many of those conversations are let in: its KV cache, or less while residents miss their histories in it.
    #[serde(default)]
    pub admission_limit_tokens: Option<u64>,
    /// The `index` of each of the GPUs that it runs on, as configured and as far as they exist; several replicas may have the same.
    #[serde(default)]
    pub gpus: Vec<u32>,
    /// Turns in flight from which on a pinned turn may be served elsewhere.
    pub spill_threshold: u32,
    pub max_num_seqs: u32,
    /// `configured`, `engine` (the engine told it) or `assumed`.
    pub max_num_seqs_source: String,
    /// Whether a reload took it out.
    pub retired: bool,
    /// What the engine says of itself; `null` until it has said something.
    pub engine: Option<Engine>,
}

/// Conversations pinned to a replica.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conversations {
    /// With a turn in the last minute.
    pub active: u32,
    /// Those of `active` that are a subagent, a child session or a fork of another conversation.
    pub relatives: u32,
    pub idle: u32,
    /// Pinned before the replica lost its cache, and not used since: they are placed anew with their next turn.
    pub lost: u32,
}

/// How the turns of a replica ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcomes {
    pub completed: u64,
    /// The engine answered with an error status.
    pub rejected: u64,
    /// The replica failed, and the client saw it.
    pub failed: u64,
    /// The client went away.
    pub abandoned: u64,
    /// The replica failed before it answered, and the turn went on elsewhere.
    pub moved_on: u64,
}

/// An engine's own figures. Counts are since it started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    pub scrape_age_s: f64,
    /// Requests in its batch, and requests that wait for a place in it; kvpin's and others.
    pub running: u32,
    pub waiting: u32,
    /// What running requests hold of the KV cache. What is only cached does not count.
    pub kv_use_percent: f64,
    pub kv_capacity_tokens: Option<u64>,
    /// Tokens looked up in the prefix cache, and found there.
    pub prefix_queries_tokens: u64,
    pub prefix_hits_tokens: u64,
    pub prefix_hit_percent: Option<f64>,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
}

impl Status {
    pub fn of(view: &View) -> Self {
        Status {
            kvpin: Process {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_s: seconds(view.uptime),
                open_requests: view.open_requests,
                last_reload: view.last_reload.clone(),
                last_failed_upgrade: view.last_failed_upgrade.clone(),
            },
            models: view.models.iter().map(|(model, snapshot)| ModelStatus::of(model, snapshot, &view.gpus)).collect(),
            keys: view.keys.iter().map(KeyStatus::of).collect(),
            nvml: NvmlStatus::from(&view.gpus),
            gpus: view.gpus.gpus.iter().map(GpuStatus::from).collect(),
        }
    }
}

impl KeyStatus {
    fn of(key: &KeySnapshot) -> Self {
        KeyStatus {
            name: key.name.clone(),
            in_flight: key.in_flight,
            in_flight_max: key.in_flight_max,
            requests_per_minute_max: key.requests_per_minute_max,
            requests: key.requests.iter().map(|(verdict, count)| (verdict.as_str().to_owned(), *count)).collect(),
        }
    }
}

impl ModelStatus {
    fn of(model: &Model, snapshot: &Snapshot, gpus: &Gpus) -> Self {
        let replicas = &snapshot.replicas;
        let sum = |count: fn(&ReplicaSnapshot) -> u64| replicas.iter().map(count).sum::<u64>();
        let of_engines = |count: fn(&Scrape) -> u64| {
            replicas.iter().filter_map(|replica| replica.scrape.as_ref()).map(|(scrape, _)| count(scrape)).sum::<u64>()
        };
        let sticky = sum(|replica| replica.counters.sticky);
        let moved = sum(|replica| replica.counters.spilled_in + replica.counters.replaced);
        ModelStatus {
            name: model.name.clone(),
            aliases: model.aliases.clone(),
            affinity: model.affinity,
            mode: snapshot.mode.as_str().to_owned(),
            spill_threshold: SpillThreshold { configured: snapshot.spill_threshold.into() },
            conversations: snapshot.conversations,
            sticky_percent: percent(sticky, sticky + moved),
            prefix_hit_percent: percent(
                of_engines(|scrape| scrape.prefix_hits_tokens),
                of_engines(|scrape| scrape.prefix_queries_tokens),
            ),
            in_flight: replicas.iter().map(|replica| replica.in_flight).sum(),
            books: Books::of_model(snapshot),
            first_byte: FirstByte::from(&snapshot.first_bytes),
            working_set: WorkingSet::of(replicas),
            admission: Admission::of(snapshot),
            refused: snapshot.refused.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect(),
            notes: notes(model, snapshot).into_iter().chain(gpus::notes(model, gpus)).collect(),
            replicas: replicas.iter().map(|replica| ReplicaStatus::of(model, replica, gpus)).collect(),
        }
    }
}

impl From<balancer::SpillThreshold> for ConfiguredThreshold {
    fn from(threshold: balancer::SpillThreshold) -> Self {
        match threshold {
            balancer::SpillThreshold::Auto => ConfiguredThreshold::Word(Auto::Auto),
            balancer::SpillThreshold::Fixed(turns) => ConfiguredThreshold::Turns(turns),
        }
    }
}

impl ReplicaStatus {
    fn of(model: &Model, replica: &ReplicaSnapshot, gpus: &Gpus) -> Self {
        let counters = &replica.counters;
        ReplicaStatus {
            name: replica.spec.name.clone(),
            address: replica.spec.address.to_string(),
            rank: replica.spec.rank,
            health: replica.health.as_str().to_owned(),
            health_reason: replica.health.reason().map(str::to_owned),
            health_age_s: seconds(replica.health_age),
            drain: replica.drain.map(|reason| reason.as_str().to_owned()),
            ramp_percent: replica.ramp_percent,
            restarts: counters.restarts,
            in_flight: replica.in_flight,
            conversations: Conversations {
                active: replica.held.active,
                relatives: replica.held.relatives,
                idle: replica.held.idle,
                lost: replica.held.lost,
            },
            sticky: counters.sticky,
            placed: counters.placed,
            replaced: counters.replaced,
            forked: counters.forked,
            spilled_in: counters.spilled_in,
            client_pinned: counters.client_pinned,
            unpinned: counters.unpinned,
            side: counters.side,
            outcomes: Outcomes {
                completed: counters.completed,
                rejected: counters.rejected,
                failed: counters.failed,
                abandoned: counters.abandoned,
                moved_on: counters.moved_on,
            },
            books: Books::from(&replica.ledger),
            working_set_tokens: replica.held.active_tokens,
            residents: replica.room.map(|room| room.residents),
            resident_tokens: replica.room.map(|room| room.working_set_tokens),
            admission_limit_tokens: replica.room.map(|room| room.limit_tokens),
            gpus: match replica.membership {
                Membership::Configured => gpus::of_replica(model, &replica.spec.name, gpus),
                Membership::Retired => Vec::new(),
            },
            spill_threshold: replica.spill_threshold,
            max_num_seqs: replica.max_num_seqs,
            max_num_seqs_source: replica.max_num_seqs_source.as_str().to_owned(),
            retired: replica.membership == Membership::Retired,
            engine: replica.scrape.as_ref().map(|(scrape, age)| Engine::of(scrape, *age)),
        }
    }
}

impl Engine {
    fn of(scrape: &Scrape, age: Duration) -> Self {
        Engine {
            scrape_age_s: seconds(age),
            running: scrape.running,
            waiting: scrape.waiting,
            kv_use_percent: hundredths(scrape.kv_use * 100.0),
            kv_capacity_tokens: Some(scrape.kv_capacity_tokens).filter(|tokens| *tokens > 0),
            prefix_queries_tokens: scrape.prefix_queries_tokens,
            prefix_hits_tokens: scrape.prefix_hits_tokens,
            prefix_hit_percent: percent(scrape.prefix_hits_tokens, scrape.prefix_queries_tokens),
            prompt_tokens: scrape.prompt_tokens,
            generation_tokens: scrape.generation_tokens,
        }
    }
}

fn notes(model: &Model, snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if model.affinity_ordered {
        let word = if model.affinity { "on" } else { "off" };
        notes.push(format!("affinity is {word} by an order, not by the file; a reload goes by the file again"));
    }
    let assumed = |replica: &&ReplicaSnapshot| replica.max_num_seqs_source == MaxNumSeqsSource::Assumed;
    if let Some(replica) = snapshot.replicas.iter().find(assumed) {
        notes.push(format!("max_num_seqs is not configured: {} is assumed", replica.max_num_seqs));
    }
    if snapshot.replicas.iter().any(|replica| replica.spec.rank.is_some()) {
        notes.push("turns on /v1/responses can't be pinned to a rank and count as unpinned".to_owned());
    }
    notes
}

/// `None` where there is no whole to have a share of.
pub(super) fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| hundredths(part as f64 * 100.0 / whole as f64))
}

/// Cut, not rounded, so that nearly all never reads as all. What is added makes up for the error of binary fractions.
fn hundredths(value: f64) -> f64 {
    (value * 100.0 + 1e-6).floor() / 100.0
}

pub(super) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}
