//! The old process's side.

use std::io::BufWriter;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use log::warn;
use tokio::sync::mpsc as async_mpsc;

use crate::dispatch::{Model, Routing};
use crate::server::transfer::{SLICE_MAX, head, write_models};
use crate::state::{Writer, codec};

use super::message::{Channel, Message, PROTOCOL};

/// How long each step of the new process may take: to read its configuration, whose hostnames may be slow to resolve, and to
/// restore a million conversations.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process that has closed the way may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// How often what was learned is passed on. A client that has the end of an answer here and asks the new process its next
/// question finds its conversation there.
const LEARNED_EVERY: Duration = Duration::from_millis(20);

/// How long the new process may not take what is written to it.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// How the new process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    config: PathBuf,
}

/// A new process that has everything and waits for the word. It is ended when this is dropped.
pub struct Successor {
    child: Started,
    channel: Channel,
    since: Vec<Learning>,
}

/// A model, and from when on what is learned of it is new to the other process.
struct Learning {
    model: Arc<Model>,
    since: Duration,
}

/// What is left of this process's role when another one serves.
pub struct Retiree {
    pub successor_pid: u32,
    pub heard: async_mpsc::UnboundedReceiver<Heard>,
    to_tell: mpsc::Sender<Tell>,
}

/// What is heard from the new process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It needs no one to fall back on any more.
    Settled,
    /// It has ended.
    Gone,
}

/// What the new process is told.
enum Tell {
    Reload,
    /// That this was all; the sender is dropped when it was said.
    Done(mpsc::Sender<()>),
}

/// A child that is ended when it is dropped.
struct Started(Option<Child>);

impl Launch {
    /// As this process was started: by the same path, where another file may be by now.
    pub fn like_this_process(config: &Path) -> anyhow::Result<Launch> {
        let named = std::env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
        let binary = named.map_or_else(std::env::current_exe, std::path::absolute);
        Ok(Launch {
            binary: binary.context("it can't be told which file this process runs")?,
            config: std::path::absolute(config).context("it can't be told where the configuration is")?,
        })
    }

    fn start(&self, stdin: UnixStream) -> anyhow::Result<Started> {
        let mut command = Command::new(&self.binary);
        command.arg("run").arg("--config").arg(&self.config).arg("--take-over").stdin(OwnedFd::from(stdin));
        let child = command.spawn().with_context(|| format!("{} can't be started", self.binary.display()))?;
        Ok(Started(Some(child)))
    }
}

impl Successor {
    /// Starts the new process and gives it everything but the word to serve. Blocks until it is ready.
    ///
    /// # Errors
    /// Whatever goes wrong. The new process has ended then.
    pub fn prepare(launch: &Launch, routing: &Routing, sockets: &[(SocketAddr, OwnedFd)]) -> anyhow::Result<Successor> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        ours.set_write_timeout(Some(PATIENCE))?;
        let mut child = launch.start(theirs)?;
        let mut channel = Channel::new(ours);
        let given = greet(&mut channel, routing, sockets).and_then(|()| give_state(&mut channel, routing));
        match given {
            Ok(since) => Ok(Successor { child, channel, since }),
            Err(error) => Err(child.blame(error)),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Tells it to serve. From here on it is not ended with this process.
    pub fn go(mut self) -> anyhow::Result<Retiree> {
        self.channel.stream().set_read_timeout(None)?;
        self.channel.stream().set_write_timeout(Some(WRITE_MAX))?;
        let reading = self.channel.try_clone()?;
        self.channel.send(&Message::Go).context("the new process has ended")?;
        let (to_tell, told) = mpsc::channel();
        let (hears, heard) = async_mpsc::unbounded_channel();
        let successor_pid = self.child.pid();
        let Successor { child, channel, since } = self;
        thread::Builder::new().name("kvpin-teach".into()).spawn(move || teach(channel, since, &told))?;
        thread::Builder::new().name("kvpin-heed".into()).spawn(move || heed(reading, child, &hears))?;
        Ok(Retiree { successor_pid, heard, to_tell })
    }
}

impl Retiree {
    /// The new process is to reload: its operator may know this one only.
    pub fn pass_reload_on(&self) {
        // An error means that it is gone, which is heard too.
        self.to_tell.send(Tell::Reload).ok();
    }

