//! What an engine is told of where a request came from: `X-Forwarded-For`, `X-Forwarded-Host`, `X-Forwarded-Proto`.
//!
//! A client can claim anything there. So a claim is passed on only if the connection is that of a proxy that the operator
//! trusts; otherwise it is replaced by what kvpin sees itself. kvpin decides nothing by it.

use std::net::IpAddr;

use http::header::{HOST, HeaderName, HeaderValue};
use pingora::Result;
use pingora::http::RequestHeader;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The other headers in which proxies tell about clients; those that begin with [`FAMILY`] are in it too.
const ALSO: [&str; 2] = ["forwarded", "x-real-ip"];
const FAMILY: &str = "x-forwarded-";

/// Where a request came from, as its connection shows.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub address: Option<IpAddr>,
    /// Whether what it says of its clients counts.
    pub is_trusted: bool,
    pub scheme: &'static str,
}

impl Origin {
    /// Writes it into a head, in the place of claims or behind those of a trusted proxy.
    pub fn tell(self, head: &mut RequestHeader) -> Result<()> {
        if !self.is_trusted {
            forget_claims(head);
        }
        if let Some(address) = self.address {
            let mut hops: Vec<_> = head.headers.get_all(FOR).iter().map(HeaderValue::as_bytes).collect();
            let own = address.to_canonical().to_string();
            hops.push(own.as_bytes());
            let hops = hops.join(&b", "[..]);
            head.insert_header(FOR, hops)?;
        }
        if !head.headers.contains_key(PROTO) {
            head.insert_header(PROTO, self.scheme)?;
        }
        if !head.headers.contains_key(FORWARDED_HOST)
            && let Some(host) = host(head)
        {
            head.insert_header(FORWARDED_HOST, host)?;
        }
        Ok(())
    }
}

/// Whom the client has asked. HTTP/2 has another place for it.
fn host(head: &RequestHeader) -> Option<HeaderValue> {
    let authority = || HeaderValue::from_str(head.uri.authority()?.as_str()).ok();
    head.headers.get(HOST).cloned().or_else(authority)
}

fn forget_claims(head: &mut RequestHeader) {
    let is_claim = |name: &&HeaderName| name.as_str().starts_with(FAMILY) || ALSO.contains(&name.as_str());
    let claims: Vec<_> = head.headers.keys().filter(is_claim).cloned().collect();
    for name in claims {
        head.remove_header(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a request with these claims.
    fn told(is_trusted: bool, claims: &[(&'static str, &str)]) -> Vec<String> {
        let mut head = RequestHeader::build("POST", b"/v1/messages", None).unwrap();
        head.append_header("Host", "kvpin.test").unwrap();
        for (name, value) in claims {
            head.append_header(*name, *value).unwrap();
        }
        let address = "::ffff:10.0.0.7".parse().ok();
        Origin { address, is_trusted, scheme: "https" }.tell(&mut head).unwrap();
        let mut told: Vec<_> =
            head.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        told.sort_unstable();
        told
    }

    const OWN: [&str; 4] =
        ["host: kvpin.test", "x-forwarded-for: 10.0.0.7", "x-forwarded-host: kvpin.test", "x-forwarded-proto: https"];

    const CLAIMS: [(&str, &str); 7] = [
        ("X-Forwarded-For", "1.1.1.1"),
        ("X-Forwarded-For", "2.2.2.2, 3.3.3.3"),
        ("X-Forwarded-Host", "elsewhere"),
        ("X-Forwarded-Proto", "http"),
        ("X-Forwarded-Port", "1"),
        ("Forwarded", "for=4.4.4.4"),
        ("X-Real-IP", "5.5.5.5"),
    ];

    #[test]
    fn a_clients_claims_are_replaced_by_what_is_seen() {
        assert_eq!(told(false, &[]), OWN);
        assert_eq!(told(false, &CLAIMS), OWN);
    }

    #[test]
    fn a_trusted_proxys_words_are_passed_on_and_gone_on_with() {
        let expected = [
            "forwarded: for=4.4.4.4",
            "host: kvpin.test",
            "x-forwarded-for: 1.1.1.1, 2.2.2.2, 3.3.3.3, 10.0.0.7",
            "x-forwarded-host: elsewhere",
            "x-forwarded-port: 1",
            "x-forwarded-proto: http",
            "x-real-ip: 5.5.5.5",
        ];
        assert_eq!(told(true, &CLAIMS), expected);
        assert_eq!(told(true, &[]), OWN);
    }
}
