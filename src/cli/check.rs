//! `kvpin check`: what a configuration means, or all that is wrong with it.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::{Alias, Config, ConfigError, ListenConfig, ModelConfig, ReplicaConfig, SpillThreshold};
use crate::tls::{Certificate, ListenerTls};

/// EX_CONFIG of sysexits.h, which systemd and scripts can tell from a crash.
use super::EXIT_CONFIG;

/// What the check came to. The errors go to stderr, so that stdout holds a summary or nothing.
struct Verdict {
    stdout: String,
    stderr: String,
    exit: ExitCode,
}

/// Reads the file and prints what it means (exit 0) or what is wrong with it (exit 78); with `json` one object on stdout either way.
/// Exit 1 if the output can't be written.
pub fn run(config: &Path, json: bool) -> ExitCode {
    let loaded = Config::load(config);
    let verdict = if json { in_json(&loaded) } else { in_words(config, &loaded) };
    match print(&verdict) {
        Ok(()) => verdict.exit,
        Err(_) => ExitCode::FAILURE,
    }
}

fn print(verdict: &Verdict) -> io::Result<()> {
    io::stderr().write_all(verdict.stderr.as_bytes())?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(verdict.stdout.as_bytes())?;
    stdout.flush()
}

fn exit(loaded: &Result<Config, ConfigError>) -> ExitCode {
    match loaded {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(EXIT_CONFIG),
    }
}

fn in_words(path: &Path, loaded: &Result<Config, ConfigError>) -> Verdict {
    let (stdout, stderr) = match loaded {
        Ok(config) => (Summary(config).to_string(), String::new()),
        Err(err) => {
            let stderr = format!("{} is not a valid configuration:\n{err}\n", path.display());
            (String::new(), stderr)
        }
    };
    Verdict { stdout, stderr, exit: exit(loaded) }
}

fn in_json(loaded: &Result<Config, ConfigError>) -> Verdict {
    let object = match loaded {
        Ok(config) => json!({
            "ok": true,
            "errors": [],
            "warnings": config.warnings(),
            "listen": config.listen.iter().map(listener_json).collect::<Vec<_>>(),
            "keys": config.keys.as_ref().map(|keys| keys.keys.iter().map(|key| &key.name).collect::<Vec<_>>()),
            "models": config.models.iter().map(model_json).collect::<Vec<_>>(),
        }),
        Err(err) => json!({
            "ok": false,
            "errors": errors_json(err),
            "warnings": [],
            "listen": [],
            "models": [],
        }),
    };
    Verdict { stdout: format!("{object}\n"), stderr: String::new(), exit: exit(loaded) }
}

fn errors_json(err: &ConfigError) -> Vec<Value> {
    let problems = err.problems().iter();
    problems.map(|p| json!({ "line": p.line, "path": p.path, "reason": p.reason })).collect()
}

fn listener_json(listener: &ListenConfig) -> Value {
    json!({ "address": listener.address.to_string(), "tls": listener.tls.as_ref().map(tls_json) })
}

fn tls_json(tls: &ListenerTls) -> Value {
    let certificate = |certificate: &Certificate| {
        json!({
            "file": certificate.path().display().to_string(),
            "names": certificate.names(),
            "expires_s": certificate.expires_s(),
        })
    };
    json!({
        "certificates": tls.certificates().iter().map(certificate).collect::<Vec<_>>(),
        "client_ca": tls.client_ca().map(|authority| authority.path().display().to_string()),
        "min_version": tls.min_version().to_string(),
    })
}

fn model_json(model: &ModelConfig) -> Value {
    json!({
        "name": model.name,
        "aliases": model.aliases.iter().map(alias_json).collect::<Vec<_>>(),
        "affinity": model.affinity,
        "balancing": (!model.affinity).then(|| model.balancing.to_string()),
        "max_num_seqs": model.max_num_seqs,
        "spill_threshold": threshold(model),
        "replicas": model.replicas.iter().map(replica_json).collect::<Vec<_>>(),
    })
}

fn alias_json(alias: &Alias) -> Value {
    json!({ "name": alias.name, "upstream": alias.upstream })
}

fn replica_json(replica: &ReplicaConfig) -> Value {
    json!({
        "name": replica.name,
        "address": replica.address.to_string(),
        "authority": replica.authority,
        "tls": replica.tls.as_ref().map(ToString::to_string),
        "rank": replica.rank,
        "data_parallel_size": replica.data_parallel_size,
    })
}

fn threshold(model: &ModelConfig) -> u32 {
    let max_num_seqs = model.max_num_seqs;
    model.spill_threshold(max_num_seqs.unwrap_or(ModelConfig::ASSUMED_MAX_NUM_SEQS))
}

/// A configuration in words: listeners, a block a model, warnings.
struct Summary<'a>(&'a Config);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary(config) = self;
        for listener in &config.listen {
            write_listener(f, listener)?;
        }
        match config.admin {
            Some(address) => writeln!(f, "admin {address}")?,
            None => writeln!(f, "admin off")?,
        }
        if let Some(keys) = &config.keys {
            writeln!(f, "{} keys in {}", keys.keys.len(), keys.file.display())?;
        }
        if let Some(name) = &config.default_model {
            writeln!(f, "default model {name}")?;
        }
        for model in &config.models {
            writeln!(f)?;
            write_model(f, model)?;
        }
        let warnings = config.warnings();
        if !warnings.is_empty() {
            writeln!(f)?;
        }
        for warning in warnings {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}

