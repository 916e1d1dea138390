//! A client's connection that speaks HTTP/1: its requests, one after the other.
//!
//! Pingora has such a loop too, and an idle connection sits deep inside it, with room for all that a request could come to need:
//! 40 KiB. Here a connection waits outside for the first bytes of a request, with nothing but its socket.

use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;

use super::connection::Listener;
use super::head_guard::HeadGuard;

/// Serves a connection to its end.
pub(super) async fn serve(listener: &Listener, guard: HeadGuard, shutdown: &ShutdownWatch) {
    let mut guard = Box::new(guard);
    loop {
        tokio::select! {
            biased;
            has_begun = guard.begins() => {
                if !has_begun {
                    return;
                }
            }
            () = listener.departure.closes_idle() => return,
        }
        // Nothing is kept from one request to the next: what a connection may do is said anew for each of them.
        let session = Box::new(ServerSession::new_http1(guard));
        // Boxed: an idle connection has no room for it.
        let Some(stream) = Box::pin(listener.proxy.serve(session, shutdown)).await else { return };
        match stream.into_any().downcast() {
            Ok(same) => guard = same,
            // It is the one that was given.
            Err(_) => return,
        }
    }
}
