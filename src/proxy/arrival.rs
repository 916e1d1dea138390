//! A request's head when it has come: what is refused for it, and what becomes of it before anything else looks at it.

use std::net::IpAddr;

use http::uri::PathAndQuery;
use http::{Uri, header};
use ipnet::IpNet;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, OrErr as _};

use crate::config::Config;

use super::endpoint::{Endpoint, Found, NotServed};
use super::forwarded::Origin;
use super::framing;
use super::refusal::Refusal;

/// Headers by which vLLM 0.32 lets a client steer the engine or look into it: to be served before others, to be told of its
/// load. Those of the family are for the same whatever they are called. The rank has rules of its own.
const STEERING: [&str; 1] = ["endpoint-load-metrics-format"];
const STEERING_FAMILY: &str = "x-vllm-";

/// Refuses a head that is too large, or that could be read in two ways.
pub fn check_head(session: &ServerSession, bytes_max: usize) -> Result<(), Refusal> {
    let head = session.req_header();
    let lines: usize = head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if lines + head.raw_path().len() > bytes_max {
        return Err(Refusal::HeadTooLarge { bytes_max });
    }
    // A target of other bytes was no URI, and what a reader would make of it is its own affair.
    if !head.raw_path().iter().all(u8::is_ascii_graphic) {
        return Err(Refusal::MalformedHead { what: "its target has other bytes than printable ASCII" });
    }
    match session.as_http1() {
        Some(http1) => framing::check(&http1.get_headers_raw_bytes(), head.version),
        None => Ok(()),
    }
}

/// The endpoint that a request is for, and its path.
pub fn find_endpoint<'a>(session: &'a ServerSession, config: &Config) -> Result<Found<'a>, Refusal> {
    let head = session.req_header();
    Endpoint::find(&head.method, head.uri.path(), &config.allow_paths).map_err(|reason| match reason {
        NotServed::Path => Refusal::UnknownPath,
        NotServed::Method { allowed } => Refusal::WrongMethod { allowed },
    })
}

/// Gives a head that goes to an engine the path that was matched, says in it where it came from, and takes out of it what
/// isn't for a client to say.
pub fn settle(session: &mut ServerSession, path: &str, config: &Config) -> pingora::Result<()> {
    let origin = origin(session, &config.trusted_proxies);
    let head = session.req_header_mut();
    set_path(head, path)?;
    let is_steering =
        |name: &&header::HeaderName| name.as_str().starts_with(STEERING_FAMILY) || STEERING.contains(&name.as_str());
    let steering: Vec<_> = head.headers.keys().filter(is_steering).cloned().collect();
    for name in steering {
        head.remove_header(&name);
    }
    origin.tell(head)
}

/// Whether the one at an address is a proxy whose word counts.
pub fn is_trusted(address: IpAddr, proxies: &[IpNet]) -> bool {
    let address = address.to_canonical();
    proxies.iter().any(|network| network.contains(&address))
}

fn origin(session: &ServerSession, proxies: &[IpNet]) -> Origin {
    let address = session.client_addr().and_then(|address| address.as_inet()).map(|address| address.ip());
    let is_encrypted = session.digest().is_some_and(|digest| digest.ssl_digest.is_some());
    Origin {
        address,
        is_trusted: address.is_some_and(|address| is_trusted(address, proxies)),
        scheme: if is_encrypted { "https" } else { "http" },
    }
}

/// The target in origin form, with the query as it came. A client may have sent a whole URL.
fn set_path(head: &mut pingora::http::RequestHeader, path: &str) -> pingora::Result<()> {
    let target = match head.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    if head.raw_path() == target.as_bytes() {
        return Ok(());
    }
    let mut parts = head.uri.clone().into_parts();
    let target = PathAndQuery::try_from(target).or_err(ErrorType::InternalError, "a target that can't be written")?;
    parts.path_and_query = Some(target);
    let uri = Uri::from_parts(parts).or_err(ErrorType::InternalError, "a URI that can't be written");
    head.set_uri(uri.map_err(Error::into_in)?);
    Ok(())
}
