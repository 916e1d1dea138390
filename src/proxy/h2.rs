//! A client's connection that speaks HTTP/2: its streams, each a request in a task of its own, and how it ends.
//!
//! Pingora 0.9.1 has such a loop, which can't be told apart from what it does: it closes an idle connection without a word, so
//! that a request on its way is lost; it takes streams in however many are still being worked on; and nobody can know
//! whether the last bytes are out before the process ends. So kvpin has its own, round Pingora's streams.

use std::sync::Arc;

use ::h2::Reason;
use ::h2::server::Connection as Wire;
use bytes::Bytes;
use log::{debug, warn};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, default_h2_options, handshake};
use pingora::protocols::{Digest, Stream};
use pingora::server::ShutdownWatch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Duration, Instant, sleep_until, timeout};

use crate::config::Limits;

use super::connection::Listener;
use super::context::Owed;
use super::watchdog::{self, Abandoned};

/// Requests that one connection may have at a time. Pingora's number, and most servers'.
const STREAMS_MAX: usize = 100;

/// How much of a request's body may be on its way without having been read. The protocol's 64 KiB let 300 KB over a line of
/// 50 ms take a quarter of a second.
const STREAM_WINDOW: u32 = 1 << 20;

/// The same for all of a connection's streams together: what a client can make kvpin hold that nobody reads.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// How much of a response may wait for the client to take it, a stream.
const SEND_BUFFER: usize = 64 << 10;

/// The protocol counts 32 bytes for each header on top of its text. Twice the limit lets kvpin judge heads itself, and
/// say what is wrong with one.
const HEADER_LIST_FACTOR: usize = 2;

/// How long a client has to take the news that its connection ends.
const GOODBYE_MAX: Duration = Duration::from_secs(5);

/// Streams that were no requests at all, after which a connection is no client's.
const MALFORMED_MAX: u32 = 32;

/// Requests that their client gave up, after which a connection is looked at: when it has let less than a third of them be
/// answered, it is there for the work that it makes (CVE-2023-44487).
const ABANDONED_MAX: u32 = 100;

/// A connection.
struct Connection<'a> {
    listener: &'a Listener,
    shutdown: &'a ShutdownWatch,
    wire: Wire<Stream, Bytes>,
    digest: Arc<Digest>,
    /// A request each. Says whether its client gave it up.
    streams: JoinSet<bool>,
    answered: u32,
    abandoned: u32,
    malformed: u32,
    phase: Phase,
    /// When it is closed, unless a stream is open by then.
    quiet_until: Instant,
    /// Something may still be on its way to the client that was written before a stream ended.
    owed: Option<Owed>,
    owed_until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client knows that no new streams are taken. What it had begun before it knew is still served.
    Closing,
}

/// What comes next on the wire.
enum Next {
    Request(Box<HttpSession>),
    Malformed,
    Closed,
}

/// Serves a connection to its end.
pub(super) async fn serve(listener: &Listener, stream: Stream, accepted: Instant, shutdown: &ShutdownWatch) {
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let table = listener.routing.table();
    let head_timeout = table.config.limits.head_timeout;
    let wire = handshake(stream, Some(options(&table.config.limits))).await;
    drop(table);
    let wire = match wire {
        Ok(wire) => wire,
        Err(error) => return debug!("a client does not speak HTTP/2 after all: {error}"),
    };
    // From here on the connection has its own patience.
    watchdog::disarm();
    let connection = Connection {
        listener,
        shutdown,
        wire,
        digest,
        streams: JoinSet::new(),
        answered: 0,
        abandoned: 0,
        malformed: 0,
        phase: Phase::Open,
        quiet_until: accepted + head_timeout,
        owed: None,
        owed_until: accepted,
    };
    connection.run().await;
}

fn options(limits: &Limits) -> H2Options {
    let mut options = default_h2_options();
    let header_list_max = limits.head_bytes_max.saturating_mul(HEADER_LIST_FACTOR);
    options
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX as u32)
        .max_header_list_size(u32::try_from(header_list_max).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER);
    options
}

