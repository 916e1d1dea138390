//! One bounded GET to an engine's server, over the same connector that the proxy's requests take.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::AUTHORIZATION;
use log::debug;
use log::warn;
use parking_lot::Mutex;
use pingora::http::RequestHeader;
use pingora::protocols::http::v1::client::HttpSession;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};
use thiserror::Error as ThisError;

use crate::balancer::DownReason;
use crate::connector::{Connector, Destination, down_reason, tls_cause};

use super::server::Server;

/// The most bytes of an answer. A scrape of vLLM has 64 KiB for one engine and some 12 KiB for each further rank.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A pooled connection that was idle for longer isn't used: vLLM closes its idle ones after 5 s.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Asks servers for a page each. Connections are kept and used again.
pub struct Client {
    connector: Connector,
    /// Why servers were not spoken to over TLS, as it was logged last.
    said: Mutex<BTreeMap<SocketAddr, String>>,
}

/// Idle connections that are kept: one or two to each of some dozens of servers.
const POOLED_MAX: usize = 128;

/// How long an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub connect: Duration,
    /// From the first try to connect to the last byte.
    pub total: Duration,
}

/// Why there is no answer, or none to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Failure {
    #[error("nothing listens there, or not who should")]
    Unreachable(DownReason),
    #[error("no answer in time")]
    TimedOut,
    #[error("the answer has status {0}")]
    Status(u16),
    #[error("the answer has over {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
    #[error("the connection or the answer broke")]
    Broken,
}

/// Why one exchange has failed, and whether a fresh connection may fare better.
struct Lost {
    failure: Failure,
    reused: bool,
}

impl Client {
    pub fn new() -> Self {
        Client { connector: Connector::new(POOLED_MAX), said: Mutex::default() }
    }

    /// The body of the server's answer to `GET path`, if its status is 200.
    pub async fn get(&self, server: &Server, path: &str, patience: Patience) -> Result<Vec<u8>, Failure> {
        let mut peer = HttpPeer::new(server.address, false, String::new());
        peer.options.connection_timeout = Some(patience.connect);
        peer.options.total_connection_timeout = Some(patience.connect);
        let to = Destination::new(peer, server.tls.as_ref());
        let exchange = async {
            match self.exchange(&to, server, path).await {
                // The server may have closed a pooled connection just as it was taken.
                Err(Lost { failure: Failure::Broken, reused: true }) => self.exchange(&to, server, path).await,
                answer => answer,
            }
        };
        let answer = tokio::time::timeout(patience.total, exchange).await;
        answer.map_err(|_| Failure::TimedOut)?.map_err(|lost| lost.failure)
    }

    async fn exchange(&self, to: &Destination<'_>, server: &Server, path: &str) -> Result<Vec<u8>, Lost> {
        let connected = self.connector.connect(to).await;
        self.say(server, connected.as_ref().err());
        let (stream, reused) = connected.map_err(|error| Lost { failure: failure(&error), reused: false })?;
        let mut session = HttpSession::new_with_options(stream, &to.peer);
        let answer = ask(&mut session, server, path).await.map_err(|failure| Lost { failure, reused })?;
        let status = session.resp_header().map_or(0, |head| head.status.as_u16());
        session.respect_keepalive();
        if let Some(stream) = session.reuse().await {
            self.connector.release(stream, to, IDLE_MAX);
        }
        if status == 200 { Ok(answer) } else { Err(Lost { failure: Failure::Status(status), reused }) }
    }
}

impl Client {
    /// Logs why a server can't be spoken to over TLS: once, until it can or there is another reason. The balancer's news have no
    /// room for it.
    fn say(&self, server: &Server, error: Option<&pingora::BError>) {
        let mut said = self.said.lock();
        let Some(error) = error.filter(|error| *error.etype() == ErrorType::TLSHandshakeFailure) else {
            said.remove(&server.address);
            return;
        };
        let cause = tls_cause(error);
        // Some causes tell the time.
        let gist = cause.replace(|letter: char| letter.is_ascii_digit(), "");
        if said.get(&server.address) != Some(&gist) {
            warn!("server={} can't be spoken to over TLS: {cause}", server.authority);
            said.insert(server.address, gist);
        }
    }
}

/// Sends the request and reads the answer whole, whatever its status.
async fn ask(session: &mut HttpSession, server: &Server, path: &str) -> Result<Vec<u8>, Failure> {
    let request = request(server, path).map_err(|error| failure(&error))?;
    session.write_request_header(Box::new(request)).await.map_err(|error| failure(&error))?;
    session.finish_body().await.map_err(|error| failure(&error))?;
    session.read_response().await.map_err(|error| failure(&error))?;
    let mut answer = Vec::new();
    while let Some(chunk) = session.read_body_bytes().await.map_err(|error| failure(&error))? {
        if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Err(Failure::TooLarge);
        }
        answer.extend_from_slice(&chunk);
    }
    Ok(answer)
}

fn request(server: &Server, path: &str) -> pingora::Result<RequestHeader> {
    let mut request = RequestHeader::build("GET", path.as_bytes(), Some(2))?;
    request.insert_header("host", &server.authority)?;
    if let Some(authorization) = &server.authorization {
        request.insert_header(AUTHORIZATION, authorization)?;
    }
    request.insert_header("user-agent", concat!("kvpin/", env!("CARGO_PKG_VERSION")))?;
    Ok(request)
}

fn failure(error: &Error) -> Failure {
    debug!("a request to a replica has failed: {error}");
    match error.etype() {
        ErrorType::ConnectRefused | ErrorType::ConnectNoRoute | ErrorType::TLSHandshakeFailure => {
            down_reason(error).map_or(Failure::Broken, Failure::Unreachable)
        }
        ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout => Failure::TimedOut,
        _ => Failure::Broken,
    }
}
