//! The life of a process that serves: its start, alone or in the place of another, what it is told meanwhile, and its end.
//!
//! ```text
//!   begins --> serves --SIGUSR2, kvpin upgrade--> retires: another process serves, and it finishes what it has --> ends
//!                 |  ^                               |
//!                 |  '-- the other one is gone ------'
//!                 '--SIGTERM, SIGINT--> stops: finishes what it has --> ends
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use log::{error, info, warn};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::admin::lately::UpgradeStatus;
use crate::config::Config;
use crate::conversation::KeySecret;
use crate::notify;
use crate::proxy::Leaving;

use super::handover::{Following, Heard, Launch, Predecessor, Retiree, Successor};
use super::keeper::{self, Keeper, Keeping};
use super::signals::Signals;
use super::sockets::Sockets;
use super::transfer::unix_ms;
use super::{AskUpgrade, Drained, Server, new_secret};

/// How a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what the state file has.
    Alone,
    /// In the place of the process that has started it.
    TakeOver,
}

/// A process that serves.
pub struct Life {
    server: Arc<Server>,
    config: PathBuf,
    launch: Launch,
    keeper: Keeper,
    _keeping: Keeping,
    /// The process before this one, while it finishes its turns.
    predecessor: Option<Following>,
    signals: Signals,
    asked: mpsc::Receiver<AskUpgrade>,
}

/// Why a process serves no longer.
enum End {
    Stopped,
    Replaced(Box<Retiree>),
}

/// How it went while another process served.
enum Retired {
    /// Everything that was begun here has ended.
    Done,
    /// The other process has ended, and this one serves again.
    Recalled,
}

/// An upgrade that goes on, and who waits for it.
struct Upgrading {
    preparing: JoinHandle<anyhow::Result<Successor>>,
    asked_by: Option<AskUpgrade>,
}