impl Connection<'_> {
    async fn run(mut self) {
        let mut shutdown = self.shutdown.clone();
        loop {
            let (has_room, is_idle) = (self.streams.len() < STREAMS_MAX, self.streams.is_empty());
            let look_at = self.next_look();
            tokio::select! {
                biased;
                // An error means that nobody is left who could end the process otherwise.
                _ = shutdown.wait_for(|is_ending| *is_ending), if self.phase == Phase::Open => self.say_goodbye(),
                Some(ended) = self.streams.join_next() => self.ended(ended),
                next = next(&mut self.wire, &self.digest, has_room) => match next {
                    Next::Request(session) => self.begin(session),
                    Next::Malformed => self.malformed += 1,
                    Next::Closed => break,
                },
                () = sleep_until(look_at), if is_idle => {
                    if !self.keeps_quiet() {
                        break;
                    }
                }
            }
            if self.is_abused() {
                self.throw_out().await;
                break;
            }
        }
        // Requests whose connection is gone find that out, and end in order: each gives its slot back and writes its line.
        self.streams.detach_all();
    }

    /// A request has come.
    fn begin(&mut self, session: Box<HttpSession>) {
        if self.owed.is_none() {
            self.owed = Some(self.listener.open.owe());
        }
        let (proxy, shutdown) = (Arc::clone(&self.listener.proxy), self.shutdown.clone());
        self.streams.spawn(async move {
            let abandoned = Abandoned::default();
            let session = Box::new(ServerSession::new_http2(*session));
            abandoned.over(proxy.serve(session, &shutdown)).await;
            abandoned.is()
        });
    }

    /// A request is done.
    fn ended(&mut self, ended: Result<bool, JoinError>) {
        match ended {
            Ok(true) => self.abandoned += 1,
            // A panic was logged and counted where it happened.
            Ok(false) | Err(_) => self.answered += 1,
        }
        if self.streams.is_empty() {
            let limits = &self.listener.routing.table().config.limits;
            let now = Instant::now();
            self.owed_until = now + limits.write_timeout;
            self.quiet_until = match self.phase {
                Phase::Open => now + limits.keepalive_timeout,
                Phase::Closing => self.owed_until,
            };
        }
    }

    /// When there is something to be done although nothing comes.
    fn next_look(&self) -> Instant {
        if self.owed.is_some() { self.quiet_until.min(self.owed_until) } else { self.quiet_until }
    }

    /// Looks at a connection without streams; `false`: it has been so for long enough.
    fn keeps_quiet(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.owed_until {
            self.owed = None;
        }
        if now < self.quiet_until {
            return true;
        }
        let was_open = self.phase == Phase::Open;
        if was_open {
            self.say_goodbye();
        }
        was_open
    }

    /// Tells the client to open no more streams, and gives it some time to take that, and what is still on its way.
    fn say_goodbye(&mut self) {
        self.phase = Phase::Closing;
        self.wire.graceful_shutdown();
        self.quiet_until = (Instant::now() + GOODBYE_MAX).max(self.owed_until);
    }

    /// Says why, and closes.
    async fn throw_out(&mut self) {
        let (abandoned, requests) = (self.abandoned, self.abandoned + self.answered);
        let client = self.digest.socket_digest.as_ref().and_then(|digest| digest.peer_addr());
        let client = client.map_or("-".to_owned(), ToString::to_string);
        warn!(
            "client={client} gave up {abandoned} of its {requests} requests, and {} were none: its connection is closed",
            self.malformed
        );
        self.wire.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        let said = std::future::poll_fn(|context| self.wire.poll_closed(context));
        // However it ends, it ends here.
        timeout(GOODBYE_MAX, said).await.ok();
    }

    fn is_abused(&self) -> bool {
        self.malformed >= MALFORMED_MAX || (self.abandoned >= ABANDONED_MAX && self.abandoned / 2 > self.answered)
    }
}

/// Drives the connection until something comes. Without room for another request none is taken in, and the connection goes
/// on. Can be dropped while it waits.
async fn next(wire: &mut Wire<Stream, Bytes>, digest: &Arc<Digest>, has_room: bool) -> Next {
    if !has_room {
        // An error is an end too.
        std::future::poll_fn(|context| wire.poll_closed(context)).await.ok();
        return Next::Closed;
    }
    match HttpSession::from_h2_conn(wire, Arc::clone(digest)).await {
        Ok(Some(H2Accept::Session(session))) => Next::Request(Box::new(session)),
        Ok(Some(H2Accept::Rejected)) => Next::Malformed,
        Ok(None) => Next::Closed,
        Err(error) => {
            debug!("a connection has ended: {error}");
            Next::Closed
        }
    }
}
