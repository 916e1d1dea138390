//! HAProxy: a consistent hash of the session's header.

use std::io;
use std::path::Path;
use std::process::Command;

use super::{Setting, each};

pub fn command(program: &Path, setting: &Setting<'_>) -> io::Result<Command> {
    let file = setting.files.join("haproxy.cfg");
    std::fs::write(&file, configuration(setting))?;
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

/// With the two options without which it would not do for an engine: events would wait in a corked socket for 40 ms and more,
/// and a client that leaves before the answer would not be noticed.
fn configuration(setting: &Setting<'_>) -> String {
    let listen = setting.listen;
    let tls = setting
        .certificate
        .map(|certificate| format!(" ssl crt {} ssl-min-ver TLSv1.2", certificate.both().display()))
        .unwrap_or_default();
    let servers = each(setting.upstreams, |number, address| format!("    server r{number} {address}\n"));
    format!(
        "global
    nbthread 1
    maxconn 9000
defaults
    mode http
    option http-keep-alive
    option abortonclose
    option http-no-delay
    timeout connect 2s
    timeout client 3600s
    timeout server 3600s
    timeout http-request 60s
    timeout http-keep-alive 75s
frontend clients
    bind {listen}{tls} backlog 4096
    default_backend replicas
backend replicas
    balance hdr(x-session-id)
    hash-type consistent
    option httpchk GET /health
    option redispatch 1
    retries 2
    retry-on conn-failure
    http-reuse always
    default-server check inter 1s fall 2 rise 1
{servers}"
    )
}
