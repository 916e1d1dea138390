//! YAML text to a validated configuration.
//!
//! ```text
//! text --form--> text without duplicate keys --serde--> File --validate--> Config --reload--> what differs
//!                             keys, tokens and the files they stand in --------^
//! ```
//!
//! `File` is the surface: every key optional, unknown keys refused. `Config` is what the rest of the program works with: every value
//! is present, in range and consistent with the others, and every hostname is an address. A problem names its line and its key path,
//! and as many problems as can be found in one pass are reported together.
//!
//! This is a leaf: it knows no other module but [`crate::tls`], logs nothing, and reads nothing but the file, those that it names
//! and the resolver.

mod access;
mod access_log;
mod addresses;
mod admission;
mod affinity;
mod bounds;
mod error;
mod file;
mod gpus;
mod keys;
mod keys_text;
mod limits;
mod listen;
mod locate;
mod model;
mod named_files;
mod reload;
mod secret;
mod size;
mod surface;
mod tls;
mod url;
mod validate;

use std::cell::OnceCell;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::tls::{Certificate, ListenerTls, ReplicaTls, Roots};

pub use access_log::{AccessLogFormat, AccessLogTo};
pub use admission::{AdmissionConfig, AdmissionMode};
pub use error::{ConfigError, Problem};
pub use gpus::{GpuId, NvmlConfig};
pub use keys::{KEY_PREFIX, KeyConfig, Keys, key_name_problem};
pub use keys_text::{EditError, KeysText};
pub use limits::Limits;
pub use named_files::{SecretFile, one_word};
pub use reload::Comparison;
pub use secret::{KeyHash, Secret};
pub use surface::AllowedPath;

/// Everything that an operator decides, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where clients connect. Never empty; no two overlap. Port 0 lets the kernel choose.
    pub listen: Vec<ListenConfig>,
    /// Who may ask; `None`: whoever can connect.
    pub keys: Option<Keys>,
    /// Whether addresses that other machines reach are served without keys.
    pub allow_anonymous: bool,
    /// Where metrics and status are served; `None` when it is `off`.
    pub admin: Option<SocketAddr>,
    /// What the pages there ask for; `None` on loopback only, where it may be left out.
    pub admin_token: Option<SecretFile>,
    /// The model of a request that names none: a name or an alias that exists.
    pub default_model: Option<String>,
    /// Headers that name a conversation before any that kvpin knows by itself, in order of precedence; 16 at most.
    pub session_headers: Vec<HeaderName>,
    /// Whether responses say which replica served them and why.
    pub decision_headers: bool,
    /// Paths of the engines that are passed on beside those that kvpin knows; 64 at most, each once.
    pub allow_paths: Vec<AllowedPath>,
    /// Networks of proxies whose word about their clients is passed on; 64 at most, none of them everybody.
    pub trusted_proxies: Vec<IpNet>,
    /// What one client, and all of them together, may take.
    pub limits: Limits,
    /// Where a line for each request goes, and what it looks like.
    pub access_log: AccessLogConfig,
    /// Between two readings of a replica's /metrics, 50 ms to 60 s.
    pub scrape_interval: Duration,
    /// How replicas are watched, and by what they are taken down and back.
    pub health: HealthConfig,
    /// How long running requests may go on after a stop was asked for, 1 s to 1 day.
    pub shutdown_grace: Duration,
    /// Where pins and what else is remembered outlive the process.
    pub state_file: StateFile,
    /// Between two looks whether there is something new to write there, 1 s to 1 hour.
    pub state_interval: Duration,
    /// Where the GPUs' figures come from.
    pub nvml: NvmlConfig,
    /// In the order of the file, never empty; names and aliases are unique over all of them.
    pub models: Vec<ModelConfig>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    pub address: SocketAddr,
    /// `None`: what passes is not encrypted.
    pub tls: Option<ListenerTls>,
}

/// The log of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLogConfig {
    pub to: AccessLogTo,
    pub format: AccessLogFormat,
}

/// Where what is remembered is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFile {
    /// In the directory that systemd gives the service, if it does.
    Default,
    Off,
    /// An absolute path.
    At(PathBuf),
}

/// How replicas are watched, and by what they are taken down and back. Defaults and accepted ranges are in `bounds.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// Between two probes of a replica's /health.
    pub interval: Duration,
    /// How long the answer to a probe or to a scrape may take.
    pub timeout: Duration,
    /// Failures in a row that take a replica down.
    pub failures: u32,
    /// Good probes in a row that bring it back.
    pub successes: u32,
    /// The longest time between two probes of a replica that is down; they become rarer up to it.
    pub backoff_max: Duration,
    /// How long a replica may have requests while neither its engine makes a step nor a response goes on.
    pub hung: Duration,
    /// How long it takes, after it came back, until a replica is given as much as any other.
    pub ramp: Duration,
}

