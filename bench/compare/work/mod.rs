//! What is asked of every proxy, and what is counted.

mod idle;
mod rate;
mod requests;
mod sse;
mod tls;

use std::time::Duration;

use clap::ValueEnum;

use crate::bodies::SessionAt;
use crate::certificate::Certificate;
use crate::front::Front;
use crate::proxies::Proxy;
use crate::upstreams::Upstreams;

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// As many requests as go through, the session in a header.
    Requests,
    /// The same with the session at the body's end.
    BodyEnd,
    /// Requests at a modest rate.
    Rate,
    /// Streams of events.
    Sse,
    /// Many streams on which nothing happens.
    Idle,
    /// New TLS connections.
    Tls,
}

/// One thing that is measured of every proxy.
pub struct Case {
    pub scenario: Scenario,
    pub name: String,
    work: Work,
}

#[derive(Clone, Copy)]
enum Work {
    Requests(requests::Load),
    Rate(rate::Load),
    Sse(sse::Load),
    Idle(idle::Load),
    Tls(tls::Load),
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    Itself,
    /// And over nginx's of the same round.
    OverNginx,
    /// And what it is more than without a proxy in the same round.
    Added,
}

/// A figure of a case.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub shows: Shows,
}

/// A proxy, and what stands behind it.
pub struct Stage<'a> {
    pub front: &'a Front,
    pub upstreams: &'a Upstreams,
    pub certificate: &'a Certificate,
}

const KB: usize = 1_000;

impl Scenario {
    pub const ALL: [Scenario; 6] =
        [Scenario::Requests, Scenario::BodyEnd, Scenario::Rate, Scenario::Sse, Scenario::Idle, Scenario::Tls];

    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            Scenario::Requests | Scenario::BodyEnd => requests::COLUMNS,
            Scenario::Rate => rate::COLUMNS,
            Scenario::Sse => sse::COLUMNS,
            Scenario::Idle => idle::COLUMNS,
            Scenario::Tls => tls::COLUMNS,
        }
    }

    /// Quick, the cases are few and small.
    pub fn cases(self, is_quick: bool) -> Vec<Case> {
        let case = |name: String, work| Case { scenario: self, name, work };
        match self {
            Scenario::Requests => request_cases(is_quick, SessionAt::Header)
                .map(|(name, load)| case(format!("{name}, session in a header"), Work::Requests(load)))
                .collect(),
            Scenario::BodyEnd => request_cases(is_quick, SessionAt::BodyEnd)
                .map(|(name, load)| case(format!("{name}, session at the body's end"), Work::Requests(load)))
                .collect(),
            Scenario::Rate => {
                let load = rate::Load::new(is_quick);
                vec![case(format!("1 KB, {} a second", load.per_second), Work::Rate(load))]
            }
            Scenario::Sse => {
                let load = sse::Load::new(is_quick);
                vec![case(format!("{} streams of {} events, 5 ms apart", load.streams, load.events), Work::Sse(load))]
            }
            Scenario::Idle => {
                let cases = idle::Load::all(is_quick).into_iter();
                cases.map(|load| case(load.name(), Work::Idle(load))).collect()
            }
            Scenario::Tls => {
                let load = tls::Load::new(is_quick);
                vec![case(format!("{} new connections a second", load.per_second), Work::Tls(load))]
            }
        }
    }
}

impl Case {
    pub fn has_tls(&self) -> bool {
        self.scenario == Scenario::Tls
    }

    /// Whether it says something of this proxy.
    pub fn is_for(&self, proxy: Proxy) -> bool {
        match self.scenario {
            Scenario::Requests | Scenario::BodyEnd | Scenario::Rate | Scenario::Sse => true,
            Scenario::Idle => proxy != Proxy::Direct,
            Scenario::Tls => proxy.serves_tls(),
        }
    }

    /// One figure for each column.
    pub async fn measure(&self, stage: &Stage<'_>) -> anyhow::Result<Vec<f64>> {
        match self.work {
            Work::Requests(load) => requests::measure(stage, load).await,
            Work::Rate(load) => rate::measure(stage, load).await,
            Work::Sse(load) => sse::measure(stage, load).await,
            Work::Idle(load) => idle::measure(stage, load).await,
            Work::Tls(load) => tls::measure(stage, load).await,
        }
    }
}

fn request_cases(is_quick: bool, session_at: SessionAt) -> impl Iterator<Item = (&'static str, requests::Load)> {
    let sizes: &[(&str, usize)] = if is_quick {
        &[("1 KB", KB), ("300 KB", 300 * KB)]
    } else {
        &[("1 KB", KB), ("64 KB", 64 * KB), ("300 KB", 300 * KB), ("1 MB", 1_000 * KB)]
    };
    let times = if is_quick { (20, 100) } else { (300, 2_000) };
    let (warm, measured) = (Duration::from_millis(times.0), Duration::from_millis(times.1));
    sizes
        .iter()
        .map(move |(name, body_bytes)| (*name, requests::Load { body_bytes: *body_bytes, session_at, warm, measured }))
}

/// The figure's microseconds.
fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
