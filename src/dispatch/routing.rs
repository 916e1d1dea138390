//! The routing table: which model a name means. One snapshot, swapped as a whole by a reload.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;

use crate::balancer::{
    self, Admission, AdmissionMode, Balancer, Bounds, HealthPolicy, Mode, Policy, ReplicaSpec, SpillThreshold,
};
use crate::config::{self, AdmissionConfig, Balancing, Config, GpuId, HealthConfig, ModelConfig, Secret};
use crate::conversation::{IdentityRules, KeySecret};
use crate::keys::KeyRing;
use crate::metrics::Metrics;
use crate::tls::ReplicaTls;

use super::{Clock, Dispatcher, EventKind, Events};

/// What every part that serves needs: the current table, and what outlives a table.
pub struct Routing {
    table: ArcSwap<Table>,
    /// Held while a new table is made of the current one, so that of two changes none is lost.
    changing: Mutex<()>,
    clock: Clock,
    key_secret: KeySecret,
    pub metrics: Metrics,
    /// What has happened lately.
    pub events: Arc<Events>,
}

/// The models as one configuration has them.
#[derive(Debug)]
pub struct Table {
    /// In the order of the configuration.
    pub models: Vec<Arc<Model>>,
    by_name: HashMap<String, Named>,
    /// How the servers are spoken to that speak TLS.
    tls: HashMap<SocketAddr, Arc<ReplicaTls>>,
    /// Who may ask; `None`: whoever can connect.
    pub keys: Option<KeyRing>,
    /// What in a request names its conversation.
    pub identity: IdentityRules,
    /// Serves requests that name no model: the only model, or the configured default.
    pub fallback: Option<Arc<Model>>,
    pub config: Config,
}

/// What a name that clients write leads to.
#[derive(Clone, Debug)]
pub struct Named {
    pub model: Arc<Model>,
    /// What the engine calls the model, where it is not to see the name that the client wrote.
    pub upstream: Option<Arc<str>>,
}

/// A replica is not configured any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// A served model.
#[derive(Debug)]
pub struct Model {
    pub name: String,
    pub aliases: Vec<String>,
    pub affinity: bool,
    /// Whether an operator's order, and not the file, says so.
    pub affinity_ordered: bool,
    /// Whether clients may name the replica they want.
    pub client_pins: bool,
    /// Whether the balancer of a ranked server chooses among its ranks.
    pub engine_balances: bool,
    /// Whether the engine is told a conversation's key where the client names no session of its own.
    pub send_session_id: bool,
    /// What its engines are shown as `Authorization`, in the place of what the client sent.
    pub upstream_authorization: Option<HeaderValue>,
    /// What replicas run on, by their names, where the configuration says it.
    pub gpus: HashMap<String, Vec<GpuId>>,
    /// Survives reloads as long as the model does: pins, leases and counters are in it.
    pub dispatcher: Arc<Dispatcher>,
}

/// What a reload did.
#[derive(Debug)]
pub enum Reloaded {
    /// The new table serves; these are the changes, one a line.
    Applied(Vec<String>),
    /// Nothing changed, because these keys need a restart.
    NeedsRestart(Vec<&'static str>),
}

impl Routing {
    pub fn new(config: Config, key_secret: KeySecret, metrics: Metrics) -> Self {
        let clock = Clock::start();
        let health = health_policy(&config);
        let events = Arc::new(Events::default());
        let table = Table::build(config, None, |model| new_dispatcher(model, health, clock, &events));
        Routing { table: ArcSwap::from_pointee(table), changing: Mutex::default(), clock, key_secret, metrics, events }
    }

    /// The current table.
    pub fn table(&self) -> Arc<Table> {
        self.table.load_full()
    }

    pub fn key_secret(&self) -> &KeySecret {
        &self.key_secret
    }

