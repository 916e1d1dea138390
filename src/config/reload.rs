//! What differs between the configuration that runs and a new one, for the operator and for the decision to take the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::path::Path as FilePath;
use std::time::Duration;

use super::locate::{self, Path};
use super::{
    AccessLogConfig, AdmissionConfig, Config, HealthConfig, Limits, ListenConfig, ModelConfig, Problem, ReplicaConfig,
    SecretFile, keys,
};
use crate::tls::{Authority, ListenerTls};

/// What can't change while the process runs: sockets are opened once. Everything else is read from the routing table where
/// it is used.
const FIXED_AT_START: [&str; 2] = ["listen", "admin"];

/// A key of the file and its value, ready to compare and to show.
pub(super) type Setting = (&'static str, String);

/// What a running configuration and a text have to do with each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What is otherwise in the text, a line each. Empty where it is no configuration.
    pub changes: Vec<String>,
    /// Why a reload would be refused; empty where it would be taken.
    pub problems: Vec<Problem>,
    /// What works but may not be what was meant, and is new.
    pub warnings: Vec<String>,
}

impl Config {
    /// Compares this configuration, which runs, with a text that is to stand at `path`. Blocks while hostnames, if there are
    /// any, are resolved.
    pub fn compare(&self, path: &FilePath, text: &str) -> Comparison {
        let new = match Config::from_text(path, text) {
            Ok(new) => new,
            Err(error) => return Comparison { problems: error.problems().to_vec(), ..Comparison::default() },
        };
        let known = self.warnings();
        Comparison {
            changes: self.changes(&new),
            problems: self.fixed(&new, text),
            warnings: new.warnings().into_iter().filter(|warning| !known.contains(warning)).collect(),
        }
    }

    /// Why a reload to `new`, read from `text`, would be refused.
    pub fn fixed(&self, new: &Config, text: &str) -> Vec<Problem> {
        self.restart_needed(new).into_iter().map(|key| fixed(key, text)).collect()
    }

    /// The keys that differ from `new` and take effect only at a start.
    pub fn restart_needed(&self, new: &Config) -> Vec<&'static str> {
        differing(self.settings(), new.settings())
            .map(|(key, _, _)| key)
            .filter(|key| FIXED_AT_START.contains(key))
            .collect()
    }

    /// A line for each thing that is otherwise in `new`, such as `model qwen: replica x added`. Empty if both mean the same.
    pub fn changes(&self, new: &Config) -> Vec<String> {
        let mut lines = setting_changes(self.settings(), new.settings());
        for (old, new) in self.listen.iter().zip(&new.listen).filter(|(old, new)| old.address == new.address) {
            lines.extend(old.changes(new));
        }
        lines.extend(secret_change("admin token", self.admin_token.as_ref(), new.admin_token.as_ref()));
        lines.extend(keys::changes(self.keys.as_ref(), new.keys.as_ref()));
        for model in &new.models {
            match self.models.iter().find(|old| old.name == model.name) {
                None => lines.push(format!("model {} added", model.name)),
                Some(old) => lines.extend(old.changes(model)),
            }
        }
        for model in &self.models {
            if !new.models.iter().any(|kept| kept.name == model.name) {
                lines.push(format!("model {} removed", model.name));
            }
        }
        lines
    }

    fn settings(&self) -> Vec<Setting> {
        let Config {
            listen,
            keys,
            allow_anonymous,
            admin,
            admin_token,
            default_model,
            session_headers,
            decision_headers,
            allow_paths,
            trusted_proxies,
            access_log: AccessLogConfig { to, format },
            health,
            limits,
            scrape_interval,
            shutdown_grace,
            state_file,
            state_interval,
            nvml,
            models: _,
        } = self;
        let mut settings = vec![
            ("listen", format!("[{}]", words(listen))),
            ("keys_file", or_none(keys.as_ref().map(|keys| keys.file.display()).as_ref())),
            ("allow_anonymous", allow_anonymous.to_string()),
            ("admin", admin.map_or("off".to_owned(), |a| a.to_string())),
            ("admin_token_file", file_of(admin_token.as_ref())),
            ("default_model", or_none(default_model.as_ref())),
            ("session_headers", format!("[{}]", words(session_headers))),
            ("decision_headers", decision_headers.to_string()),
            ("allow_paths", format!("[{}]", words(allow_paths))),
            ("trusted_proxies", format!("[{}]", words(trusted_proxies))),
            ("access_log.to", to.to_string()),
            ("access_log.format", format.to_string()),
            ("scrape_interval_ms", millis(scrape_interval)),
            ("shutdown_grace_s", seconds(shutdown_grace)),
            ("state_file", state_file.to_string()),
            ("state_interval_s", seconds(state_interval)),
            ("nvml", nvml.to_string()),
        ];
        settings.extend(health.settings());
        settings.extend(limits.settings());
        settings
    }
}

