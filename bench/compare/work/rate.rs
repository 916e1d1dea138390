//! Requests at a rate that any proxy holds easily, on kept connections: what each adds to the wait for the first byte.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::{Column, Shows, Stage, us};
use crate::bodies::{Turn, session};
use crate::rig::client::Connection;
use crate::rig::figures::Samples;
use crate::rig::stub::Answer;

pub const COLUMNS: &[Column] = &[
    Column { name: "CPU us/request", shows: Shows::OverNginx },
    Column { name: "first byte p50 us", shows: Shows::Added },
    Column { name: "p99 us", shows: Shows::Added },
    Column { name: "p999 us", shows: Shows::Added },
];

#[derive(Clone, Copy)]
pub struct Load {
    pub per_second: usize,
    requests: usize,
}

/// They take turns, so that none has a request while another one is under way.
const CONNECTIONS: usize = 16;

impl Load {
    pub fn new(is_quick: bool) -> Load {
        Load { per_second: 300, requests: if is_quick { 96 } else { 3_200 } }
    }
}

pub async fn measure(stage: &Stage<'_>, load: Load) -> anyhow::Result<Vec<f64>> {
    stage.upstreams.answer_with(Answer::Json);
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let mut connection = Connection::open(stage.front.address(number)).await?;
        let request = Turn::SMALL.of(stage.front.proxy, &session(number));
        ask(&mut connection, &request).await?;
        connections.push((connection, request));
    }
    let gap = Duration::from_secs(1) / load.per_second as u32;
    let begin = stage.front.used()?;
    let first = Instant::now() + gap;
    let mut senders = JoinSet::new();
    for (number, (connection, request)) in connections.into_iter().enumerate() {
        let pace = Pace { first: first + gap * number as u32, gap: gap * CONNECTIONS as u32 };
        senders.spawn(send_at(pace, load.requests / CONNECTIONS, connection, request));
    }
    let mut waits = Samples::default();
    while let Some(sender) = senders.join_next().await {
        sender??.into_iter().for_each(|wait| waits.push(us(wait)));
    }
    let (spent_us, _) = stage.front.spent_us(&begin, load.requests as u64)?;
    Ok(vec![spent_us, waits.median(), waits.quantile(0.99), waits.quantile(0.999)])
}

/// When the requests of one connection are due.
struct Pace {
    first: Instant,
    gap: Duration,
}

/// Each wait counts from when its request was due, if the one before it was late, and else from when it was sent: what the
/// timer is late is not the proxy's.
async fn send_at(
    pace: Pace,
    count: usize,
    mut connection: Connection,
    request: Vec<u8>,
) -> anyhow::Result<Vec<Duration>> {
    let mut waits = Vec::with_capacity(count);
    let mut due = pace.first;
    for _ in 0..count {
        let is_late = Instant::now() > due;
        sleep_until(due).await;
        let begin = if is_late { due } else { Instant::now() };
        let first_byte = ask(&mut connection, &request).await?;
        waits.push(first_byte.duration_since(begin.into_std()));
        due += pace.gap;
    }
    Ok(waits)
}

async fn ask(connection: &mut Connection, request: &[u8]) -> anyhow::Result<std::time::Instant> {
    connection.send(request).await?;
    Ok(connection.good_reply().await?.first_byte)
}
