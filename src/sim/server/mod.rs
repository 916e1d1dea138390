//! An HTTP server that answers as vLLM's does, with one modelled engine a data-parallel rank behind it.
//!
//! `service` tells a request's story: `route` finds what it is for, `call` reads its body, `reply` is what a script has it
//! say, `rank` computes it, `answer` and `dialect` write it. `journal` remembers what arrived; `/sim/requests` and
//! `/sim/running` show it and are no part of vLLM.

mod answer;
mod call;
mod clock;
mod dialect;
mod facts;
mod failure;
mod journal;
mod metrics;
mod rank;
mod refusal;
mod reply;
mod route;
mod service;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use failure::Failure;
pub use journal::Arrival;

use call::Limits;
use clock::Clock;
use journal::Journal;
use rank::Rank;

use super::config::EngineConfig;
use super::script::Script;

/// vLLM takes heads of several megabytes; hyper needs the bound said.
const LARGEST_HEAD: usize = 8 << 20;

/// Header lines that are taken; vLLM has no bound.
const MOST_HEADERS: usize = 1000;

/// How long accepting pauses when the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// What a simulated server is.
#[derive(Debug, Clone)]
pub struct ReplicaOptions {
    /// Where it listens; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// The served model's name.
    pub model: String,
    /// Ranks behind the one port.
    pub data_parallel_size: usize,
    /// The sizes and speeds of each rank.
    pub engine: EngineConfig,
    /// How many times faster than real time the engines run.
    pub time_scale: f64,
    /// Whether `/server_info` answers.
    pub dev_mode: bool,
    /// What clients have to show where vLLM's `--api-key` guards.
    pub api_key: Option<String>,
    /// The length of a reply that the client doesn't limit, in tokens.
    pub default_max_tokens: u32,
    /// What the model says; without it, letters without a meaning.
    pub script: Option<Script>,
    /// How long an idle connection is kept, in real time.
    pub idle_timeout: Duration,
    /// How long a stream of OpenAI's older APIs may be silent before a comment is sent, in real time.
    pub sse_keep_alive: Option<Duration>,
    /// What is wrong with it from the start.
    pub failure: Failure,
}

impl Default for ReplicaOptions {
    /// One rank of the default size at real speed, on a port of the system's choice; idle connections as vLLM keeps them.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            model: "qwen3-4b".into(),
            data_parallel_size: 1,
            engine: EngineConfig::default(),
            time_scale: 1.0,
            dev_mode: false,
            api_key: None,
            default_max_tokens: 256,
            script: None,
            idle_timeout: Duration::from_secs(5),
            sse_keep_alive: None,
            failure: Failure::None,
        }
    }
}

/// What the requests of a server share.
#[derive(Debug)]
struct Site {
    options: ReplicaOptions,
    ranks: Vec<Arc<Rank>>,
    rotation: AtomicUsize,
    failure: watch::Sender<Failure>,
    manner: Mutex<Manner>,
    journal: Journal,
    started: f64,
}

/// What of a server can be set that is no failure.
#[derive(Debug, Clone, Copy, Default)]
struct Manner {
    /// How long the health page takes, in real time: the API server has much to do.
    health_delay: Duration,
    is_asleep: bool,
}

impl Site {
    fn limits(&self) -> Limits<'_> {
        Limits {
            model: &self.options.model,
            max_model_len: self.options.engine.max_model_len,
            default_max_tokens: self.options.default_max_tokens,
            script: self.options.script.as_ref(),
        }
    }

    /// Where the next search for the idlest rank starts.
    fn rotate(&self) -> usize {
        self.rotation.fetch_add(1, Ordering::Relaxed) % self.ranks.len()
    }
}

/// A running server. Dropping it closes its port and all connections at once, running answers included.
#[derive(Debug)]
pub struct ReplicaServer {
    address: SocketAddr,
    site: Arc<Site>,
    task: JoinHandle<()>,
}

