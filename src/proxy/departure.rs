//! How connections end when the process does, or when another process has taken the listening sockets over.
//!
//! A client with an idle connection may send its next request at the very moment that kvpin closes it, and would lose it. So
//! from the first moment of a departure on every answer says that its connection closes, and a connection whose last answer
//! didn't say so is given some time for one more request: [`LINGER`] when the process ends, and all the time that an idle
//! connection has when another process has taken over.
//!
//! That other process gets the next turn of a conversation whose turn is served here, as soon as the client has the answer's
//! end. So the first byte of an answer waits until the other process knows what the turn teaches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use pingora::protocols::http::ServerSession;
use tokio::sync::watch;

/// Longer than a request takes to arrive from anywhere, and than an agent takes to ask again right after an answer.
const LINGER: Duration = Duration::from_secs(1);

/// Whether the process is about to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    No,
    /// Another process accepts the connections; this one finishes what it has, and nothing hurries it.
    Unhurried,
    /// It is to end as soon as what runs has ended.
    Soon,
}

/// The way out of the process, and who is still there.
pub struct Departure {
    leaving: watch::Sender<Leaving>,
    /// Whether idle connections are closed.
    closes_idle: watch::Sender<bool>,
    connections: AtomicUsize,
    teacher: ArcSwapOption<Teacher>,
}

/// Lets another process know what was learned of conversations until now. Ends when it does, or after a short while.
pub struct Teacher(pub Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>);

/// A client's connection. Dropped when it is closed.
pub struct Connected(Arc<Departure>);

impl Default for Departure {
    fn default() -> Self {
        Departure {
            leaving: watch::Sender::new(Leaving::No),
            closes_idle: watch::Sender::new(false),
            connections: AtomicUsize::new(0),
            teacher: ArcSwapOption::empty(),
        }
    }
}

impl Departure {
    pub fn set(&self, leaving: Leaving) {
        self.leaving.send_replace(leaving);
    }

    /// Whether clients are to use their connections no more.
    pub fn has_begun(&self) -> bool {
        *self.leaving.borrow() != Leaving::No
    }

    /// Whom to let know of turns that are served here, if there is another process that serves.
    pub fn set_teacher(&self, teacher: Option<Teacher>) {
        self.teacher.store(teacher.map(Arc::new));
    }

    /// The first byte of an answer is about to go out.
    pub async fn teach(&self) {
        let teacher = self.teacher.load_full();
        if let Some(Teacher(teach)) = teacher.as_deref() {
            teach().await;
        }
    }

    /// Connections that are open, idle ones too.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    pub fn enter(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Ordering::Acquire);
        Connected(Arc::clone(self))
    }

    /// Ends when connections that are idle have had the time that they are given.
    pub async fn idle_time_is_over(&self) {
        // An error would mean that nobody can say so any more.
        if self.leaving.subscribe().wait_for(|leaving| *leaving == Leaving::Soon).await.is_ok() {
            tokio::time::sleep(LINGER).await;
        }
    }

    /// Closes connections that are idle, and those that will be.
    pub fn close_idle(&self) {
        self.closes_idle.send_replace(true);
    }

    /// Ends when a connection that is idle is to be closed.
    pub async fn closes_idle(&self) {
        // An error would mean that nobody can say so any more.
        self.closes_idle.subscribe().wait_for(|closes| *closes).await.ok();
    }

    /// An answer has ended. If its client may believe that the connection stays, waits for its next request to arrive.
    pub async fn linger(&self, session: &ServerSession) {
        let believes_it_stays = !session.is_http2() && session.get_keepalive().is_some();
        if believes_it_stays && *self.leaving.borrow() == Leaving::Soon {
            tokio::time::sleep(LINGER).await;
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Release);
    }
}
