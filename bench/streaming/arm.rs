//! A way from the client to the stub, and a kvpin in this process as one of them.

use std::net::SocketAddr;

use anyhow::Context as _;
use kvpin::config::Config;
use kvpin::server::Server;

use crate::rig::MODEL;

/// One way to go, measured beside the others in turn.
pub struct Arm {
    pub name: String,
    pub address: SocketAddr,
    /// Serves for as long as the arm lives.
    _server: Option<Server>,
}

impl Arm {
    pub fn direct(address: SocketAddr) -> Arm {
        Arm { name: "direct".to_owned(), address, _server: None }
    }

    /// A kvpin with these limits (lines of YAML below `limits:`) in front of these replicas.
    pub fn kvpin(name: &str, limits: &[&str], replicas: &[SocketAddr]) -> anyhow::Result<Arm> {
        let server = Server::start(Config::from_yaml(&config(limits, replicas))?)?;
        let address = *server.listen.first().context("no listener")?;
        Ok(Arm { name: name.to_owned(), address, _server: Some(server) })
    }
}

/// Without an admin listener, and with as little going on beside the requests as can be.
fn config(limits: &[&str], replicas: &[SocketAddr]) -> String {
    let limits: String = limits.iter().map(|line| format!("\n  {line}")).collect();
    let limits = if limits.is_empty() { String::new() } else { format!("limits:{limits}\n") };
    let replicas: String = replicas.iter().map(|address| format!("\n      - http://{address}")).collect();
    format!(
        "listen: 127.0.0.1:0\nadmin: off\naccess_log: {{to: off}}\nscrape_interval_ms: 60000\n{limits}models:\n  {MODEL}:\n    replicas:{replicas}\n"
    )
}
