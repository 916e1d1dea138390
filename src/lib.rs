//! kvpin
pub mod balancer;
pub mod config;
pub mod conversation;
pub mod sim;
