//! The health of one replica: a state machine that is driven by what is seen of it.
//!
//! ```text
//!   unknown --answered, served--> up <--------------------- answered n times, served, a step --.
//!      |                           | one failure                                              |
//!      |                           v                                                          |
//!      '---------------------> suspect --n failures in a row, and not busy--> down -----------'
//!
//!   refused: down at once     requests, but no step and no byte: suspect (hung), then down (hung)
//!   told that it shuts down: draining     its engine sleeps: sleeping
//! ```
//!
//! Failures of probes and of turns are counted apart: an API server that answers probes well says nothing about an engine
//! that breaks off turns. *Busy* is a replica that has requests and showed a sign of life within the time after which it
//! would count as hung. However late or badly it answers, it is no worse than suspect: vLLM's API server is slow to answer
//! probes exactly when it has much to do, and the price of a wrong verdict is every cache of that server.

use std::time::Duration;

use super::evidence::Evidence;
use super::health::{DownReason, DrainReason, Health, RestartCause};
use super::load::Scrape;
use super::policy::HealthPolicy;
use super::silence::Silence;

/// A replica that goes down again so soon after it came back has to show itself for twice as long before the next time.
const RELAPSE_WINDOW: Duration = Duration::from_secs(60);

/// After so many relapses the successes that are asked for double no more: 32 times as many.
const RELAPSES_MAX: u32 = 5;

/// One good turn doesn't clear a replica that became suspect only just now. An engine with a full queue takes some turns
/// and refuses others, and its health would change with each of them.
const SUSPECT_MIN: Duration = Duration::from_secs(1);

/// How long an engine that said that it shuts down is believed while it goes on to answer. vLLM ends when its last request
/// does, or after its `--shutdown-timeout`.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);

/// What a replica is given at once when it comes back: enough that a small box uses it before the others have many times as
/// much, and too little for a stampede of cold prefills.
const RAMP_PERCENT_MIN: u128 = 10;

/// What is known of the life of one replica.
#[derive(Clone, Debug)]
pub struct Vitals {
    health: Health,
    since: Duration,
    /// In a row.
    probes_failed: u32,
    turns_failed: u32,
    /// Good probes since the last failure of any kind.
    successes: u32,
    relapses: u32,
    /// When it last came back, or restarted: from then on it is given more and more.
    recovered: Option<Duration>,
    /// Whether nobody listened there when it was tried last.
    was_refused: bool,
    /// Whether the newest figures have anything by which a step of the engine could be seen.
    is_measured: bool,
    silence: Silence,
    /// A restart that nobody has acted on yet.
    restart: Option<RestartCause>,
}

impl Vitals {
    pub fn new(now: Duration) -> Self {
        Vitals {
            health: Health::Unknown,
            since: now,
            probes_failed: 0,
            turns_failed: 0,
            successes: 0,
            relapses: 0,
            recovered: None,
            was_refused: false,
            is_measured: false,
            silence: Silence::default(),
            restart: None,
        }
    }

    pub fn health(&self) -> Health {
        self.health
    }

    pub fn since(&self) -> Duration {
        self.since
    }

    /// The share of its work that it may be given, 10 to 100 percent. It grows with the time since it came back.
    pub fn ramp_percent(&self, policy: &HealthPolicy, now: Duration) -> u32 {
        let Some(recovered) = self.recovered else { return 100 };
        let past_ms = now.saturating_sub(recovered).as_millis().saturating_mul(100);
        let percent = past_ms.checked_div(policy.ramp.as_millis()).unwrap_or(100);
        percent.clamp(RAMP_PERCENT_MIN, 100) as u32
    }

    /// A restart that was seen and not yet acted on.
    pub fn take_restart(&mut self) -> Option<RestartCause> {
        self.restart.take()
    }

    /// kvpin has turns there, or has none any more.
    pub fn set_occupied(&mut self, is_occupied: bool, now: Duration) {
        self.silence.set_occupied(is_occupied, now);
    }

