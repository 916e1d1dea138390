//! The rounds: in each of them, every case with every proxy in turn.

use anyhow::{Context as _, ensure};

use crate::certificate::Certificate;
use crate::cores::Cores;
use crate::front::Front;
use crate::machine::{Machine, load};
use crate::options::Options;
use crate::proxies::{Installed, Proxy};
use crate::report::Report;
use crate::table;
use crate::upstreams::Upstreams;
use crate::work::{Case, Stage};

/// What all measurements share.
struct Bench<'a> {
    cores: &'a Cores,
    upstreams: Upstreams,
    certificate: Certificate,
}

pub async fn run(options: &Options, cores: &Cores) -> anyhow::Result<()> {
    let bench = Bench { cores, upstreams: Upstreams::start()?, certificate: Certificate::make()? };
    let proxies = installed(&options.proxies);
    let cases: Vec<Case> = options.scenarios.iter().flat_map(|scenario| scenario.cases(options.is_quick())).collect();
    let mut report = Report::new(Machine::describe(), &proxies, &cases);
    for round in 0..options.rounds() {
        for (at, case) in cases.iter().enumerate() {
            for place in 0..proxies.len() {
                let which = (place + round as usize) % proxies.len();
                if !case.is_for(proxies[which].proxy) {
                    continue;
                }
                let place = format!("{}/{} {}: {}", round + 1, options.rounds(), case.scenario.name(), case.name);
                let measured = bench.measure(case, &proxies[which]).await;
                progress(&place, case, &proxies[which], &measured);
                report.add(at, which, round, measured);
            }
        }
        report.machine.load_after = load();
        if let Some(file) = &options.json {
            std::fs::write(file, serde_json::to_vec(&report)?)
                .with_context(|| format!("can't write {}", file.display()))?;
        }
    }
    print!("{}", table::render(&report));
    ensure!(report.failures.is_empty(), "{} measurements failed", report.failures.len());
    Ok(())
}

impl Bench<'_> {
    async fn measure(&self, case: &Case, installed: &Installed) -> anyhow::Result<Vec<f64>> {
        let certificate = case.has_tls().then_some(&self.certificate);
        self.upstreams.answer_with(crate::rig::stub::Answer::Json);
        let front = Front::start(installed, &self.upstreams, certificate, self.cores).await?;
        let stage = Stage { front: &front, upstreams: &self.upstreams, certificate: &self.certificate };
        case.measure(&stage).await.with_context(|| front.last_words())
    }
}

/// Those that can be started, after no proxy at all.
fn installed(wanted: &[Proxy]) -> Vec<Installed> {
    let mut found = vec![Installed { proxy: Proxy::Direct, program: None }];
    for proxy in wanted.iter().filter(|proxy| **proxy != Proxy::Direct) {
        match proxy.find() {
            Some(installed) => found.push(installed),
            None => eprintln!("{} is left out: it is not installed", proxy.name()),
        }
    }
    found
}

fn progress(place: &str, case: &Case, installed: &Installed, measured: &anyhow::Result<Vec<f64>>) {
    let name = installed.proxy.name();
    match measured {
        Ok(figures) => {
            let figures: Vec<String> = case
                .scenario
                .columns()
                .iter()
                .zip(figures)
                .map(|(column, figure)| format!("{} {}", table::number(*figure), column.name))
                .collect();
            eprintln!("{place}: {name}: {}", figures.join(", "));
        }
        Err(error) => eprintln!("{place}: {name}: FAILED: {error:#}"),
    }
}
