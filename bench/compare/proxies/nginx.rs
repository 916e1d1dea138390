//! nginx: a consistent hash of the session's header.

use std::io;
use std::path::Path;
use std::process::Command;

use super::{Setting, each};

/// When a body goes on to the upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bodies {
    /// Once it is whole: nginx's default, and the one that costs less. In memory, which is not its default.
    Whole,
    AsTheyCome,
}

pub fn command(program: &Path, setting: &Setting<'_>, bodies: Bodies) -> io::Result<Command> {
    let file = setting.files.join("nginx.conf");
    std::fs::write(&file, configuration(setting, bodies))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(setting.files).arg("-c").arg(file);
    Ok(command)
}

fn configuration(setting: &Setting<'_>, bodies: Bodies) -> String {
    let folder = setting.files.display();
    let bodies = match bodies {
        Bodies::Whole => "proxy_request_buffering on; client_body_buffer_size 2m;",
        Bodies::AsTheyCome => "proxy_request_buffering off;",
    };
    let listen = setting.listen;
    let listen = match setting.certificate {
        None => format!("listen {listen} backlog=4096;"),
        Some(certificate) => format!(
            "listen {listen} ssl backlog=4096; ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.2 TLSv1.3;",
            certificate.certificate().display(),
            certificate.key().display()
        ),
    };
    let servers = each(setting.upstreams, |_, address| format!("server {address} max_fails=1 fail_timeout=5s; "));
    // One process without a master: it is its own worker, and killing it leaves nothing behind.
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000; client_max_body_size 64m;
    upstream replicas {{
        hash $http_x_session_id consistent;
        {servers}
        keepalive 512; keepalive_requests 10000000;
    }}
    server {{
        {listen}
        location / {{
            proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection '';
            proxy_buffering off; {bodies}
            proxy_read_timeout 3600s; proxy_send_timeout 3600s; proxy_connect_timeout 2s;
        }}
    }}
}}
"
    )
}
