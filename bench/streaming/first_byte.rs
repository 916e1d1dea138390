//! What the two shapes of a request body cost until the first byte of the response: kept whole, so that the turn can be
//! sent again to another replica, or streamed on as it comes (`replay_bytes_max`), and waited for or not for the history in it (`history_wait_ms`).

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::Effort;
use crate::arm::Arm;
use crate::rig::client::{Connection, ModelAt, SESSION, turn};
use crate::rig::figures::Samples;
use crate::rig::stub::{Answer, Stub};

const KB: usize = 1000;

/// A body and how its client sends it.
struct Case {
    name: &'static str,
    body_bytes: usize,
    model_at: ModelAt,
    /// How many pieces it comes in, and the time between two.
    pieces: usize,
    gap: Duration,
    rounds: usize,
}

impl Case {
    const fn at_once(name: &'static str, body_bytes: usize) -> Case {
        Case { name, body_bytes, model_at: ModelAt::First, pieces: 1, gap: Duration::ZERO, rounds: 60 }
    }

    const fn paced(self, pieces: usize, gap_ms: u64, rounds: usize) -> Case {
        Case { pieces, gap: Duration::from_millis(gap_ms), rounds, ..self }
    }

    const fn model_last(self) -> Case {
        Case { model_at: ModelAt::Last, ..self }
    }
}

/// Bodies of agents (50 KB at their first turn, 300 KB in the middle, 2 MB with images) from this machine, over a network
/// of 1 Gbit/s, and from afar.
const CASES: [Case; 9] = [
    Case::at_once("1 KB at once", KB),
    Case::at_once("50 KB at once", 50 * KB),
    Case::at_once("300 KB at once", 300 * KB),
    Case::at_once("300 KB at once, model last", 300 * KB).model_last(),
    Case::at_once("2 MB at once", 2000 * KB),
    Case::at_once("300 KB at 1 Gbit/s", 300 * KB).paced(3, 1, 40),
    Case::at_once("2 MB at 1 Gbit/s", 2000 * KB).paced(17, 1, 30),
    Case::at_once("300 KB in 30 ms", 300 * KB).paced(31, 1, 20),
    Case::at_once("300 KB in 200 ms", 300 * KB).paced(11, 20, 8),
];

/// The limits of kvpin's arms. A body of 1 KB is always kept: it comes in one read with its model.
const LIMITS: [(&str, &[&str]); 4] = [
    ("streamed", &["replay_bytes_max: 1KiB", "history_wait_ms: 1"]),
    ("kept 1 ms", &["history_wait_ms: 1"]),
    ("kept 5 ms", &[]),
    ("kept 20 ms", &["history_wait_ms: 20"]),
];

pub async fn run(stub: &Stub, effort: Effort) -> anyhow::Result<()> {
    stub.answer_with(Answer::Json);
    let mut arms = vec![Arm::direct(stub.address)];
    for (name, limits) in LIMITS {
        arms.push(Arm::kvpin(name, limits, &[stub.address])?);
    }
    println!("first_byte: from the last piece of the request to the first byte of the response, ms, p50 / p99");
    print_heading(&arms);
    for case in &CASES {
        let mut waits = vec![Samples::default(); arms.len()];
        let mut connections = Vec::new();
        for arm in &arms {
            connections.push(Connection::open(arm.address).await?);
        }
        let request = turn(case.body_bytes, case.model_at, SESSION);
        for _ in 0..effort.rounds(case.rounds) {
            for (connection, waits) in connections.iter_mut().zip(&mut waits) {
                let (wait, status) = send(connection, case, &request).await?;
                ensure!(status == 200, "answered {status}");
                waits.push_ms(wait);
            }
        }
        let cells = waits.iter().map(|waits| format!("{:.2} / {:.2}", waits.median(), waits.quantile(0.99)));
        print_row(case, cells);
    }
    println!();
    resent(stub, effort).await
}

/// How many turns survive a replica that takes the whole request and then hangs up: those whose body was kept.
async fn resent(stub: &Stub, effort: Effort) -> anyhow::Result<()> {
    println!("first_byte: turns that went on to another replica when the first one hung up");
    let broken = Stub::start(Answer::HangUp, Instant::now()).await?;
    let mut arms = Vec::new();
    for (name, limits) in LIMITS {
        arms.push(Arm::kvpin(name, limits, &[broken.address, stub.address])?);
    }
    print_heading(&arms);
    for case in &CASES {
        let mut cells = Vec::new();
        for arm in &arms {
            cells.push(resent_of(arm, case, &broken, effort.rounds(case.rounds.min(10))).await?);
        }
        print_row(case, cells.into_iter());
    }
    println!();
    Ok(())
}

async fn resent_of(arm: &Arm, case: &Case, broken: &Stub, rounds: usize) -> anyhow::Result<String> {
    let before = broken.turns();
    let mut lost = 0;
    // Each round is a new conversation. The good replica holds those it has served, so the broken one is always tried first.
    for round in 0..rounds {
        let mut connection = Connection::open(arm.address).await?;
        let session = format!("{}-{round}", case.name);
        let request = turn(case.body_bytes, case.model_at, &session);
        let (_, status) = send(&mut connection, case, &request).await?;
        lost += usize::from(status != 200);
    }
    let hung_up = broken.turns() - before;
    Ok(format!("{} of {hung_up}", hung_up.saturating_sub(lost)))
}

/// Sends the request as the case has it. Returns the time from its last piece to the first byte of the response.
async fn send(connection: &mut Connection, case: &Case, request: &[u8]) -> anyhow::Result<(Duration, u16)> {
    let mut pace = tokio::time::interval(case.gap.max(Duration::from_nanos(1)));
    let mut last = Instant::now();
    for piece in request.chunks(request.len().div_ceil(case.pieces)) {
        if case.pieces > 1 {
            pace.tick().await;
        }
        last = Instant::now();
        connection.send(piece).await?;
    }
    let reply = connection.reply().await?;
    Ok((reply.first_byte.duration_since(last), reply.status))
}

fn print_heading(arms: &[Arm]) {
    let names: String = arms.iter().map(|arm| format!("{:>16}", arm.name)).collect();
    println!("  {:<27}{names}", "body");
}

fn print_row(case: &Case, cells: impl Iterator<Item = String>) {
    let cells: String = cells.map(|cell| format!("{cell:>16}")).collect();
    println!("  {:<27}{cells}", case.name);
}
