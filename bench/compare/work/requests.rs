//! As many requests as go through: every connection sends its next one as soon as it has its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Column, Shows, Stage};
use crate::bodies::{SessionAt, Turn, session};
use crate::rig::client::Connection;
use crate::rig::stub::Answer;

pub const COLUMNS: &[Column] = &[
    Column { name: "CPU us/request", shows: Shows::OverNginx },
    Column { name: "requests/s", shows: Shows::OverNginx },
    Column { name: "cores", shows: Shows::Itself },
    Column { name: "RSS MB", shows: Shows::Itself },
];

#[derive(Clone, Copy)]
pub struct Load {
    pub body_bytes: usize,
    pub session_at: SessionAt,
    pub warm: Duration,
    pub measured: Duration,
}

/// Enough to keep one worker busy, with no more bodies on the way than a proxy has memory for.
const CONNECTIONS: usize = 32;
const CONNECTIONS_OF_LARGE: usize = 16;
const LARGE_BYTES: usize = 1_000_000;

pub async fn measure(stage: &Stage<'_>, load: Load) -> anyhow::Result<Vec<f64>> {
    stage.upstreams.answer_with(Answer::Json);
    let answered = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let turn = Turn { body_bytes: load.body_bytes, session_at: load.session_at, is_streamed: false };
    let mut senders = JoinSet::new();
    for number in 0..if load.body_bytes < LARGE_BYTES { CONNECTIONS } else { CONNECTIONS_OF_LARGE } {
        let connection = Connection::open(stage.front.address(number)).await?;
        let request = turn.of(stage.front.proxy, &session(number));
        senders.spawn(send_on_and_on(connection, request, Arc::clone(&answered), Arc::clone(&is_over)));
    }
    tokio::time::sleep(load.warm).await;
    let (begin, before) = (stage.front.used()?, answered.load(Ordering::Relaxed));
    tokio::time::sleep(load.measured).await;
    let count = answered.load(Ordering::Relaxed) - before;
    let (spent_us, cores) = stage.front.spent_us(&begin, count)?;
    let seconds = begin.at().elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    while let Some(sender) = senders.join_next().await {
        sender??;
    }
    Ok(vec![spent_us, count as f64 / seconds, cores, stage.front.memory_kb()? / 1e3])
}

async fn send_on_and_on(
    mut connection: Connection,
    request: Vec<u8>,
    answered: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        connection.send(&request).await?;
        connection.good_reply().await?;
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