impl ListenConfig {
    /// What can change while it listens.
    fn changes(&self, new: &ListenConfig) -> Vec<String> {
        let (Some(old), Some(new)) = (&self.tls, &new.tls) else { return Vec::new() };
        let changes = setting_changes(tls_settings(old), tls_settings(new));
        changes.iter().map(|change| format!("listen {}: {change}", self.address)).collect()
    }
}

/// The address, and whether it speaks TLS: what it takes a restart to change.
impl Display for ListenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenConfig { address, tls } = self;
        write!(f, "{address}{}", if tls.is_some() { " with tls" } else { "" })
    }
}

fn tls_settings(tls: &ListenerTls) -> [Setting; 3] {
    [
        ("tls.certificates", format!("[{}]", words(tls.certificates()))),
        ("tls.client_ca", or_none(tls.client_ca().map(Authority::to_string).as_ref())),
        ("tls.min_version", tls.min_version().to_string()),
    ]
}

impl HealthConfig {
    fn settings(&self) -> [Setting; 7] {
        let HealthConfig { interval, timeout, failures, successes, backoff_max, hung, ramp } = self;
        [
            ("health.interval_ms", millis(interval)),
            ("health.timeout_ms", millis(timeout)),
            ("health.failures", failures.to_string()),
            ("health.successes", successes.to_string()),
            ("health.backoff_max_ms", millis(backoff_max)),
            ("health.hung_s", seconds(hung)),
            ("health.ramp_s", seconds(ramp)),
        ]
    }
}

impl Limits {
    fn settings(&self) -> [Setting; 18] {
        let Limits {
            body_bytes_max,
            head_bytes_max,
            head_timeout,
            keepalive_timeout,
            body_timeout,
            body_rate_min,
            write_timeout,
            connect_timeout,
            replay_bytes_max,
            replay_memory_bytes_max,
            history_wait,
            response_timeout,
            ping_interval,
            connections_max,
            connections_per_address_max,
            streams_max,
            tries_max,
            breaks_max,
        } = self;
        [
            ("limits.body_bytes_max", body_bytes_max.to_string()),
            ("limits.head_bytes_max", head_bytes_max.to_string()),
            ("limits.head_timeout_s", seconds(head_timeout)),
            ("limits.keepalive_timeout_s", seconds(keepalive_timeout)),
            ("limits.body_timeout_s", seconds(body_timeout)),
            ("limits.body_rate_min_bytes_per_s", body_rate_min.to_string()),
            ("limits.write_timeout_s", seconds(write_timeout)),
            ("limits.connect_timeout_ms", millis(connect_timeout)),
            ("limits.replay_bytes_max", replay_bytes_max.to_string()),
            ("limits.replay_memory_bytes_max", replay_memory_bytes_max.to_string()),
            ("limits.history_wait_ms", millis(history_wait)),
            ("limits.response_timeout_s", seconds(response_timeout)),
            ("limits.ping_interval_s", seconds(&ping_interval.unwrap_or_default())),
            ("limits.connections_max", connections_max.to_string()),
            ("limits.connections_per_address_max", connections_per_address_max.to_string()),
            ("limits.streams_max", streams_max.to_string()),
            ("limits.tries_max", tries_max.to_string()),
            ("limits.breaks_max", breaks_max.to_string()),
        ]
    }
}

impl ModelConfig {
    fn changes(&self, new: &ModelConfig) -> Vec<String> {
        let mut changes = setting_changes(self.settings(), new.settings());
        changes.extend(secret_change("upstream key", self.upstream_key.as_ref(), new.upstream_key.as_ref()));
        let old_of: BTreeMap<&str, &ReplicaConfig> = self.replicas.iter().map(|r| (&*r.name, r)).collect();
        for replica in &new.replicas {
            match old_of.get(&*replica.name) {
                None => changes.push(format!("replica {} added", replica.name)),
                Some(old) => changes.extend(old.changes(replica)),
            }
        }
        let kept: BTreeSet<&str> = new.replicas.iter().map(|r| &*r.name).collect();
        for replica in self.replicas.iter().filter(|r| !kept.contains(&*r.name)) {
            changes.push(format!("replica {} removed", replica.name));
        }
        let name = &self.name;
        let lines = changes.iter().map(|c| format!("model {name}: {c}"));
        lines.collect()
    }

