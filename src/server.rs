//! A running kvpin: its listeners, the proxy and the admin page on them, the watch over the replicas, and its end.
//!
//! The proxy has a runtime of its own with a thread a core. Everything else, the admin listener above all, runs on
//! another one, so that metrics and probes answer while the proxy's threads are busy.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context as _;
use log::{info, warn};
use parking_lot::Mutex;
use pingora::listeners::{L4BufferSettings, ListenerConfig, TcpSocketOptions};
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{Fds, ListenFds};
use pingora::services::Service as _;
use pingora::services::listening::Service;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::admin::Proxied;
use crate::admin::history::History;
use crate::config::Config;
use crate::connector::NO_AUTHORITIES;
use crate::conversation::KeySecret;
use crate::dispatch::{EventKind, Reloaded, Routing};
use crate::metrics::Metrics;
use crate::proxy::connection::Listener;
use crate::proxy::{OpenRequests, Proxy, TCP_KEEPALIVE};
use crate::tls::ListenerTls;
use crate::{admin, proxy, replica};

/// How often a drain looks whether the last request has ended.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// How many looks in a row have to find no request.
const QUIET_POLLS: u32 = 3;

/// A kvpin that serves.
pub struct Server {
    pub routing: Arc<Routing>,
    /// Where it listens, with the ports that the kernel chose.
    pub listen: Vec<SocketAddr>,
    pub admin: Option<SocketAddr>,
    open: OpenRequests,
    shutdown: watch::Sender<bool>,
    /// Dropped without waiting: what is to be waited for has ended by then.
    runtimes: Option<[Runtime; 2]>,
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
    /// Binds the listeners and begins to serve.
    ///
    /// # Errors
    /// When an address can't be bound, or the system gives no thread or entropy.
    pub fn start(config: Config) -> anyhow::Result<Server> {
        let mut secret = [0; 16];
        getrandom::fill(&mut secret).context("no entropy for the key that hashes session ids")?;
        let fds: ListenFds = Arc::new(Mutex::new(Fds::new()));
        let listen =
            config.listen.iter().map(|listener| bind(listener.address, &fds)).collect::<anyhow::Result<Vec<_>>>()?;
        let admin = config.admin.map(|address| bind(address, &fds)).transpose()?;
        let routing = Arc::new(Routing::new(config, KeySecret::new(secret), Metrics::new()?));
        show_certificates(&routing, &listen);
        let (shutdown, on_shutdown) = watch::channel(false);
        let open = OpenRequests::default();

        let threads = available_parallelism().map_or(1, |count| count.get());
        let serving = runtime("kvpin-proxy", threads)?;
        for mut service in proxy_services(&routing, &open, &listen) {
            let (proxy_fds, proxy_shutdown) = (Arc::clone(&fds), on_shutdown.clone());
            serving.spawn(async move { service.start_service(Some(proxy_fds), proxy_shutdown, 1).await });
        }

        let control = runtime("kvpin-admin", 1)?;
        if let Some(address) = admin {
            let history = Arc::new(History::default());
            let mut page =
                admin::service(Arc::clone(&routing), address, proxied(&routing, &open), Arc::clone(&history));
            control.spawn(history.keep(Arc::clone(&routing), on_shutdown.clone()));
            let admin_shutdown = on_shutdown.clone();
            control.spawn(async move { page.start_service(Some(fds), admin_shutdown, 1).await });
        }
        control.spawn(replica::watch(Arc::clone(&routing), on_shutdown));
        Ok(Server { routing, listen, admin, open, shutdown, runtimes: Some([serving, control]) })
    }

    /// Reads the configuration again and serves by it; on any error nothing changes.
    pub fn reload(&self, path: &Path) {
        let outcome = match Config::load(path) {
            Err(error) => {
                warn!("reload refused, nothing has changed: {}: {error}", path.display());
                "refused"
            }
            Ok(config) => self.apply(config),
        };
        self.routing.metrics.reloads.with_label_values(&[outcome]).inc();
    }

