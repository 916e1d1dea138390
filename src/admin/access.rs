//! Who may use the admin listener: whoever has the token, or, where there is none, whoever is on this machine and no page
//! in a browser.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderValue, StatusCode, header};
use pingora::http::RequestHeader;

use crate::config::{KeyHash, Secret};
use crate::keys::{Presented, presented};

use super::answer::Answer;
use super::page;

/// Whether a request may have its answer. `/health` says only that the process lives, and the files of the page are the same
/// for every kvpin: those are for everybody.
pub(super) fn check(head: &RequestHeader, token: Option<&Secret>) -> Result<(), Answer> {
    let (path, headers) = (head.uri.path(), &head.headers);
    match token {
        _ if path == "/health" || page::has(path) => Ok(()),
        Some(token) if has(headers, token) => Ok(()),
        Some(_) => {
            let message = "this takes the admin token: send it as `Authorization: Bearer TOKEN`, or give it to kvpin with --token-file";
            let answer = Answer::error(StatusCode::UNAUTHORIZED, message);
            Err(answer.with(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")))
        }
        None if is_called_by_address(headers) => Ok(()),
        None => Err(Answer::error(
            StatusCode::FORBIDDEN,
            "without an admin_token_file this is reached by an IP address or localhost only, so that no page in a browser can \
             read it or give orders",
        )),
    }
}

/// In a time that says nothing of how much of the token is right: what is compared is hashes, whole.
fn has(headers: &HeaderMap, token: &Secret) -> bool {
    match presented(headers) {
        Ok(Presented::Key(key)) => KeyHash::of(key) == KeyHash::of(token.expose().as_bytes()),
        Ok(Presented::Nothing | Presented::TooLong) | Err(_) => false,
    }
}

/// A page whose name an attacker has made to mean this machine (DNS rebinding) sends that name as the host. A browser sends
/// a host always; programs that send none are no browsers.
fn is_called_by_address(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::HOST)
        .iter()
        .all(|host| host.to_str().is_ok_and(|host| is_address(host) || is_localhost(host)))
}

fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok()
}

fn is_localhost(host: &str) -> bool {
    host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: &str, path: &str, lines: &[(&'static str, &'static str)], token: Option<&str>) -> u16 {
        let mut head = RequestHeader::build(method, path.as_bytes(), None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        let token = token.map(Secret::new);
        check(&head, token.as_ref()).map_or_else(|answer| answer.status.as_u16(), |()| 200)
    }

    #[test]
    fn with_a_token_everything_takes_it_but_health_and_the_files_of_the_page() {
        let status = |path: &str, lines: &[_]| status("GET", path, lines, Some("right"));
        for path in
            ["/api", "/metrics", "/api/v1/status", "/api/v1/live", "/nothing", "/health/", "/page/", "/page/../metrics"]
        {
            assert_eq!(status(path, &[]), 401, "{path}");
            for wrong in ["Bearer wrong", "Bearer right2", "Bearer righ", "right", "Basic right", "Bearer"] {
                assert_eq!(status(path, &[("authorization", wrong)]), 401, "{path} {wrong}");
            }
            assert_eq!(status(path, &[("authorization", "bearer right"), ("host", "kvpin.example")]), 200, "{path}");
        }
        for path in ["/health", "/", "/page/main.js"] {
            assert_eq!(status(path, &[]), 200, "{path}");
        }
    }

    #[test]
    fn without_one_no_page_in_a_browser_reads_anything_or_gives_orders() {
        for host in ["127.0.0.1:9180", "[::1]:9180", "localhost:9180", "LOCALHOST", "10.0.0.1", "[::1]"] {
            assert_eq!(status("POST", "/api/v1/drain", &[("host", host)], None), 200, "{host}");
            assert_eq!(status("GET", "/api/v1/status", &[("host", host)], None), 200, "{host}");
        }
        for host in ["evil.example", "evil.example:9180", "localhost.evil.example", "127.0.0.1.evil.example:1", ""] {
            assert_eq!(status("POST", "/api/v1/drain", &[("host", host)], None), 403, "{host}");
            for path in ["/api/v1/status", "/api/v1/live", "/metrics"] {
                assert_eq!(status("GET", path, &[("host", host)], None), 403, "{host}");
            }
            assert_eq!(status("GET", "/health", &[("host", host)], None), 200, "{host}");
        }
        assert_eq!(status("POST", "/api/v1/drain", &[("host", "localhost"), ("host", "evil.example")], None), 403);
        assert_eq!(status("POST", "/api/v1/drain", &[], None), 200, "no browser leaves it out");
    }
}
