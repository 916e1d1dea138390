//! A scenario: who asks, what serves, and which balancers are compared. YAML, in which no unknown key is let pass.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use super::settings::{self, Setting};
use super::spread::Spread;
use crate::balancer::{Admission, AdmissionMode, Stay, Tuning};
use crate::sim::config::EngineConfig;

/// The scenarios that are part of the program, each with its name and its text.
const BUILT_IN: [(&str, &str); 5] = [
    ("four-a4000", include_str!("../../bench/scenarios/four-a4000.yaml")),
    ("four-cpu-ranks", include_str!("../../bench/scenarios/four-cpu-ranks.yaml")),
    ("hundred-replicas", include_str!("../../bench/scenarios/hundred-replicas.yaml")),
    ("seven-5090", include_str!("../../bench/scenarios/seven-5090.yaml")),
    ("trace-like", include_str!("../../bench/scenarios/trace-like.yaml")),
];

/// The most replicas that a model may have, in a configuration too.
const REPLICAS_MAX: usize = 1024;
/// What a run may take in memory is bounded by it.
const SESSIONS_MAX: u32 = 100_000;
const WINDOW_MAX_S: f64 = 7.0 * 24.0 * 3600.0;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it stands for.
    pub about: String,
    /// Sessions at the same time, one number for each rung.
    #[serde(deserialize_with = "one_or_more")]
    pub sessions: Vec<u32>,
    pub arms: Vec<ArmName>,
    pub window: Window,
    pub workload: Workload,
    pub fleet: Fleet,
    pub balancer: BalancerSettings,
    #[serde(default)]
    pub vllm: VllmSettings,
}

/// Who decides where a turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArmName {
    /// vLLM's own balancer.
    Vllm,
    /// kvpin, with affinity.
    Affinity,
    /// And with admission.
    Admission,
    /// With admission in rotation.
    Fair,
    /// kvpin without affinity: every turn goes to the least loaded replica.
    LeastLoaded,
    /// Every session to the replica that the hash of its id names.
    Hashed,
}

/// What time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// How long sessions ask before anything counts.
    pub warmup_s: f64,
    /// How long they ask while it counts.
    pub measure_s: f64,
    /// How long turns may go on that run then. What ends in this time counts as if it had ended before.
    #[serde(default)]
    pub drain_s: f64,
}

/// What sessions ask.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// The system prompt, which all sessions share, in tokens.
    pub system_tokens: u32,
    /// The first message, the later ones and the replies, in tokens.
    pub first_tokens: Spread,
    pub turn_tokens: Spread,
    pub reply_tokens: Spread,
    /// Turns in a session, the first included.
    pub turns: Spread,
    /// From an answer's end to the next turn: the agent's tools, or a human, at work. Seconds.
    pub think_s: Spread,
    /// The sessions begin spread over so much time.
    #[serde(default)]
    pub ramp_s: f64,
    /// Between client and balancer, there and back.
    #[serde(default)]
    pub round_trip_ms: f64,
    /// Whether answers ask for tools, as the last one of a session doesn't. A tiny model with random weights never does.
    #[serde(default = "is_so")]
    pub asks_for_tools: bool,
    #[serde(default)]
    pub subagents: Option<Subagents>,
}

fn is_so() -> bool {
    true
}

/// Agents that an agent starts between two of its turns, and waits for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subagents {
    /// How many of a hundred turns are followed by a burst of them.
    pub bursts_percent: f64,
    pub count: Spread,
    /// Their system prompt is one of their own, which they share.
    pub system_tokens: u32,
    pub first_tokens: Spread,
    pub turns: Spread,
}

/// What serves. The names are vLLM's where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    pub replicas: usize,
    pub kv_tokens: u32,
    pub block_size: u32,
    pub max_model_len: u32,
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub prefill_tokens_per_s: f64,
    /// What every step costs: mostly the reading of the weights.
    pub step_ms: f64,
    /// What each decoding request adds to a step.
    pub decode_ms: f64,
    /// Tokens of context that attention reads per second.
    pub context_tokens_per_s: f64,
}

/// kvpin's settings, by the names that its configuration has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BalancerSettings {
    pub spill_threshold: SpillThreshold,
    #[serde(default)]
    pub admission: AdmissionSettings,
}

/// How the arms `admission` and `fair` admit conversations. The defaults are those of the balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdmissionSettings {
    pub held_max: u32,
    pub hold_max_s: u64,
    pub fill_percent: u32,
    pub growth_percent: u32,
    pub reserve_turns: u32,
    /// How long a silent resident keeps its room; without it that is learnt.
    pub stay_ms: Option<u64>,
    pub cold_max: u32,
    pub held_percent: u32,
    pub rotate_after_s: u64,
    pub trims: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SpillThreshold {
    Turns(u32),
    Word(Auto),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auto {
    Auto,
}

/// How vLLM's own balancer works in the version that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VllmSettings {
    pub rule: VllmRule,
    /// API servers, each with a view of its own. vLLM starts one for each rank.
    pub api_servers: usize,
    /// How many of a hundred connections the first of them takes beyond its even share. They all wait at one socket, and the
    /// kernel tends to wake the same one.
    pub first_server_percent: u32,
}

/// The three rules that vLLM has had (`v1/engine/core_client.py`, `v1/engine/coordinator.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VllmRule {
    /// Until July 2026: four times the waiting plus the running requests, ties to the first engine from a fixed place on.
    Counts,
    /// For dense models between pull requests 30739 and 49204: as `counts`, but no engine tells its counts.
    CountsUntold,
    /// Since pull request 49204: own requests in flight, told counts and KV use, ties in rotation.
    Score,
}

