//! The proxies, each in the configuration in which its users would have it: one worker, connections to the upstreams kept, no
//! access log, no compression, and a conversation's turns on one upstream where it can do that.

pub mod bare;
mod envoy;
mod haproxy;
mod kvpin;
mod nginx;
mod routers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::certificate::Certificate;

/// What the load can be sent through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Proxy {
    /// No proxy at all. Always measured, for what the others add.
    Direct,
    Kvpin,
    /// Another build of kvpin, `KVPIN_OTHER_BIN`, to see what a change does.
    KvpinOther,
    /// It takes each body whole before it sends it on, in memory.
    Nginx,
    /// It sends bodies on as they come.
    NginxStreaming,
    Haproxy,
    Envoy,
    VllmRouter,
    /// By the prompt, as it does by default.
    VllmRouterCacheAware,
    Smg,
    /// By the prompt, as it does by default.
    SmgCacheAware,
    /// Pingora with a hash of the session's header and nothing else.
    Bare,
}

/// A proxy that can be started.
pub struct Installed {
    pub proxy: Proxy,
    /// `None` where there is nothing to start.
    pub program: Option<PathBuf>,
}

/// What a proxy is started with.
pub struct Setting<'a> {
    /// Where its configuration may be written.
    pub files: &'a Path,
    pub listen: SocketAddr,
    pub upstreams: &'a [SocketAddr],
    /// TLS on its listener.
    pub certificate: Option<&'a Certificate>,
}

impl Proxy {
    pub const DEFAULT: [Proxy; 8] = [
        Proxy::Direct,
        Proxy::Kvpin,
        Proxy::Nginx,
        Proxy::Haproxy,
        Proxy::Envoy,
        Proxy::VllmRouter,
        Proxy::Smg,
        Proxy::Bare,
    ];

    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// `None` where it is not installed.
    pub fn find(self) -> Option<Installed> {
        let program = match self {
            Proxy::Direct => return Some(Installed { proxy: self, program: None }),
            Proxy::Kvpin => Some(kvpin::program()),
            Proxy::KvpinOther => kvpin::other_program(),
            Proxy::Nginx | Proxy::NginxStreaming => in_path("nginx"),
            Proxy::Haproxy => in_path("haproxy"),
            Proxy::Envoy => peer(envoy::PACKAGE, "envoy"),
            Proxy::VllmRouter | Proxy::VllmRouterCacheAware => peer(routers::VLLM_ROUTER, "vllm-router"),
            Proxy::Smg | Proxy::SmgCacheAware => peer(routers::SMG, "smg"),
            Proxy::Bare => std::env::current_exe().ok(),
        };
        program.map(|program| Installed { proxy: self, program: Some(program) })
    }

    /// Writes its configuration and says how it is started.
    pub fn command(self, program: &Path, setting: &Setting<'_>) -> std::io::Result<Command> {
        match self {
            Proxy::Direct => Err(std::io::Error::other("there is nothing to start")),
            Proxy::Kvpin | Proxy::KvpinOther => kvpin::command(program, setting),
            Proxy::Nginx => nginx::command(program, setting, nginx::Bodies::Whole),
            Proxy::NginxStreaming => nginx::command(program, setting, nginx::Bodies::AsTheyCome),
            Proxy::Haproxy => haproxy::command(program, setting),
            Proxy::Envoy => envoy::command(program, setting),
            Proxy::VllmRouter => routers::vllm_router(program, setting, "consistent_hash"),
            Proxy::VllmRouterCacheAware => routers::vllm_router(program, setting, "cache_aware"),
            Proxy::Smg => routers::smg(program, setting, "consistent_hashing"),
            Proxy::SmgCacheAware => routers::smg(program, setting, "cache_aware"),
            Proxy::Bare => Ok(bare::command(program, setting)),
        }
    }

    /// Whether its log says which port the kernel gave it.
    pub fn tells_its_address(self) -> bool {
        self.is_kvpin()
    }

    /// Whether it finds a conversation's id in the body, so that no header needs to say it.
    pub fn reads_session_in_body(self) -> bool {
        self.is_kvpin()
    }

    /// Whether it can be asked to serve TLS here.
    pub fn serves_tls(self) -> bool {
        match self {
            Proxy::Kvpin | Proxy::KvpinOther | Proxy::Nginx | Proxy::NginxStreaming | Proxy::Haproxy | Proxy::Envoy => {
                true
            }
            Proxy::Direct
            | Proxy::VllmRouter
            | Proxy::VllmRouterCacheAware
            | Proxy::Smg
            | Proxy::SmgCacheAware
            | Proxy::Bare => false,
        }
    }

    fn is_kvpin(self) -> bool {
        matches!(self, Proxy::Kvpin | Proxy::KvpinOther)
    }
}

impl Installed {
    /// The first line of what it says of its version. Where it is installed is nobody's business.
    pub fn version(&self) -> String {
        let Some(program) = &self.program else { return String::new() };
        let flag = match self.proxy {
            Proxy::Nginx | Proxy::NginxStreaming | Proxy::Haproxy => "-v",
            Proxy::Kvpin | Proxy::KvpinOther | Proxy::Envoy => "--version",
            // Named by where they are installed.
            Proxy::VllmRouter | Proxy::VllmRouterCacheAware => return routers::VLLM_ROUTER.to_owned(),
            Proxy::Smg | Proxy::SmgCacheAware => return routers::SMG.to_owned(),
            Proxy::Bare => return "pingora-proxy with nothing in it".to_owned(),
            Proxy::Direct => return String::new(),
        };
        let said = Command::new(program).arg(flag).output();
        let said = said.map(|said| [said.stdout, said.stderr].concat()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("unknown");
        line.replace(&*program.to_string_lossy(), &self.proxy.name()).trim().to_owned()
    }
}

/// The addresses, each put into a line or a piece of one.
fn each(upstreams: &[SocketAddr], line: impl Fn(usize, &SocketAddr) -> String) -> String {
    upstreams.iter().enumerate().map(|(number, address)| line(number, address)).collect()
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where Debian has servers, which is not in everyone's path.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// A program of a Python package that `run.sh` has installed.
fn peer(package: &str, program: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("KVPIN_PEERS_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".cache/kvpin-peers"),
    };
    let environment = folder.join(package);
    environment.join("installed").is_file().then(|| environment.join("bin").join(program))
}