    fn settings(&self) -> [Setting; 14] {
        let ModelConfig {
            name: _,
            aliases,
            affinity,
            affinity_ordered: _,
            balancing,
            max_num_seqs,
            spill_threshold,
            admission: AdmissionConfig { mode, kv_cache_tokens, held_max, hold_max },
            client_pins,
            send_session_id,
            upstream_key,
            conversations_max,
            conversation_idle,
            replicas: _,
        } = self;
        [
            ("aliases", format!("[{}]", words(aliases))),
            ("affinity", affinity.to_string()),
            ("balancing", balancing.to_string()),
            ("max_num_seqs", or_none(max_num_seqs.as_ref())),
            ("spill_threshold", spill_threshold.to_string()),
            ("admission", mode.to_string()),
            ("kv_cache_tokens", or_none(kv_cache_tokens.as_ref())),
            ("held_max", held_max.to_string()),
            ("hold_max_s", seconds(hold_max)),
            ("client_pins", client_pins.to_string()),
            ("send_session_id", send_session_id.to_string()),
            ("upstream_key_file", file_of(upstream_key.as_ref())),
            ("conversations_max", conversations_max.to_string()),
            ("conversation_idle_s", seconds(conversation_idle)),
        ]
    }
}

impl ReplicaConfig {
    fn changes(&self, new: &ReplicaConfig) -> Vec<String> {
        let name = &self.name;
        let changes = setting_changes(self.settings(), new.settings());
        let lines = changes.iter().map(|c| format!("replica {name}: {c}"));
        lines.collect()
    }

    fn settings(&self) -> [Setting; 7] {
        let ReplicaConfig { name: _, address, authority, rank, data_parallel_size, drain, gpus, tls } = self;
        [
            ("address", address.to_string()),
            ("authority", authority.to_string()),
            ("rank", or_none(rank.as_ref())),
            ("data_parallel_size", data_parallel_size.to_string()),
            ("drain", drain.to_string()),
            ("gpus", format!("[{}]", words(gpus))),
            ("tls", or_none(tls.as_ref())),
        ]
    }
}

/// The problem of a key that can't change while the process runs.
fn fixed(key: &str, text: &str) -> Problem {
    Problem {
        line: locate::line_of(text, &Path::default().key(key)),
        path: key.to_owned(),
        reason: "it can only change with a new process: `kvpin upgrade` puts one in the place of this one, and loses \
                 no request"
            .to_owned(),
    }
}

/// That the secret in a file is another one. The file's path is a setting, and what stands in it is shown nowhere.
fn secret_change(what: &str, old: Option<&SecretFile>, new: Option<&SecretFile>) -> Option<String> {
    let (old, new) = (old?, new?);
    (old.secret != new.secret).then(|| format!("{what} changed"))
}

fn file_of(secret: Option<&SecretFile>) -> String {
    or_none(secret.map(|secret| secret.file.display()).as_ref())
}

pub(super) fn setting_changes(
    old: impl IntoIterator<Item = Setting>,
    new: impl IntoIterator<Item = Setting>,
) -> Vec<String> {
    differing(old, new).map(|(key, old, new)| format!("{key}: {old} -> {new}")).collect()
}

/// Key, old and new value of the settings that differ. Both sides come from the same function, so that they pair up.
fn differing(
    old: impl IntoIterator<Item = Setting>,
    new: impl IntoIterator<Item = Setting>,
) -> impl Iterator<Item = (&'static str, String, String)> {
    old.into_iter().zip(new).filter(|((_, old), (_, new))| old != new).map(|((key, old), (_, new))| (key, old, new))
}