/// A served name with its replicas and its policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelConfig {
    /// As clients write it: 1 to 256 bytes, no control characters.
    pub name: String,
    /// Other names for it, under the same rules.
    pub aliases: Vec<Alias>,
    /// Whether a conversation goes back to the replica that holds its KV cache.
    pub affinity: bool,
    /// Whether an operator's order, and not the file, says so.
    pub affinity_ordered: bool,
    /// Who chooses, and how, when `affinity` is false. Means nothing when it is true.
    pub balancing: Balancing,
    /// What vLLM was started with, for each replica (each rank of a ranked server). `None`: not configured; the engine may tell, and
    /// until it does [`Self::ASSUMED_MAX_NUM_SEQS`] is assumed.
    pub max_num_seqs: Option<u32>,
    /// From how many in-flight turns on a replica is left for a less loaded one.
    pub spill_threshold: SpillThreshold,
    /// How conversations are let in that need more cache than there is. Means nothing without affinity.
    pub admission: AdmissionConfig,
    /// Whether a client may name the replica itself.
    pub client_pins: bool,
    /// Whether the engine is told a conversation's key as `X-Session-ID` where the client sends none of that name.
    pub send_session_id: bool,
    /// What its engines are shown as `Authorization: Bearer`, in the place of what the client sent.
    pub upstream_key: Option<SecretFile>,
    /// Entries of the affinity table; the one idle longest gives way.
    pub conversations_max: usize,
    /// A conversation that was silent for so long is forgotten.
    pub conversation_idle: Duration,
    /// 1 to 1024, in the order of the file, ranks ascending; names are unique within the model.
    pub replicas: Vec<ReplicaConfig>,
}

/// Another name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    pub name: String,
    /// What the engine calls the model, where it doesn't know it by this name: the request's `model` is changed to it.
    pub upstream: Option<String>,
}

/// How turns are spread when there is no affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Balancing {
    /// kvpin chooses the least loaded replica, of ranks too.
    LeastLoaded,
    /// The ranked server's own balancer chooses: a server is one replica, whatever its `data_parallel_size`.
    Engine,
}

/// When a pinned replica counts as over-full, in turns in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpillThreshold {
    /// A quarter of `max_num_seqs`, at least 1.
    Auto,
    /// This many, at least 1.
    Fixed(u32),
}

/// One engine with its own KV cache: a server, or one data-parallel rank of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// 1 to 128 bytes of printable ASCII without space and comma, because it travels in a header.
    pub name: String,
    /// Where it is reached. A hostname was resolved when the file was loaded, IPv4 preferred; only its first address is used.
    pub address: SocketAddr,
    /// `host:port` as the file has it, for the Host header.
    pub authority: String,
    /// What goes into `X-data-parallel-rank`; `None` for a server that is one replica.
    pub rank: Option<u16>,
    /// How many ranks its server has, 1 to 1024.
    pub data_parallel_size: u16,
    /// Whether it takes nothing new.
    pub drain: bool,
    /// Those that it runs on, 64 at most; empty where the file doesn't say. Several replicas may have the same.
    pub gpus: Vec<GpuId>,
    /// How it is spoken to over TLS, and who it has to be; `None` for an http URL.
    pub tls: Option<Arc<ReplicaTls>>,
}

/// What a file refers to that is not in it.
#[derive(Clone, Copy)]
struct Surroundings<'a> {
    resolve: url::Resolve<'a>,
    /// Relative paths begin here.
    directory: &'a FilePath,
    /// The operating system's authorities, once anybody has asked for them.
    system_roots: &'a OnceCell<Result<Roots, String>>,
}

impl Surroundings<'_> {
    fn path(&self, written: &str) -> PathBuf {
        named_files::locate(self.directory, written)
    }
}

impl Config {
    /// The largest file that is read: a thousand replicas need about 100 KB.
    const FILE_BYTES_MAX: u64 = 1 << 20;

    /// Reads a configuration, and the files that it names from the working directory on. Blocks while hostnames, if there are
    /// any, are resolved.
    pub fn from_yaml(text: &str) -> Result<Config, ConfigError> {
        Self::read_in(FilePath::new(""), text, &url::resolve)
    }

