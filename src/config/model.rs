//! One model of the file: its names, its numbers, its replicas.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::addresses::{Place, ServerPlace};
use super::admission::{self, AdmissionKeys};
use super::bounds;
use super::error::Problems;
use super::file::{AliasFile, ModelFile, ReplicaFile, SpillThresholdFile};
use super::gpus;
use super::locate::Path;
use super::tls::{self, ReplicaTlsFile};
use super::url;
use super::{Alias, Balancing, GpuId, ModelConfig, ReplicaConfig, SpillThreshold, Surroundings};
use crate::tls::ReplicaTls;

/// A model, and the servers its replicas are on for the checks across models.
pub(super) struct Model {
    pub(super) config: ModelConfig,
    pub(super) servers: Vec<ServerPlace>,
}

/// Who tells the ranks of a server apart.
#[derive(Clone, Copy)]
enum Ranks {
    /// kvpin: each rank is a replica.
    ByKvpin,
    /// The engine's own balancer: the server is one replica.
    ByEngine,
}

impl Ranks {
    /// How many replicas a server with so many ranks is.
    fn replicas(self, data_parallel_size: u16) -> u16 {
        match self {
            Ranks::ByKvpin => data_parallel_size,
            Ranks::ByEngine => 1,
        }
    }
}

/// What a replica's entry says, checked, before its ranks are told apart.
struct Server {
    path: Path,
    name: String,
    address: SocketAddr,
    authority: String,
    data_parallel_size: u16,
    drain: bool,
    gpus: Vec<GpuId>,
    tls: Option<Arc<ReplicaTls>>,
}

pub(super) fn path(name: &str) -> Path {
    Path::default().key("models").key(name)
}

/// The model as far as it can be made out; what is wrong with it is added to `problems`.
pub(super) fn validate(name: String, file: ModelFile, around: Surroundings<'_>, problems: &mut Problems) -> Model {
    let at = path(&name);
    check_name(&at, &name, problems);
    let aliases = aliases(&at.key("aliases"), file.aliases, problems);
    let affinity = file.affinity.unwrap_or(true);
    if affinity && file.balancing.is_some() {
        let reason = "it says who chooses without affinity, but affinity is true; remove one of them";
        problems.add(at.key("balancing"), reason);
    }
    let balancing = file.balancing.unwrap_or(Balancing::LeastLoaded);
    let ranks = match balancing {
        Balancing::Engine if !affinity => Ranks::ByEngine,
        Balancing::Engine | Balancing::LeastLoaded => Ranks::ByKvpin,
    };
    let servers = servers(&at, file.replicas, ranks, around, problems);
    let replicas = replicas(&at, &servers, ranks, problems);
    let max_num_seqs = problems.within(&at, &bounds::MAX_NUM_SEQS, file.max_num_seqs).map(|seqs| seqs as u32); // Lossless: its bound is 65,536.
    let spill_threshold = spill_threshold(&at, file.spill_threshold, max_num_seqs, problems);
    let keys = AdmissionKeys {
        admission: file.admission,
        kv_cache_tokens: file.kv_cache_tokens,
        held_max: file.held_max,
        hold_max_s: file.hold_max_s,
    };
    let admission = admission::validate(&at, keys, problems);
    let conversations_max = problems.number(&at, &bounds::CONVERSATIONS, file.conversations_max);
    let conversation_idle_s = problems.number(&at, &bounds::CONVERSATION_IDLE, file.conversation_idle_s);
    let servers = servers.into_iter().map(|server| server.place(&name));
    Model {
        servers: servers.collect(),
        config: ModelConfig {
            aliases,
            affinity,
            affinity_ordered: false,
            balancing,
            max_num_seqs,
            spill_threshold,
            admission,
            client_pins: file.client_pins.unwrap_or(true),
            send_session_id: file.send_session_id.unwrap_or(true),
            upstream_key: None,
            // Lossless: `bounds` asserts a 64-bit `usize`.
            conversations_max: conversations_max as usize,
            conversation_idle: Duration::from_secs(conversation_idle_s),
            replicas,
            name,
        },
    }
}

impl Server {
    fn place(self, model: &str) -> ServerPlace {
        ServerPlace { model: model.to_owned(), at: Place { path: self.path.key("url"), address: self.address } }
    }

    fn replica(&self, rank: Option<u16>) -> ReplicaConfig {
        ReplicaConfig {
            name: match rank {
                Some(rank) => format!("{}/{rank}", self.name),
                None => self.name.clone(),
            },
            address: self.address,
            authority: self.authority.clone(),
            rank,
            data_parallel_size: self.data_parallel_size,
            drain: self.drain,
            gpus: gpus::share(&self.gpus, rank, self.data_parallel_size),
            tls: self.tls.clone(),
        }
    }

    /// How many replicas it is.
    fn count(&self, ranks: Ranks) -> u16 {
        ranks.replicas(self.data_parallel_size)
    }

    fn replicas(&self, ranks: Ranks) -> Vec<ReplicaConfig> {
        match self.count(ranks) {
            1 => vec![self.replica(None)],
            count => (0..count).map(|rank| self.replica(Some(rank))).collect(),
        }
    }
}

fn aliases(path: &Path, file: Vec<AliasFile>, problems: &mut Problems) -> Vec<Alias> {
    for (i, alias) in file.iter().enumerate() {
        let at = path.index(i);
        check_name(&at, &alias.name, problems);
        if let Some(upstream) = &alias.upstream {
            check_name(&at.key("upstream"), upstream, problems);
        }
    }
    file.into_iter().map(|alias| Alias { name: alias.name, upstream: alias.upstream }).collect()
}