impl ReplicaServer {
    /// Binds and starts serving. Fails if the port is taken or the options describe no working engine.
    pub async fn start(options: ReplicaOptions) -> io::Result<Self> {
        let site = Arc::new(site(options)?);
        let listener = TcpListener::bind(site.options.listen).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(run(listener, Arc::clone(&site)));
        Ok(Self { address, site, task })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what is wrong with the server. A dead engine ends the running answers too.
    pub fn set_failure(&self, failure: Failure) {
        self.site.failure.send_replace(failure);
        if failure == Failure::EngineDead {
            self.site.ranks.iter().for_each(|rank| rank.fail_all());
        }
    }

    /// Has the health page take so long from now on, as that of a busy API server does.
    pub fn set_health_delay(&self, delay: Duration) {
        self.site.manner.lock().health_delay = delay;
    }

    /// Puts the engines to sleep, or wakes them. It shows in the metrics only: health is good, as vLLM's is. A sleeping
    /// engine makes no step, which [`Failure::Frozen`] stands for.
    pub fn set_asleep(&self, is_asleep: bool) {
        self.site.manner.lock().is_asleep = is_asleep;
    }

    /// What arrived, oldest first, without health checks and scrapes.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.site.journal.arrivals()
    }

    /// Requests in each rank at this moment, running and waiting.
    pub fn loads(&self) -> Vec<(usize, usize)> {
        self.site.ranks.iter().map(|rank| rank.load()).collect()
    }

    /// Ends the server and waits until its port is free.
    pub async fn shutdown(mut self) {
        self.task.abort();
        if let Err(error) = (&mut self.task).await
            && error.is_panic()
        {
            log::error!("the simulated replica at {} had panicked", self.address);
        }
    }
}

impl Drop for ReplicaServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn site(options: ReplicaOptions) -> io::Result<Site> {
    let invalid = |reason: &str| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if options.data_parallel_size == 0 {
        return Err(invalid("data_parallel_size must be at least 1"));
    }
    if !(options.time_scale.is_finite() && options.time_scale > 0.0) {
        return Err(invalid("time_scale must be greater than zero"));
    }
    let rank = |_| Rank::new(options.engine.clone()).map(Arc::new).map_err(|error| invalid(&error.to_string()));
    Ok(Site {
        ranks: (0..options.data_parallel_size).map(rank).collect::<Result<_, _>>()?,
        rotation: AtomicUsize::new(0),
        failure: watch::Sender::new(options.failure),
        manner: Mutex::default(),
        journal: Journal::default(),
        started: facts::unix_seconds(),
        options,
    })
}

/// Serves until it is dropped, which drops every task that it started.
async fn run(listener: TcpListener, site: Arc<Site>) {
    let clock = Clock::start(site.options.time_scale);
    let mut tasks = JoinSet::new();
    for rank in &site.ranks {
        tasks.spawn(Arc::clone(rank).drive(clock, site.failure.subscribe()));
    }
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tasks.spawn(connection(stream, Arc::clone(&site)));
                }
                Err(error) => {
                    log::warn!("a simulated replica can't accept: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    log::error!("a task of a simulated replica failed: {error}");
                }
            }
        }
    }
}

/// Serves one connection. hyper's timeout for a head also runs while a connection is idle. An end of the client's side is
/// a disconnect, even if only half of the connection was closed: hyper then drops the answer, as vLLM does.
async fn connection(stream: TcpStream, site: Arc<Site>) {
    if let Err(error) = stream.set_nodelay(true) {
        log::debug!("TCP_NODELAY: {error}");
    }
    let idle_timeout = site.options.idle_timeout;
    let service = service_fn(move |request| service::serve(Arc::clone(&site), request));
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_timeout)
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = ended {
        log::debug!("a connection to a simulated replica ended: {error}");
    }
}

#[cfg(test)]
mod tests;
