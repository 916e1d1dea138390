//! Steps of one length, the newest open, the others closed into points.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde::Serialize;

use crate::balancer::{Distribution, Ledger};

use super::{Range, unix};

/// What a model did in one step. Counts are of the step alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// When the step began, in seconds since the Unix epoch.
    pub at_s: u64,
    /// How much of the step has passed; less than its length in the newest.
    pub length_s: f64,
    /// Turns whose cost was booked: those whose response has ended.
    pub turns: u64,
    pub cached_tokens: u64,
    pub computed_tokens: u64,
    pub estimated_tokens: u64,
    pub completion_tokens: u64,
    /// Of the turns whose answer began in the step; `null` where there was none.
    pub first_byte_p50_s: Option<f64>,
    pub first_byte_p95_s: Option<f64>,
    /// On average: replicas with a turn in flight, and turns in flight.
    pub busy_replicas: f64,
    pub in_flight: f64,
}

/// What was seen in one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    /// What was booked since the look before.
    pub booked: &'a Ledger,
    pub first_bytes: &'a Distribution,
    pub busy_replicas: u32,
    pub in_flight: u32,
}

/// The points of one range.
#[derive(Debug)]
pub(super) struct Ring {
    range: Range,
    closed: VecDeque<Point>,
    open: Step,
}

/// A step that is being filled.
#[derive(Debug, Default)]
struct Step {
    at_s: u64,
    booked: Ledger,
    first_bytes: Distribution,
    busy_replicas: u64,
    in_flight: u64,
    looks: u64,
}

impl Ring {
    pub fn new(range: Range, now: SystemTime) -> Self {
        Ring { range, closed: VecDeque::new(), open: Step { at_s: step_of(range, now), ..Step::default() } }
    }

    pub fn add(&mut self, look: Look<'_>, now: SystemTime) {
        let at_s = step_of(self.range, now);
        // A clock that was set back makes no older step: the newest takes it.
        if at_s > self.open.at_s {
            let full = self.open.point(self.range.step().as_secs_f64());
            self.closed.push_back(full);
            self.open = Step { at_s, ..Step::default() };
            while self.closed.len() >= self.range.steps() {
                self.closed.pop_front();
            }
        }
        self.open.add(look);
    }

    /// The points of the range before `now`, the oldest first, the open step as far as it has come.
    pub fn points(&self, now: SystemTime) -> Vec<Point> {
        let now_s = unix(now).as_secs_f64();
        let begin_s = (now_s - self.range.length().as_secs_f64()).max(0.0) as u64;
        let length_s = (now_s - self.open.at_s as f64).clamp(0.0, self.range.step().as_secs_f64());
        let closed = self.closed.iter().filter(|point| point.at_s >= begin_s).cloned();
        closed.chain([self.open.point(length_s)]).collect()
    }
}

impl Step {
    fn add(&mut self, look: Look<'_>) {
        self.booked.add(look.booked);
        self.first_bytes = self.first_bytes.and(look.first_bytes);
        self.busy_replicas += u64::from(look.busy_replicas);
        self.in_flight += u64::from(look.in_flight);
        self.looks += 1;
    }

    fn point(&self, length_s: f64) -> Point {
        let average = |sum: u64| if self.looks == 0 { 0.0 } else { hundredths(sum as f64 / self.looks as f64) };
        let quantile = |share| self.first_bytes.quantile(share).map(|seconds| (seconds * 1e4).round() / 1e4);
        Point {
            at_s: self.at_s,
            length_s: hundredths(length_s),
            turns: self.booked.measured_turns + self.booked.unmeasured_turns,
            cached_tokens: self.booked.cached,
            computed_tokens: self.booked.computed,
            estimated_tokens: self.booked.estimated,
            completion_tokens: self.booked.completion,
            first_byte_p50_s: quantile(0.5),
            first_byte_p95_s: quantile(0.95),
            busy_replicas: average(self.busy_replicas),
            in_flight: average(self.in_flight),
        }
    }
}

/// When the step began that `now` belongs to.
fn step_of(range: Range, now: SystemTime) -> u64 {
    let step_s = range.step().as_secs();
    unix(now).as_secs() / step_s * step_s
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}
