//! Facts about the built kvpin as a process, in front of replicas that remember what arrived. A module a subject; the name
//! of a test is the fact that it proves.

mod bad_input;
mod bodies;
mod chaos;
mod cli;
mod disconnect;
mod drain;
mod exactness;
mod explain;
mod failover;
mod failure;
mod h2;
mod h2_ends;
mod h2_limits;
mod health;
mod identity;
mod keep_alive;
mod keys;
mod metrics;
mod models;
mod page;
mod pins;
mod ranks;
mod reload;
mod restart;
mod secrets;
mod shutdown;
mod silence;
mod spill;
mod stickiness;
mod streaming;
mod support;
mod timeouts;
mod tls;
mod tls_replicas;
