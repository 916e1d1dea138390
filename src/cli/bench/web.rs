//! Short requests beside the agents' own: to engines and to servers, bounded in time and size.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};

use crate::sim::agent::{HttpClient, http_client};

/// A metrics page of a thousand engines has a few megabytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Asks servers on whatever machine.
#[derive(Clone, Debug)]
pub struct Web {
    client: HttpClient,
    patience: Duration,
}

impl Web {
    /// For `bases`, which are URLs as [`base`] gives them.
    pub fn new(bases: &[String], patience: Duration) -> anyhow::Result<Self> {
        let over_tls = bases.iter().find(|base| base.starts_with("https:"));
        let client = http_client(over_tls.map_or("http:", String::as_str)).context("no authorities for TLS")?;
        Ok(Web { client, patience })
    }

    /// The body of a good answer.
    pub async fn get(&self, url: &str, api_key: Option<&str>) -> anyhow::Result<Vec<u8>> {
        let (status, body) = self.ask(Method::GET, url, api_key).await?;
        if status.is_success() { Ok(body) } else { bail!("{url} answers {status}") }
    }

    /// The status of the answer to a POST without a body.
    pub async fn post(&self, url: &str) -> anyhow::Result<StatusCode> {
        Ok(self.ask(Method::POST, url, None).await?.0)
    }

    async fn ask(&self, method: Method, url: &str, api_key: Option<&str>) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let mut call = Request::builder().method(method).uri(url);
        if let Some(key) = api_key {
            call = call.header("authorization", format!("Bearer {key}"));
        }
        let call = call.body(Full::default()).with_context(|| format!("{url} is no URL"))?;
        let asked = async {
            let answer = self.client.request(call).await?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok::<_, anyhow::Error>((status, body.map_err(|error| anyhow!(error))?.to_bytes().to_vec()))
        };
        let answer = tokio::time::timeout(self.patience, asked).await;
        answer
            .map_err(|_| anyhow!("no answer within {} s", self.patience.as_secs()))?
            .with_context(|| format!("asked {url}"))
    }
}

/// A URL that paths can follow: with a scheme, and without a slash or `/v1` at its end.
pub fn base(text: &str) -> anyhow::Result<String> {
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches('/').to_owned();
    let parsed: http::Uri = url.parse().with_context(|| format!("`{text}` is no URL like http://127.0.0.1:8080"))?;
    let is_known = matches!(parsed.scheme_str(), Some("http" | "https"));
    if !is_known || parsed.host().is_none_or(str::is_empty) || parsed.query().is_some() {
        bail!("`{text}` is no URL like http://127.0.0.1:8080");
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_may_be_an_address_and_may_have_what_libraries_want() {
        for text in
            ["127.0.0.1:8080", "http://127.0.0.1:8080/", "http://127.0.0.1:8080/v1", "http://127.0.0.1:8080/v1/"]
        {
            assert_eq!(base(text).unwrap(), "http://127.0.0.1:8080", "{text}");
        }
        assert_eq!(base("https://h/prefix/v1").unwrap(), "https://h/prefix");
        for text in ["", "ftp://a", "http://", "http://a b", "http://a?b=c"] {
            assert!(base(text).is_err(), "{text}");
        }
    }
}