    /// The text of a file. One that can't be read is an error that has the path and the operating system's reason.
    pub fn read(path: &FilePath) -> Result<String, ConfigError> {
        read(path, Self::FILE_BYTES_MAX).map_err(|err| ConfigError::unreadable(path, &err))
    }

    /// [`Self::from_yaml`] of a text that stands, or is to stand, in the file at `path`: the files that it names are looked for
    /// from that one's directory on.
    pub fn from_text(path: &FilePath, text: &str) -> Result<Config, ConfigError> {
        Self::read_in(directory_of(path), text, &url::resolve)
    }

    /// [`Self::from_text`] of the file itself.
    pub fn load(path: &FilePath) -> Result<Config, ConfigError> {
        Self::from_text(path, &Self::read(path)?)
    }

    /// Where the configuration at `path` has its keys file, whether or not that exists and the rest of it is valid.
    pub fn keys_file(path: &FilePath) -> Result<Option<PathBuf>, ConfigError> {
        let named = parse(&Self::read(path)?)?.keys_file;
        Ok(named.map(|named| named_files::locate(directory_of(path), &named)))
    }

    /// What works but may not be what was meant, a line each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.access_warnings();
        warnings.extend(self.allow_paths.iter().filter_map(AllowedPath::warning));
        warnings.extend(self.models.iter().flat_map(ModelConfig::warnings));
        warnings
    }

    fn read_in(directory: &FilePath, text: &str, resolve: url::Resolve<'_>) -> Result<Config, ConfigError> {
        let around = Surroundings { resolve, directory, system_roots: &OnceCell::new() };
        validate::validate(parse(text)?, around).map_err(|problems| problems.locate(text))
    }
}

impl ModelConfig {
    /// Stands in for an unknown `max_num_seqs`. vLLM's own default (256 and up) is more than a replica with long agent conversations
    /// sustains, and guessing too high would let a replica fill up before anything spills.
    pub const ASSUMED_MAX_NUM_SEQS: u32 = 32;

    /// Turns in flight from which on a replica is over-full, where `max_num_seqs` is what is known of that replica.
    pub fn spill_threshold(&self, max_num_seqs: u32) -> u32 {
        match self.spill_threshold {
            SpillThreshold::Auto => (max_num_seqs / 4).max(1),
            SpillThreshold::Fixed(turns) => turns,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.affinity && self.replicas.iter().any(|r| r.data_parallel_size > 1) {
            warnings.push(format!(
                "model {}: /v1/responses turns can't be pinned: vLLM up to 0.32 ignores the rank header there; \
                 prefer separate servers for Codex",
                self.name
            ));
        }
        for replica in &self.replicas {
            let certificate = replica.tls.as_deref().and_then(ReplicaTls::certificate);
            let lines = certificate.into_iter().flat_map(Certificate::warnings);
            warnings.extend(lines.map(|line| format!("model {}: replica {}: {line}", self.name, replica.name)));
        }
        if self.max_num_seqs.is_none() {
            warnings.push(format!(
                "model {}: max_num_seqs is not configured: {} is assumed; give what vLLM was started with",
                self.name,
                Self::ASSUMED_MAX_NUM_SEQS
            ));
        }
        warnings
    }
}

/// As clients write it, and what it becomes for the engine.
impl fmt::Display for Alias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.upstream {
            None => f.write_str(&self.name),
            Some(upstream) => write!(f, "{} (as {upstream})", self.name),
        }
    }
}

/// The word of the file.
impl fmt::Display for Balancing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Balancing::LeastLoaded => "least_loaded",
            Balancing::Engine => "engine",
        })
    }
}

/// As the file has it.
impl fmt::Display for StateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateFile::Default => f.write_str("default"),
            StateFile::Off => f.write_str("off"),
            StateFile::At(path) => path.display().fmt(f),
        }
    }
}

/// The word or number of the file.
impl fmt::Display for SpillThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpillThreshold::Auto => f.write_str("auto"),
            SpillThreshold::Fixed(turns) => turns.fmt(f),
        }
    }
}

fn parse(text: &str) -> Result<file::File, ConfigError> {
    locate::check_form(text)?;
    serde_yaml::from_str(text).map_err(|err| ConfigError::from_yaml(&err))
}

fn directory_of(path: &FilePath) -> &FilePath {
    path.parent().unwrap_or(FilePath::new(""))
}

fn read(path: &FilePath, bytes_max: u64) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read};

    let mut text = String::new();
    let mut file = std::fs::File::open(path)?.take(bytes_max + 1);
    let bytes = file.read_to_string(&mut text)?;
    if bytes as u64 > bytes_max {
        let reason = format!("it is larger than {bytes_max} bytes");
        return Err(Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
