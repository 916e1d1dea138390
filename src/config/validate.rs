//! `File` to `Config`: defaults, bounds, and what the parts must have to do with each other.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::HeaderName;

use super::access;
use super::addresses::{self, Place, ServerPlace};
use super::bounds;
use super::error::Problems;
use super::file::{File, HealthFile, ModelFile, Ordered};
use super::listen::{self, Listener};
use super::locate::Path;
use super::named_files::NamedFiles;
use super::{Config, HealthConfig, ModelConfig, StateFile, Surroundings, access_log, gpus, limits, model, surface};

/// Loopback: who may use the GPUs from elsewhere is for the operator to say.
pub(super) const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9180);
const OFF: &str = "off";

/// The configuration that a file means, or all that is wrong with it.
pub(super) fn validate(mut file: File, around: Surroundings<'_>) -> Result<Config, Problems> {
    let top = Path::default();
    let mut problems = Problems::default();
    let mut named_files = NamedFiles::read(&file, around.directory, &mut problems);
    let listen = listen::validate(file.listen.take(), around, &mut problems);
    let admin = admin(file.admin.as_deref(), &mut problems);
    let access_log = access_log::validate(std::mem::take(&mut file.access_log), around, &mut problems);
    let health = health(&file.health, &mut problems);
    let limits = limits::validate(&file.limits, &mut problems);
    let scrape_interval_ms = problems.number(&top, &bounds::SCRAPE_INTERVAL, file.scrape_interval_ms);
    let shutdown_grace_s = problems.number(&top, &bounds::SHUTDOWN_GRACE, file.shutdown_grace_s);
    let state_file = state_file(file.state_file.as_deref(), &mut problems);
    let state_interval_s = problems.number(&top, &bounds::STATE_INTERVAL, file.state_interval_s);
    let nvml = gpus::nvml(file.nvml.as_deref(), &mut problems);
    access::validate(&listen, admin.as_ref(), &file, &mut problems);
    let (mut models, servers) = models(file.models, around, &mut problems);
    for model in &mut models {
        model.upstream_key = named_files.upstream_keys.remove(&model.name);
    }
    names(&models, file.default_model.as_deref(), &mut problems);
    let allow_paths = surface::allow_paths(file.allow_paths, &mut problems);
    let trusted_proxies = surface::trusted_proxies(&file.trusted_proxies, &mut problems);
    let session_headers = session_headers(&file.session_headers, &mut problems);
    addresses::validate(listen.iter().map(|listener| &listener.place), admin.as_ref(), &servers, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Config {
        listen: listen.into_iter().map(Listener::config).collect(),
        keys: named_files.keys,
        allow_anonymous: file.allow_anonymous.unwrap_or(false),
        admin: admin.map(|place| place.address),
        admin_token: named_files.admin_token,
        default_model: file.default_model,
        session_headers,
        decision_headers: file.decision_headers.unwrap_or(true),
        allow_paths,
        trusted_proxies,
        access_log,
        health,
        limits,
        scrape_interval: Duration::from_millis(scrape_interval_ms),
        shutdown_grace: Duration::from_secs(shutdown_grace_s),
        state_file,
        state_interval: Duration::from_secs(state_interval_s),
        nvml,
        models,
    })
}

fn health(file: &HealthFile, problems: &mut Problems) -> HealthConfig {
    let at = Path::default().key("health");
    let mut number = |bound, given| problems.number(&at, bound, given);
    // Lossless: their bound is 100.
    let count = |number: u64| number as u32;
    let health = HealthConfig {
        interval: Duration::from_millis(number(&bounds::HEALTH_INTERVAL, file.interval_ms)),
        timeout: Duration::from_millis(number(&bounds::HEALTH_TIMEOUT, file.timeout_ms)),
        failures: count(number(&bounds::HEALTH_FAILURES, file.failures)),
        successes: count(number(&bounds::HEALTH_SUCCESSES, file.successes)),
        backoff_max: Duration::from_millis(number(&bounds::HEALTH_BACKOFF, file.backoff_max_ms)),
        hung: Duration::from_secs(number(&bounds::HUNG, file.hung_s)),
        ramp: Duration::from_secs(number(&bounds::RAMP, file.ramp_s)),
    };
    if health.backoff_max < health.interval {
        let reason =
            "it is shorter than interval_ms: a replica that is down would be probed more often than one that is up";
        problems.add(at.key(bounds::HEALTH_BACKOFF.bound.key), reason);
    }
    health
}

