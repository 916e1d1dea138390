//! One line a request. The name of an API key and never the key, a conversation's hash and never its id, no path that a client
//! could have put a secret in, no header, no text of a prompt.
//!
//! A request makes its line and leaves it in a channel; a thread writes what is in there ([`writer`]). So nothing that is the
//! matter with the file can hold up or fail a request: when the channel is full, lines are dropped and counted.

mod line;
mod target;
mod writer;

use pingora::protocols::http::ServerSession;

use crate::config::AccessLogTo;

use super::Proxy;
use super::context::Context;
use line::Line;

pub use target::{CannotOpen, Target};
pub use writer::AccessLog;

impl Proxy {
    /// Writes the line of a request that has ended. Health checks and the like, which kvpin answers itself, have none.
    pub(super) fn log_access(&self, session: &ServerSession, context: &Context) {
        let is_local = context.request.is_none() && context.refusal.is_none();
        if is_local {
            return;
        }
        let table = self.routing.table();
        let config = &table.config.access_log;
        match config.to {
            AccessLogTo::Off => {}
            AccessLogTo::Stderr | AccessLogTo::File(_) => {
                self.access_log.write(Line::of(session, context).render(config.format));
            }
        }
    }
}
