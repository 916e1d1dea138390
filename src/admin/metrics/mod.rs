//! The snapshot as Prometheus metrics, rendered from the tables in `families`.
//!
//! What is counted as it happens is declared in [`crate::metrics`] and printed behind these. The snapshot is written as text at
//! once: to fill a registry with it and to gather that again takes 30 times as long, on a thread that serves streams.

mod admission;
mod families;
mod gpus;
mod process;
mod series;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use prometheus::{Encoder, Registry, TextEncoder};

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

/// The page for Prometheus: the view's families, then those of `counted`.
pub fn render(view: &View, counted: &Registry) -> prometheus::Result<Vec<u8>> {
    let mut page = String::new();
    for family in PROCESS {
        family.series(&[]).write(&mut page, view, &[]);
    }
    let usage = Usage::read();
    for family in USAGE {
        family.series(&[]).write(&mut page, &usage, &[]);
    }
    for family in KEY {
        let mut series = family.series(&["key"]);
        for key in &view.keys {
            series.write(&mut page, key, &[&key.name]);
        }
    }
    for family in MODEL.iter().chain(admission::MODEL) {
        let mut series = family.series(&["model"]);
        for (model, snapshot) in &view.models {
            series.write(&mut page, snapshot, &[&model.name]);
        }
    }
    let models: Vec<_> =
        view.models.iter().map(|(model, snapshot)| (model, one_of_each_name(&snapshot.replicas))).collect();
    for family in REPLICA.iter().chain(admission::REPLICA) {
        let mut series = family.series(&["model", "replica"]);
        for (model, replicas) in &models {
            for replica in replicas {
                series.write(&mut page, replica, &[&model.name, &replica.spec.name]);
            }
        }
    }
    gpus::render(view, &mut page);
    let mut page = page.into_bytes();
    TextEncoder::new().encode(&counted.gather(), &mut page)?;
    Ok(page)
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Replicas by name, one of each. A reload may retire a replica and give its name to another engine; while turns still run
/// on the old one, the two would be the same series. The configured one's figures stand for both, with all turns in
/// flight.
fn one_of_each_name(replicas: &[ReplicaSnapshot]) -> Vec<ReplicaSnapshot> {
    let mut by_name: Vec<ReplicaSnapshot> = Vec::new();
    let mut places = HashMap::<&str, usize>::new();
    let configured_first = |wanted| replicas.iter().filter(move |replica| replica.membership == wanted);
    for replica in configured_first(Membership::Configured).chain(configured_first(Membership::Retired)) {
        match places.entry(&replica.spec.name) {
            Entry::Occupied(place) => by_name[*place.get()].in_flight += replica.in_flight,
            Entry::Vacant(place) => {
                place.insert(by_name.len());
                by_name.push(replica.clone());
            }
        }
    }
    by_name
}
