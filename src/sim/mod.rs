//! A modelled vLLM engine, an HTTP server round it, and agents that drive it.
//!
//! ```text
//! agent ──HTTP──> server ──> engine ──> cache
//!                   ├──> prompt ──> tokens
//!                   └──> script
//! ```
//! `engine`, `cache`, `prompt`, `script` and `tokens` are pure: they do no I/O and read no clock, so the same engine runs
//! behind a socket in scaled real time and inside a simulation in virtual time. `server` and `agent` are the shells.
//!
//! What is modelled is what a balancer can see or change: which prefix is cached where, who waits for whom, what a step
//! costs, and the bytes on the wire. Absent on purpose: prefill that slows down with the context, speculative decoding,
//! several choices per request, and any meaning in the generated text but what a script put there.

pub mod agent;
mod batch;
pub mod cache;
pub mod config;
pub mod engine;
pub mod prompt;
pub mod request;
pub mod script;
mod sequence;
pub mod server;
pub mod stats;
pub mod tokens;
