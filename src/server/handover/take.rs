//! The new process's side.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use log::{info, warn};
use tokio::sync::mpsc;

use crate::balancer::Health;
use crate::dispatch::{Model, Routing};
use crate::server::sockets::Socket;
use crate::server::transfer::Restorer;
use crate::state::{Reader, codec};

use super::message::{Channel, Message, PROTOCOL};

/// Longer than the old process takes for anything. Its end is noticed at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a replica is waited for that doesn't answer its first probe. One that is slow is judged later.
const LOOK_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The process that this one takes over from.
pub struct Predecessor {
    channel: Channel,
    pub key_secret: [u8; 16],
    sockets: Vec<Socket>,
}

/// The old process while it finishes its turns.
pub struct Following {
    /// Asks for a reload that the old process was told of.
    pub reloads: mpsc::UnboundedReceiver<()>,
    /// Until it was said that nobody is to fall back on it.
    fallback: Option<Channel>,
}

impl Predecessor {
    /// Introduces itself to the process that has started this one, and gets its sockets.
    pub fn greet() -> anyhow::Result<Predecessor> {
        let stdin = io::stdin().as_fd().try_clone_to_owned()?;
        let mut channel = Channel::new(UnixStream::from(stdin));
        channel.stream().set_read_timeout(Some(PATIENCE)).context("stdin is no way to another kvpin")?;
        let kvpin = env!("CARGO_PKG_VERSION").to_owned();
        channel.send(&Message::Hello { protocol: PROTOCOL, state_version: codec::VERSION, kvpin })?;
        let Message::Welcome { key_secret, sockets } = channel.receive()? else {
            return Err(anyhow!("the old process doesn't say what it has"));
        };
        let descriptors = channel.receive_descriptors(sockets.len())?;
        let sockets = sockets.into_iter().zip(descriptors).map(|(address, fd)| Socket::inherited(address, fd));
        let sockets = sockets.collect::<anyhow::Result<_>>()?;
        Ok(Predecessor { channel, key_secret, sockets })
    }

    pub fn take_sockets(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.sockets)
    }

    /// Takes over what is remembered, and what is learned while it waits for the word. When it has come the old process accepts no more.
    ///
    /// # Errors
    /// When the old process goes on by itself, or is gone.
    pub fn take_over(&mut self, routing: &Routing) -> anyhow::Result<Restorer> {
        await_first_looks(routing);
        let config = &routing.table().config;
        let listens = config.listen.iter().map(|listener| listener.address).chain(config.admin).collect();
        self.channel.send(&Message::Prepared { listens })?;
        let (mut reader, head) = Reader::begin(self.channel.stream())?;
        let mut restorer = Restorer::new(routing, &head);
        while let Some(frame) = reader.frame()? {
            restorer.take(frame);
        }
        self.channel.send(&Message::Ready)?;
        loop {
            match self.channel.receive().context("the old process goes on by itself")? {
                Message::Go => return Ok(restorer),
                Message::Learned { model, records } => restorer.take_more(&model, &records),
                Message::Lesson(number) => self.channel.send(&Message::Known(number))?,
                other => return Err(anyhow!("the old process said {other:?}, which nobody expected")),
            }
        }
    }

    /// Learns what the old process's last turns teach, on a thread of its own.
    pub fn follow(self, restorer: Restorer) -> anyhow::Result<Following> {
        self.channel.stream().set_read_timeout(None)?;
        let fallback = Some(self.channel.try_clone()?);
        let (asks, reloads) = mpsc::unbounded_channel();
        let learn = move || learn(self.channel, &restorer, &asks);
        thread::Builder::new().name("kvpin-learn".into()).spawn(learn)?;
        Ok(Following { reloads, fallback })
    }
}

impl Following {
    /// Has the old process let go of the sockets.
    pub fn let_go(&mut self) {
        if let Some(mut channel) = self.fallback.take() {
            // An error means that the old process has ended, which is as good.
            channel.send(&Message::LetGo).ok();
        }
    }
}

fn learn(mut channel: Channel, restorer: &Restorer, asks: &mpsc::UnboundedSender<()>) {
    loop {
        match channel.receive() {
            Ok(Message::Learned { model, records }) => restorer.take_more(&model, &records),
            Ok(Message::Lesson(number)) => {
                // An error means that the old process is gone, which is what comes next.
                channel.send(&Message::Known(number)).ok();
            }
            Ok(Message::Reload) => {
                // An error means that this process is about to end.
                asks.send(()).ok();
            }
            Ok(Message::Done) => return info!("the process before this one has finished its turns"),
            Ok(other) => warn!("the process before this one said {other:?}, which nobody expected"),
            Err(error) => return warn!("the process before this one has ended before its turns had: {error}"),
        }
    }
}

/// Waits until every replica was looked at, so that none that is down is given a turn.
fn await_first_looks(routing: &Routing) {
    let is_unknown = |model: &Arc<Model>| {
        model.dispatcher.with(|balancer, _| {
            balancer.specs().any(|(id, _)| balancer.health_of(id).is_none_or(|health| health == Health::Unknown))
        })
    };
    let deadline = Instant::now() + LOOK_MAX;
    while routing.table().models.iter().any(is_unknown) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}