    pub fn observe(&mut self, evidence: Evidence, policy: &HealthPolicy, now: Duration) {
        match evidence {
            Evidence::Answered => self.answered(policy, now),
            Evidence::Served => self.served(now),
            Evidence::Unreachable(DownReason::ConnectRefused) => {
                self.was_refused = true;
                self.go_down(DownReason::ConnectRefused, now);
            }
            // Asking again changes nothing, and whoever answers there is not to be given prompts meanwhile.
            Evidence::Unreachable(DownReason::CertificateRefused) => self.go_down(DownReason::CertificateRefused, now),
            Evidence::Unreachable(reason) => self.probe_failed(reason, policy, now),
            Evidence::ProbeFailed => self.probe_failed(DownReason::ProbeFailed, policy, now),
            Evidence::BrokeOff => self.turn_failed(DownReason::BrokeOff, policy, now),
            Evidence::Failing => self.turn_failed(DownReason::Failing, policy, now),
            Evidence::Draining => self.told_of_shutdown(now),
        }
    }

    /// Takes in the newest figures, with those before them and whether kvpin has turns there.
    pub fn scraped(&mut self, new: &Scrape, old: Option<&Scrape>, policy: &HealthPolicy) {
        let now = new.at;
        self.note_restart(new, old);
        self.note_sleep(new, now);
        self.is_measured = new.signs.has_heartbeat();
        if old.is_none_or(|old| new.has_moved_since(old)) {
            self.silence.end(now);
            match self.health {
                Health::Suspect(DownReason::Hung) => self.clear(now),
                Health::Down(DownReason::Hung) => self.come_back(now),
                Health::Unknown
                | Health::Up
                | Health::Suspect(_)
                | Health::Down(_)
                | Health::Draining(_)
                | Health::Sleeping => {}
            }
        }
        self.judge_silence(policy, now);
    }

    /// The figures did not come, and not because the server doesn't have them.
    pub fn scrape_failed(&mut self, policy: &HealthPolicy, now: Duration) {
        self.judge_silence(policy, now);
    }

    fn answered(&mut self, policy: &HealthPolicy, now: Duration) {
        self.probes_failed = 0;
        self.successes = self.successes.saturating_add(1);
        // Where there are figures, the next ones tell a restart from a way that was closed, and it counts once.
        if !self.is_measured && std::mem::take(&mut self.was_refused) {
            self.restart = Some(RestartCause::WasRefused);
        }
        let is_enough = self.successes >= policy.successes << self.relapses;
        match self.health {
            Health::Unknown => self.change(Health::Up, now),
            Health::Suspect(DownReason::Hung) => {}
            Health::Suspect(_) if self.turns_failed == 0 || is_enough => self.clear(now),
            // Its server answers while its engine hangs. Only a step clears it, or that nothing is there to wait for.
            Health::Down(DownReason::Hung) if self.silence.is_occupied() => self.successes = 0,
            Health::Down(_) if is_enough => self.come_back(now),
            Health::Draining(_) if now.saturating_sub(self.since) > SHUTDOWN_MAX => {
                self.change(Health::Suspect(DownReason::Failing), now);
            }
            Health::Up | Health::Suspect(_) | Health::Down(_) | Health::Draining(_) | Health::Sleeping => {}
        }
    }

    fn served(&mut self, now: Duration) {
        self.silence.end(now);
        self.probes_failed = 0;
        self.turns_failed = 0;
        match self.health {
            Health::Unknown => self.change(Health::Up, now),
            Health::Suspect(_) if now.saturating_sub(self.since) >= SUSPECT_MIN => self.clear(now),
            Health::Down(DownReason::ConnectRefused) => {}
            Health::Down(_) => self.come_back(now),
            // What runs on an engine that shuts down still makes progress.
            Health::Up | Health::Suspect(_) | Health::Draining(_) | Health::Sleeping => {}
        }
    }

    fn probe_failed(&mut self, reason: DownReason, policy: &HealthPolicy, now: Duration) {
        self.probes_failed = self.probes_failed.saturating_add(1);
        self.failed(self.probes_failed, reason, policy, now);
    }

    fn turn_failed(&mut self, reason: DownReason, policy: &HealthPolicy, now: Duration) {
        self.turns_failed = self.turns_failed.saturating_add(1);
        self.failed(self.turns_failed, reason, policy, now);
    }

    fn told_of_shutdown(&mut self, now: Duration) {
        self.successes = 0;
        match self.health {
            Health::Down(_) => {}
            Health::Unknown | Health::Up | Health::Suspect(_) | Health::Draining(_) | Health::Sleeping => {
                self.change(Health::Draining(DrainReason::ShuttingDown), now);
            }
        }
    }