impl Default for VllmSettings {
    fn default() -> Self {
        VllmSettings { rule: VllmRule::Score, api_servers: 1, first_server_percent: 0 }
    }
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        let Admission { held_max, hold_max, tuning, .. } = Admission::default();
        AdmissionSettings {
            held_max,
            hold_max_s: hold_max.as_secs(),
            fill_percent: tuning.fill_percent,
            growth_percent: tuning.growth_percent,
            reserve_turns: tuning.reserve_turns,
            stay_ms: match tuning.stay {
                Stay::Learnt => None,
                Stay::Fixed(stay) => Some(stay.as_millis() as u64),
            },
            cold_max: tuning.cold_max,
            held_percent: tuning.held_percent,
            rotate_after_s: tuning.rotate_after.as_secs(),
            trims: tuning.trims,
        }
    }
}

impl AdmissionSettings {
    pub fn policy(&self, mode: AdmissionMode) -> Admission {
        Admission {
            mode,
            capacity_tokens: None,
            held_max: self.held_max,
            hold_max: Duration::from_secs(self.hold_max_s),
            tuning: Tuning {
                fill_percent: self.fill_percent,
                growth_percent: self.growth_percent,
                reserve_turns: self.reserve_turns,
                stay: self.stay_ms.map_or(Stay::Learnt, |stay| Stay::Fixed(Duration::from_millis(stay))),
                cold_max: self.cold_max,
                held_percent: self.held_percent,
                rotate_after: Duration::from_secs(self.rotate_after_s),
                trims: self.trims,
            },
        }
    }
}

impl ArmName {
    pub fn as_str(self) -> &'static str {
        match self {
            ArmName::Vllm => "vllm",
            ArmName::Affinity => "affinity",
            ArmName::Admission => "admission",
            ArmName::Fair => "fair",
            ArmName::LeastLoaded => "least_loaded",
            ArmName::Hashed => "hashed",
        }
    }
}

impl Scenario {
    /// The text of a scenario that is part of the program.
    pub fn built_in(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// The names of those.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Reads a scenario, with settings put over it.
    pub fn parse(text: &str, settings: &[Setting]) -> anyhow::Result<Scenario> {
        let mut tree: serde_yaml::Value = serde_yaml::from_str(text)?;
        for setting in settings {
            settings::put(&mut tree, setting)?;
        }
        // Through text again, so that a wrong value is told with its path.
        let scenario: Scenario = serde_yaml::from_str(&serde_yaml::to_string(&tree)?)?;
        scenario.check()?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.sessions.is_empty() && !self.arms.is_empty(), "sessions and arms must name at least one each");
        ensure!(
            self.sessions.iter().all(|count| (1..=SESSIONS_MAX).contains(count)),
            "sessions: from 1 to {SESSIONS_MAX}"
        );
        ensure!((1..=REPLICAS_MAX).contains(&self.fleet.replicas), "fleet.replicas: from 1 to {REPLICAS_MAX}");
        ensure!(self.vllm.api_servers > 0, "vllm.api_servers: at least 1");
        ensure!(self.vllm.first_server_percent <= 100, "vllm.first_server_percent: from 0 to 100");
        let Window { warmup_s, measure_s, drain_s } = self.window;
        for (key, seconds) in [("warmup_s", warmup_s), ("measure_s", measure_s), ("drain_s", drain_s)] {
            ensure!((0.0..=WINDOW_MAX_S).contains(&seconds), "window.{key}: from 0 to {WINDOW_MAX_S}");
        }
        ensure!(measure_s > 0.0, "window.measure_s: more than 0");
        let Workload { ramp_s, round_trip_ms, .. } = self.workload;
        ensure!((0.0..=WINDOW_MAX_S).contains(&ramp_s), "workload.ramp_s: from 0 to {WINDOW_MAX_S}");
        ensure!((0.0..=60_000.0).contains(&round_trip_ms), "workload.round_trip_ms: from 0 to 60,000");
        self.fleet.engine()?.validate().context("fleet")?;
        let first =
            self.workload.system_tokens as f64 + self.workload.first_tokens.most() + self.workload.reply_tokens.most();
        ensure!(
            first <= f64::from(self.fleet.max_model_len),
            "fleet.max_model_len: a first turn may need {first} tokens"
        );
        Ok(())
    }
}

impl Fleet {
    /// One of its engines.
    pub fn engine(&self) -> anyhow::Result<EngineConfig> {
        let per_second = self.context_tokens_per_s;
        ensure!(per_second > 0.0, "fleet.context_tokens_per_s: more than 0");
        let time = |key, ms: f64| Duration::try_from_secs_f64(ms / 1000.0).with_context(|| format!("fleet.{key}"));
        Ok(EngineConfig {
            block_size: self.block_size,
            kv_tokens: self.kv_tokens,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            prefill_tokens_per_s: self.prefill_tokens_per_s,
            step: time("step_ms", self.step_ms)?,
            decode: time("decode_ms", self.decode_ms)?,
            context: Duration::from_nanos((1e9 / per_second) as u64),
            step_jitter: 0.0,
            seed: 0,
        })
    }
}

impl Window {
    pub fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup_s)
    }

    /// When no turn begins any more.
    pub fn end(&self) -> Duration {
        Duration::from_secs_f64(self.warmup_s + self.measure_s)
    }

    /// When everything is over.
    pub fn drained(&self) -> Duration {
        self.end() + Duration::from_secs_f64(self.drain_s)
    }
}

fn one_or_more<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number of sessions, or a list of them")]
    enum Written {
        One(u32),
        More(Vec<u32>),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::One(count) => vec![count],
        Written::More(counts) => counts,
    })
}
