//! What an open stream weighs in the proxy's process, by the size of its request.

use std::time::Duration;

use crate::Effort;
use crate::child::{AccessLog, Child};
use crate::client::{Connection, events_request};
use crate::stub::{EVENT_GAP, Stub};

const STREAMS: usize = 300;

const BODIES: [(&str, usize); 3] = [("1 KB", 1_000), ("50 KB", 50_000), ("300 KB", 300_000)];

/// Long enough for every stream to be open before the first one ends.
const EVENTS: usize = 600;

pub async fn run(stub: &Stub, effort: Effort) -> anyhow::Result<()> {
    println!("memory: resident in the proxy's process, KB for each of {STREAMS} open streams");
    println!("  body       kvpin   nginx");
    for (name, body_bytes) in BODIES.into_iter().take(effort.rounds(BODIES.len())) {
        let kvpin = of_a_stream(&Child::kvpin(stub.address, AccessLog::Off)?, body_bytes).await?;
        let nginx = match Child::nginx(stub.address, AccessLog::Off)? {
            Some(child) => of_a_stream(&child, body_bytes).await?,
            None => f64::NAN,
        };
        println!("  {name:<8}{kvpin:>8.1}{nginx:>8.1}");
    }
    println!();
    Ok(())
}

async fn of_a_stream(child: &Child, body_bytes: usize) -> anyhow::Result<f64> {
    let before = child.memory_bytes()?;
    let mut running = Vec::new();
    for _ in 0..STREAMS {
        let mut connection = Connection::open(child.address).await?;
        connection.send(&events_request(EVENTS, body_bytes)).await?;
        running.push(tokio::spawn(async move { connection.events().await }));
    }
    tokio::time::sleep(EVENT_GAP * EVENTS as u32 / 2).await;
    let grown = child.memory_bytes()?.saturating_sub(before);
    for stream in running {
        // Bounds the wait for a stream that hangs; each read is bounded by itself.
        tokio::time::timeout(Duration::from_secs(60), stream).await???;
    }
    Ok(grown as f64 / 1e3 / STREAMS as f64)
}
