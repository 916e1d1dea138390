//! kvpin: an edge load balancer that keeps every agent conversation on the vLLM replica that holds its KV cache.

pub mod balancer;
pub mod config;
pub mod conversation;
pub mod sim;
