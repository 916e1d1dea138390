//! A model with affinity switched on or off while kvpin runs: what an operator's order makes of its configuration.

use std::collections::BTreeSet;

use super::bounds::{REPLICA_NAME_BYTES_MAX, REPLICAS_MAX};
use super::{Balancing, ModelConfig, ReplicaConfig};

impl ModelConfig {
    /// This model with affinity as ordered. `balancing` is who chooses without it; with affinity it means nothing.
    ///
    /// The ranks of a server are replicas of their own as long as kvpin chooses among them, and one replica when the engine's
    /// own balancer does: so the model may come out with other replicas.
    ///
    /// # Errors
    /// In words, when the ranks would make too many replicas, or names that are taken or too long.
    pub fn with_affinity(&self, affinity: bool, balancing: Balancing) -> Result<ModelConfig, String> {
        let by_engine = !affinity && balancing == Balancing::Engine;
        let replicas = if by_engine { gather_ranks(&self.replicas) } else { tell_ranks_apart(&self.replicas)? };
        Ok(ModelConfig { affinity, balancing, affinity_ordered: true, replicas, ..self.clone() })
    }
}

/// Each ranked server as one replica.
fn gather_ranks(replicas: &[ReplicaConfig]) -> Vec<ReplicaConfig> {
    let gather = |replica: &ReplicaConfig| match replica.rank {
        None => Some(replica.clone()),
        Some(0) => {
            let name = replica.name.strip_suffix("/0").unwrap_or(&replica.name).to_owned();
            Some(ReplicaConfig { name, rank: None, ..replica.clone() })
        }
        Some(_) => None,
    };
    replicas.iter().filter_map(gather).collect()
}

/// Each rank of a server as a replica.
fn tell_ranks_apart(replicas: &[ReplicaConfig]) -> Result<Vec<ReplicaConfig>, String> {
    let mut apart = Vec::new();
    for replica in replicas {
        if replica.rank.is_some() || replica.data_parallel_size == 1 {
            apart.push(replica.clone());
            continue;
        }
        apart.extend((0..replica.data_parallel_size).map(|rank| {
            let name = format!("{}/{rank}", replica.name);
            ReplicaConfig { name, rank: Some(rank), ..replica.clone() }
        }));
    }
    if apart.len() > REPLICAS_MAX {
        return Err(format!("{} replicas (ranks counted) are more than {REPLICAS_MAX}", apart.len()));
    }
    let mut names = BTreeSet::new();
    for replica in &apart {
        if replica.name.len() > REPLICA_NAME_BYTES_MAX {
            return Err(format!("the name `{}` is longer than {REPLICA_NAME_BYTES_MAX} bytes", replica.name));
        }
        if !names.insert(&replica.name) {
            return Err(format!("two replicas would be named `{}`", replica.name));
        }
    }
    Ok(apart)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    fn model(yaml: &str) -> ModelConfig {
        Config::from_yaml(&format!("models:\n  m: {yaml}\n")).unwrap().models.remove(0)
    }

    fn names(model: &ModelConfig) -> Vec<&str> {
        model.replicas.iter().map(|replica| replica.name.as_str()).collect()
    }

    const RANKED: &str =
        "replicas: [{url: 'http://127.0.0.1:1', name: n, data_parallel_size: 2}, {url: 'http://127.0.0.1:2', name: o}]";

    #[test]
    fn off_leaves_the_ranks_to_the_engine_and_on_again_is_as_before() {
        let before = model(&format!("{{{RANKED}}}"));
        let off = before.with_affinity(false, Balancing::Engine).unwrap();
        assert_eq!(names(&off), ["n", "o"]);
        assert!(off.affinity_ordered && !off.affinity && off.replicas.iter().all(|replica| replica.rank.is_none()));
        let as_in_a_file = model(&format!("{{affinity: false, balancing: engine, {RANKED}}}"));
        assert_eq!(off, ModelConfig { affinity_ordered: true, ..as_in_a_file });
        let on = off.with_affinity(true, before.balancing).unwrap();
        assert_eq!(on, ModelConfig { affinity_ordered: true, ..before });
    }

    #[test]
    fn off_by_load_keeps_the_ranks() {
        let off = model(&format!("{{{RANKED}}}")).with_affinity(false, Balancing::LeastLoaded).unwrap();
        assert_eq!(names(&off), ["n/0", "n/1", "o"]);
    }

    #[test]
    fn ranks_whose_names_are_taken_or_too_long_are_refused() {
        let long = "n".repeat(REPLICA_NAME_BYTES_MAX);
        let cases = [
            (RANKED.replace("name: o", "name: n/1"), "two replicas would be named `n/1`"),
            (RANKED.replace("name: n,", &format!("name: {long},")), "longer than"),
        ];
        for (replicas, reason) in cases {
            let model = model(&format!("{{affinity: false, balancing: engine, {replicas}}}"));
            let refused = model.with_affinity(true, Balancing::LeastLoaded).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
