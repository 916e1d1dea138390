//! The live stream: the status once a second, as server-sent events, for as long as the reader stays.
//!
//! However many read, the status is rendered about once a second, and never while nobody reads. A reader that takes its time
//! misses events: it gets the newest each time, and is cut when it takes nothing for a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use pingora::{Error, ErrorType, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::answer::Answer;

/// The most that read at the same time. Each has an open connection; the page asks for the status instead where it is refused.
pub const READERS_MAX: usize = 64;

pub(super) const CONTENT_TYPE: &str = "text/event-stream";

const EVERY: Duration = Duration::from_secs(1);
/// How old an event may be that was rendered for another reader.
const SHARED_FOR: Duration = Duration::from_millis(500);
/// How long a reader may take nothing of what is written to it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the readers share.
pub(super) struct Live {
    seats: Arc<Semaphore>,
    newest: Mutex<Option<(Instant, Bytes)>>,
}

/// A reader's place, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    _permit: OwnedSemaphorePermit,
}

impl Live {
    pub fn new() -> Self {
        Live { seats: Arc::new(Semaphore::new(READERS_MAX)), newest: Mutex::new(None) }
    }

    /// A place for one more reader, or what it is told.
    pub fn seat(&self) -> std::result::Result<Seat, Answer> {
        match Arc::clone(&self.seats).try_acquire_owned() {
            Ok(permit) => Ok(Seat { _permit: permit }),
            Err(_) => {
                let message = "as many as may are reading the live stream; /api/v1/status says the same";
                let answer = Answer::error(StatusCode::SERVICE_UNAVAILABLE, message);
                Err(answer.with(header::RETRY_AFTER, HeaderValue::from_static("10")))
            }
        }
    }

    /// How many read at this moment.
    #[cfg(test)]
    pub fn readers(&self) -> usize {
        READERS_MAX - self.seats.available_permits()
    }

    /// Sends events until the reader goes, falls asleep or isn't welcome any more, or the process is to end.
    pub async fn stream(
        &self,
        session: &mut ServerSession,
        shutdown: &ShutdownWatch,
        is_welcome: impl Fn() -> bool,
        render: impl Fn() -> serde_json::Result<Vec<u8>>,
    ) -> Result<()> {
        let mut shutdown = shutdown.clone();
        // The stream's end is the connection's.
        session.set_keepalive(None);
        session.write_response_header(Box::new(head()?)).await?;
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // Whatever comes from a reader: it has nothing to say, but that it is gone.
                _ = session.read_body_or_idle(true) => return Ok(()),
                _ = shutdown.wait_for(|is_shutdown| *is_shutdown) => return Ok(()),
            }
            if !is_welcome() {
                return Ok(());
            }
            let written = session.write_response_body(self.event(&render)?, false);
            timeout(PATIENCE, written).await.map_err(|_| Error::new_down(ErrorType::WriteTimedout))??;
        }
    }

    /// The newest event, rendered anew unless another reader has just had it.
    fn event(&self, render: impl Fn() -> serde_json::Result<Vec<u8>>) -> Result<Bytes> {
        let mut newest = self.newest.lock();
        if let Some((_, event)) = newest.as_ref().filter(|(at, _)| at.elapsed() < SHARED_FOR) {
            return Ok(event.clone());
        }
        let status =
            render().map_err(|error| Error::because(ErrorType::InternalError, "rendering the status", error))?;
        // JSON has no line breaks outside its strings, and in them none that isn't escaped.
        let event = Bytes::from([b"data: ".as_slice(), &status, b"\n\n"].concat());
        *newest = Some((Instant::now(), event.clone()));
        Ok(event)
    }
}

fn head() -> Result<ResponseHeader> {
    let mut head = ResponseHeader::build(StatusCode::OK, Some(4))?;
    head.insert_header(header::CONTENT_TYPE, CONTENT_TYPE)?;
    head.insert_header(header::CACHE_CONTROL, "no-store")?;
    head.insert_header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")?;
    // nginx in front would collect the events.
    head.insert_header("x-accel-buffering", "no")?;
    Ok(head)
}
