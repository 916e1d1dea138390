//! What operators look at: models with their replicas, all up, scraped and at work.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use kvpin::admin::{Status, View, metrics};
use kvpin::balancer::{Evidence, Outcome, Scrape};
use kvpin::config::Config;
use kvpin::conversation::KeySecret;
use kvpin::dispatch::Routing;
use kvpin::gpu::Gpus;
use kvpin::metrics::Metrics;

use super::filled::{key, turn};

/// Conversations of each model.
const CONVERSATIONS: u64 = 1_000;

/// A routing table of so many models, each with so many replicas.
pub struct Farm {
    routing: Routing,
}

impl Farm {
    pub fn new(models: u16, replicas: u16) -> anyhow::Result<Farm> {
        let config = Config::from_yaml(&yaml(models, replicas)?)?;
        let routing = Routing::new(config, KeySecret::new([7; 16]), Metrics::new()?);
        for model in &routing.table().models {
            model.dispatcher.with(|balancer, now| {
                let ids: Vec<_> = balancer.specs().map(|(id, _)| id).collect();
                for id in ids {
                    balancer.observe(id, Evidence::Answered, now);
                    balancer
                        .scraped(id, Scrape { at: now, kv_use: 0.5, kv_capacity_tokens: 100_000, ..Scrape::default() });
                }
            });
            for number in 0..CONVERSATIONS {
                let mut lease =
                    model.dispatcher.acquire(&turn(Some(key(number)))).map_err(|it| anyhow::anyhow!("{it:?}"))?;
                lease.served();
                lease.note(Outcome::Completed);
            }
            for decision in ["sticky", "placed", "spilled", "side"] {
                routing.metrics.time_to_first_byte.with_label_values(&[&*model.name, decision]).observe(0.3);
            }
        }
        Ok(Farm { routing })
    }

    /// What `/metrics` answers.
    pub fn metrics(&self) -> anyhow::Result<Vec<u8>> {
        Ok(metrics::render(&self.view(), &self.routing.metrics.registry)?)
    }

    /// What `/api/v1/status` answers.
    pub fn status(&self) -> anyhow::Result<Vec<u8>> {
        Ok(serde_json::to_vec(&Status::of(&self.view()))?)
    }

    fn view(&self) -> View {
        let table = self.routing.table();
        let models = table.models.iter().map(|model| {
            let snapshot = model.dispatcher.with(|balancer, now| balancer.snapshot(now));
            (Arc::clone(model), snapshot)
        });
        View {
            uptime: Duration::from_secs(3_600),
            open_requests: 10,
            last_reload: None,
            last_failed_upgrade: None,
            models: models.collect(),
            keys: Vec::new(),
            gpus: Gpus::none(),
        }
    }
}

fn yaml(models: u16, replicas: u16) -> Result<String, std::fmt::Error> {
    let mut yaml = "models:\n".to_owned();
    for model in 0..models {
        writeln!(yaml, "  model-{model}:\n    replicas:")?;
        for replica in 0..replicas {
            writeln!(yaml, "      - http://10.0.{model}.{replica}:8000")?;
        }
    }
    Ok(yaml)
}
