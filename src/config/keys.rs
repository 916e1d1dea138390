//! The keys file: who may ask, and for what.
//!
//! ```yaml
//! alice:                          # a name, for the log and the metrics
//!   hash: kvpin1-...              # of the key; a list of them while one replaces another
//!   models: [qwen3-4b]            # the names that its requests may use; absent: all
//!   may_pin: false                # whether it may name a replica
//!   in_flight_max: 8              # absent: no limit
//!   requests_per_minute_max: 600  # absent: no limit
//! ```
//!
//! No refusal quotes a value of this file. Whoever takes it for a place to put keys into must not find them in the log.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use serde_yaml::Value;

use super::bounds;
use super::error::{ConfigError, Problem, Problems};
use super::file::Ordered;
use super::locate::{self, Path};
use super::reload::{Setting, or_none, setting_changes, words};
use super::secret::KeyHash;

/// How every key begins that kvpin makes, so that people and scanners for secrets know one when they see it.
pub const KEY_PREFIX: &str = "kvp_";

/// Everybody who may ask, read from the keys file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    pub file: PathBuf,
    /// In the order of the file; names and hashes are unique over all of them.
    pub keys: Vec<KeyConfig>,
    /// What may not be meant.
    pub(super) warnings: Vec<String>,
}

/// An API key, and what it is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyConfig {
    /// 1 to 64 of the characters that need no quoting anywhere: ASCII letters, digits and `._@-`.
    pub name: String,
    /// Of the keys that it may be, 1 to 4: more than one while one replaces another.
    pub hashes: Vec<KeyHash>,
    /// The names of models and aliases that its requests may use; `None`: all.
    pub models: Option<Vec<String>>,
    /// Whether it may name the replica.
    pub may_pin: bool,
    /// Requests at the same time; `None`: no limit.
    pub in_flight_max: Option<u32>,
    /// Requests within any minute; `None`: no limit.
    pub requests_per_minute_max: Option<u32>,
}

/// The keys in the text of a keys file. A file that says nothing has none, and then nobody may ask.
pub(super) fn parse(text: &str) -> Result<Vec<KeyConfig>, ConfigError> {
    if text.lines().all(|line| line.trim().is_empty() || line.starts_with('#') || line.trim() == "---") {
        return Ok(Vec::new());
    }
    locate::check_form(text).map_err(without_values)?;
    let Ordered(entries) = serde_yaml::from_str::<Ordered<Value>>(text).map_err(|err| no_mapping(&err))?;
    let mut problems = Problems::default();
    if entries.len() > bounds::KEYS_MAX {
        problems.add(Path::default(), format!("{} keys are more than {}", entries.len(), bounds::KEYS_MAX));
    }
    let keys = entries.into_iter().enumerate().filter_map(|(i, (name, entry))| key(i, name, entry, &mut problems));
    let keys: Vec<_> = keys.collect();
    check_hashes(&keys, &mut problems);
    if problems.is_empty() { Ok(keys) } else { Err(problems.locate(text)) }
}

/// A line for each key that is otherwise in `new`. Says nothing of the keys themselves.
pub(super) fn changes(old: Option<&Keys>, new: Option<&Keys>) -> Vec<String> {
    let list = |keys: Option<&Keys>| keys.map_or_else(Vec::new, |keys| keys.keys.clone());
    let (old, new) = (list(old), list(new));
    let old_of: BTreeMap<&str, &KeyConfig> = old.iter().map(|key| (&*key.name, key)).collect();
    let new_of: BTreeMap<&str, &KeyConfig> = new.iter().map(|key| (&*key.name, key)).collect();
    let mut lines = Vec::new();
    for key in &new {
        match old_of.get(&*key.name) {
            None => lines.push(format!("key {} added", key.name)),
            Some(old) => lines.extend(old.changes(key)),
        }
    }
    let removed = old.iter().filter(|key| !new_of.contains_key(&*key.name));
    lines.extend(removed.map(|key| format!("key {} removed", key.name)));
    lines
}

/// What is wrong with a name for a key.
pub fn key_name_problem(name: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if name.starts_with(KEY_PREFIX) {
        return Some(format!(
            "a name doesn't begin with {KEY_PREFIX}, as keys do; a key itself never stands in this file, only its hash"
        ));
    }
    let max = bounds::KEY_NAME_BYTES_MAX;
    let is_name = (1..=max).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with(['.', '@', '-']);
    (!is_name).then(|| {
        format!(
            "a key's name has 1 to {max} ASCII letters, digits and `._@-`, and begins with a letter, a digit or `_`"
        )
    })
}