    fn note_restart(&mut self, new: &Scrape, old: Option<&Scrape>) {
        let cause = old.and_then(|old| new.restart_since(old));
        let is_known_process = old.is_some_and(|old| new.signs.is_same_process(&old.signs));
        let was_refused = std::mem::take(&mut self.was_refused);
        // A known start time speaks against a restart: the way to the server was closed, not the server.
        let cause = cause.or((was_refused && !is_known_process).then_some(RestartCause::WasRefused));
        if cause.is_some() {
            self.restart = cause;
            self.silence.end(new.at);
            if matches!(self.health, Health::Draining(_)) {
                self.come_back(new.at);
            }
        }
    }

    fn note_sleep(&mut self, new: &Scrape, now: Duration) {
        match (new.signs.is_asleep, self.health) {
            (Some(true), Health::Unknown | Health::Up | Health::Suspect(_)) => self.change(Health::Sleeping, now),
            (Some(false), Health::Sleeping) => self.come_back(now),
            (Some(_) | None, _) => {}
        }
    }

    /// Requests and no sign of life: half of the time makes a replica suspect, all of it takes it down. Nothing is said of an
    /// engine whose steps can't be seen: a long prefill is silent too.
    fn judge_silence(&mut self, policy: &HealthPolicy, now: Duration) {
        if !self.is_measured || !self.silence.is_occupied() {
            return;
        }
        let silent = self.silence.length(now);
        match self.health {
            Health::Unknown | Health::Up | Health::Suspect(_) if silent >= policy.hung => {
                self.go_down(DownReason::Hung, now);
            }
            Health::Unknown | Health::Up if silent >= policy.hung / 2 => {
                self.change(Health::Suspect(DownReason::Hung), now);
            }
            Health::Unknown
            | Health::Up
            | Health::Suspect(_)
            | Health::Down(_)
            | Health::Draining(_)
            | Health::Sleeping => {}
        }
    }

    /// A failure, the so many-th of its kind in a row.
    fn failed(&mut self, in_a_row: u32, reason: DownReason, policy: &HealthPolicy, now: Duration) {
        self.successes = 0;
        let is_busy = self.silence.is_occupied() && self.silence.length(now) < policy.hung;
        if in_a_row >= policy.failures && !is_busy {
            if !matches!(self.health, Health::Down(_)) {
                self.go_down(reason, now);
            }
            return;
        }
        match self.health {
            Health::Unknown | Health::Up => self.change(Health::Suspect(reason), now),
            Health::Suspect(_) | Health::Down(_) | Health::Draining(_) | Health::Sleeping => {}
        }
    }

    fn go_down(&mut self, reason: DownReason, now: Duration) {
        let was_down = matches!(self.health, Health::Down(_));
        if !was_down {
            let is_relapse = self.recovered.is_some_and(|at| now.saturating_sub(at) < RELAPSE_WINDOW);
            self.relapses = if is_relapse { (self.relapses + 1).min(RELAPSES_MAX) } else { 0 };
        }
        self.successes = 0;
        self.change(Health::Down(reason), now);
    }

    /// From suspect: nothing was lost, so nothing has to grow.
    fn clear(&mut self, now: Duration) {
        self.turns_failed = 0;
        self.change(Health::Up, now);
    }

    fn come_back(&mut self, now: Duration) {
        self.recovered = Some(now);
        self.probes_failed = 0;
        self.successes = 0;
        self.silence.end(now);
        self.clear(now);
    }

    /// From when on it may be given all of its work.
    pub fn ramps_until(&self, policy: &HealthPolicy) -> Duration {
        self.recovered.map_or(Duration::ZERO, |recovered| recovered.saturating_add(policy.ramp))
    }

    /// The cache is empty, whatever its health: what it is given has to grow.
    pub fn begin_ramp(&mut self, now: Duration) {
        self.recovered = Some(now);
    }

    fn change(&mut self, health: Health, now: Duration) {
        if self.health != health {
            self.health = health;
            self.since = now;
        }
    }

    /// Puts it in a state, however it came to it.
    #[cfg(test)]
    pub fn set(&mut self, health: Health, now: Duration) {
        self.change(health, now);
    }
}
