//! `kvpin explain`: what would become of a request.
//!
//! The kvpin that serves by the same configuration is asked first, over its admin listener, because only it knows which
//! conversations are pinned where. Without one, the answer is that of a kvpin that has just been started.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use crate::config::{Config, Secret};
use crate::conversation::KeySecret;
use crate::dispatch::Routing;
use crate::metrics::Metrics;
use crate::proxy::{Explanation, explain};

use super::EXIT_CONFIG;
use super::admin_token::{TokenArgs, authorized};

/// The path on the admin listener.
const PATH: &str = "/api/v1/explain";
/// A kvpin that serves answers within milliseconds; one that doesn't within this is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of an explanation.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Of the answer of a kvpin that has not been started. Keys of two requests can be compared, and with nothing else.
const SECRET: [u8; 16] = [0; 16];

/// How to explain.
#[derive(clap::Args)]
pub struct ExplainArgs {
    /// The configuration.
    #[arg(long, short, value_name = "FILE")]
    config: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Don't ask the kvpin that serves by this configuration, if there is one.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    token: TokenArgs,
}

/// Who has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answerer {
    Serving(SocketAddr),
    /// Nobody serves; the answer is worked out here.
    Here,
}

/// Reads a raw request from stdin and prints what kvpin makes of it. Exit 78 for a bad configuration, 1 for what is no request.
pub fn run(args: &ExplainArgs) -> ExitCode {
    match Config::load(&args.config) {
        Ok(config) => super::finish(answer(&config, args)),
        Err(error) => {
            eprintln!("{}:\n{error}", args.config.display());
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

fn answer(config: &Config, args: &ExplainArgs) -> anyhow::Result<()> {
    let request = read_request(config.limits.head_bytes_max + config.limits.body_bytes_max)?;
    let (answerer, explanation) = match config.admin.filter(|_| !args.offline) {
        Some(admin) => match ask(admin, args.token.token(Some(config))?, &request)? {
            Some(explanation) => (Answerer::Serving(admin), explanation),
            None => (Answerer::Here, work_out(config, &request)?),
        },
        None => (Answerer::Here, work_out(config, &request)?),
    };
    print(answerer, &explanation, args).context("the explanation could not be written")
}

fn read_request(bytes_max: usize) -> anyhow::Result<Vec<u8>> {
    let mut request = Vec::new();
    io::stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut request).context("stdin can't be read")?;
    if request.is_empty() {
        bail!("stdin is empty; give a raw HTTP request: kvpin explain --config FILE < request.http");
    }
    if request.len() > bytes_max {
        bail!("the request has more than the {bytes_max} bytes that the configuration allows");
    }
    Ok(request)
}

/// Asks the kvpin behind an admin listener. `None`: nobody is there, or somebody who can't explain.
fn ask(admin: SocketAddr, token: Option<Secret>, request: &[u8]) -> anyhow::Result<Option<Explanation>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked =
        runtime.block_on(async { tokio::time::timeout(PATIENCE, exchange(admin, token, request.to_vec())).await });
    let Ok(Ok((status, answer))) = asked else { return Ok(None) };
    match status {
        http::StatusCode::OK => Ok(serde_json::from_slice(&answer).ok()),
        http::StatusCode::BAD_REQUEST | http::StatusCode::UNAUTHORIZED => {
            let said: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
            bail!("{}", said["error"]["message"].as_str().unwrap_or("this is no HTTP request"));
        }
        _ => Ok(None),
    }
}

async fn exchange(
    admin: SocketAddr,
    token: Option<Secret>,
    request: Vec<u8>,
) -> anyhow::Result<(http::StatusCode, Vec<u8>)> {
    let call = authorized(http::Request::post(format!("http://{admin}{PATH}")), token.as_ref());
    let call = call.body(Full::new(bytes::Bytes::from(request)))?;
    let response = Client::builder(TokioExecutor::new()).build_http().request(call).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|error| anyhow!(error))?;
    Ok((status, body.to_bytes().to_vec()))
}