    /// Time since the process began to serve.
    pub fn uptime(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Swaps in a new configuration. A model that stays keeps its balancer; turns in flight finish where they are.
    pub fn reload(&self, config: Config) -> Reloaded {
        let _alone = self.changing.lock();
        let old = self.table();
        let fixed = old.config.restart_needed(&config);
        if !fixed.is_empty() {
            return Reloaded::NeedsRestart(fixed);
        }
        Reloaded::Applied(self.swap(&old, config))
    }

    /// Switches affinity of a model, as [`ModelConfig::with_affinity`]; gives the changes, one a line.
    /// It holds until the next reload.
    ///
    /// # Errors
    /// In words, when the model can't be that way.
    pub fn switch_affinity(&self, name: &str, affinity: bool, balancing: Balancing) -> Result<Vec<String>, String> {
        let _alone = self.changing.lock();
        let old = self.table();
        let mut config = old.config.clone();
        let model = config.models.iter_mut().find(|model| model.name == name).ok_or("the model is gone")?;
        *model = model.with_affinity(affinity, balancing)?;
        let changes = self.swap(&old, config);
        let word = if affinity { "on" } else { "off" };
        let said = if changes.is_empty() { "no changes".to_owned() } else { changes.join("; ") };
        self.events.add(EventKind::Affinity, name, "", format!("affinity {word}, by order: {said}"));
        Ok(changes)
    }

    /// Makes `config` what serves; gives what was changed by it, one a line.
    fn swap(&self, old: &Table, config: Config) -> Vec<String> {
        let changes = old.config.changes(&config);
        let health = health_policy(&config);
        let table = Table::build(config, old.keys.as_ref(), |model| match old.model_named(&model.name) {
            Some(known) => {
                let policy = policy(model, health);
                known.dispatcher.with(|balancer, now| balancer.reconfigure(policy, specs(model), now));
                Arc::clone(&known.dispatcher)
            }
            None => new_dispatcher(model, health, self.clock, &self.events),
        });
        self.table.store(Arc::new(table));
        changes
    }
}

impl Table {
    fn build(
        config: Config,
        old_keys: Option<&KeyRing>,
        dispatcher: impl Fn(&ModelConfig) -> Arc<Dispatcher>,
    ) -> Table {
        let models: Vec<_> = config.models.iter().map(|model| Arc::new(Model::new(model, dispatcher(model)))).collect();
        let mut by_name = HashMap::new();
        for (model, file) in models.iter().zip(&config.models) {
            by_name.insert(model.name.clone(), Named { model: Arc::clone(model), upstream: None });
            for alias in &file.aliases {
                let upstream = alias.upstream.as_deref().map(Arc::from);
                by_name.insert(alias.name.clone(), Named { model: Arc::clone(model), upstream });
            }
        }
        let fallback = match (&config.default_model, models.as_slice()) {
            (Some(name), _) => by_name.get(name).map(|named| Arc::clone(&named.model)),
            (None, [only]) => Some(Arc::clone(only)),
            (None, _) => None,
        };
        let identity = IdentityRules::new(config.session_headers.clone());
        let replicas = config.models.iter().flat_map(|model| &model.replicas);
        let tls = replicas.filter_map(|replica| Some((replica.address, replica.tls.clone()?))).collect();
        let keys = config.keys.as_ref().map(|keys| KeyRing::new(&keys.keys, old_keys));
        Table { models, by_name, tls, keys, identity, fallback, config }
    }

    /// How a replica is spoken to: over TLS, or in the clear (`Ok(None)`).
    ///
    /// # Errors
    /// When it wants TLS, and this table doesn't know it: a reload has taken it out meanwhile.
    pub fn tls_of(&self, replica: &ReplicaSpec) -> Result<Option<&Arc<ReplicaTls>>, Gone> {
        match replica.is_tls {
            false => Ok(None),
            true => self.tls.get(&replica.address).map(Some).ok_or(Gone),
        }
    }

    /// What a client means by a name or an alias.
    pub fn find(&self, name: &str) -> Option<&Named> {
        self.by_name.get(name)
    }

