//! What the benches of the whole proxy are made with: an upstream, a client, and figures.

// Each bench takes the parts that it needs.
#![allow(dead_code)]

pub mod client;
pub mod figures;
pub mod stub;

/// The model of every request.
pub const MODEL: &str = "bench";
