//! A running kvpin: its listeners, the proxy and the admin page on them, the watch over the replicas, and its end.
//!
//! The proxy has a runtime of its own with a thread a core. Everything else, the admin listener above all, runs on
//! another one, so that metrics and probes answer while the proxy's threads are busy.

mod handover;
mod keeper;
mod life;
mod reload;
mod signals;
mod sockets;
mod transfer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use pingora::listeners::{L4BufferSettings, ListenerConfig, TcpSocketOptions};
use pingora::services::Service as _;
use pingora::services::listening::Service;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};

use crate::admin::history::History;
use crate::admin::{Lately, Proxied};
use crate::config::{Config, ConfigError};
use crate::conversation::KeySecret;
use crate::dispatch::Routing;
use crate::gpu::{self, Sampler};
use crate::metrics::Metrics;
use crate::proxy::accept::Connections;
use crate::proxy::connection::Listener;
use crate::proxy::{AccessLog, Departure, Leaving, OpenRequests, Proxy, TCP_KEEPALIVE, Target};
use crate::tls::ListenerTls;
use crate::{admin, descriptors, proxy, replica};

pub use life::{Life, Start};
use sockets::Sockets;

/// How often a drain looks whether the last connection has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// How many looks in a row have to find none: one that has just been accepted is not counted yet.
const QUIET_POLLS: u32 = 3;

/// What is read of an encrypted connection at once: a record, which the library would take in four steps. Pingora's 64 KiB save
/// no CPU beside it, and a connection in the clear is read into the request's own buffer (`bench/README.md`).
const TLS_READ_BUFFER: usize = 16 * 1024;

/// The same where another process serves. There is time for a client that was accepted to finish its TLS handshake.
const QUIET_POLLS_UNHURRIED: u32 = 50;

/// Upgrades that are asked for at the same time.
const ASKS_MAX: usize = 8;

/// A kvpin that serves.
pub struct Server {
    pub routing: Arc<Routing>,
    /// Where it listens, with the ports that the kernel chose.
    pub listen: Vec<SocketAddr>,
    pub admin: Option<SocketAddr>,
    /// As long as this process may accept connections.
    sockets: Mutex<Option<Sockets>>,
    /// Tells the services that accept at this time to accept no more.
    accepting: Mutex<Option<watch::Sender<bool>>>,
    open: OpenRequests,
    departure: Arc<Departure>,
    access_log: Arc<AccessLog>,
    history: Arc<History>,
    lately: Arc<Lately>,
    upgrades: Asks,
    upgrades_asked: Mutex<Option<mpsc::Receiver<AskUpgrade>>>,
    /// Ends the watch over the replicas when it is dropped.
    _watching: watch::Sender<bool>,
    gpus: Arc<gpu::Board>,
    _sampler: Sampler,
    /// Dropped without waiting: what is to be waited for has ended by then.
    runtimes: Option<Runtimes>,
}

/// Answered with the process that serves from then on, or why none does but this one.
type AskUpgrade = oneshot::Sender<Result<u32, String>>;
type Asks = mpsc::Sender<AskUpgrade>;

struct Runtimes {
    serving: Runtime,
    control: Runtime,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every request has ended.
    Whole,
    /// Requests that were still open when the time was over.
    Cut { open: usize },
}

impl Server {
    /// Binds the listeners and begins to serve, with nothing known from before.
    ///
    /// # Errors
    /// When an address can't be bound, or the system gives no thread or entropy.
    pub fn start(config: Config) -> anyhow::Result<Server> {
        let sockets = Sockets::open(&config, Vec::new())?;
        let server = Server::prepare(config, sockets, new_secret()?)?;
        server.accept()?;
        Ok(server)
    }

