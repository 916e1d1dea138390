//! Towards the engines: what their servers say of themselves, and whether they can be reached.
//!
//! ```text
//!   watch --(Client: one bounded GET)--> GET /metrics      --(series)--> a Scrape for each replica of the server
//!     |                                  GET /health           where /metrics is not served
//!     |                                  GET /server_info      max_num_seqs, once a server
//!     `--> the balancer of each model: figures, health, max_num_seqs
//! ```

mod client;
mod series;
mod server;
#[cfg(test)]
mod tests;
mod visit;
mod watch;

pub use series::{ENGINES_MAX, EngineSeries, parse};
pub use watch::watch;