fn write_listener(f: &mut fmt::Formatter<'_>, listener: &ListenConfig) -> fmt::Result {
    write!(f, "listen {}", listener.address)?;
    let Some(tls) = &listener.tls else { return writeln!(f) };
    writeln!(f, " with TLS from {} on", tls.min_version())?;
    for certificate in tls.certificates() {
        writeln!(f, "  certificate {certificate}")?;
    }
    match tls.client_ca() {
        Some(authority) => writeln!(f, "  clients need a certificate of {authority}"),
        None => Ok(()),
    }
}

fn write_model(f: &mut fmt::Formatter<'_>, model: &ModelConfig) -> fmt::Result {
    write!(f, "model {}", model.name)?;
    if !model.aliases.is_empty() {
        let names: Vec<_> = model.aliases.iter().map(ToString::to_string).collect();
        write!(f, ", also {}", names.join(", "))?;
    }
    writeln!(f)?;
    if model.affinity {
        writeln!(f, "  spill threshold {}", threshold_in_words(model))?;
    } else {
        writeln!(f, "  no affinity: {}", model.balancing)?;
    }
    let width = model.replicas.iter().map(|r| r.name.len()).max();
    for replica in &model.replicas {
        let mut at = replica.address.to_string();
        if let Some(rank) = replica.rank {
            write!(at, " rank {rank} of {}", replica.data_parallel_size)?;
        }
        if let Some(tls) = &replica.tls {
            write!(at, " over TLS, {tls}")?;
        }
        let width = width.unwrap_or_default();
        writeln!(f, "  replica {:width$}  {at}", replica.name)?;
    }
    Ok(())
}

fn threshold_in_words(model: &ModelConfig) -> String {
    let turns = threshold(model);
    match (model.spill_threshold, model.max_num_seqs) {
        (SpillThreshold::Fixed(_), _) => format!("{turns}: as configured"),
        (SpillThreshold::Auto, Some(max)) => format!("{turns}: a quarter of max_num_seqs {max}"),
        (SpillThreshold::Auto, None) => format!(
            "{turns}: a quarter of max_num_seqs {}, which is assumed until the engine tells",
            ModelConfig::ASSUMED_MAX_NUM_SEQS
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four_cards() -> Result<Config, ConfigError> {
        Config::from_yaml(include_str!("../../conf/four-cards.yaml"))
    }

    #[test]
    fn a_valid_file_is_summarised() {
        let verdict = in_words(Path::new("four-cards.yaml"), &four_cards());
        let expected = "\
listen 127.0.0.1:8080
admin 127.0.0.1:9180

model qwen3-4b, also claude-sonnet-4-5
  spill threshold 8: a quarter of max_num_seqs 32
  replica 127.0.0.1:8000/0  127.0.0.1:8000 rank 0 of 4
  replica 127.0.0.1:8000/1  127.0.0.1:8000 rank 1 of 4
  replica 127.0.0.1:8000/2  127.0.0.1:8000 rank 2 of 4
  replica 127.0.0.1:8000/3  127.0.0.1:8000 rank 3 of 4
  replica spare             127.0.0.1:8001

warning: model qwen3-4b: /v1/responses turns can't be pinned: vLLM up to 0.32 ignores the rank header there; \
prefer separate servers for Codex
";
        assert_eq!(verdict.stdout, expected);
        assert_eq!(verdict.stderr, "");
        assert_eq!(verdict.exit, ExitCode::SUCCESS);
    }

    #[test]
    fn the_origin_of_a_threshold_is_said() {
        for (keys, expected) in [
            ("spill_threshold: 5", "5: as configured"),
            ("max_num_seqs: 20", "5: a quarter of max_num_seqs 20"),
            ("aliases: []", "8: a quarter of max_num_seqs 32, which is assumed until the engine tells"),
        ] {
            let text = format!("models: {{m: {{{keys}, replicas: ['http://127.0.0.1:8000']}}}}");
            let config = Config::from_yaml(&text).expect(keys);
            assert_eq!(threshold_in_words(&config.models[0]), expected);
        }
    }

    #[test]
    fn a_bad_file_leaves_stdout_empty_and_exits_78() {
        let verdict = in_words(Path::new("bad.yaml"), &Config::from_yaml("listen: here\n"));
        assert_eq!(verdict.stdout, "");
        assert!(verdict.stderr.starts_with("bad.yaml is not a valid configuration:\n"));
        assert!(verdict.stderr.contains("\nline 1: listen: `here` is not"));
        assert_eq!(verdict.exit, ExitCode::from(78));
    }

    #[test]
    fn json_is_one_object_whether_the_file_is_good_or_bad() {
        let good = in_json(&four_cards());
        let object: Value = serde_json::from_str(&good.stdout).expect("JSON");
        assert_eq!(object["ok"], true);
        assert_eq!(object["errors"], json!([]));
        assert_eq!(object["warnings"].as_array().map(Vec::len), Some(1));
        assert_eq!(object["models"][0]["spill_threshold"], 8);
        assert_eq!(object["models"][0]["replicas"][3]["rank"], 3);

        let bad = in_json(&Config::from_yaml("models: {}\n"));
        let object: Value = serde_json::from_str(&bad.stdout).expect("JSON");
        let expected = json!({
            "ok": false,
            "errors": [{"line": 1, "path": "models", "reason": "no model is given"}],
            "warnings": [],
            "listen": [],
            "models": [],
        });
        assert_eq!(object, expected);
        assert_eq!(bad.exit, ExitCode::from(78));
    }
}