impl Life {
    /// Takes everything up that was there before, and begins to serve.
    ///
    /// # Errors
    /// When an address can't be bound, the system gives no thread or entropy, or the old process goes on.
    pub fn begin(path: &Path, config: Config, start: Start) -> anyhow::Result<Life> {
        // Before anything serves: a signal that nobody waits for would end the process.
        let signals = Signals::take()?;
        let launch = Launch::like_this_process(path)?;
        let (server, predecessor) = match start {
            Start::Alone => (alone(config)?, None),
            Start::TakeOver => {
                let (server, predecessor) = take_over(config)?;
                (server, Some(predecessor))
            }
        };
        let keeper = Keeper::new(Arc::clone(&server.routing));
        let keeping = keeper.begin()?;
        let asked = server.upgrades_asked.lock().take().context("the server is another life's")?;
        let metrics = &server.routing.metrics;
        metrics.last_reload_success.set(1);
        metrics.last_reload_success_at.set(unix_ms() as f64 / 1_000.0);
        let life = Life {
            config: path.to_owned(),
            server: Arc::new(server),
            launch,
            keeper,
            _keeping: keeping,
            predecessor,
            signals,
            asked,
        };
        life.announce();
        Ok(life)
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Serves until told to end, or until another process has taken over and what was begun here has ended.
    pub async fn run(mut self) {
        let mut reload = None;
        loop {
            match self.serve(reload.take()).await {
                End::Stopped => return self.stop().await,
                End::Replaced(retiree) => match self.retire(*retiree).await {
                    Retired::Done => return,
                    // The other process may have been told of another configuration.
                    Retired::Recalled => reload = Some(self.begin_reload()),
                },
            }
        }
    }

    /// Serves, and does what it is told meanwhile. A SIGHUP that comes during a reload is taken when that is done; all that
    /// come are one.
    async fn serve(&mut self, mut reload: Option<JoinHandle<()>>) -> End {
        let mut upgrading: Option<Upgrading> = None;
        loop {
            let is_free = reload.is_none() && upgrading.is_none();
            tokio::select! {
                _ = self.signals.hangup.recv(), if is_free => reload = Some(self.begin_reload()),
                Some(()) = asked_to_reload(&mut self.predecessor), if is_free => reload = Some(self.begin_reload()),
                () = reloaded(&mut reload), if reload.is_some() => {
                    reload = None;
                    notify::ready(&self.status());
                }
                _ = self.signals.upgrade.recv() => upgrading = self.begin_upgrade(upgrading, None),
                Some(asked_by) = self.asked.recv() => upgrading = self.begin_upgrade(upgrading, Some(asked_by)),
                prepared = prepared(&mut upgrading), if upgrading.is_some() => {
                    let asked_by = upgrading.take().and_then(|upgrading| upgrading.asked_by);
                    if let Some(retiree) = self.hand_over(prepared, asked_by).await {
                        return End::Replaced(Box::new(retiree));
                    }
                }
                () = told_to_end(&mut self.signals.end) => return End::Stopped,
            }
        }
    }

    fn begin_reload(&self) -> JoinHandle<()> {
        notify::reloading();
        let (server, path) = (Arc::clone(&self.server), self.config.clone());
        spawn_blocking(move || server.reload(&path))
    }

    fn begin_upgrade(&mut self, going_on: Option<Upgrading>, asked_by: Option<AskUpgrade>) -> Option<Upgrading> {
        if let Some(going_on) = going_on {
            refuse(asked_by, "an upgrade goes on already");
            return Some(going_on);
        }
        // Whatever the process before this one still keeps for it would be in the way of the next one.
        self.dismiss_predecessor();
        info!("upgrade: a new process is started");
        let (server, launch) = (Arc::clone(&self.server), self.launch.clone());
        let preparing = spawn_blocking(move || {
            let sockets =
                server.sockets.lock().as_ref().context("the listening sockets are closed")?.for_another_process()?;
            Successor::prepare(&launch, &server.routing, &sockets)
        });
        Some(Upgrading { preparing, asked_by })
    }

    /// Has the new process serve, if it is ready to.
    async fn hand_over(&self, prepared: anyhow::Result<Successor>, asked_by: Option<AskUpgrade>) -> Option<Retiree> {
        // Its own writes begin with the word, and a write of this one must not come behind them.
        self.keeper.give_away();
        let handed_over = match prepared {
            Ok(successor) => {
                notify::main_process_is(successor.pid());
                let listens = successor.listens().to_vec();
                let gone = successor.go(Arc::clone(&self.server.departure)).await;
                gone.inspect(|_| self.server.close_others(&listens))
            }
            Err(error) => Err(error),
        };
        let upgrades = &self.server.routing.metrics.upgrades;
        match handed_over {
            Ok(retiree) => {
                upgrades.with_label_values(&["done"]).inc();
                info!("upgrade: process {} serves, this one finishes what it has", retiree.successor_pid);
                reply(asked_by, Ok(retiree.successor_pid));
                Some(retiree)
            }
            Err(error) => {
                self.keeper.take_back();
                notify::main_process_is_this();
                upgrades.with_label_values(&["failed"]).inc();
                warn!("upgrade failed, this process goes on: {error:#}");
                let why = format!("{error:#}");
                *self.server.lately.upgrade.lock() = Some(UpgradeStatus::failed(why.clone()));
                reply(asked_by, Err(why));
                None
            }
        }
    }

    /// Finishes what it has while another process serves.
    async fn retire(&mut self, mut retiree: Retiree) -> Retired {
        let server = Arc::clone(&self.server);
        let grace = server.routing.table().config.shutdown_grace;
        let drained = server.drain(Leaving::Unhurried, grace);
        tokio::pin!(drained);
        let mut is_followed = true;
        loop {
            tokio::select! {
                drained = &mut drained => {
                    tell(drained);
                    retiree.finish().await;
                    return Retired::Done;
                }
                heard = retiree.heard(), if is_followed => match heard {
                    Heard::LetGo => server.close(),
                    Heard::Gone if self.serve_again() => return Retired::Recalled,
                    Heard::Gone => is_followed = false,
                },
                _ = self.signals.hangup.recv() => retiree.pass_reload_on(),
                Some(()) = asked_to_reload(&mut self.predecessor) => retiree.pass_reload_on(),
                _ = self.signals.upgrade.recv() => refuse(None, "another process serves already"),
                Some(asked_by) = self.asked.recv() => refuse(Some(asked_by), "another process serves already"),
                () = told_to_end(&mut self.signals.end) => {
                    self.finish(grace).await;
                    retiree.finish().await;
                    return Retired::Done;
                }
            }
        }
    }

    /// The process that took over has ended. Returns whether this one could take everything back: not if it has let go of it.
    fn serve_again(&self) -> bool {
        if self.server.sockets.lock().is_none() {
            return false;
        }
        match self.server.accept() {
            Ok(()) => {
                // What the other one has learned is in its file, but for the last minute at most.
                if let Some(stored) = keeper::find(&self.server.routing.table().config) {
                    keeper::restore(&self.server.routing, stored);
                }
                self.keeper.take_back();
                notify::main_process_is_this();
                notify::ready(&self.status());
                warn!("the process that had taken over has ended: this one serves again");
                true
            }
            Err(error) => {
                error!("the process that had taken over has ended, and this one can't serve again: {error:#}");
                false
            }
        }
    }

    async fn stop(&mut self) {
        let grace = self.server.routing.table().config.shutdown_grace;
        notify::stopping("finishing open requests");
        info!("shutting down: open requests have {} s to end", grace.as_secs());
        self.dismiss_predecessor();
        // What runs may take longer than whoever wants the end waits for.
        let keeper = self.keeper.clone();
        let kept = spawn_blocking(move || keeper.keep());
        self.finish(grace).await;
        if let Err(error) = kept.await {
            error!("the write of the state was lost: {error}");
        }
        self.keeper.keep();
    }

    /// Lets open requests end for at most `grace`, or until told to end once more.
    async fn finish(&mut self, grace: Duration) {
        self.server.close();
        tokio::select! {
            drained = self.server.drain(Leaving::Soon, grace) => tell(drained),
            () = told_to_end(&mut self.signals.end) => warn!("told twice: open requests are cut off"),
        }
    }

    /// Nobody is to fall back on the process before this one.
    fn dismiss_predecessor(&mut self) {
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.let_go();
        }
    }

