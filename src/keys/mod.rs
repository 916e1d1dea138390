//! Who is asking: the API keys that a request may show, what each is good for, and what it is using at this moment.
//!
//! ```text
//! head --presented--> key --KeyRing::find--> Caller --enter--> Slot, given back by Drop
//!                                              '--> scope of its conversations, models, pins
//! ```
//!
//! A [`KeyRing`] is part of a routing table and is swapped with it; a request keeps the [`Caller`] it came with, so that a
//! key that a reload takes out ends with its last request. What a key uses is kept under its name, and outlives reloads
//! and a change of the key.
//!
//! Nothing is remembered of keys that are wrong. No clock is read here: `now` comes in as an argument.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod made;
mod presented;
mod usage;
mod window;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{KeyConfig, KeyHash};

pub use made::{KEY_RANDOM_BYTES, is_mistyped, made_of};
pub use presented::{KEY_BYTES_MAX, Presented, TwoKeys, presented};
pub use usage::{OverLimit, Slot, Verdict};

use usage::Shared;

/// The keys of one configuration.
#[derive(Debug)]
pub struct KeyRing {
    /// In the order of the file.
    keys: Vec<Arc<ApiKey>>,
    /// Looking a hash up takes a time that depends on the hash, and on which others are in the same bucket of the table.
    /// That tells nobody anything: who sends a key knows its hash without our help, the table's own hashing is seeded anew
    /// with every process, and hashes are compared in constant time. What would have to be kept from leaking, the keys
    /// themselves, isn't here.
    by_hash: HashMap<KeyHash, Arc<ApiKey>>,
}

/// A key that may ask.
#[derive(Debug)]
pub struct ApiKey {
    config: KeyConfig,
    usage: Arc<Shared>,
}

/// Who asks: somebody with a key, or anybody where there are no keys.
#[derive(Clone, Debug, Default)]
pub struct Caller(Option<Arc<ApiKey>>);

/// What a key uses and has used, for metrics and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySnapshot {
    pub name: String,
    pub in_flight: u32,
    pub in_flight_max: Option<u32>,
    pub requests_per_minute_max: Option<u32>,
    /// Requests since the key was first configured, by what became of them.
    pub requests: Vec<(Verdict, u64)>,
}

impl KeyRing {
    /// The keys of a configuration. One whose name is in `old` too goes on with what it uses.
    pub fn new(config: &[KeyConfig], old: Option<&KeyRing>) -> Self {
        let known: HashMap<&str, &Arc<ApiKey>> =
            old.iter().flat_map(|old| &old.keys).map(|key| (key.name(), key)).collect();
        let key = |config: &KeyConfig| {
            let usage = known.get(&*config.name).map(|known| Arc::clone(&known.usage)).unwrap_or_default();
            Arc::new(ApiKey { config: config.clone(), usage })
        };
        let keys: Vec<_> = config.iter().map(key).collect();
        let of_key =
            |key: &Arc<ApiKey>| key.config.hashes.iter().map(|hash| (*hash, Arc::clone(key))).collect::<Vec<_>>();
        let by_hash = keys.iter().flat_map(of_key).collect();
        KeyRing { keys, by_hash }
    }

    /// Whose key it is.
    pub fn find(&self, key: &[u8]) -> Option<Caller> {
        self.by_hash.get(&KeyHash::of(key)).map(|key| Caller(Some(Arc::clone(key))))
    }

    pub fn snapshot(&self) -> Vec<KeySnapshot> {
        self.keys.iter().map(|key| key.snapshot()).collect()
    }
}

impl ApiKey {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn snapshot(&self) -> KeySnapshot {
        let KeyConfig { name, in_flight_max, requests_per_minute_max, .. } = &self.config;
        let (in_flight, requests) = self.usage.counts();
        KeySnapshot {
            name: name.clone(),
            in_flight,
            in_flight_max: *in_flight_max,
            requests_per_minute_max: *requests_per_minute_max,
            requests,
        }
    }
}

impl Caller {
    /// Whether a key was shown.
    pub fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// The name of the key.
    pub fn name(&self) -> Option<&str> {
        self.0.as_deref().map(ApiKey::name)
    }

