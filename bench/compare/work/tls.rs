//! New TLS connections at a rate, each with a whole handshake, one request and its end.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;

use super::{Column, Shows, Stage, us};
use crate::bodies::{Turn, session};
use crate::certificate::Certificate;
use crate::rig::client::Connection;
use crate::rig::figures::Samples;
use crate::rig::stub::Answer;

pub const COLUMNS: &[Column] = &[
    Column { name: "CPU us/connection", shows: Shows::OverNginx },
    Column { name: "connect to first byte p50 us", shows: Shows::Itself },
    Column { name: "p99 us", shows: Shows::Itself },
    Column { name: "RSS MB", shows: Shows::Itself },
];

#[derive(Clone, Copy)]
pub struct Load {
    pub per_second: usize,
    connections: usize,
}

/// Conversations that take turns.
const SESSIONS: usize = 64;

impl Load {
    pub fn new(is_quick: bool) -> Load {
        if is_quick { Load { per_second: 200, connections: 40 } } else { Load { per_second: 500, connections: 1_500 } }
    }
}

pub async fn measure(stage: &Stage<'_>, load: Load) -> anyhow::Result<Vec<f64>> {
    stage.upstreams.answer_with(Answer::Json);
    let begin = stage.front.used()?;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for number in 0..load.connections {
        let due = start + Duration::from_secs(number as u64) / load.per_second as u32;
        let request = Turn::SMALL.of(stage.front.proxy, &session(number % SESSIONS));
        let (address, connector) = (stage.front.address(number), stage.certificate.connector());
        running.spawn(async move {
            sleep_until(due).await;
            connect(address, connector, request).await
        });
    }
    let mut waits = Samples::default();
    while let Some(connection) = running.join_next().await {
        waits.push(us(connection??));
    }
    let (spent_us, _) = stage.front.spent_us(&begin, load.connections as u64)?;
    Ok(vec![spent_us, waits.median(), waits.quantile(0.99), stage.front.memory_kb()? / 1e3])
}

/// How long it took from the connect to the first byte of the answer.
async fn connect(address: SocketAddr, connector: TlsConnector, request: Vec<u8>) -> anyhow::Result<Duration> {
    let begin = std::time::Instant::now();
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut connection = Connection::over(connector.connect(Certificate::host()?, stream).await?);
    connection.send(&request).await?;
    let reply = connection.good_reply().await?;
    connection.close().await?;
    Ok(reply.first_byte.duration_since(begin))
}
