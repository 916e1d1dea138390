//! `kvpin drain` and `kvpin undrain`: have a replica take nothing new, and let it serve again.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use http::request::Builder;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::admin::drain::{DrainAnswer, DrainRequest};
use crate::admin::status::{ReplicaStatus, Status};
use crate::admin::{DRAIN, UNDRAIN};
use crate::balancer::Order;
use crate::config::{Config, Secret};

use super::admin_token::{TokenArgs, authorized};
use super::{EXIT_CONFIG, EXIT_USAGE};

/// Where a kvpin has its admin listener whose configuration says nothing of it.
const ADMIN_DEFAULT: &str = "http://127.0.0.1:9180";
const STATUS: &str = "/api/v1/status";
/// A kvpin that serves answers within milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The status of a thousand replicas has about a megabyte.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Between two looks at what is still in flight.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Which replica, and of which kvpin.
#[derive(clap::Args)]
pub struct DrainArgs {
    /// The replica, as MODEL/REPLICA. `kvpin check` and the status have the names.
    #[arg(value_name = "MODEL/REPLICA")]
    target: String,
    /// Wait until its last turn has ended.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    at: AdminArgs,
    #[command(flatten)]
    token: TokenArgs,
}

/// Which replica, and of which kvpin.
#[derive(clap::Args)]
pub struct UndrainArgs {
    /// The replica, as MODEL/REPLICA. `kvpin check` and the status have the names.
    #[arg(value_name = "MODEL/REPLICA")]
    target: String,
    #[command(flatten)]
    at: AdminArgs,
    #[command(flatten)]
    token: TokenArgs,
}

/// Where the admin listener of the kvpin that serves is.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(super) struct AdminArgs {
    /// The admin listener of the kvpin that serves, such as http://127.0.0.1:9180, which is the default.
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The configuration that it serves by, which says where its admin listener is.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The admin listener of a kvpin that serves.
pub(super) struct Admin {
    pub(super) url: String,
    pub(super) token: Option<Secret>,
}

/// Drains a replica; with `wait`, until nothing is in flight there. Exit 0 done, 1 failed, 64 wrong usage, 78 bad configuration.
pub fn drain(args: &DrainArgs) -> ExitCode {
    run(&args.target, &args.at, &args.token, async |admin, target| {
        let ordered = admin.order(Order::Drain, &target).await?;
        println!("{}: draining, {}", args.target, left(ordered.in_flight, ordered.conversations));
        if args.wait { admin.wait(&target).await } else { Ok(()) }
    })
}

/// Lets a replica serve again.
pub fn undrain(args: &UndrainArgs) -> ExitCode {
    run(&args.target, &args.at, &args.token, async |admin, target| {
        admin.order(Order::Undrain, &target).await?;
        println!("{}: serves again", args.target);
        Ok(())
    })
}

fn run(
    target: &str,
    at: &AdminArgs,
    token: &TokenArgs,
    act: impl AsyncFnOnce(&Admin, DrainRequest) -> anyhow::Result<()>,
) -> ExitCode {
    if !target.split_once('/').is_some_and(|(model, replica)| !model.is_empty() && !replica.is_empty()) {
        eprintln!("kvpin: `{target}` names no replica; give it as MODEL/REPLICA");
        return ExitCode::from(EXIT_USAGE);
    }
    let (url, config) = match at.url() {
        Ok(found) => found,
        Err(exit) => return exit,
    };
    let token = match token.token(config.as_ref()) {
        Ok(token) => token,
        Err(error) => return super::finish(Err(error)),
    };
    super::finish(super::block_on(async {
        let admin = Admin { url, token };
        let target = admin.find(target).await?;
        act(&admin, target).await
    }))
}

impl AdminArgs {
    /// The listener's URL and the configuration, if one was given; or how the program ends because there is none.
    pub(super) fn url(&self) -> Result<(String, Option<Config>), ExitCode> {
        if let Some(file) = &self.config {
            return match Config::load(file).map(|config| (config.admin, config)) {
                Ok((Some(admin), config)) => Ok((url_of(admin), Some(config))),
                Ok((None, _)) => {
                    eprintln!("kvpin: {}: it says `admin: off`, so that nobody can be told", file.display());
                    Err(ExitCode::FAILURE)
                }
                Err(error) => {
                    eprintln!("{}:\n{error}", file.display());
                    Err(ExitCode::from(EXIT_CONFIG))
                }
            };
        }
        let url = self.admin.as_deref().unwrap_or(ADMIN_DEFAULT).trim_end_matches('/');
        // An address alone will do.
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        match url.parse::<Uri>() {
            Ok(parsed) if parsed.scheme_str() == Some("http") && parsed.path() == "/" => Ok((url, None)),
            Ok(_) | Err(_) => {
                eprintln!("kvpin: --admin `{url}` is no URL like {ADMIN_DEFAULT}");
                Err(ExitCode::from(EXIT_USAGE))
            }
        }
    }
}

pub(super) fn url_of(admin: SocketAddr) -> String {
    format!("http://{admin}")
}

