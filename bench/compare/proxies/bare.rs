//! Pingora's own loop with as little around it as can be: what kvpin takes beyond this is its own.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use async_trait::async_trait;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

use super::Setting;

/// This program serves as the proxy when it is started so.
pub fn command(program: &Path, setting: &Setting<'_>) -> Command {
    let upstreams: Vec<String> = setting.upstreams.iter().map(ToString::to_string).collect();
    let mut command = Command::new(program);
    command.arg("--serve-bare").arg(setting.listen.to_string()).arg("--upstreams").arg(upstreams.join(","));
    command
}

/// Sends each conversation to the upstream that its header hashes to.
struct Bare {
    upstreams: Vec<SocketAddr>,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(&self, session: &mut Session, _ctx: &mut ()) -> pingora::Result<Box<HttpPeer>> {
        let mut hasher = DefaultHasher::new();
        session.req_header().headers.get("x-session-id").hash(&mut hasher);
        let chosen = self.upstreams[hasher.finish() as usize % self.upstreams.len()];
        Ok(Box::new(HttpPeer::new(chosen, false, String::new())))
    }
}

/// Serves until it is killed, with Pingora's defaults and one thread.
pub fn serve(listen: SocketAddr, upstreams: &[SocketAddr]) -> ! {
    // No TLS is spoken to the upstreams, so no authority needs to be known.
    let conf = ServerConf { threads: 1, ca_file: Some("/dev/null".to_owned()), ..ServerConf::default() };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare { upstreams: upstreams.to_vec() });
    service.add_tcp(&listen.to_string());
    server.add_service(service);
    server.run_forever()
}
