//! One measurement: an arm with so many sessions, for so long.

use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::report::Rung;
use crate::sim::agent::{AgentWorkload, HttpClient};

use super::arms::{Arm, Switch};
use super::engines::{Caches, Engines};
use super::plan::Cell;
use super::screen::{Progress, Screen};
use super::seen::Seen;

/// Turns of agents that were seen but not yet counted.
const RESULTS_MAX: usize = 1_024;
/// How long what an arm left behind may take to end.
const REST: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a measurement needs beside its cell.
pub struct Stage<'a> {
    pub arms: &'a [Arm],
    pub switch: Option<&'a Switch>,
    pub engines: &'a Engines,
    pub client: &'a HttpClient,
    /// From when on and until when it is counted, since its beginning.
    pub window: Range<Duration>,
}

/// A measurement as `--json` has it.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub round: u32,
    #[serde(flatten)]
    pub rung: Rung,
    pub turns_complete: u64,
    /// Whether the engines' caches were emptied before.
    pub caches_emptied: bool,
    /// Whether prefix hits are the engines' own count, which has the turns that were cut off too; else they are of the usage that
    /// complete answers tell.
    pub hits_by_engines: bool,
    /// Of each turn of a session, from 0: the median prompt and reply in tokens.
    pub sizes: Vec<(u32, u64, u64)>,
}

impl Stage<'_> {
    /// Measures a cell. `None` if it was interrupted.
    pub async fn measure(
        &self,
        cell: Cell,
        workload: AgentWorkload,
        screen: &mut Screen,
        stop: &mut watch::Receiver<bool>,
    ) -> anyhow::Result<Option<Measured>> {
        let arm = &self.arms[cell.arm];
        if let Some(switch) = self.switch {
            switch.set(arm).await?;
        }
        if !self.engines.rest(REST).await {
            screen.say("the engines are still at work, with what is none of this");
        }
        let caches = self.engines.empty_caches().await;
        let names_engines = self.names_engines().await?;
        let mut before = self.engines.lookups().await;
        let begun = Instant::now();
        let Range { start, end } = self.window;
        let mut warms_up = !start.is_zero();
        let (sender, mut results) = mpsc::channel(RESULTS_MAX);
        let agents = tokio::spawn(workload.drive(self.client.clone(), begun + end, sender));
        let (mut seen, mut busy) = (Seen::default(), Busy::default());
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                result = results.recv() => match result {
                    Some(result) => seen.add(result),
                    None => break,
                },
                () = sleep_until(begun + start), if warms_up => {
                    warms_up = false;
                    (before, busy) = (self.engines.lookups().await, Busy::default());
                }
                _ = ticks.tick() => {
                    // Looked at beside the agents, so that a slow answer of an engine stops nobody.
                    busy.add(self.engines.busy().await);
                    screen.show(&Progress { arm: &arm.name, cell, seen: &seen, elapsed: begun.elapsed(), length: end });
                }
                _ = stop.changed() => return Ok(None),
            }
        }
        agents.await.context("the agents failed")?;
        let end = end.min(begun.elapsed());
        let hits = before.zip(self.engines.lookups().await).and_then(|(before, after)| after.hit_percent_since(before));
        let (turns_complete, sizes) = (seen.complete, seen.sizes());
        let mut figures = seen.figures(start.min(end)..end, names_engines, busy.mean());
        if hits.is_some() {
            figures.prefix_hit_percent = hits;
        }
        let rung = Rung { sessions: cell.sessions, arm: arm.name.clone(), figures };
        screen.done(cell.round, &rung);
        Ok(Some(Measured {
            round: cell.round,
            rung,
            turns_complete,
            caches_emptied: caches == Caches::Emptied,
            hits_by_engines: hits.is_some(),
            sizes,
        }))
    }

    /// Whether what kvpin calls a replica is one engine at this moment. Without affinity a server with ranks is one replica.
    async fn names_engines(&self) -> anyhow::Result<bool> {
        let Some(switch) = self.switch else { return Ok(true) };
        let engines = self.engines.count().await.unwrap_or(0);
        Ok(switch.replicas().await? >= engines)
    }
}

/// How many engines were at work, second by second.
#[derive(Default)]
struct Busy {
    sum: usize,
    looks: usize,
}

impl Busy {
    fn add(&mut self, busy: Option<usize>) {
        if let Some(busy) = busy {
            self.sum += busy;
            self.looks += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.sum as f64 / self.looks as f64)
    }
}
