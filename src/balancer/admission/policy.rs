//! How a model wants its conversations admitted.

use std::time::Duration;

/// How a model wants its conversations admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    pub mode: AdmissionMode,
    /// Tokens of KV cache a replica has, where the configuration says so; else what its engine tells.
    pub capacity_tokens: Option<u64>,
    /// The most turns that wait at once.
    pub held_max: u32,
    /// How long a turn waits at most until it is let in over the line.
    pub hold_max: Duration,
    pub tuning: Tuning,
}

/// Whether anybody is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionMode {
    /// Nobody.
    #[default]
    Off,
    /// Whoever would not fit. A conversation that was let in stays until it ends or falls silent.
    Auto,
    /// As `Auto`, and whoever was resident for long makes room for who has waited long: nobody waits for minutes, and
    /// more is read again.
    Fair,
}

/// What the policy is made of. Each has its bench: `bench/admission.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The share of the capacity up to which conversations are let in.
    pub fill_percent: u32,
    /// The share of the capacity up to which residents may grow before idle ones have to make room.
    pub growth_percent: u32,
    /// Room that is kept for a conversation to grow, in turns as it usually grows.
    pub reserve_turns: u32,
    pub stay: Stay,
    /// How many cold histories may be computed on a replica at once while others wait; 0: as many as fit.
    pub cold_max: u32,
    /// So many turns in a hundred are held at most; who would be held beyond that is let in over the line. 100: no bound.
    pub held_percent: u32,
    /// In [`AdmissionMode::Fair`]: after how long a wait somebody has to make room, and how long who is let in may stay
    /// undisturbed.
    pub rotate_after: Duration,
    /// Whether the capacity is trimmed by what residents find in the cache.
    pub trims: bool,
}

/// How long a silent resident keeps its room from those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// As long as the saving is worth it, by how soon conversations were seen to come back.
    Learnt,
    Fixed(Duration),
}

impl Tuning {
    const DEFAULT: Tuning = Tuning {
        fill_percent: 100,
        growth_percent: 105,
        reserve_turns: 1,
        stay: Stay::Learnt,
        cold_max: 0,
        held_percent: 100,
        rotate_after: Duration::from_secs(20),
        trims: true,
    };
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning::DEFAULT
    }
}

impl Admission {
    /// Nobody is held.
    pub const OFF: Admission = Admission {
        mode: AdmissionMode::Off,
        capacity_tokens: None,
        held_max: 0,
        hold_max: Duration::ZERO,
        tuning: Tuning::DEFAULT,
    };
}

/// As the configuration has it where it says nothing.
impl Default for Admission {
    fn default() -> Self {
        Admission {
            mode: AdmissionMode::Auto,
            capacity_tokens: None,
            held_max: 1_000,
            hold_max: Duration::from_secs(300),
            tuning: Tuning::default(),
        }
    }
}

impl AdmissionMode {
    /// The word used in the configuration and on the status page.
    pub fn as_str(self) -> &'static str {
        match self {
            AdmissionMode::Off => "off",
            AdmissionMode::Auto => "auto",
            AdmissionMode::Fair => "fair",
        }
    }
}
