//! API keys at the edge: who gets in, for what, and what the engine and the outside see of it.

mod cli;
mod door;
mod engine;
mod limits;
mod models;
mod reload;
mod secrets;
mod tenants;