    /// Tells the new process the last things, and that they are the last.
    pub fn finish(self) {
        let (said, on_said) = mpsc::channel();
        if self.to_tell.send(Tell::Done(said)).is_ok() {
            // Only ever an error, once it is said.
            on_said.recv_timeout(WRITE_MAX).ok();
        }
    }
}

/// Who it is, what it needs first, and its word that it could use that.
fn greet(channel: &mut Channel, routing: &Routing, sockets: &[(SocketAddr, OwnedFd)]) -> anyhow::Result<()> {
    match channel.receive()? {
        Message::Hello { protocol: PROTOCOL, state_version: codec::VERSION, .. } => {}
        Message::Hello { kvpin, .. } => {
            bail!("the new process is kvpin {kvpin}, which can't take over: restart instead")
        }
        other => return Err(unexpected(&other)),
    }
    let configured = sockets.iter().map(|(address, _)| *address).collect();
    channel.send(&Message::Welcome { key_secret: routing.key_secret().to_bytes(), sockets: configured })?;
    channel.send_descriptors(&sockets.iter().map(|(_, descriptor)| descriptor.as_fd()).collect::<Vec<_>>())?;
    match channel.receive()? {
        Message::Prepared => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// What is remembered, and its word that it remembers it.
fn give_state(channel: &mut Channel, routing: &Routing) -> anyhow::Result<Vec<Learning>> {
    let table = routing.table();
    let learning =
        |model: &Arc<Model>| Learning { model: Arc::clone(model), since: model.dispatcher.with(|_, now| now) };
    // Before anything is taken out: what changes while it is comes once more.
    let since = table.models.iter().map(learning).collect();
    let mut writer = Writer::begin(BufWriter::new(channel.stream()), head(routing))?;
    write_models(&table, &mut writer)?;
    writer.end()?;
    match channel.receive()? {
        Message::Ready => Ok(since),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(message: &Message) -> anyhow::Error {
    anyhow!("the new process said {message:?}, which nobody expected")
}

/// Passes on what turns teach that are finished here.
fn teach(mut channel: Channel, mut models: Vec<Learning>, told: &mpsc::Receiver<Tell>) {
    loop {
        let tell = told.recv_timeout(LEARNED_EVERY);
        let mut said = tell_learned(&mut channel, &mut models);
        match tell {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Tell::Reload) => said = said.and_then(|()| channel.send(&Message::Reload)),
            Ok(Tell::Done(_said)) => {
                said = said.and_then(|()| channel.send(&Message::Done));
                if let Err(error) = said {
                    warn!("the new process could not be told of the last turns: {error}");
                }
                return;
            }
        }
        // If the process is gone, that is heard too.
        if said.is_err() {
            return;
        }
    }
}

fn tell_learned(channel: &mut Channel, models: &mut [Learning]) -> std::io::Result<()> {
    for Learning { model, since } in models {
        let (learned, now) =
            model.dispatcher.with(|balancer, now| (balancer.export_since(*since, SLICE_MAX, now), now));
        *since = now;
        for records in learned.into_iter().filter(|records| !records.is_empty()) {
            channel.send(&Message::Learned { model: model.name.clone(), records })?;
        }
    }
    Ok(())
}

/// Listens to the new process until it ends.
fn heed(mut channel: Channel, child: Started, hears: &async_mpsc::UnboundedSender<Heard>) {
    while let Ok(message) = channel.receive() {
        // Nobody listens any more only when this process ends.
        if matches!(message, Message::Settled) && hears.send(Heard::Settled).is_err() {
            break;
        }
    }
    child.outlives_this();
    hears.send(Heard::Gone).ok();
}

impl Started {
    fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Leaves it alone, unless it has ended.
    fn outlives_this(mut self) {
        if let Some(mut child) = self.0.take() {
            // Its status, if there is one, is nothing that could be acted on here.
            child.try_wait().ok();
        }
    }

    /// The error, or what the child's end says better.
    fn blame(&mut self, error: anyhow::Error) -> anyhow::Error {
        let deadline = Instant::now() + END_MAX;
        while Instant::now() < deadline {
            match self.0.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => return error.context(ended(status)),
                Some(Ok(None)) => thread::sleep(Duration::from_millis(10)),
                Some(Err(_)) | None => break,
            }
        }
        error
    }
}

fn ended(status: ExitStatus) -> String {
    format!("the new process has ended with {status}; what it has logged says why")
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Errors mean that it has ended already.
            child.kill().ok();
            child.wait().ok();
        }
    }
}