    /// Tells the log and systemd that it serves.
    fn announce(&self) {
        for address in &self.server.listen {
            info!("listening on {address}");
        }
        if let Some(address) = self.server.admin {
            info!("admin on {address}");
        }
        notify::ready(&self.status());
    }

    fn status(&self) -> String {
        let listen: Vec<_> = self.server.listen.iter().map(ToString::to_string).collect();
        let models = self.server.routing.table().models.len();
        format!("serving {models} {} on {}", if models == 1 { "model" } else { "models" }, listen.join(", "))
    }
}

/// With the state that an earlier process has left.
fn alone(config: Config) -> anyhow::Result<Server> {
    let sockets = Sockets::open(&config, Vec::new())?;
    let stored = keeper::find(&config);
    let secret = match &stored {
        Some(stored) => KeySecret::new(stored.head.key_secret),
        None => new_secret()?,
    };
    let server = Server::prepare(config, sockets, secret)?;
    if let Some(stored) = stored {
        let restored = keeper::restore(&server.routing, stored);
        let (conversations, dropped) = (restored.conversations, restored.dropped);
        let age_s = restored.downtime().as_secs();
        info!("{conversations} conversations are known from {age_s} s ago, {dropped} are forgotten");
    }
    server.accept()?;
    Ok(server)
}

fn take_over(config: Config) -> anyhow::Result<(Server, Following)> {
    let mut predecessor = Predecessor::greet()?;
    let sockets = Sockets::open(&config, predecessor.take_sockets())?;
    let server = Server::prepare(config, sockets, KeySecret::new(predecessor.key_secret))?;
    let restorer = predecessor.take_over(&server.routing)?;
    server.accept()?;
    info!("took over, with {} conversations; {} are forgotten", restorer.conversations, restorer.dropped);
    let following = predecessor.follow(restorer)?;
    Ok((server, following))
}

async fn told_to_end([terminate, interrupt]: &mut [Signal; 2]) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn reloaded(reload: &mut Option<JoinHandle<()>>) {
    if let Some(reload) = reload
        && let Err(error) = reload.await
    {
        error!("the reload was lost: {error}");
    }
}

async fn asked_to_reload(predecessor: &mut Option<Following>) -> Option<()> {
    predecessor.as_mut()?.reloads.recv().await
}

async fn prepared(upgrading: &mut Option<Upgrading>) -> anyhow::Result<Successor> {
    let upgrading = upgrading.as_mut().context("no upgrade goes on")?;
    (&mut upgrading.preparing).await.context("the upgrade was lost")?
}

fn refuse(asked_by: Option<AskUpgrade>, why: &str) {
    warn!("upgrade refused: {why}");
    reply(asked_by, Err(why.to_owned()));
}

fn reply(asked_by: Option<AskUpgrade>, result: Result<u32, String>) {
    if let Some(asked_by) = asked_by {
        // An error means that nobody waits for it any more.
        asked_by.send(result).ok();
    }
}

fn tell(drained: Drained) {
    match drained {
        Drained::Whole => info!("every request has ended"),
        Drained::Cut { open } => warn!("{open} requests were still open and are cut off"),
    }
}
