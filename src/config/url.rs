//! A replica's URL: which server it names, and where that is.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use http::uri::Authority;

/// Turns a hostname and a port into addresses. Tests give their own, so that they need no network.
pub(super) type Resolve<'a> = &'a dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The server that a URL names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// As it is written; an IPv6 address in brackets.
    host: String,
    port: u16,
    /// Whether it is spoken to over TLS.
    pub(super) is_tls: bool,
}

/// What http and https mean where no port is written.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// The system's resolver. Blocks.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok((host, port).to_socket_addrs()?.collect())
}

/// Takes `http[s]://host[:port][/]` and nothing else; the reason of a refusal says what to write.
pub(super) fn parse(url: &str) -> Result<Server, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(format!("`{url}` has no scheme; write http://{url}"));
    };
    let is_tls = scheme.eq_ignore_ascii_case("https");
    if !is_tls && !scheme.eq_ignore_ascii_case("http") {
        return Err(format!("the scheme `{scheme}` is not supported; http and https are"));
    }
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    refuse_tail(tail)?;
    if authority.contains('@') {
        return Err("a user or password in the URL is not supported".to_owned());
    }
    server(authority, is_tls)
}

impl Server {
    /// For the Host header: always with the port.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address to connect to: IPv4 if there is one, because a vLLM server listens on 0.0.0.0 unless told otherwise.
    pub(super) fn address(&self, resolve: Resolve<'_>) -> Result<SocketAddr, String> {
        let address = match self.bare_host().parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, self.port),
            Err(_) => self.lookup(resolve)?,
        };
        if address.ip().is_unspecified() {
            let reason = "is where a server listens, not where it is reached; write 127.0.0.1 if it is on this machine";
            return Err(format!("{} {reason}", self.host));
        }
        Ok(address)
    }

    /// The host without the brackets of an IPv6 address.
    pub(super) fn bare_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    fn lookup(&self, resolve: Resolve<'_>) -> Result<SocketAddr, String> {
        let host = &self.host;
        let addresses =
            resolve(host, self.port).map_err(|err| format!("the host `{host}` can't be resolved: {err}"))?;
        addresses
            .iter()
            .find(|address| address.is_ipv4())
            .or(addresses.first())
            .copied()
            .ok_or_else(|| format!("the host `{host}` has no address"))
    }
}

/// kvpin forwards the client's own path, so a path here would be dropped in silence.
fn refuse_tail(tail: &str) -> Result<(), String> {
    let path = tail.split(['?', '#']).next().unwrap_or(tail);
    if !path.is_empty() && path != "/" {
        return Err(format!("a path is not supported: give the server without `{path}`"));
    }
    if tail.contains('?') {
        return Err("a query is not supported".to_owned());
    }
    if tail.contains('#') {
        return Err("a fragment is not supported".to_owned());
    }
    Ok(())
}

fn server(authority: &str, is_tls: bool) -> Result<Server, String> {
    let invalid = || format!("`{authority}` is not a host with a port, like 127.0.0.1:8000");
    // `Authority` accepts any text after the host's colon, so the port is read here.
    let parsed: Authority = authority.parse().map_err(|_| invalid())?;
    let host = parsed.host();
    let port = match authority[host.len()..].strip_prefix(':') {
        None if is_tls => HTTPS_PORT,
        None => HTTP_PORT,
        Some(port) => port.parse().map_err(|_| invalid())?,
    };
    if host.is_empty() || port == 0 {
        return Err(invalid());
    }
    Ok(Server { host: host.to_owned(), port, is_tls })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere(_: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Err(io::Error::other("no such host"))
    }

    #[test]
    fn a_url_names_a_server() {
        for (url, authority) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000"),
            ("http://127.0.0.1:8000/", "127.0.0.1:8000"),
            ("HTTP://gpu-box", "gpu-box:80"),
            ("http://[::1]:8000", "[::1]:8000"),
            ("http://[::1]", "[::1]:80"),
            ("http://vllm_0.local:65535", "vllm_0.local:65535"),
            ("https://gpu-box", "gpu-box:443"),
            ("HTTPS://[::1]:8443/", "[::1]:8443"),
        ] {
            let server = parse(url).expect(url);
            assert_eq!(server.authority(), authority, "{url}");
            assert_eq!(server.is_tls, url.to_ascii_lowercase().starts_with("https"), "{url}");
        }
    }

    #[test]
    fn a_url_that_names_more_or_less_than_a_server_is_refused() {
        for (url, reason) in [
            ("127.0.0.1:8000", "write http://127.0.0.1:8000"),
            ("unix:///run/vllm", "scheme `unix`"),
            ("http://127.0.0.1:8000/v1", "without `/v1`"),
            ("http://127.0.0.1:8000/v1?x=/", "without `/v1`"),
            ("http://127.0.0.1:8000?x", "query"),
            ("http://127.0.0.1:8000/#x", "fragment"),
            ("http://me:secret@127.0.0.1:8000", "user"),
            ("http://127.0.0.1:", "not a host"),
            ("http://127.0.0.1:0", "not a host"),
            ("http://127.0.0.1:65536", "not a host"),
            ("http://127.0.0.1:80:80", "not a host"),
            ("http://:8000", "not a host"),
            ("http://", "not a host"),
            ("http://a b:8000", "not a host"),
            ("http://[::1:8000", "not a host"),
        ] {
            let refusal = parse(url).expect_err(url);
            assert!(refusal.contains(reason), "{url}: {refusal}");
        }
    }

    #[test]
    fn ipv4_is_preferred_among_the_addresses_of_a_host() {
        let both = |_: &str, port| -> io::Result<Vec<SocketAddr>> {
            Ok(vec![
                SocketAddr::new([0, 0, 0, 0, 0, 0, 0, 1].into(), port),
                SocketAddr::new([127, 0, 0, 1].into(), port),
            ])
        };
        let server = parse("http://localhost:8000").expect("a URL");
        assert_eq!(server.address(&both), Ok(([127, 0, 0, 1], 8000).into()));
    }

    #[test]
    fn an_ip_address_is_never_looked_up() {
        let v6 = parse("http://[::1]:8000").expect("a URL");
        let address = SocketAddr::new([0, 0, 0, 0, 0, 0, 0, 1].into(), 8000);
        assert_eq!(v6.address(&nowhere), Ok(address));
        let name = parse("http://gpu-box:8000").expect("a URL");
        let refusal = name.address(&nowhere).expect_err("no such host");
        assert_eq!(refusal, "the host `gpu-box` can't be resolved: no such host");
    }

    #[test]
    fn an_address_that_is_only_for_listening_is_refused() {
        for url in ["http://0.0.0.0:8000", "http://[::]:8000"] {
            let server = parse(url).expect(url);
            assert!(server.address(&nowhere).is_err(), "{url}");
        }
    }
}
