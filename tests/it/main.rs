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
mod health;
mod identity;
mod keep_alive;
mod metrics;
mod models;
mod pins;
mod ranks;
mod reload;
mod restart;
mod secrets;
mod shutdown;
mod silence;
mod spill;
mod state;
mod stickiness;
mod streaming;
mod support;
mod timeouts;
mod upgrade;
