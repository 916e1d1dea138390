//! The snapshot as Prometheus metrics, rendered from the tables in `families`.
//!
//! What is counted as it happens is declared in [`crate::metrics`] and printed behind these.

mod admission;
mod families;
mod gpus;
mod process;

use prometheus::core::Collector;
use prometheus::{CounterVec, Encoder, GaugeVec, Opts, Registry, TextEncoder};

use crate::balancer::{Membership, ReplicaSnapshot};

use super::View;

use families::{KEY, MODEL, PROCESS, REPLICA};
use process::{USAGE, Usage};

/// A family of series, and where its values come from. Every source yields pairs of a label value and a value.
struct Family<T> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    /// The label beside those that say what the series is of; empty where there is none.
    label: &'static str,
    values: fn(&T) -> Vec<(&'static str, f64)>,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// The series of one family that are being filled.
enum Series {
    Counter(CounterVec),
    Gauge(GaugeVec),
}

/// The page for Prometheus: the view's families, then those of `counted`.
pub fn render(view: &View, counted: &Registry) -> prometheus::Result<Vec<u8>> {
    let registry = Registry::new();
    for family in PROCESS {
        let series = family.register(&registry, &[])?;
        family.fill(&series, view, &[]);
    }
    let usage = Usage::read();
    for family in USAGE {
        let series = family.register(&registry, &[])?;
        family.fill(&series, &usage, &[]);
    }
    for family in KEY {
        let series = family.register(&registry, &["key"])?;
        for key in &view.keys {
            family.fill(&series, key, &[&key.name]);
        }
    }
    for family in MODEL.iter().chain(admission::MODEL) {
        let series = family.register(&registry, &["model"])?;
        for (model, snapshot) in &view.models {
            family.fill(&series, snapshot, &[&model.name]);
        }
    }
    let models: Vec<_> =
        view.models.iter().map(|(model, snapshot)| (model, one_of_each_name(&snapshot.replicas))).collect();
    for family in REPLICA.iter().chain(admission::REPLICA) {
        let series = family.register(&registry, &["model", "replica"])?;
        for (model, replicas) in &models {
            for replica in replicas {
                family.fill(&series, replica, &[&model.name, &replica.spec.name]);
            }
        }
    }
    gpus::render(view, &registry)?;
    let mut page = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut page)?;
    TextEncoder::new().encode(&counted.gather(), &mut page)?;
    Ok(page)
}

impl<T> Family<T> {
    fn register(&self, registry: &Registry, of: &[&str]) -> prometheus::Result<Series> {
        let mut labels = of.to_vec();
        labels.extend(self.has_label().then_some(self.label));
        let opts = Opts::new(self.name, self.help);
        Ok(match self.kind {
            Kind::Counter => Series::Counter(registered(registry, CounterVec::new(opts, &labels)?)?),
            Kind::Gauge => Series::Gauge(registered(registry, GaugeVec::new(opts, &labels)?)?),
        })
    }

    fn fill(&self, series: &Series, source: &T, of: &[&str]) {
        for (label, value) in (self.values)(source) {
            let mut labels = of.to_vec();
            labels.extend(self.has_label().then_some(label));
            match series {
                Series::Counter(counters) => counters.with_label_values(&labels).inc_by(value),
                Series::Gauge(gauges) => gauges.with_label_values(&labels).set(value),
            }
        }
    }

    fn has_label(&self) -> bool {
        !self.label.is_empty()
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Replicas by name, one of each. A reload may retire a replica and give its name to another engine; while turns still run
/// on the old one, the two would be the same series. The configured one's figures stand for both, with all turns in
/// flight.
fn one_of_each_name(replicas: &[ReplicaSnapshot]) -> Vec<ReplicaSnapshot> {
    let mut by_name: Vec<ReplicaSnapshot> = Vec::new();
    let configured_first = |wanted| replicas.iter().filter(move |replica| replica.membership == wanted);
    for replica in configured_first(Membership::Configured).chain(configured_first(Membership::Retired)) {
        match by_name.iter_mut().find(|known| known.spec.name == replica.spec.name) {
            Some(known) => known.in_flight += replica.in_flight,
            None => by_name.push(replica.clone()),
        }
    }
    by_name
}