    fn model_named(&self, name: &str) -> Option<&Arc<Model>> {
        self.models.iter().find(|model| model.name == name)
    }
}

impl Model {
    fn new(config: &ModelConfig, dispatcher: Arc<Dispatcher>) -> Self {
        Model {
            name: config.name.clone(),
            aliases: config.aliases.iter().map(|alias| alias.name.clone()).collect(),
            affinity: config.affinity,
            affinity_ordered: config.affinity_ordered,
            client_pins: config.client_pins,
            engine_balances: !config.affinity && config.balancing == Balancing::Engine,
            send_session_id: config.send_session_id,
            upstream_authorization: config.upstream_key.as_ref().and_then(|key| bearer(&key.secret)),
            gpus: gpus(config),
            dispatcher,
        }
    }
}

fn gpus(model: &ModelConfig) -> HashMap<String, Vec<GpuId>> {
    let with_gpus = model.replicas.iter().filter(|replica| !replica.gpus.is_empty());
    with_gpus.map(|replica| (replica.name.clone(), replica.gpus.clone())).collect()
}

/// The header's value for a key, which the configuration has found fit for one. It prints as `Sensitive`.
fn bearer(key: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn new_dispatcher(model: &ModelConfig, health: HealthPolicy, clock: Clock, events: &Arc<Events>) -> Arc<Dispatcher> {
    let balancer = Balancer::new(policy(model, health), specs(model), clock.now());
    Arc::new(Dispatcher::new(&model.name, clock, Arc::clone(events), balancer))
}

// What `check` says of a file must be what the balancer does; neither may know the other.
const _: () = assert!(ModelConfig::ASSUMED_MAX_NUM_SEQS == balancer::ASSUMED_MAX_NUM_SEQS);

fn health_policy(config: &Config) -> HealthPolicy {
    let HealthConfig { failures, successes, hung, ramp, .. } = config.health;
    HealthPolicy { failures, successes, hung, ramp }
}

fn policy(model: &ModelConfig, health: HealthPolicy) -> Policy {
    Policy {
        mode: match (model.affinity, model.balancing) {
            (true, _) => Mode::Affinity,
            // The engine's own balancer chooses among ranks; among servers kvpin still does, by load.
            (false, Balancing::LeastLoaded | Balancing::Engine) => Mode::LeastLoaded,
        },
        spill_threshold: match model.spill_threshold {
            config::SpillThreshold::Auto => SpillThreshold::Auto,
            config::SpillThreshold::Fixed(turns) => SpillThreshold::Fixed(turns),
        },
        max_num_seqs: model.max_num_seqs,
        admission: admission(&model.admission),
        bounds: Bounds { entries_max: model.conversations_max, idle_max: model.conversation_idle },
        health,
    }
}

fn admission(config: &AdmissionConfig) -> Admission {
    let AdmissionConfig { mode, kv_cache_tokens, held_max, hold_max } = *config;
    Admission {
        mode: match mode {
            config::AdmissionMode::Off => AdmissionMode::Off,
            config::AdmissionMode::Auto => AdmissionMode::Auto,
            config::AdmissionMode::Fair => AdmissionMode::Fair,
        },
        capacity_tokens: kv_cache_tokens,
        held_max,
        hold_max,
        ..Admission::default()
    }
}

fn specs(model: &ModelConfig) -> Vec<ReplicaSpec> {
    model
        .replicas
        .iter()
        .map(|replica| ReplicaSpec {
            name: replica.name.clone(),
            address: replica.address,
            authority: replica.authority.clone(),
            is_tls: replica.tls.is_some(),
            rank: replica.rank,
            drain: replica.drain,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_says_nothing_of_health_means_what_the_balancer_does_without_one() {
        let config = Config::from_yaml("models: {m: {replicas: ['http://127.0.0.1:1']}}\n").unwrap();
        assert_eq!(health_policy(&config), HealthPolicy::default());
    }
}