fn left(in_flight: u32, conversations: u32) -> String {
    let turns = if in_flight == 1 { "turn" } else { "turns" };
    format!("{in_flight} {turns} in flight, {conversations} conversations pinned")
}

impl Admin {
    /// The replica that MODEL/REPLICA means. Both names may have slashes in them, so what exists decides where one ends.
    async fn find(&self, target: &str) -> anyhow::Result<DrainRequest> {
        let status = self.status().await?;
        let mut known = Vec::new();
        for model in &status.models {
            for replica in model.replicas.iter().filter(|replica| !replica.retired) {
                let names = std::iter::once(&model.name).chain(&model.aliases);
                if names
                    .into_iter()
                    .any(|name| target.strip_prefix(name.as_str()) == Some(&format!("/{}", replica.name)))
                {
                    return Ok(DrainRequest { model: model.name.clone(), replica: replica.name.clone() });
                }
                known.push(format!("{}/{}", model.name, replica.name));
            }
        }
        bail!("there is no replica `{target}`; there is: {}", known.join(", "))
    }

    async fn order(&self, order: Order, target: &DrainRequest) -> anyhow::Result<DrainAnswer> {
        let path = match order {
            Order::Drain => DRAIN,
            Order::Undrain => UNDRAIN,
        };
        let call = Request::post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let call = self.authorized(call);
        let answer = self.exchange(call.body(Full::from(serde_json::to_vec(target)?))?).await?;
        serde_json::from_slice(&answer).context("its answer can't be read")
    }

    /// Waits until nothing is in flight, and says whenever that has changed. A replica that is gone is drained.
    async fn wait(&self, target: &DrainRequest) -> anyhow::Result<()> {
        let mut said = None;
        loop {
            let status = self.status().await?;
            let model = status.models.iter().find(|model| model.name == target.model);
            let of_name = |replica: &&ReplicaStatus| replica.name == target.replica;
            let replicas = model.map(|model| model.replicas.iter().filter(of_name).collect::<Vec<_>>());
            let replicas = replicas.unwrap_or_default();
            if replicas.iter().any(|replica| replica.drain.is_none() && !replica.retired) {
                bail!("{}/{} was undrained meanwhile", target.model, target.replica);
            }
            let in_flight = replicas.iter().map(|replica| replica.in_flight).sum::<u32>();
            let held = |replica: &&ReplicaStatus| {
                let held = &replica.conversations;
                held.active + held.idle + held.lost
            };
            let now = (in_flight, replicas.iter().map(held).sum());
            if in_flight == 0 {
                println!(
                    "{}/{}: drained, {} conversations move with their next turn",
                    target.model, target.replica, now.1
                );
                return Ok(());
            }
            if said != Some(now) {
                println!("{}/{}: {}", target.model, target.replica, left(now.0, now.1));
                said = Some(now);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn authorized(&self, call: Builder) -> Builder {
        authorized(call, self.token.as_ref())
    }

    pub(super) async fn status(&self) -> anyhow::Result<Status> {
        serde_json::from_slice(&self.status_json().await?)
            .context("its status can't be read; is it another version of kvpin?")
    }

    /// The status as it was sent, which is JSON of a kvpin.
    pub(super) async fn status_json(&self) -> anyhow::Result<Vec<u8>> {
        let call = self.authorized(Request::get(format!("{}{STATUS}", self.url))).body(Full::default())?;
        let json = self.exchange(call).await?;
        let is_kvpins =
            serde_json::from_slice::<Value>(&json).is_ok_and(|status| status["kvpin"]["version"].is_string());
        if is_kvpins { Ok(json) } else { bail!("what answers at {} is no admin listener of a kvpin", self.url) }
    }

    /// The body of a good answer; of another, what it says is wrong.
    async fn exchange(&self, call: Request<Full<bytes::Bytes>>) -> anyhow::Result<Vec<u8>> {
        self.exchange_within(PATIENCE, call).await
    }

    /// The answer to an order in JSON, which may take as long as `patience`.
    pub(super) async fn post(&self, path: &str, order: Vec<u8>, patience: Duration) -> anyhow::Result<Vec<u8>> {
        let call = Request::post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let call = self.authorized(call);
        self.exchange_within(patience, call.body(Full::from(order))?).await
    }

    async fn exchange_within(&self, patience: Duration, call: Request<Full<bytes::Bytes>>) -> anyhow::Result<Vec<u8>> {
        let asked = async {
            let response = Client::builder(TokioExecutor::new()).build_http().request(call).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            Ok::<_, anyhow::Error>((status, body.map_err(|error| anyhow!(error))?.to_bytes().to_vec()))
        };
        let answer = tokio::time::timeout(patience, asked).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {} s", patience.as_secs()));
        let (status, body) =
            answer.and_then(|answer| answer).with_context(|| format!("no kvpin answers at {}", self.url))?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        match said["error"]["message"].as_str() {
            Some(message) if status != StatusCode::NOT_FOUND || said["error"]["type"].is_null() => bail!("{message}"),
            // kvpin's own listeners for clients say so too, with a type.
            Some(_) | None => bail!("what answers at {} is no admin listener of a kvpin: it said {status}", self.url),
        }
    }
}