    /// Everything but accepting connections: the replicas are looked at from here on.
    fn prepare(config: Config, sockets: Sockets, secret: KeySecret) -> anyhow::Result<Server> {
        descriptors::raise(&config.limits);
        let metrics = Metrics::new()?;
        let target =
            Target::open(&config.access_log.to).map_err(|error| ConfigError::of_access_log(error.to_string()))?;
        let access_log =
            AccessLog::begin(target, metrics.access_log_dropped.clone()).context("no thread for the log")?;
        let routing = Arc::new(Routing::new(config, secret, metrics));
        let threads = available_parallelism().map_or(1, |count| count.get());
        let runtimes = Runtimes { serving: runtime("kvpin-proxy", threads)?, control: runtime("kvpin-admin", 1)? };
        let (watching, on_end) = watch::channel(false);
        runtimes.control.spawn(replica::watch(Arc::clone(&routing), on_end.clone()));
        let history = Arc::new(History::default());
        runtimes.control.spawn(Arc::clone(&history).keep(Arc::clone(&routing), on_end));
        let gpus = Arc::new(gpu::Board::default());
        let sampler = sample(&gpus, &routing).context("can't start the thread that asks for the GPUs")?;
        let (upgrades, upgrades_asked) = mpsc::channel(ASKS_MAX);
        let server = Server {
            listen: sockets.listen.iter().map(|socket| socket.address).collect(),
            admin: sockets.admin.as_ref().map(|socket| socket.address),
            routing,
            sockets: Mutex::new(Some(sockets)),
            accepting: Mutex::default(),
            open: OpenRequests::default(),
            departure: Arc::default(),
            access_log: Arc::new(access_log),
            history,
            lately: Arc::default(),
            upgrades,
            upgrades_asked: Mutex::new(Some(upgrades_asked)),
            _watching: watching,
            gpus,
            _sampler: sampler,
            runtimes: Some(runtimes),
        };
        server.show_certificates();
        Ok(server)
    }

    /// Begins to accept connections, or does so again.
    fn accept(&self) -> anyhow::Result<()> {
        let (Some(sockets), Some(runtimes)) = (&*self.sockets.lock(), &self.runtimes) else {
            bail!("the listening sockets are closed");
        };
        let table = sockets.duplicates()?;
        let (accepting, on_stop) = watch::channel(false);
        self.departure.set(Leaving::No);
        for mut service in self.proxy_services() {
            let (table, on_stop) = (Arc::clone(&table), on_stop.clone());
            runtimes.serving.spawn(async move { service.start_service(Some(table), on_stop, 1).await });
        }
        if let Some(address) = self.admin {
            let mut page =
                admin::service(Arc::clone(&self.routing), address, self.proxied(), Arc::clone(&self.history));
            runtimes.control.spawn(async move { page.start_service(Some(table), on_stop, 1).await });
        }
        *self.accepting.lock() = Some(accepting);
        Ok(())
    }

    /// Takes no new connections, lets open requests end for at most `grace`, and says whether they did. Called while that
    /// goes on, it makes a drain that nothing hurries one that is to end soon.
    async fn drain(&self, leaving: Leaving, grace: Duration) -> Drained {
        self.departure.set(leaving);
        if let Some(accepting) = self.accepting.lock().take() {
            // Only an error if nobody listens to it any more, and then there is nothing to stop.
            accepting.send_replace(true);
        }
        let quiet_polls = match leaving {
            Leaving::Unhurried => QUIET_POLLS_UNHURRIED,
            Leaving::No | Leaving::Soon => QUIET_POLLS,
        };
        let ended = async {
            let mut quiet = 0;
            while quiet < quiet_polls {
                tokio::time::sleep(DRAIN_POLL).await;
                let is_quiet = self.open.is_quiet() && self.departure.connections() == 0;
                quiet = if is_quiet { quiet + 1 } else { 0 };
            }
        };
        match tokio::time::timeout(grace, ended).await {
            Ok(()) => Drained::Whole,
            Err(_) if self.open.count() == 0 => Drained::Whole,
            Err(_) => Drained::Cut { open: self.open.count() },
        }
    }

    /// Closes the listening sockets that are not among these, as they are configured.
    fn close_others(&self, configured: &[SocketAddr]) {
        if let Some(sockets) = &mut *self.sockets.lock() {
            sockets.keep_only(configured);
        }
    }

    /// Closes the listening sockets for good, as soon as nothing accepts on them any more.
    fn close(&self) {
        *self.sockets.lock() = None;
    }