    /// Takes no new connections, lets open requests end for at most `grace`, and says whether they did.
    pub async fn drain(&self, grace: Duration) -> Drained {
        // Only an error if nobody listens to it any more, and then there is nothing to stop.
        self.shutdown.send_replace(true);
        let ended = async {
            // More than once: a request that has just arrived is not open yet.
            let mut quiet = 0;
            while quiet < QUIET_POLLS {
                tokio::time::sleep(DRAIN_POLL).await;
                quiet = if self.open.is_quiet() { quiet + 1 } else { 0 };
            }
        };
        match tokio::time::timeout(grace, ended).await {
            Ok(()) => Drained::Whole,
            Err(_) => Drained::Cut { open: self.open.count() },
        }
    }

    fn apply(&self, config: Config) -> &'static str {
        let known = self.routing.table().config.warnings();
        let warnings = config.warnings();
        match self.routing.reload(config) {
            Reloaded::NeedsRestart(keys) => {
                warn!("reload refused, nothing has changed: {} can only change with a restart", keys.join(", "));
                "refused"
            }
            Reloaded::Applied(changes) => {
                show_certificates(&self.routing, &self.listen);
                for warning in warnings.iter().filter(|warning| !known.contains(warning)) {
                    warn!("{warning}");
                }
                let changes = if changes.is_empty() { "no changes".to_owned() } else { changes.join("; ") };
                info!("reloaded: {changes}");
                self.routing.events.add(EventKind::Reload, "", "", format!("reloaded: {changes}"));
                "applied"
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.send_replace(true);
        for runtime in self.runtimes.take().into_iter().flatten() {
            runtime.shutdown_background();
        }
    }
}

/// Binds an address here rather than in Pingora, which panics where it can't, and can't say which port it got.
fn bind(address: SocketAddr, fds: &ListenFds) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| format!("can't listen on {address}"))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    fds.lock().add(bound.to_string(), listener.into_raw_fd());
    Ok(bound)
}

fn runtime(name: &str, threads: usize) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name(name)
        .enable_all()
        .build()
        .context("can't start the runtime")
}

/// Has the metrics say when the certificates of the current table run out. Of several for one host, the one that does first.
fn show_certificates(routing: &Routing, listen: &[SocketAddr]) {
    let expiry = &routing.metrics.certificates_expire;
    expiry.reset();
    for (address, listener) in listen.iter().zip(&routing.table().config.listen) {
        for certificate in listener.tls.iter().flat_map(ListenerTls::certificates) {
            let host = certificate.names().first().map_or("-", String::as_str);
            let gauge = expiry.with_label_values(&[address.to_string().as_str(), host]);
            let known = Some(gauge.get()).filter(|known| *known != 0);
            gauge.set(certificate.expires_s().min(known.unwrap_or(i64::MAX)));
        }
    }
}

/// What the admin listener may know of the proxy.
fn proxied(routing: &Arc<Routing>, open: &OpenRequests) -> Proxied {
    let (routing, open) = (Arc::clone(routing), open.clone());
    Proxied {
        count_open: Box::new(move || open.count()),
        explain: Box::new(move |raw| {
            let explanation = proxy::explain(&routing, raw).map_err(|error| error.to_string())?;
            serde_json::to_string(&explanation).map_err(|error| error.to_string())
        }),
    }
}

/// A service for each listener, so that each knows which one it is.
fn proxy_services(routing: &Arc<Routing>, open: &OpenRequests, listen: &[SocketAddr]) -> Vec<Service<Listener>> {
    // Pingora's own way to the replicas isn't used, but made.
    let conf = ServerConf { ca_file: Some(NO_AUTHORITIES.to_owned()), ..ServerConf::default() };
    let proxy = Arc::new(http_proxy(&Arc::new(conf), Proxy::new(Arc::clone(routing), open.clone())));
    let listener = |(at, address): (usize, &SocketAddr)| {
        let (proxy, routing, open) = (Arc::clone(&proxy), Arc::clone(routing), open.clone());
        let mut service = Service::new("kvpin".to_owned(), Listener { proxy, routing, open, at });
        let mut socket = TcpSocketOptions::default();
        socket.tcp_keepalive = Some(TCP_KEEPALIVE);
        let listener = ListenerConfig::tcp(address.to_string())
            .tcp_socket_options(socket)
            // Pingora flushes a response with a length only when its write buffer is full; without one, at once.
            .l4_buffer(L4BufferSettings::default().write(0));
        service.add_listener(listener);
        service
    };
    listen.iter().enumerate().map(listener).collect()
}
