//! The pure modules compiled without the rest of the crate: an import of an edge in them fails this build.
//!
//! Cargo builds it with the tests, as an example, so that the modules' own tests aren't built and run a second time.

#![allow(dead_code, unused_imports)]

#[path = "../src/balancer/mod.rs"]
mod balancer;
#[path = "../src/conversation/mod.rs"]
mod conversation;
#[path = "../src/json/mod.rs"]
mod json;
#[path = "../src/usage/mod.rs"]
mod usage;

fn main() {}
