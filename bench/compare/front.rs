//! What the load is sent to: a proxy in front of the stubs, or the stubs themselves.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::bodies::{Turn, session};
use crate::certificate::Certificate;
use crate::child::Child;
use crate::cores::Cores;
use crate::proxies::{Installed, Proxy, Setting};
use crate::rig::client::Connection;
use crate::upstreams::Upstreams;

/// The routers for LLMs come with Python and take seconds.
const START_MAX: Duration = Duration::from_secs(60);

/// Between two looks at whether it serves.
const START_POLL: Duration = Duration::from_millis(20);

/// Answered turns of different conversations after which every stub is taken for known.
const TURNS_AT_START: usize = 16;

/// A running proxy, or none.
pub struct Front {
    pub proxy: Proxy,
    child: Option<Child>,
    addresses: Vec<SocketAddr>,
}

/// What a process had used at one time.
pub struct Used {
    at: Instant,
    cpu: Option<Duration>,
}

impl Front {
    /// Starts the proxy, with TLS if there is a certificate, and waits until it serves.
    pub async fn start(
        installed: &Installed,
        upstreams: &Upstreams,
        certificate: Option<&Certificate>,
        cores: &Cores,
    ) -> anyhow::Result<Front> {
        let proxy = installed.proxy;
        let addresses = upstreams.addresses();
        let Some(program) = &installed.program else {
            return Ok(Front { proxy, child: None, addresses });
        };
        let files = TempDir::new()?;
        let setting = Setting { files: files.path(), listen: free_address()?, upstreams: &addresses, certificate };
        let command = proxy.command(program, &setting)?;
        let listen = setting.listen;
        let mut child = Child::start(command, files, cores)?;
        match await_service(proxy, &mut child, listen, certificate).await {
            Ok(address) => Ok(Front { proxy, child: Some(child), addresses: vec![address] }),
            Err(error) => Err(error.context(child.last_words())),
        }
    }

    /// Where the connection of this number goes.
    pub fn address(&self, number: usize) -> SocketAddr {
        self.addresses[number % self.addresses.len()]
    }

    pub fn used(&self) -> anyhow::Result<Used> {
        let cpu = self.child.as_ref().map(Child::cpu).transpose()?;
        Ok(Used { at: Instant::now(), cpu })
    }

    /// Microseconds of CPU for each of so many things done since then, NaN without a proxy or a thing, and how many cores that
    /// took.
    pub fn spent_us(&self, since: &Used, things: u64) -> anyhow::Result<(f64, f64)> {
        let now = self.used()?;
        let (Some(before), Some(after)) = (since.cpu, now.cpu) else { return Ok((f64::NAN, f64::NAN)) };
        let spent = after.saturating_sub(before).as_secs_f64();
        let each = if things > 0 { spent * 1e6 / things as f64 } else { f64::NAN };
        Ok((each, spent / now.at.duration_since(since.at).as_secs_f64()))
    }

    /// Resident memory in KB (1,000 bytes); NaN without a proxy.
    pub fn memory_kb(&self) -> anyhow::Result<f64> {
        self.child.as_ref().map_or(Ok(f64::NAN), |child| Ok(child.memory_bytes()? as f64 / 1e3))
    }

    /// What the proxy says last, for an error.
    pub fn last_words(&self) -> String {
        self.child.as_ref().map(Child::last_words).unwrap_or_default()
    }
}

impl Used {
    pub fn at(&self) -> Instant {
        self.at
    }
}

/// For those that can't say which port the kernel gave them.
pub fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

async fn await_service(
    proxy: Proxy,
    child: &mut Child,
    listen: SocketAddr,
    certificate: Option<&Certificate>,
) -> anyhow::Result<SocketAddr> {
    let begin = Instant::now();
    loop {
        child.check()?;
        let address = if proxy.tells_its_address() { address_in(&child.log()?) } else { Some(listen) };
        let tried = match address {
            Some(address) => first_turns(proxy, address, certificate).await.map(|()| address),
            None => Err(anyhow::anyhow!("it does not say where it listens")),
        };
        match tried {
            Ok(address) => return Ok(address),
            Err(error) if begin.elapsed() > START_MAX => return Err(error.context("it does not serve")),
            Err(_) => tokio::time::sleep(START_POLL).await,
        }
    }
}

fn address_in(log: &str) -> Option<SocketAddr> {
    let (_, rest) = log.split_once("listening on ")?;
    // Only a whole line is a whole address.
    rest.split_once('\n')?.0.split_whitespace().next()?.parse().ok()
}

async fn first_turns(proxy: Proxy, address: SocketAddr, certificate: Option<&Certificate>) -> anyhow::Result<()> {
    let stream = TcpStream::connect(address).await?;
    match certificate {
        None => first_turns_over(proxy, stream).await,
        Some(certificate) => {
            let stream = certificate.connector().connect(Certificate::host()?, stream).await?;
            first_turns_over(proxy, stream).await
        }
    }
}

async fn first_turns_over(proxy: Proxy, stream: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<()> {
    let mut connection = Connection::over(stream);
    for number in 0..TURNS_AT_START {
        connection.send(&Turn::SMALL.of(proxy, &session(number))).await?;
        connection.good_reply().await?;
    }
    Ok(())
}
