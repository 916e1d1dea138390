//! What a request and an event cost the proxy's CPU, beside nginx at the same work. Each proxy is one process on one core;
//! the rounds alternate, so that what else the machine does meets all alike.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::ensure;

use crate::Effort;
use crate::child::{AccessLog, Child};
use crate::client::{Connection, ModelAt, SESSION, events_request, json_request};
use crate::figures::Samples;
use crate::stub::Stub;

const ROUNDS: usize = 7;

/// Kept connections in a round of requests, each with one request at a time.
const CONNECTIONS: usize = 8;

/// Events of one stream, 5 ms apart: a second.
const EVENTS: usize = 200;

/// What a round asks of a proxy.
#[derive(Clone, Copy)]
enum Work {
    Requests {
        body_bytes: usize,
        count: usize,
    },
    /// Streams at once.
    Streams {
        count: usize,
    },
}

const WORK: [(&str, Work); 3] = [
    ("request of 1 KB", Work::Requests { body_bytes: 1_000, count: 3_000 }),
    ("request of 300 KB", Work::Requests { body_bytes: 300_000, count: 400 }),
    ("event", Work::Streams { count: 24 }),
];

/// A proxy under work.
struct Proxy {
    name: &'static str,
    child: Child,
    spent: Samples,
}

pub async fn run(stub: &Stub, effort: Effort) -> anyhow::Result<()> {
    println!("cpu: of the proxy's process on one core, µs each; the median of the rounds, their range, over nginx's");
    for (name, work) in WORK {
        for access_log in [AccessLog::Off, AccessLog::On] {
            if access_log == AccessLog::On && matches!(work, Work::Streams { .. }) {
                continue;
            }
            let mut proxies = start(stub.address, access_log)?;
            for _ in 0..effort.rounds(ROUNDS) {
                for proxy in &mut proxies {
                    proxy.round(work).await?;
                }
            }
            print(name, access_log, &proxies);
        }
    }
    println!();
    Ok(())
}

fn start(upstream: SocketAddr, access_log: AccessLog) -> anyhow::Result<Vec<Proxy>> {
    let proxy = |name, child| Proxy { name, child, spent: Samples::default() };
    let mut proxies = vec![proxy("kvpin", Child::kvpin(upstream, access_log)?)];
    match Child::nginx(upstream, access_log)? {
        Some(child) => proxies.push(proxy("nginx", child)),
        None => println!("  nginx isn't installed: no comparison"),
    }
    Ok(proxies)
}

impl Proxy {
    /// Does the work and notes the CPU time of one item. Each connection has served a request before.
    async fn round(&mut self, work: Work) -> anyhow::Result<()> {
        let mut connections = Vec::new();
        let open = match work {
            Work::Requests { .. } => CONNECTIONS,
            Work::Streams { count } => count,
        };
        for _ in 0..open {
            let mut connection = Connection::open(self.child.address).await?;
            connection.send(&json_request(100, ModelAt::First, SESSION)).await?;
            connection.reply().await?;
            connections.push(connection);
        }
        let before = self.child.cpu()?;
        let items = match work {
            Work::Requests { body_bytes, count } => requests(connections, body_bytes, count).await?,
            Work::Streams { .. } => streams(connections).await?,
        };
        let spent = self.child.cpu()?.saturating_sub(before);
        self.spent.push(spent.as_secs_f64() * 1e6 / items as f64);
        Ok(())
    }
}

/// Every connection sends its share, one after the other. Returns how many requests that were.
async fn requests(connections: Vec<Connection>, body_bytes: usize, count: usize) -> anyhow::Result<usize> {
    let request = Arc::new(json_request(body_bytes, ModelAt::First, SESSION));
    let each = count / connections.len();
    let total = each * connections.len();
    let running: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            let request = Arc::clone(&request);
            tokio::spawn(async move {
                for _ in 0..each {
                    connection.send(&request).await?;
                    let status = connection.reply().await?.status;
                    ensure!(status == 200, "answered {status}");
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for sender in running {
        sender.await??;
    }
    Ok(total)
}

/// One stream a connection. Returns how many events came.
async fn streams(connections: Vec<Connection>) -> anyhow::Result<usize> {
    let running: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            tokio::spawn(async move {
                connection.send(&events_request(EVENTS, 1_000)).await?;
                connection.events().await
            })
        })
        .collect();
    let mut events = 0;
    for stream in running {
        events += stream.await??.iter().map(|read| read.sent_ns.len()).sum::<usize>();
    }
    Ok(events)
}

fn print(name: &str, access_log: AccessLog, proxies: &[Proxy]) {
    let access_log = match access_log {
        AccessLog::Off => "",
        AccessLog::On => ", access log",
    };
    let nginx = proxies.iter().find(|proxy| proxy.name == "nginx");
    for proxy in proxies {
        let [least, median, most] = [0.0, 0.5, 1.0].map(|q| proxy.spent.quantile(q));
        let ratio = nginx.map_or(f64::NAN, |nginx| proxy.spent.over(&nginx.spent).median());
        println!(
            "  {:<30}{:<8}{median:>8.1} ({least:.1} to {most:.1}) {ratio:>8.2}",
            format!("{name}{access_log}"),
            proxy.name
        );
    }
}
