//! Does kvpin delay or batch the events of a stream? Two hundred events, 5 ms apart, direct and through kvpin in turn.

use std::time::{Duration, Instant};

use crate::Effort;
use crate::arm::Arm;
use crate::rig::client::{Connection, ModelAt, Read, SESSION, turn};
use crate::rig::figures::Samples;
use crate::rig::stub::{Answer, Stub};

const EVENTS: usize = 200;
const ROUNDS: usize = 5;

/// One stream alone, and as many as an over-full replica has.
const STREAMS: [usize; 2] = [1, 32];

/// What was seen of one arm.
#[derive(Default)]
struct Seen {
    /// From the write at the stub to the read at the client, in milliseconds.
    delay: Samples,
    events: usize,
    /// Reads that carried more than one event.
    batched_reads: usize,
}

pub async fn run(stub: &Stub, effort: Effort) -> anyhow::Result<()> {
    println!("chunks: {EVENTS} events 5 ms apart, delay of each from the upstream's write to the client's read, ms");
    println!("  streams  arm         p50     p90     p99     max   events  reads with more than one");
    stub.answer_with(Answer::Events { count: EVENTS });
    let arms = [Arm::direct(stub.address), Arm::kvpin("kvpin", &[], &[stub.address])?];
    for streams in STREAMS {
        let mut seen = [Seen::default(), Seen::default()];
        for _ in 0..effort.rounds(ROUNDS) {
            for (arm, seen) in arms.iter().zip(&mut seen) {
                seen.add(stub.epoch(), stream_all(arm, streams).await?);
            }
        }
        for (arm, seen) in arms.iter().zip(&seen) {
            seen.print(streams, &arm.name);
        }
        let [direct, through] = &seen;
        let added = |q| through.delay.quantile(q) - direct.delay.quantile(q);
        let batched = through.batched_share() - direct.batched_share();
        println!(
            "  {streams:>7}  {:<8}{:>7.3} {:>7.3} {:>7.3}{:>30.2} % of reads",
            "added",
            added(0.5),
            added(0.9),
            added(0.99),
            batched * 100.0
        );
    }
    println!();
    Ok(())
}

async fn stream_all(arm: &Arm, streams: usize) -> anyhow::Result<Vec<Read>> {
    let address = arm.address;
    let running: Vec<_> = (0..streams)
        .map(|number| {
            tokio::spawn(async move {
                // Spread over a gap, as streams of different turns are.
                tokio::time::sleep(Duration::from_micros(5_000 * number as u64 / streams as u64)).await;
                let mut connection = Connection::open(address).await?;
                connection.send(&turn(1_000, ModelAt::First, SESSION)).await?;
                connection.events().await
            })
        })
        .collect();
    let mut reads = Vec::new();
    for stream in running {
        reads.extend(stream.await??);
    }
    Ok(reads)
}

impl Seen {
    fn add(&mut self, epoch: Instant, reads: Vec<Read>) {
        for read in reads {
            let read_at = read.at.duration_since(epoch);
            self.batched_reads += usize::from(read.sent_ns.len() > 1);
            self.events += read.sent_ns.len();
            for sent in read.sent_ns {
                self.delay.push_ms(read_at.saturating_sub(Duration::from_nanos(sent)));
            }
        }
    }

    fn batched_share(&self) -> f64 {
        self.batched_reads as f64 / self.events.max(1) as f64
    }

    fn print(&self, streams: usize, arm: &str) {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|q| self.delay.quantile(q));
        println!(
            "  {streams:>7}  {arm:<8}{p50:>7.3} {p90:>7.3} {p99:>7.3} {max:>7.3} {:>8}  {}",
            self.events, self.batched_reads
        );
    }
}
