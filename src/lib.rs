//! kvpin is an edge load balancer for machines that run replicas of a model under vLLM. An agent re-sends its whole
//! history every turn, and most of it is a prefix that one replica has already computed and still holds in its KV cache.
//! kvpin sends every turn of a conversation back to that replica.
//!
//! This page is the architecture. How to install and run kvpin is in the README.
//!
//! ```text
//!                    cli      one file a subcommand                main.rs is one call
//!                     |
//!                   server    listeners, runtimes; reload, drain, state over restarts, hot upgrade
//!          .----------+-----------.
//!        proxy      replica     admin       the edges; none of them knows another
//!   client <-> engine  probe,     /metrics,
//!   byte for byte      scrape     page, drain
//!          '----------+-----------'
//!                  dispatch   routing table, lock, clock, leases            metrics   what is counted live
//!                     |
//!                  balancer   decides: affinity, placement, spill, health   PURE
//!
//!        conversation   who is speaking   PURE       config   YAML to a validated Config
//!        usage          what a turn cost  PURE       json     how to read it in passing   PURE
//!        keys           who is asking: API keys, what each may do and uses
//!        gpu            what the GPUs do, by NVML
//!        connector      connections to replicas      tls      certificates, and what handshakes go by
//!        state          what outlives the process, as bytes: of balancer's plain values
//!        sim            a modelled engine (PURE), an HTTP server round it, agents that drive it
//!        simulate       agents, balancer and engines in virtual time   PURE      report   what a run is judged by   PURE
//! ```
//!
//! # The path of a request
//!
//! 1. Pingora accepts a connection. [`proxy`] secures it where its listener has TLS, and has Pingora read the head: of one
//!    request after the other, or on HTTP/2 of many at a time, each in a task of its own. It checks the head's size and looks
//!    the path up among the endpoints it knows. A path that isn't there doesn't exist. [`keys`] says whose the API key is
//!    that the head shows, and whether there is a place for him. Of who has none, nothing more is read.
//! 2. [`conversation`] looks in the head for the session. What the head doesn't say, it looks for in the body as it
//!    arrives, and stops at the byte where it has its answer. Of a conversation that isn't known it takes the fingerprint of
//!    the history too, from what is at hand. What was read is kept.
//! 3. [`balancer::Balancer::arrive`] recognises the conversation, by its id, by another one that came with it or by its
//!    history, and decides: sticky, placed, spilled, client-pinned, unpinned or a side call; or it
//!    refuses. [`dispatch`] turns the decision into a [`dispatch::Lease`], the slot on the replica.
//! 4. The kept bytes and then the rest of the body go to the replica, byte for byte. A stream is held back until its first
//!    event shows what it is; until then, a failure takes the turn to another replica.
//! 5. The response flows back chunk by chunk. Its first byte makes the pin hold. Into a silent stream go pings.
//! 6. The response's end, an error or the client's leaving drops the request's context, and with it the lease. Before that, a
//!    line about it is left to the access log's thread, which no request waits for.
//!
//! # Who may call whom
//!
//! `cli -> server -> {proxy, replica, admin} -> dispatch -> {balancer -> conversation, keys -> config}`. [`conversation`],
//! [`usage`] and [`metrics`] are leaves, and so is [`config`] with [`tls`] below it; the two that read bodies share `json`.
//! [`server`] writes and reads [`state`], which knows [`balancer`]'s records, and has [`gpu`] sample what [`admin`] shows.
//! [`proxy`] and [`replica`] reach servers through [`connector`]. The edges share what they must through [`dispatch::Routing`].
//!
//! # Invariants
//!
//! - [`balancer`], [`conversation`] and [`usage`] do no I/O, read no clock, draw no entropy, log nothing and touch no
//!   registry. Clippy denies it in them, and `tests/pure_core.rs` builds them without the rest of the crate. So one seed
//!   replays one run, in tests and in the simulator.
//! - One `ArcSwap` holds the routing table. A reload swaps it as a whole or not at all. A model that stays keeps its
//!   balancer, so its pins, leases and counters.
//! - One mutex a model, held for a decision only: no await, no log, no formatting inside.
//! - A replica's health has one judge, [`balancer`]: probes, scrapes and turns only say what they saw. A replica that has
//!   requests and makes progress is never down for late answers, and a restart of its engine costs no pass over the pins.
//! - A slot is given back by `Drop`. No way out of a request releases it by hand.
//! - From its first event on, a response is never buffered, re-encoded or delayed. Nothing is put into it but pings, and
//!   those between events. Of a request body nothing is ever changed but the one value of `model`, where an alias stands for
//!   the engine's name.
//! - A handshake goes by the table that is current when the connection comes, and reads no file. A replica with TLS is sent
//!   nothing before it has shown who it is, and is never spoken to otherwise.
//! - What is remembered leaves a balancer in slices, under its lock for less than a millisecond each, and comes back through
//!   checks: no state file can stop a start or break a table.
//! - In an upgrade the old process serves until the new one has everything, and of a turn that it serves later the new one knows
//!   before the first byte of the answer goes out. So no client can be ahead of what is known of it.
//! - The GPUs' driver is asked by one thread that nobody waits for: a driver that hangs stops no request and no end.
//! - Every table, buffer, list and retry has a bound.
//! - A key of a conversation is of one caller: it holds the name of the API key. No alias, history or parent leads from one
//!   caller's conversations to another's.
//! - The model that an engine reads in a body is the one that the caller was allowed. Where that matters, the body is read to
//!   its end first, and has one reading.
//! - Session ids leave [`conversation`] only as keyed hashes. Prompts, keys (private ones too) and paths reach no log and no
//!   metric. No API key reaches an engine but its own.
//!
//! # What is absent on purpose
//!
//! `pingora-proxy`: it writes a head as soon as it has come, and no filter can wait for what follows; and every open stream has
//! room for phases that kvpin has no use for. So [`proxy`] goes through a request itself, on Pingora's sessions, connector and
//! pool. Pingora's HTTP/1.1 client: it has 64 KiB for every response, as long as that lasts. Its
//! `Server`: it sleeps through its whole grace period, can't bind port 0 and panics where it can't bind, so [`server`] starts
//! its services itself. Its TLS listeners and its HTTP/2 loop: they take certificates and limits once, at the start, and end
//! connections without a word. `pingora-load-balancing`: its selection sees a set of backends and a key, not a request's load
//! and a slot to reserve. Any rewriting of requests beyond that value, and any translation between dialects.

#![forbid(unsafe_code)]

pub mod admin;
pub mod balancer;
pub mod cli;
pub mod config;
pub mod connector;
pub mod conversation;
mod descriptors;
pub mod dispatch;
pub mod gpu;
mod json;
pub mod keys;
pub mod metrics;
mod notify;
pub mod proxy;
pub mod replica;
pub mod report;
pub mod server;
pub mod sim;
pub mod simulate;
pub mod state;
pub mod tls;
pub mod usage;