    /// A service for each listener, so that each knows which one it is.
    fn proxy_services(&self) -> Vec<Service<Listener>> {
        let (routing, departure) = (Arc::clone(&self.routing), Arc::clone(&self.departure));
        let proxy = Arc::new(Proxy::new(routing, self.open.clone(), departure, Arc::clone(&self.access_log)));
        let connections = Connections::new(self.routing.metrics.connections.clone());
        let table = self.routing.table();
        let listener = |(at, address): (usize, &SocketAddr)| {
            let has_tls = table.config.listen.get(at).is_some_and(|listener| listener.tls.is_some());
            let (proxy, routing, open) = (Arc::clone(&proxy), Arc::clone(&self.routing), self.open.clone());
            let (departure, connections) = (Arc::clone(&self.departure), Arc::clone(&connections));
            let listener = Listener { proxy, routing, open, departure, connections, at };
            let mut service = Service::new("kvpin".to_owned(), listener);
            let mut socket = TcpSocketOptions::default();
            socket.tcp_keepalive = Some(TCP_KEEPALIVE);
            let listener = ListenerConfig::tcp(address.to_string())
                .tcp_socket_options(socket)
                // Pingora flushes a response with a length only when its write buffer is full; without one, at once.
                .l4_buffer(L4BufferSettings::new(if has_tls { TLS_READ_BUFFER } else { 0 }, 0));
            service.add_listener(listener);
            service
        };
        self.listen.iter().enumerate().map(listener).collect()
    }

    /// Has the metrics say when the certificates of the current table run out. Of several for one host, the one that does
    /// first.
    fn show_certificates(&self) {
        let expiry = &self.routing.metrics.certificates_expire;
        expiry.reset();
        for (address, listener) in self.listen.iter().zip(&self.routing.table().config.listen) {
            for certificate in listener.tls.iter().flat_map(ListenerTls::certificates) {
                let host = certificate.names().first().map_or("-", String::as_str);
                let gauge = expiry.with_label_values(&[address.to_string().as_str(), host]);
                let known = Some(gauge.get()).filter(|known| *known != 0);
                gauge.set(certificate.expires_s().min(known.unwrap_or(i64::MAX)));
            }
        }
    }

    /// What the admin listener may know of the proxy and do with the process.
    fn proxied(&self) -> Proxied {
        let (routing, open, upgrades) = (Arc::clone(&self.routing), self.open.clone(), self.upgrades.clone());
        Proxied {
            count_open: Box::new(move || open.count()),
            explain: Box::new(move |raw| {
                let explanation = proxy::explain(&routing, raw).map_err(|error| error.to_string())?;
                serde_json::to_string(&explanation).map_err(|error| error.to_string())
            }),
            lately: Arc::clone(&self.lately),
            upgrade: Box::new(move || {
                let upgrades = upgrades.clone();
                Box::pin(async move { ask(&upgrades).await })
            }),
            gpus: Arc::clone(&self.gpus),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.send_replace(true);
        }
        self.access_log.flush();
        if let Some(Runtimes { serving, control }) = self.runtimes.take() {
            serving.shutdown_background();
            control.shutdown_background();
        }
    }
}

/// Has the board of the GPUs kept as the current table wants it.
fn sample(gpus: &Arc<gpu::Board>, routing: &Arc<Routing>) -> std::io::Result<Sampler> {
    let routing = Arc::clone(routing);
    Sampler::start(Arc::clone(gpus), move || {
        let config = &routing.table().config;
        let mut replicas = config.models.iter().flat_map(|model| &model.replicas);
        gpu::Wanted { nvml: config.nvml.clone(), has_claims: replicas.any(|replica| !replica.gpus.is_empty()) }
    })
}

fn new_secret() -> anyhow::Result<KeySecret> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).context("no entropy for the key that hashes session ids")?;
    Ok(KeySecret::new(secret))
}

fn runtime(name: &str, threads: usize) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .context("can't start the runtime")
}

/// Asks for an upgrade, and waits for what comes of it.
async fn ask(upgrades: &Asks) -> Result<u32, String> {
    const NOBODY: &str = "nobody upgrades this kvpin: it is a part of another program, or about to end";
    let (reply, replied) = oneshot::channel();
    upgrades.try_send(reply).map_err(|_| NOBODY.to_owned())?;
    replied.await.unwrap_or_else(|_| Err(NOBODY.to_owned()))
}