impl KeyConfig {
    /// A key that may use everything, without limits.
    pub fn new(name: &str, hash: KeyHash) -> Self {
        KeyConfig {
            name: name.to_owned(),
            hashes: vec![hash],
            models: None,
            may_pin: false,
            in_flight_max: None,
            requests_per_minute_max: None,
        }
    }

    fn changes(&self, new: &KeyConfig) -> Vec<String> {
        let mut changes = setting_changes(self.settings(), new.settings());
        if self.hashes != new.hashes {
            changes.push("hash changed".to_owned());
        }
        changes.iter().map(|change| format!("key {}: {change}", self.name)).collect()
    }

    fn settings(&self) -> [Setting; 4] {
        let KeyConfig { name: _, hashes: _, models, may_pin, in_flight_max, requests_per_minute_max } = self;
        [
            ("models", models.as_ref().map_or("all".to_owned(), |models| format!("[{}]", words(models)))),
            ("may_pin", may_pin.to_string()),
            ("in_flight_max", or_none(in_flight_max.as_ref())),
            ("requests_per_minute_max", or_none(requests_per_minute_max.as_ref())),
        ]
    }
}

/// One entry of the file, if it can be made out.
fn key(index: usize, name: String, entry: Value, problems: &mut Problems) -> Option<KeyConfig> {
    if let Some(reason) = key_name_problem(&name) {
        // The name isn't shown: it may be what should have been hashed.
        problems.add(Path::default(), format!("entry {}: {reason}", index + 1));
        return None;
    }
    let at = Path::default().key(&name);
    let Value::Mapping(entry) = entry else {
        problems.add(at, "this is no mapping; it needs at least a `hash`, as `kvpin keys add` writes it");
        return None;
    };
    let mut key = KeyConfig { hashes: Vec::new(), ..KeyConfig::new(&name, KeyHash::of(b"")) };
    let mut has_hash = false;
    for (field, value) in &entry {
        match field.as_str() {
            Some("hash") => {
                has_hash = true;
                key.hashes = hashes(&at.key("hash"), value, problems);
            }
            Some("models") => key.models = Some(models(&at.key("models"), value, problems)),
            Some("may_pin") => match value.as_bool() {
                Some(may_pin) => key.may_pin = may_pin,
                None => problems.add(at.key("may_pin"), "this is neither true nor false"),
            },
            Some("in_flight_max") => key.in_flight_max = count(&at, &bounds::KEY_IN_FLIGHT, value, problems),
            Some("requests_per_minute_max") => {
                key.requests_per_minute_max = count(&at, &bounds::KEY_REQUESTS_PER_MINUTE, value, problems);
            }
            Some(_) | None => problems.add(
                at.clone(),
                "it has an unknown field; there are hash, models, may_pin, in_flight_max and requests_per_minute_max",
            ),
        }
    }
    if !has_hash {
        problems.add(at, "it has no `hash`; `kvpin keys add` writes it");
    }
    Some(key)
}

fn hashes(at: &Path, value: &Value, problems: &mut Problems) -> Vec<KeyHash> {
    let values = match value {
        Value::Sequence(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    if values.is_empty() || values.len() > bounds::KEY_HASHES_MAX {
        problems.add(at.clone(), format!("a key has 1 to {} hashes", bounds::KEY_HASHES_MAX));
    }
    let mut hashes = Vec::new();
    for value in values {
        match value.as_str().and_then(KeyHash::parse) {
            Some(hash) => hashes.push(hash),
            None => problems.add(
                at.clone(),
                "this is no hash as `kvpin keys add` writes it: kvpin1- and 64 hexadecimal digits. If it is a key, that key \
                 is known to whoever can read this file: make another one",
            ),
        }
    }
    hashes
}

fn models(at: &Path, value: &Value, problems: &mut Problems) -> Vec<String> {
    let Value::Sequence(values) = value else {
        problems.add(at.clone(), "this is no list of names of models");
        return Vec::new();
    };
    if values.is_empty() || values.len() > bounds::KEY_MODELS_MAX {
        let max = bounds::KEY_MODELS_MAX;
        problems.add(at.clone(), format!("the list has 1 to {max} names; without a list every model is allowed"));
    }
    let mut models = Vec::new();
    for (i, value) in values.iter().enumerate() {
        // A name may consist of digits.
        let name = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()));
        match name.filter(|name| !name.is_empty() && name.len() <= bounds::MODEL_NAME_BYTES_MAX) {
            Some(name) => models.push(name),
            None => problems.add(at.index(i), "this is no name of a model"),
        }
    }
    models
}