    /// What keeps the conversations of one caller apart from those of all others: the same session id under two keys is two
    /// conversations, and neither caller can reach, move or find out about the other's.
    ///
    /// It is the key's name, and not its hash: so it is the same after a restart, and after the key was replaced, when the
    /// replicas hold the same conversations as before. A name that is later given to somebody else hands on nothing but the
    /// replica that a conversation is sent to. A name is never empty, so nobody with a key shares the scope of those
    /// without one.
    pub fn scope(&self) -> &[u8] {
        self.name().unwrap_or_default().as_bytes()
    }

    /// Whether requests may call the model so. An alias has to be allowed itself: engines can serve something else under it,
    /// such as an adapter.
    pub fn may_use(&self, model: &str) -> bool {
        let allowed = self.0.as_deref().and_then(|key| key.config.models.as_ref());
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == model))
    }

    /// Whether there are models that it may not use.
    pub fn is_limited(&self) -> bool {
        self.0.as_deref().is_some_and(|key| key.config.models.is_some())
    }

    /// Whether it may name the replica, where the model lets clients do that.
    pub fn may_pin(&self) -> bool {
        self.0.as_deref().is_none_or(|key| key.config.may_pin)
    }

    /// Takes a slot for one request, if the limits leave one. `None` where there is no key to count for.
    pub fn enter(&self, now: Duration) -> Result<Option<Slot>, OverLimit> {
        let Some(key) = &self.0 else { return Ok(None) };
        let KeyConfig { in_flight_max, requests_per_minute_max, .. } = key.config;
        usage::enter(&key.usage, in_flight_max, requests_per_minute_max, now).map(Some)
    }

    /// Counts what became of a request.
    pub fn count(&self, verdict: Verdict) {
        if let Some(key) = &self.0 {
            key.usage.count(verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, key: &str) -> KeyConfig {
        KeyConfig::new(name, KeyHash::of(key.as_bytes()))
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_key_is_found_by_itself_alone() {
        let mut rotating = config("rotating", "old");
        rotating.hashes.push(KeyHash::of(b"new"));
        let ring = KeyRing::new(&[config("alice", "a"), rotating], None);
        for (key, name) in
            [("a", Some("alice")), ("old", Some("rotating")), ("new", Some("rotating")), ("A", None), ("", None)]
        {
            let found = ring.find(key.as_bytes());
            assert_eq!(found.as_ref().and_then(Caller::name), name, "{key:?}");
        }
    }

    #[test]
    fn who_has_no_key_may_do_all_and_a_key_what_it_says() {
        let anybody = Caller::default();
        assert!(anybody.may_use("m") && anybody.may_pin() && !anybody.is_limited() && !anybody.has_key());
        assert_eq!((anybody.scope(), anybody.name()), (&b""[..], None));
        let ring = KeyRing::new(
            &[
                config("free", "f"),
                KeyConfig { models: Some(vec!["m".to_owned()]), may_pin: true, ..config("bound", "b") },
            ],
            None,
        );
        let free = ring.find(b"f").unwrap();
        assert!(free.may_use("m") && !free.may_pin() && !free.is_limited() && free.has_key());
        let bound = ring.find(b"b").unwrap();
        assert!(
            bound.may_use("m") && !bound.may_use("n") && !bound.may_use("") && bound.may_pin() && bound.is_limited()
        );
        assert_eq!((free.scope(), bound.scope()), (&b"free"[..], &b"bound"[..]));
    }

    #[test]
    fn what_a_key_uses_outlives_a_reload_and_another_key_of_the_name() {
        let limited = |key| KeyConfig { in_flight_max: Some(2), ..config("alice", key) };
        let old = KeyRing::new(&[limited("a")], None);
        let slot = old.find(b"a").unwrap().enter(at(0)).unwrap();
        let new = KeyRing::new(&[limited("b"), config("bob", "c")], Some(&old));
        assert!(new.find(b"a").is_none());
        let alice = new.find(b"b").unwrap();
        let second = alice.enter(at(1)).unwrap();
        assert_eq!(alice.enter(at(1)).unwrap_err(), OverLimit::InFlight { max: 2 });
        drop(slot);
        assert_eq!(new.snapshot()[0].in_flight, 1);
        drop(second);
        let in_flight: Vec<_> = new.snapshot().iter().map(|key| key.in_flight).collect();
        assert_eq!(in_flight, [0, 0]);
    }
}
