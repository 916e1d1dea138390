//! What it costs that somebody looks: a scrape of `/metrics`, and the status as JSON, both from the balancers' snapshots on.
//!
//! Prometheus scrapes every 15 s or less often, a page asks once a second. Without the way over the socket.

mod farm;
mod filled;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

use farm::Farm;
use filled::is_measuring;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Models, and the replicas of each.
const FARMS: [(u16, u16); 4] = [(1, 4), (1, 64), (20, 4), (20, 64)];

fn looks(criterion: &mut Criterion) {
    let farms = if is_measuring() { &FARMS[..] } else { &FARMS[..1] };
    for (what, look) in [("metrics", Farm::metrics as fn(&Farm) -> _), ("status", Farm::status)] {
        let mut group = criterion.benchmark_group(what);
        group.sample_size(20);
        for (models, replicas) in farms {
            let farm = Farm::new(*models, *replicas).expect("the configuration is valid");
            let page = look(&farm).expect("it can be rendered");
            group.throughput(Throughput::Bytes(page.len() as u64));
            group.bench_function(
                BenchmarkId::new(format!("{models}_models"), format!("{replicas}_replicas")),
                |bencher| {
                    bencher.iter(|| look(&farm));
                },
            );
        }
        group.finish();
    }
}

criterion_group!(scrape, looks);
criterion_main!(scrape);