fn count(at: &Path, bound: &bounds::Bound, value: &Value, problems: &mut Problems) -> Option<u32> {
    let Some(number) = value.as_u64() else {
        problems.add(at.key(bound.key), format!("this is no number from {} to {}", bound.min, bound.max));
        return None;
    };
    // Lossless: the bounds are below 32 bits.
    problems.within(at, bound, Some(number)).map(|number| number as u32)
}

/// One key for two names would make the one of them that is found a matter of luck.
fn check_hashes(keys: &[KeyConfig], problems: &mut Problems) {
    let mut name_of = HashMap::new();
    for key in keys {
        for hash in &key.hashes {
            if let Some(other) = name_of.insert(*hash, &*key.name) {
                let reason = format!("`{other}` has the same key");
                problems.add(Path::default().key(&key.name).key("hash"), reason);
            }
        }
    }
}

/// serde's own words would quote what stands there.
fn no_mapping(err: &serde_yaml::Error) -> ConfigError {
    ConfigError::one(Problem {
        line: err.location().map(|at| at.line()),
        path: String::new(),
        reason: "this is no mapping of names to keys, as `kvpin keys add` writes it".to_owned(),
    })
}

/// The path of a problem of form is made of whatever stands in the place of names.
fn without_values(err: ConfigError) -> ConfigError {
    let problem = err.problems().first().map(|problem| Problem { path: String::new(), ..problem.clone() });
    problem.map_or(err, ConfigError::one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: &str) -> String {
        KeyHash::of(key.as_bytes()).to_text()
    }

    fn refused(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn a_file_says_who_may_ask_and_for_what() {
        let (a, b, c) = (hash("a"), hash("b"), hash("c"));
        let keys = parse(&format!(
            "# comment\nalice:\n  hash: {a}\nbob@example.org:\n  hash: [{b}, {c}]\n  models: [m, 7]\n  may_pin: true\n  \
             in_flight_max: 8\n  requests_per_minute_max: 600\n"
        ));
        let bob = KeyConfig {
            name: "bob@example.org".to_owned(),
            hashes: vec![KeyHash::of(b"b"), KeyHash::of(b"c")],
            models: Some(vec!["m".to_owned(), "7".to_owned()]),
            may_pin: true,
            in_flight_max: Some(8),
            requests_per_minute_max: Some(600),
        };
        assert_eq!(keys, Ok(vec![KeyConfig::new("alice", KeyHash::of(b"a")), bob]));
    }

    #[test]
    fn a_file_that_says_nothing_lets_nobody_in() {
        for text in ["", "\n\n", "# none yet\n", "---\n# none yet\n", "{}\n"] {
            assert_eq!(parse(text), Ok(Vec::new()), "{text:?}");
        }
    }

    #[test]
    fn a_name_may_look_like_another_yaml_type() {
        for name in ["true", "null", "123", "1e3", "yes"] {
            let keys =
                parse(&format!("{name}:\n  hash: {}\n", hash("a"))).unwrap_or_else(|err| panic!("{name}: {err}"));
            assert_eq!(keys[0].name, name);
        }
    }

    #[test]
    fn a_refusal_has_line_path_and_reason() {
        let (a, b) = (hash("a"), hash("b"));
        for (text, expected) in [
            ("alice: [\n".to_owned(), "line 2: did not find"),
            (format!("- hash: {a}\n"), "line 1: this is no mapping of names"),
            ("alice: text\n".to_owned(), "line 1: alice: this is no mapping"),
            ("alice: {may_pin: true}\n".to_owned(), "line 1: alice: it has no `hash`"),
            ("alice:\n  hash: 12\n".to_owned(), "line 2: alice.hash: this is no hash"),
            (format!("alice:\n  hash: {}\n", &a[..70]), "line 2: alice.hash: this is no hash"),
            ("alice:\n  hash: []\n".to_owned(), "line 2: alice.hash: a key has 1 to 4 hashes"),
            (format!("alice:\n  hash: {a}\n  model: x\n"), "line 1: alice: it has an unknown field"),
            (format!("alice:\n  hash: {a}\n  models: x\n"), "line 3: alice.models: this is no list"),
            (format!("alice:\n  hash: {a}\n  models: []\n"), "line 3: alice.models: the list has 1 to"),
            (format!("alice:\n  hash: {a}\n  models: [true]\n"), "line 3: alice.models[0]: this is no name"),
            (format!("alice:\n  hash: {a}\n  may_pin: 1\n"), "line 3: alice.may_pin: this is neither"),
            (format!("alice:\n  hash: {a}\n  in_flight_max: 0\n"), "line 3: alice.in_flight_max: 0 is not 1 to"),
            (format!("alice:\n  hash: {a}\n  in_flight_max: few\n"), "line 3: alice.in_flight_max: this is no number"),
            (format!("alice:\n  hash: {a}\nbob:\n  hash: [{b}, {a}]\n"), "line 4: bob.hash: `alice` has the same key"),
            (format!("alice: {{hash: {a}}}\nalice: {{hash: {b}}}\n"), "line 2: the key comes twice"),
            (format!("alice:\n  hash: {a}\n  hash: {b}\n"), "line 3: the key comes twice"),
            (format!("'':\n  hash: {a}\n"), "entry 1: a key's name has"),
            (format!("a b:\n  hash: {a}\n"), "entry 1: a key's name has"),
            (format!("{}:\n  hash: {a}\n", "n".repeat(65)), "entry 1: a key's name has"),
        ] {
            let refusal = refused(&text);
            assert!(refusal.starts_with(expected), "expected {expected}\nbut got {refusal}\nfor\n{text}");
        }
    }

    #[test]
    fn no_refusal_quotes_what_may_be_a_key() {
        const KEY: &str = "kvp_0123456789";
        for text in [
            KEY.to_owned(),
            format!("- {KEY}\n"),
            format!("{KEY}: {{}}\n"),
            format!("{KEY}:\n"),
            format!("{KEY}: 1\n{KEY}: 2\n"),
            format!("{KEY}: {{hash: {KEY}}}\n"),
            format!("alice: {KEY}\n"),
            format!("alice: {{hash: {KEY}}}\n"),
            format!("alice: {{hash: !key {KEY}}}\n"),
            format!("alice: {{hash: [{KEY}]}}\n"),
            format!("alice: {{{KEY}: 1}}\n"),
            format!("alice: {{{KEY}: 1, {KEY}: 1}}\n"),
            format!("alice: {{hash: {}, models: {KEY}}}\n", hash("a")),
            format!("alice: {{hash: {}, may_pin: {KEY}}}\n", hash("a")),
            format!("alice: {{hash: {}, in_flight_max: {KEY}}}\n", hash("a")),
            format!("alice: {{hash: *{KEY}}}\n"),
            format!("alice: {{hash: '{KEY}\n"),
        ] {
            let refusal = refused(&text);
            assert!(!refusal.contains(KEY) && !refusal.contains("kvpin1-0"), "{refusal}\nfor\n{text}");
        }
    }

    #[test]
    fn changes_name_keys_and_never_show_one() {
        let keys = |text: &str| Some(Keys { file: PathBuf::new(), keys: parse(text).unwrap(), warnings: Vec::new() });
        let (a, b, c) = (hash("a"), hash("b"), hash("c"));
        let old = keys(&format!("alice: {{hash: {a}}}\nbob: {{hash: {b}}}\n"));
        let new = keys(&format!("carol: {{hash: {b}}}\nalice: {{hash: {c}, models: [m], in_flight_max: 2}}\n"));
        let expected = [
            "key carol added",
            "key alice: models: all -> [m]",
            "key alice: in_flight_max: none -> 2",
            "key alice: hash changed",
            "key bob removed",
        ];
        assert_eq!(changes(old.as_ref(), new.as_ref()), expected);
        assert_eq!(changes(old.as_ref(), old.as_ref()), [""; 0]);
        assert_eq!(changes(None, old.as_ref()), ["key alice added", "key bob added"]);
    }
}
