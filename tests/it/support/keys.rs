//! API keys for tests: a kvpin that asks for them, and calls that show one.

use kvpin::config::KeyHash;
use serde_json::{Value, json};

use super::call::Call;
use super::kvpin::Kvpin;

/// The file that [`guarded`] configurations name, in the directory of the configuration.
pub const KEYS_FILE: &str = "keys.yaml";

/// The key of a name. Long, and in no other text.
pub fn key_of(name: &str) -> String {
    format!("key-of-{name}-5c1e7a90b2d44f")
}

/// A keys file with the entries that are given by name; the hash is put into each.
pub fn keys_file(entries: &[(&str, Value)]) -> String {
    let entry = |(name, entry): &(&str, Value)| {
        let mut entry = entry.clone();
        entry["hash"] = json!(hash_of(name));
        ((*name).to_owned(), entry)
    };
    Value::Object(entries.iter().map(entry).collect()).to_string()
}

pub fn hash_of(name: &str) -> String {
    KeyHash::of(key_of(name).as_bytes()).to_text()
}

/// A configuration that asks for the keys in [`KEYS_FILE`].
pub fn guarded(models: Value) -> Value {
    let mut config = super::kvpin::config(models);
    config["keys_file"] = json!(KEYS_FILE);
    config
}

impl Kvpin {
    /// Serves `models` to the holders of keys, and waits until each replica has been seen up.
    pub async fn guard(models: Value, entries: &[(&str, Value)]) -> Self {
        let kvpin = Kvpin::launch_with(&guarded(models), &[(KEYS_FILE, &keys_file(entries))]).await;
        kvpin.until_health("up", |_| true).await;
        kvpin
    }
}

impl Call {
    /// With the key of that name.
    pub fn by(self, name: &str) -> Self {
        self.header("Authorization", format!("Bearer {}", key_of(name)))
    }
}
