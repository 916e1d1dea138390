//! Streams of events: what an event costs, and how late it comes.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::task::JoinSet;

use super::{Column, Shows, Stage, us};
use crate::bodies::{Turn, session};
use crate::rig::client::{Connection, Read};
use crate::rig::figures::Samples;
use crate::rig::stub::{Answer, EVENT_GAP};

pub const COLUMNS: &[Column] = &[
    Column { name: "CPU us/event", shows: Shows::OverNginx },
    Column { name: "delay p50 us", shows: Shows::Added },
    Column { name: "delay p99 us", shows: Shows::Added },
    Column { name: "events/read", shows: Shows::Itself },
];

#[derive(Clone, Copy)]
pub struct Load {
    pub streams: usize,
    pub events: usize,
    /// Streams on each connection, one after the other.
    turns: usize,
}

impl Load {
    pub fn new(is_quick: bool) -> Load {
        if is_quick { Load { streams: 8, events: 20, turns: 1 } } else { Load { streams: 64, events: 200, turns: 2 } }
    }
}

/// Each connection has served a request before.
pub async fn measure(stage: &Stage<'_>, load: Load) -> anyhow::Result<Vec<f64>> {
    stage.upstreams.answer_with(Answer::Json);
    let mut connections = Vec::new();
    for number in 0..load.streams {
        let mut connection = Connection::open(stage.front.address(number)).await?;
        connection.send(&Turn::SMALL.of(stage.front.proxy, &session(number))).await?;
        connection.good_reply().await?;
        let request = Turn { is_streamed: true, ..Turn::SMALL }.of(stage.front.proxy, &session(number));
        connections.push((connection, request));
    }
    stage.upstreams.answer_with(Answer::Events { count: load.events });
    let begin = stage.front.used()?;
    let mut streams = JoinSet::new();
    for (number, (connection, request)) in connections.into_iter().enumerate() {
        // Spread over a gap, as streams of different turns are.
        let start = EVENT_GAP * number as u32 / load.streams as u32;
        streams.spawn(stream(start, load.turns, connection, request));
    }
    let mut reads = Vec::new();
    while let Some(stream) = streams.join_next().await {
        reads.extend(stream??);
    }
    let expected = load.streams * load.events * load.turns;
    figures(stage, &begin, &reads, expected)
}

async fn stream(
    start: Duration,
    turns: usize,
    mut connection: Connection,
    request: Vec<u8>,
) -> anyhow::Result<Vec<Read>> {
    tokio::time::sleep(start).await;
    let mut reads = Vec::new();
    for _ in 0..turns {
        connection.send(&request).await?;
        reads.extend(connection.events().await?);
    }
    Ok(reads)
}

fn figures(stage: &Stage<'_>, begin: &crate::front::Used, reads: &[Read], expected: usize) -> anyhow::Result<Vec<f64>> {
    let (spent_us, _) = stage.front.spent_us(begin, expected as u64)?;
    let epoch = stage.upstreams.epoch().context("no stub")?;
    let (mut delays, mut with_events, mut events) = (Samples::default(), 0, 0);
    for read in reads {
        let read_at = read.at.duration_since(epoch);
        with_events += usize::from(!read.sent_ns.is_empty());
        events += read.sent_ns.len();
        for sent in &read.sent_ns {
            delays.push(us(read_at.saturating_sub(Duration::from_nanos(*sent))));
        }
    }
    ensure!(events == expected, "{events} of {expected} events came");
    Ok(vec![spent_us, delays.median(), delays.quantile(0.99), events as f64 / with_events as f64])
}