pub(super) fn words(items: &[impl Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn or_none(value: Option<&impl Display>) -> String {
    value.map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn millis(duration: &Duration) -> String {
    duration.as_millis().to_string()
}

fn seconds(duration: &Duration) -> String {
    duration.as_secs().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = "\
models:
  a:
    replicas: [http://127.0.0.1:1, {url: 'http://127.0.0.1:2', name: x}]
  b:
    replicas: [http://127.0.0.1:3]
";

    fn config(text: &str) -> Config {
        Config::from_yaml(text).unwrap_or_else(|err| panic!("{err}\nin\n{text}"))
    }

    #[test]
    fn the_same_file_changes_nothing() {
        let running = config(RUNNING);
        assert_eq!(running.changes(&config(RUNNING)), [""; 0]);
        assert_eq!(running.restart_needed(&config(RUNNING)), [""; 0]);
    }

    #[test]
    fn every_difference_is_a_line() {
        let new = config(
            "\
listen: 127.0.0.1:7070
admin: off
scrape_interval_ms: 500
limits: {body_bytes_max: 1MiB}
models:
  c:
    replicas: [http://127.0.0.1:4]
  a:
    aliases: [z]
    max_num_seqs: 16
    spill_threshold: 4
    replicas: [{url: 'http://127.0.0.1:5', name: x}, {url: 'http://127.0.0.1:6', name: y}]
",
        );
        let expected = [
            "listen: [127.0.0.1:8080] -> [127.0.0.1:7070]",
            "admin: 127.0.0.1:9180 -> off",
            "scrape_interval_ms: 1000 -> 500",
            "limits.body_bytes_max: 33554432 -> 1048576",
            "model c added",
            "model a: aliases: [] -> [z]",
            "model a: max_num_seqs: none -> 16",
            "model a: spill_threshold: auto -> 4",
            "model a: replica x: address: 127.0.0.1:2 -> 127.0.0.1:5",
            "model a: replica x: authority: 127.0.0.1:2 -> 127.0.0.1:5",
            "model a: replica y added",
            "model a: replica 127.0.0.1:1 removed",
            "model b removed",
        ];
        let running = config(RUNNING);
        assert_eq!(running.changes(&new), expected);
        assert_eq!(running.restart_needed(&new), ["listen", "admin"]);
    }

    #[test]
    fn a_text_is_compared_with_what_runs_and_refused_with_line_key_and_reason() {
        let running = config(RUNNING);
        let comparison =
            running.compare(FilePath::new("kvpin.yaml"), &format!("scrape_interval_ms: 50\nadmin: off\n{RUNNING}"));
        assert_eq!(comparison.changes, ["admin: 127.0.0.1:9180 -> off", "scrape_interval_ms: 1000 -> 50"]);
        let [problem] = comparison.problems.as_slice() else { panic!("{comparison:?}") };
        assert_eq!((problem.line, &*problem.path), (Some(2), "admin"));
        assert!(problem.reason.contains("kvpin upgrade"), "{problem}");

        let bad = running.compare(FilePath::new("kvpin.yaml"), &format!("listen: here\n{RUNNING}"));
        assert!(bad.changes.is_empty() && bad.problems[0].path == "listen", "{bad:?}");

        assert_eq!(running.compare(FilePath::new("kvpin.yaml"), RUNNING), Comparison::default());
        let risky = running.compare(
            FilePath::new("kvpin.yaml"),
            &RUNNING
                .replace("127.0.0.1:3]", "127.0.0.1:3]\n    affinity: true\n  c:\n    replicas: [http://127.0.0.1:4]"),
        );
        assert_eq!(
            (risky.changes.as_slice(), risky.warnings.len()),
            (&["model c added".to_owned()][..], 1),
            "{risky:?}"
        );
    }

    #[test]
    fn a_key_that_is_fixed_at_start_needs_a_restart() {
        let running = config(RUNNING);
        for (key, line) in [("listen", "listen: 127.0.0.1:7070"), ("admin", "admin: off")] {
            assert!(FIXED_AT_START.contains(&key), "{key}");
            let new = config(&format!("{line}\n{RUNNING}"));
            assert_eq!(running.restart_needed(&new), [key]);
        }
        for line in [
            "default_model: a",
            "scrape_interval_ms: 50",
            "shutdown_grace_s: 1",
            "state_file: /tmp/state",
            "state_interval_s: 1",
            "limits: {replay_memory_bytes_max: 1GiB}",
            "limits: {keepalive_timeout_s: 1}",
            "limits: {ping_interval_s: 0}",
        ] {
            let new = config(&format!("{line}\n{RUNNING}"));
            assert_eq!(running.restart_needed(&new), [""; 0], "{line}");
            assert_eq!(running.changes(&new).len(), 1, "{line}");
        }
    }
}