fn admin(file: Option<&str>, problems: &mut Problems) -> Option<Place> {
    let path = Path::default().key("admin");
    match file {
        None => Some(Place { path, address: ADMIN_DEFAULT }),
        Some(OFF) => None,
        Some(text) => place(path, text, problems),
    }
}

/// A relative path would depend on where the process was started.
fn state_file(file: Option<&str>, problems: &mut Problems) -> StateFile {
    match file {
        None => StateFile::Default,
        Some(OFF) => StateFile::Off,
        Some(path) if path.starts_with('/') && !path.ends_with('/') => StateFile::At(path.into()),
        Some(path) => {
            let reason = format!("`{path}` is not an absolute path of a file, nor `off`");
            problems.add(Path::default().key("state_file"), reason);
            StateFile::Off
        }
    }
}

pub(super) fn place(path: Path, text: &str, problems: &mut Problems) -> Option<Place> {
    match text.parse() {
        Ok(address) => Some(Place { path, address }),
        Err(_) => {
            let reason = format!("`{text}` is not an IP address with a port, like 127.0.0.1:8080 or [::1]:8080");
            problems.add(path, reason);
            None
        }
    }
}

/// What never names a conversation, and would share a replica among all of a person's or give every request its own.
const NO_SESSION_HEADERS: [&str; 8] = [
    "authorization",
    "x-api-key",
    "cookie",
    "user-agent",
    "host",
    "x-request-id",
    "x-client-request-id",
    "traceparent",
];

fn session_headers(file: &[String], problems: &mut Problems) -> Vec<HeaderName> {
    let path = Path::default().key("session_headers");
    if file.len() > bounds::SESSION_HEADERS_MAX {
        let reason = format!("{} headers are more than {}", file.len(), bounds::SESSION_HEADERS_MAX);
        problems.add(path.clone(), reason);
    }
    let mut headers = Vec::new();
    for (i, text) in file.iter().enumerate() {
        match HeaderName::from_bytes(text.as_bytes()) {
            Err(_) => problems.add(path.index(i), format!("`{text}` is not the name of a header")),
            Ok(header) if NO_SESSION_HEADERS.contains(&header.as_str()) => {
                let reason = format!("`{text}` tells people, programs or requests apart, and no conversations");
                problems.add(path.index(i), reason);
            }
            Ok(header) => headers.push(header),
        }
    }
    headers
}

fn models(
    file: Ordered<ModelFile>,
    around: Surroundings<'_>,
    problems: &mut Problems,
) -> (Vec<ModelConfig>, Vec<ServerPlace>) {
    if file.0.is_empty() {
        problems.add(Path::default().key("models"), "no model is given");
    }
    let mut models = Vec::new();
    let mut servers = Vec::new();
    for (name, file) in file.0 {
        let model = model::validate(name, file, around, problems);
        servers.extend(model.servers);
        models.push(model.config);
    }
    (models, servers)
}

/// A name must lead to one model: names are the file's keys and differ, so that only an alias can be at fault.
fn names(models: &[ModelConfig], default_model: Option<&str>, problems: &mut Problems) {
    let names = models.iter().map(|model| (&*model.name, &*model.name));
    let mut model_of: BTreeMap<&str, &str> = names.collect();
    for model in models {
        let path = model::path(&model.name).key("aliases");
        for (i, alias) in model.aliases.iter().enumerate() {
            let name = &*alias.name;
            if let Some(other) = model_of.get(name) {
                let reason = format!("`{name}` leads to model `{other}` already");
                problems.add(path.index(i), reason);
            } else {
                model_of.insert(name, &model.name);
            }
        }
    }
    if let Some(name) = default_model.filter(|name| !model_of.contains_key(name)) {
        let reason = format!("no model has the name or alias `{name}`");
        problems.add(Path::default().key("default_model"), reason);
    }
}