fn work_out(config: &Config, request: &[u8]) -> anyhow::Result<Explanation> {
    let routing = Routing::new(config.clone(), KeySecret::new(SECRET), Metrics::new()?);
    Ok(explain(&routing, request)?)
}

fn print(answerer: Answerer, explanation: &Explanation, args: &ExplainArgs) -> io::Result<()> {
    let text = if args.json {
        let serving = match answerer {
            Answerer::Serving(admin) => Some(admin.to_string()),
            Answerer::Here => None,
        };
        format!("{}\n", json!({ "serving": serving, "explanation": explanation }))
    } else {
        Words { answerer, explanation }.to_string()
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// An explanation in words, one fact a line.
struct Words<'a> {
    answerer: Answerer,
    explanation: &'a Explanation,
}

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.explanation;
        let mut line = |name: &str, text: &str| writeln!(f, "{name:<13} {text}");
        line("request", &format!("{} {}", said.method, said.path))?;
        line("is", &kind(said))?;
        if let Some(key) = &said.key_name {
            line("key", key)?;
        }
        if let Some(refusal) = &said.refusal {
            line("refused", &format!("{} {}", refusal.status, refusal.reason))?;
            line("answer", &refusal.answer)?;
        }
        if let Some(model) = &said.model {
            let asked_for = model.asked_for.as_ref().filter(|name| **name != model.name);
            let asked_for = asked_for.map_or(String::new(), |name| format!(", asked for as {name}"));
            let sent_as = model.sent_as.as_ref().map_or(String::new(), |name| format!(", sent on as {name}"));
            line("model", &format!("{}{asked_for}{sent_as}", model.name))?;
        }
        if said.kind == "turn" {
            line("rule", &rule(said))?;
            line("conversation", said.key.as_deref().unwrap_or("-"))?;
        }
        for alias in &said.aliases {
            line("also known by", &format!("{} {}", alias.rule, alias.key))?;
        }
        if let Some(parent) = &said.parent {
            line("started by", parent)?;
        }
        if let Some(history) = &said.history {
            let (messages, bytes) = (history.messages, history.text_bytes);
            let state = if history.is_continued { "continued" } else { "just begun" };
            line("history", &format!("{messages} messages, {bytes} bytes of text, {state}"))?;
        }
        if let Some(decision) = &said.decision {
            let reason = said.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
            line("decision", &format!("{decision}{reason}, after {} bytes of the body", said.looked_at_bytes))?;
        }
        if let Some(replica) = &said.replica {
            line("replica", replica)?;
        }
        for note in &said.notes {
            line("note", note)?;
        }
        line("by", &self.answerer.to_string())
    }
}

impl fmt::Display for Answerer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answerer::Serving(admin) => write!(f, "the kvpin that serves, asked at {admin}"),
            Answerer::Here => {
                f.write_str("a kvpin without any load or pins, as none serves; its keys hold in this command only")
            }
        }
    }
}

fn kind(said: &Explanation) -> String {
    match (said.kind.as_str(), said.side_by.as_deref()) {
        ("turn", _) => "a turn of a conversation".to_owned(),
        ("side", Some("endpoint")) => "a side call, by its endpoint: it touches no pin".to_owned(),
        ("side", Some("hint")) => "a side call, by a header that says so: it touches no pin".to_owned(),
        ("side", _) => "a side call, by its shape (an agent's, without tools): it touches no pin".to_owned(),
        ("stateless", _) => "work that leaves no history behind".to_owned(),
        ("local", _) => "answered by kvpin itself".to_owned(),
        ("refused", _) => "refused by kvpin".to_owned(),
        (other, _) => other.to_owned(),
    }
}

fn rule(said: &Explanation) -> String {
    let agent = if said.is_agent_of_session { ", with x-claude-code-agent-id" } else { "" };
    match &said.rule {
        Some(rule) => format!("{rule}{agent}"),
        None => "none: no id, and no messages to know the conversation by".to_owned(),
    }
}
