//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::proxies::Proxy;
use crate::work::Scenario;

/// Runs proxies side by side in front of the same upstreams and prints what each costs.
#[derive(Parser)]
#[command(name = "bench/compare/run.sh")]
pub struct Options {
    /// Which proxies
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Proxy::DEFAULT)]
    pub proxies: Vec<Proxy>,

    /// Which scenarios
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scenario::ALL)]
    pub scenarios: Vec<Scenario>,

    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Writes every measurement to this file, anew after each round
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// One small round of what is installed: shows that it runs, not how fast
    #[arg(long)]
    quick: bool,

    /// What cargo says when it means a bench and not a test.
    #[arg(long, hide = true)]
    bench: bool,

    /// Serves as the bare Pingora.
    #[arg(long, hide = true, requires = "upstreams")]
    pub serve_bare: Option<SocketAddr>,

    #[arg(long, hide = true, value_delimiter = ',')]
    pub upstreams: Vec<SocketAddr>,
}

impl Options {
    pub fn is_quick(&self) -> bool {
        self.quick || !self.bench
    }

    pub fn rounds(&self) -> u32 {
        if self.is_quick() { 1 } else { self.rounds }
    }
}
