//! The load of a replica: kvpin's own leases, exact and current, and what its newest scrape adds to them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::health::RestartCause;

/// A scrape older than this says nothing about the load any more: three missed periods of the default of one second,
/// and one more for a slow answer.
pub const SCRAPE_AGE_MAX: Duration = Duration::from_secs(4);

/// What one engine said of itself in one scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scrape {
    /// When the answer was complete, on the balancer's clock.
    pub at: Duration,
    /// Requests in the engine's batch.
    pub running: u32,
    /// Requests that wait for a place in it.
    pub waiting: u32,
    /// Share of the KV blocks that live requests hold, 0 to 1. An idle conversation's cached blocks don't count.
    pub kv_use: f64,
    /// Tokens of KV cache this engine has; 0 where it doesn't say.
    pub kv_capacity_tokens: u64,
    /// Tokens looked up in the prefix cache, and found there, since the engine started.
    pub prefix_queries_tokens: u64,
    pub prefix_hits_tokens: u64,
    /// Prompt and generated tokens since the engine started.
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub signs: Signs,
}

/// What of a scrape tells whether the engine lives, and whether it is still the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signs {
    /// When its server's process started, in seconds since the Unix epoch. Absent where several processes share the metrics.
    pub start_s: Option<f64>,
    /// Steps that the engine has made, and tokens that it has generated, where it says so.
    pub steps: Option<u64>,
    pub generated: Option<u64>,
    /// How many engines the figures are the sum of.
    pub engines: u16,
    /// `None` where it doesn't say.
    pub is_asleep: Option<bool>,
}

impl Scrape {
    /// Whether something is different that only the engine's work changes. vLLM counts a step only if a token came of it
    /// (`v1/engine/async_llm.py`), but the KV blocks of a long prefill grow with each of its chunks.
    pub fn has_moved_since(&self, old: &Scrape) -> bool {
        let work = |scrape: &Scrape| {
            let requests = (scrape.running, scrape.waiting, scrape.kv_use.to_bits());
            (requests, scrape.prompt_tokens, scrape.prefix_queries_tokens, scrape.signs.steps, scrape.signs.generated)
        };
        work(self) != work(old)
    }

    /// What shows that the engine was started anew since an older scrape, if anything does. A series that is missing in
    /// either shows nothing.
    pub fn restart_since(&self, old: &Scrape) -> Option<RestartCause> {
        let (new, old) = (&self.signs, &old.signs);
        if let (Some(new), Some(old)) = (new.start_s, old.start_s)
            && new != old
        {
            return Some(RestartCause::StartTime);
        }
        let fell = |new: Option<u64>, old: Option<u64>| Some(new? < old?);
        let (steps, generated) = (fell(new.steps, old.steps), fell(new.generated, old.generated));
        let all_fell = steps.or(generated) == Some(true) && generated != Some(false);
        (all_fell && new.engines == old.engines).then_some(RestartCause::CountersFell)
    }

    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }
}

impl Signs {
    /// Whether a step of the engine could be seen in them.
    pub fn has_heartbeat(&self) -> bool {
        self.steps.is_some() || self.generated.is_some()
    }

    /// Whether both are known to be of the same process.
    pub fn is_same_process(&self, other: &Signs) -> bool {
        self.start_s.is_some() && self.start_s == other.start_s
    }
}

/// What a replica is busy with.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// kvpin's own leases.
    in_flight: u32,
    /// The most leases at any moment since the newest scrape was asked for.
    in_flight_peak: u32,
    scrape: Option<Scrape>,
    /// Requests in the newest scrape that can't be kvpin's own.
    foreign: u32,
}

impl Load {
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    pub fn scrape(&self) -> Option<&Scrape> {
        self.scrape.as_ref()
    }

    pub fn begin(&mut self) {
        self.in_flight += 1;
        self.in_flight_peak = self.in_flight_peak.max(self.in_flight);
    }

    pub fn end(&mut self) {
        debug_assert!(self.in_flight > 0, "a lease ended that never began");
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// A scrape is being asked for: leases from here on may be in its figures.
    pub fn scrape_begins(&mut self) {
        self.in_flight_peak = self.in_flight;
    }

    /// Takes a scrape in. What it counts beyond the most leases kvpin held meanwhile came from elsewhere.
    pub fn scraped(&mut self, scrape: Scrape) {
        self.foreign = (scrape.running + scrape.waiting).saturating_sub(self.in_flight_peak);
        self.scrape = Some(scrape);
    }

    /// Whether there are requests on the replica, kvpin's own or others that the newest scrape saw.
    pub fn is_occupied(&self) -> bool {
        self.in_flight > 0 || self.scrape.is_some_and(|scrape| !scrape.is_idle())
    }

    /// Requests of others that the newest scrape saw. They count until [`Load::fresh_until`], as the next does.
    pub fn foreign(&self) -> u32 {
        self.foreign
    }

    /// KV use in tenths, 0 to 10, 0 when not known. Coarse, so that noise does not decide where equals differ.
    pub fn kv_use_tenths(&self) -> u8 {
        match &self.scrape {
            // Only live requests hold blocks: a gauge that stands above 0 without any is stuck.
            Some(scrape) if !scrape.is_idle() => (scrape.kv_use.clamp(0.0, 1.0) * 10.0) as u8,
            _ => 0,
        }
    }

    /// The last moment at which the newest scrape says something about the load.
    pub fn fresh_until(&self) -> Duration {
        self.scrape.map_or(Duration::ZERO, |scrape| scrape.at + SCRAPE_AGE_MAX)
    }
}
