//! A proxy as a process of its own, on one core, whose CPU time can be told from the bench's.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::arm::config;

const START_MAX: Duration = Duration::from_secs(10);

/// Pingora's own lines off, as in the program; and where it listens, which the bench must know.
const QUIET: &str = "warn,kvpin::cli::run=info,pingora_core=off,pingora_proxy=off,pingora_pool=off";

/// Whether a line a request is written, to a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AccessLog {
    Off,
    On,
}

/// A running proxy. Dropping it ends it.
pub struct Child {
    pub address: SocketAddr,
    process: std::process::Child,
    _files: TempDir,
}

impl Child {
    /// The kvpin that cargo built with this bench, or the one that `KVPIN_BIN` names.
    pub fn kvpin(upstream: SocketAddr, access_log: AccessLog) -> anyhow::Result<Child> {
        let binary = std::env::var_os("KVPIN_BIN").map_or(PathBuf::from(env!("CARGO_BIN_EXE_kvpin")), PathBuf::from);
        let files = TempDir::new()?;
        let conf = files.path().join("kvpin.yaml");
        std::fs::write(&conf, config(&[], &[upstream]))?;
        let log = files.path().join("log");
        let mut command = on_one_core(&binary);
        command.arg("run").arg("--config").arg(conf).stderr(File::create(&log)?);
        match access_log {
            AccessLog::Off => command.env("RUST_LOG", QUIET),
            AccessLog::On => command.env_remove("RUST_LOG"),
        };
        let mut process = command.spawn().with_context(|| format!("can't start {}", binary.display()))?;
        let listening = wait_for(|| Ok(address_in(&std::fs::read_to_string(&log)?)));
        match listening {
            Ok(address) => Ok(Child { address, process, _files: files }),
            Err(error) => {
                process.kill()?;
                Err(error.context(std::fs::read_to_string(&log)?))
            }
        }
    }

    /// nginx with one worker and what it takes to stream; `None` where it isn't installed.
    pub fn nginx(upstream: SocketAddr, access_log: AccessLog) -> anyhow::Result<Option<Child>> {
        if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
            return Ok(None);
        }
        // nginx can't say which port it got, so the kernel is asked for a free one beforehand.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let files = TempDir::new()?;
        let conf = files.path().join("nginx.conf");
        std::fs::write(&conf, nginx_conf(files.path(), upstream, address, access_log))?;
        let log = File::create(files.path().join("stderr"))?;
        let process =
            on_one_core(Path::new("nginx")).arg("-p").arg(files.path()).arg("-c").arg(conf).stderr(log).spawn()?;
        let child = Child { address, process, _files: files };
        wait_for(|| Ok(std::net::TcpStream::connect(address).ok()))?;
        Ok(Some(child))
    }

    /// CPU time of all its threads so far. Neither proxy ends threads while it serves, so none is missed.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let mut ran_ns = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            ran_ns += schedstat.split(' ').next().context("no time in schedstat")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(ran_ns))
    }

    /// Bytes of memory that it has resident.
    pub fn memory_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It fails only for a process that has ended already.
        if self.process.kill().is_ok() && self.process.wait().is_err() {
            eprintln!("process {} was not waited for", self.process.id());
        }
    }
}

/// The program pinned to the last core this process may use: kvpin serves with a thread a core, so with one.
fn on_one_core(program: &Path) -> Command {
    let Some(core) = last_core() else { return Command::new(program) };
    let mut command = Command::new("taskset");
    command.arg("--cpu-list").arg(core).arg(program);
    command
}

fn last_core() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    allowed.trim().rsplit([',', '-']).next().map(str::to_owned)
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("listening on ")?;
    rest.split_once('\n')?.0.trim().parse().ok()
}

fn wait_for<T>(look: impl Fn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let begin = Instant::now();
    while begin.elapsed() < START_MAX {
        if let Some(found) = look()? {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("the proxy did not start")
}

fn nginx_conf(directory: &Path, upstream: SocketAddr, address: SocketAddr, access_log: AccessLog) -> String {
    let directory = directory.display();
    let access_log = match access_log {
        AccessLog::Off => "off".to_owned(),
        AccessLog::On => format!("{directory}/access.log"),
    };
    // One process without a master: it is its own worker, and killing it leaves nothing behind.
    format!(
        "daemon off; master_process off; worker_processes 1; pid {directory}/pid; error_log stderr crit;
        events {{ worker_connections 1024; }}
        http {{
            access_log {access_log};
            client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
            fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
            keepalive_requests 10000000; tcp_nodelay on; client_max_body_size 64m;
            upstream replica {{ server {upstream}; keepalive 256; keepalive_requests 10000000; }}
            server {{
                listen {address};
                location / {{
                    proxy_pass http://replica; proxy_http_version 1.1; proxy_set_header Connection '';
                    proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s;
                }}
            }}
        }}\n"
    )
}
