//! The old process's side.

use std::io::BufWriter;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use crate::dispatch::{Model, Routing};
use crate::proxy::Departure;
use crate::server::transfer::{head, write_models};
use crate::state::{Writer, codec};

use super::message::{Channel, Message, PROTOCOL};
use super::teach::{Heard, Learning, School};

/// How long each step of the new process may take: to read its configuration, whose hostnames may be slow to resolve, and to
/// restore a million conversations.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process that has closed the way may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// How long the new process may not take what is written to it, once it serves.
const WRITE_MAX: Duration = Duration::from_secs(5);

/// How the new process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    config: PathBuf,
    obstacle: Option<&'static str>,
}

/// A new process that has everything and waits for the word. It is ended when this is dropped.
pub struct Successor {
    child: Started,
    channel: Channel,
    listens: Vec<SocketAddr>,
    since: Vec<Learning>,
}

/// What is left of this process's role when another one serves.
pub struct Retiree {
    pub successor_pid: u32,
    child: Started,
    school: School,
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
            obstacle: obstacle(),
        })
    }

    fn start(&self, stdin: UnixStream) -> anyhow::Result<Started> {
        if let Some(obstacle) = self.obstacle {
            bail!(obstacle);
        }
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
        let given =
            greet(&mut channel, routing, sockets).and_then(|listens| Ok((listens, give_state(&mut channel, routing)?)));
        match given {
            Ok((listens, since)) => Ok(Successor { child, channel, listens, since }),
            Err(error) => Err(child.blame(error)),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Where it is going to listen, as it is configured.
    pub fn listens(&self) -> &[SocketAddr] {
        &self.listens
    }

    /// Lets it know what was learned since it was given what is remembered, and from here on of each turn as it is served;
    /// then tells it to serve, and doesn't end it with this process any more.
    pub async fn go(self, departure: Arc<Departure>) -> anyhow::Result<Retiree> {
        let Successor { child, channel, listens: _, since } = self;
        channel.stream().set_read_timeout(None)?;
        channel.stream().set_write_timeout(Some(WRITE_MAX))?;
        let school = School::begin(channel, since, departure)?;
        school.go().await?;
        Ok(Retiree { successor_pid: child.pid(), child, school })
    }
}

impl Retiree {
    pub async fn heard(&mut self) -> Heard {
        self.school.heard().await
    }

    /// The new process is to reload: its operator may know this one only.
    pub fn pass_reload_on(&self) {
        self.school.tell_to_reload();
    }

    /// Tells the new process the last things, and that they are the last.
    pub async fn finish(mut self) {
        self.school.end().await;
        self.child.leave();
    }
}

impl Drop for Retiree {
    fn drop(&mut self) {
        self.child.leave();
    }
}

/// Why this process can't leave its place to its child, whatever else is the case. To be asked at the start: later, every
/// process whose parent has ended is the init process's child.
fn obstacle() -> Option<&'static str> {
    let is_set = |variable| std::env::var_os(variable).is_some();
    let is_of_systemd = parent_id() == 1 && is_set("INVOCATION_ID");
    if std::process::id() == 1 {
        Some("this process is the first one of its container, which ends with it: start another container instead")
    } else if is_of_systemd && !is_set("NOTIFY_SOCKET") {
        Some(
            "systemd would take this process's end for the service's: the unit has to have Type=notify, or is to be restarted",
        )
    } else {
        None
    }
}

/// Who it is, what it needs first, and its word that it could use that.
fn greet(
    channel: &mut Channel,
    routing: &Routing,
    sockets: &[(SocketAddr, OwnedFd)],
) -> anyhow::Result<Vec<SocketAddr>> {
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
        Message::Prepared { listens } => Ok(listens),
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

impl Started {
    fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Leaves it alone, unless it has ended.
    fn leave(&mut self) {
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
