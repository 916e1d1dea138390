//! One step of an engine, or several that differ in their context only: what is in it, how long it takes.

use std::time::Duration;

use super::config::EngineConfig;

/// What is being computed. Which request has how many tokens in it stands with the requests.
#[derive(Debug)]
pub(super) struct Batch {
    /// Tokens that there is still room for.
    pub budget: usize,
    pub decodes: u32,
    pub prefill_tokens: usize,
    /// Tokens that the step's attention reads, those computed in it included.
    context: usize,
    /// Whether the same requests would be in the next step. They would not where one was preempted: nobody was started then.
    pub is_settled: bool,
    pub steps: usize,
    begun: Duration,
    cost: StepCost,
}

/// How long steps take: the first one `first`, each later one `growth` more than the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepCost {
    first: Duration,
    growth: Duration,
}

impl StepCost {
    /// What a batch costs, where the first step deviates from the rule by a share of itself.
    pub fn of(batch: &Batch, config: &EngineConfig, deviation: f64) -> Self {
        let prefill = Duration::from_secs_f64(batch.prefill_tokens as f64 / config.prefill_tokens_per_s);
        let read = nanos(config.context).saturating_mul(batch.context as u64);
        let exact = config.step + config.decode * batch.decodes + prefill + Duration::from_nanos(read);
        let first = if deviation == 0.0 { exact } else { exact.mul_f64(1.0 + deviation) };
        StepCost { first, growth: config.context * batch.decodes }
    }

    /// How long so many steps take together. In whole nanoseconds, so that it is the same as one after the other.
    fn of_steps(self, steps: usize) -> Duration {
        let steps = steps as u64;
        let growth = nanos(self.growth) * (steps * steps.saturating_sub(1) / 2);
        Duration::from_nanos(nanos(self.first) * steps + growth)
    }
}

impl Batch {
    pub fn new(budget: usize) -> Self {
        let cost = StepCost::default();
        let begun = Duration::ZERO;
        Self { budget, decodes: 0, prefill_tokens: 0, context: 0, is_settled: true, steps: 1, begun, cost }
    }

    pub fn is_empty(&self) -> bool {
        self.decodes == 0 && self.prefill_tokens == 0
    }

    /// Whether steps like it may follow that differ in their context only.
    pub fn repeats(&self) -> bool {
        self.is_settled && self.prefill_tokens == 0
    }

    /// Adds `tokens` of a request whose attention reads `context`.
    pub fn add(&mut self, tokens: usize, context: usize, is_decoding: bool) {
        self.budget -= tokens;
        self.context += context;
        if is_decoding {
            self.decodes += 1;
        } else {
            self.prefill_tokens += tokens;
        }
    }

    /// Tokens in one step.
    pub fn tokens(&self) -> u64 {
        self.prefill_tokens as u64 + u64::from(self.decodes)
    }

    /// Begins at `now`; returns the end.
    pub fn set_off(&mut self, now: Duration, cost: StepCost) -> Duration {
        self.begun = now;
        self.cost = cost;
        self.ends()
    }

    /// Makes it so many steps; returns the end of the last one.
    pub fn stretch(&mut self, steps: usize) -> Duration {
        self.steps = steps;
        self.ends()
    }

    /// Makes the step that is being computed at `now` the last one; returns its end.
    pub fn cut(&mut self, now: Duration) -> Duration {
        self.steps = self.steps.min(self.steps_ended(now) + 1);
        self.ends()
    }

    /// Steps whose end is before `now`. A step that ends at this very moment hasn't ended yet, so that who comes with its end
    /// is there when the next one is scheduled.
    pub fn steps_ended(&self, now: Duration) -> usize {
        let passed = now.saturating_sub(self.begun);
        let (mut ended, mut not_ended) = (0, self.steps + 1);
        while not_ended - ended > 1 {
            let middle = ended + (not_ended - ended) / 2;
            *(if self.cost.of_steps(middle) < passed { &mut ended } else { &mut not_ended }) = middle;
        }
        ended
    }

    fn ends(&self) -> Duration {
        self.begun + self.cost.of_steps(self.steps)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
