//! Towards the engines: what their servers say of themselves, and whether they can be reached.
//!
//! ```text
//!   watch --(Client: one bounded GET)--> GET /metrics      --(series)--> scrape: figures and signs of life of each replica
//!     |                                  GET /health       --> probe: whether the server answers
//!     |                                  GET /server_info  --> max_num_seqs, once each time the server comes up
//!     `--> the balancer of each model, which judges
//! ```

mod client;
mod pace;
mod probe;
mod scrape;
mod series;
mod server;
#[cfg(test)]
mod tests;
mod watch;

pub use series::{ENGINES_MAX, EngineSeries, parse};
pub use watch::watch;
