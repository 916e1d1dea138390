//! Many streams that have had an event and wait for the next one, as while an engine reads long prompts: what each weighs, and
//! whether all are still there at the end.

use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::{Column, Shows, Stage};
use crate::bodies::{SessionAt, Turn, session};
use crate::front::Front;
use crate::proxies::Proxy;
use crate::rig::client::Connection;
use crate::rig::stub::Answer;

pub const COLUMNS: &[Column] = &[
    Column { name: "KB/stream", shows: Shows::OverNginx },
    Column { name: "RSS MB", shows: Shows::Itself },
    Column { name: "CPU ms/s meanwhile", shows: Shows::Itself },
    Column { name: "dropped", shows: Shows::Itself },
];

#[derive(Clone, Copy)]
pub struct Load {
    streams: usize,
    body_bytes: usize,
    /// How long nothing happens.
    silence: Duration,
}

/// How many streams are being opened at a time.
const OPENERS: usize = 32;

impl Load {
    pub fn all(is_quick: bool) -> Vec<Load> {
        let load = |streams, body_bytes, ms| Load { streams, body_bytes, silence: Duration::from_millis(ms) };
        if is_quick {
            return vec![load(50, 50_000, 50)];
        }
        let sizes = [1_000, 50_000];
        [1_000, 5_000].iter().flat_map(|streams| sizes.map(|body_bytes| load(*streams, body_bytes, 1_000))).collect()
    }

    pub fn name(&self) -> String {
        format!("{} streams, bodies of {} KB", self.streams, self.body_bytes / 1_000)
    }
}

pub async fn measure(stage: &Stage<'_>, load: Load) -> anyhow::Result<Vec<f64>> {
    stage.upstreams.answer_with(Answer::Held);
    let before_kb = stage.front.memory_kb()?;
    let open = open_all(stage.front, load).await?;
    let opened = open.len();
    let begin = stage.front.used()?;
    tokio::time::sleep(load.silence).await;
    let (_, cores) = stage.front.spent_us(&begin, 1)?;
    let after_kb = stage.front.memory_kb()?;
    stage.upstreams.release();
    let whole = end_all(open).await?;
    let dropped = load.streams - whole;
    if opened < load.streams {
        eprintln!(
            "    {} of {} streams did not open: {}",
            load.streams - opened,
            load.streams,
            stage.front.last_words()
        );
    }
    Ok(vec![(after_kb - before_kb) / opened as f64, after_kb / 1e3, cores * 1e3, dropped as f64])
}

/// The streams that have had their first event.
async fn open_all(front: &Front, load: Load) -> anyhow::Result<Vec<Connection>> {
    let mut openers = JoinSet::new();
    for opener in 0..OPENERS.min(load.streams) {
        let proxy = front.proxy;
        let mine: Vec<_> =
            (opener..load.streams).step_by(OPENERS).map(|number| (number, front.address(number))).collect();
        openers.spawn(async move {
            let mut open = Vec::new();
            for (number, address) in mine {
                let turn = Turn { body_bytes: load.body_bytes, session_at: SessionAt::Header, is_streamed: true };
                if let Ok(stream) = open_one(proxy, turn, number, address).await {
                    open.push(stream);
                }
            }
            open
        });
    }
    let mut open = Vec::with_capacity(load.streams);
    while let Some(opener) = openers.join_next().await {
        open.extend(opener?);
    }
    (!open.is_empty()).then_some(open).context("no stream opened")
}

async fn open_one(
    proxy: Proxy,
    turn: Turn,
    number: usize,
    address: std::net::SocketAddr,
) -> anyhow::Result<Connection> {
    let mut connection = Connection::open(address).await?;
    connection.send(&turn.of(proxy, &session(number))).await?;
    // The head may come in a read of its own.
    while connection.next_read().await?.sent_ns.is_empty() {}
    Ok(connection)
}

/// How many streams get their last event and a good end.
async fn end_all(open: Vec<Connection>) -> anyhow::Result<usize> {
    let mut ending = JoinSet::new();
    for mut connection in open {
        ending.spawn(async move {
            let reads = connection.events().await?;
            anyhow::Ok(reads.iter().map(|read| read.sent_ns.len()).sum::<usize>())
        });
    }
    let mut whole = 0;
    while let Some(ended) = ending.join_next().await {
        whole += usize::from(matches!(ended?, Ok(1)));
    }
    Ok(whole)
}