fn check_name(path: &Path, name: &str, problems: &mut Problems) {
    if name.is_empty() {
        problems.add(path.clone(), "the name is empty");
    } else if name.len() > bounds::MODEL_NAME_BYTES_MAX {
        let reason = format!("the name is longer than {} bytes", bounds::MODEL_NAME_BYTES_MAX);
        problems.add(path.clone(), reason);
    } else if name.chars().any(char::is_control) {
        problems.add(path.clone(), "the name has a control character");
    }
}

fn servers(
    model: &Path,
    entries: Vec<ReplicaFile>,
    ranks: Ranks,
    around: Surroundings<'_>,
    problems: &mut Problems,
) -> Vec<Server> {
    let path = model.key("replicas");
    if entries.is_empty() {
        problems.add(path, "no replica is given");
        return Vec::new();
    }
    if entries.len() > bounds::REPLICAS_MAX {
        too_many(path, entries.len(), problems);
        return Vec::new();
    }
    let servers = entries.into_iter().enumerate();
    servers.filter_map(|(i, entry)| server(path.index(i), entry, ranks, around, problems)).collect()
}

fn server(
    path: Path,
    entry: ReplicaFile,
    ranks: Ranks,
    around: Surroundings<'_>,
    problems: &mut Problems,
) -> Option<Server> {
    let size = problems.number(&path, &bounds::DATA_PARALLEL_SIZE, entry.data_parallel_size) as u16; // Lossless: its bound is 1024.
    let gpus = gpus::gpus(&path, entry.gpus, ranks.replicas(size), problems);
    let found = url::parse(&entry.url).and_then(|server| Ok((server.address(around.resolve)?, server)));
    let (address, server) = match found {
        Ok(found) => found,
        Err(reason) => {
            problems.add(path.key("url"), reason);
            return None;
        }
    };
    let ReplicaFile { ca_file, client_certificate, client_key, .. } = entry;
    let file = ReplicaTlsFile { ca_file, client_certificate, client_key };
    let tls = if server.is_tls {
        Some(Arc::new(tls::replica(&path, server.bare_host(), &file, around, problems)?))
    } else {
        tls::refuse_without_tls(&path, &file, problems);
        None
    };
    let authority = server.authority();
    Some(Server {
        path,
        tls,
        name: entry.name.unwrap_or_else(|| authority.clone()),
        address,
        authority,
        data_parallel_size: size,
        drain: entry.drain.unwrap_or(false),
        gpus,
    })
}

/// The servers' replicas, with names that differ.
fn replicas(model: &Path, servers: &[Server], ranks: Ranks, problems: &mut Problems) -> Vec<ReplicaConfig> {
    let count: usize = servers.iter().map(|s| usize::from(s.count(ranks))).sum();
    if count > bounds::REPLICAS_MAX {
        too_many(model.key("replicas"), count, problems);
        return Vec::new();
    }
    let mut replicas = Vec::new();
    let mut names = BTreeSet::new();
    for server in servers {
        let added = server.replicas(ranks);
        let taken = added.iter().find(|replica| names.contains(&replica.name));
        // The last rank has the longest name.
        let checked = [Some(&server.name), added.last().map(|last| &last.name)];
        let reason = checked
            .into_iter()
            .flatten()
            .find_map(|name| replica_name(name).err())
            .or(taken.map(|taken| format!("another replica is named `{}` already", taken.name)));
        if let Some(reason) = reason {
            problems.add(server.path.key("name"), reason);
        }
        names.extend(added.iter().map(|replica| replica.name.clone()));
        replicas.extend(added);
    }
    replicas
}

fn too_many(path: Path, replicas: usize, problems: &mut Problems) {
    let max = bounds::REPLICAS_MAX;
    problems.add(path, format!("{replicas} replicas (ranks counted) are more than {max}"));
}

/// The names travel in a header, where a comma would separate them.
fn replica_name(name: &str) -> Result<(), String> {
    let max = bounds::REPLICA_NAME_BYTES_MAX;
    if name.is_empty() {
        return Err("the name is empty".to_owned());
    }
    if name.len() > max {
        return Err(format!("the name `{name}` is longer than {max} bytes"));
    }
    if !name.bytes().all(|b| b.is_ascii_graphic() && b != b',') {
        return Err(format!("the name `{name}` has other than printable ASCII, or a space or comma"));
    }
    Ok(())
}

fn spill_threshold(
    at: &Path,
    file: Option<SpillThresholdFile>,
    max_num_seqs: Option<u32>,
    problems: &mut Problems,
) -> SpillThreshold {
    let Some(SpillThresholdFile::Fixed(turns)) = file else {
        return SpillThreshold::Auto;
    };
    let Some(turns) = problems.within(at, &bounds::SPILL_THRESHOLD, Some(turns)) else {
        return SpillThreshold::Auto;
    };
    let turns = turns as u32; // Lossless: its bound is 65,536.
    if let Some(max) = max_num_seqs.filter(|max| turns > *max) {
        let reason = format!("{turns} is more than max_num_seqs {max}: nothing would ever spill");
        problems.add(at.key(bounds::SPILL_THRESHOLD.key), reason);
    }
    SpillThreshold::Fixed(turns)
}
