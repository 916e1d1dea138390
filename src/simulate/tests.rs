//! Facts about whole runs, and about scenarios as they are written.

use std::time::Duration;

use super::scenario::{ArmName, Scenario};
use super::{Cell, cells, run};
use crate::report::{Figures, Report, Rung};

fn scenario(name: &str, settings: &[&str]) -> anyhow::Result<Scenario> {
    let settings: Vec<_> = settings.iter().map(|setting| setting.parse().expect("a setting")).collect();
    Scenario::parse(Scenario::built_in(name).expect("built in"), &settings)
}

fn silent(_: Duration) {}

fn figures(scenario: &Scenario, sessions: u32, arm: ArmName) -> Figures {
    run(scenario, Cell { sessions, arm }, 1, &silent).expect("runs").0.figures
}

fn refusal(settings: &[&str]) -> String {
    format!("{:#}", scenario("four-a4000", settings).expect_err("refused"))
}

/// A minute of the four cards, as text.
fn report(seed: u64) -> String {
    let scenario = scenario("four-a4000", &["sessions=[4,12]", "window.measure_s=60"]).expect("a scenario");
    let rungs: Vec<Rung> =
        cells(&scenario).into_iter().map(|cell| run(&scenario, cell, seed, &silent).expect("runs").0).collect();
    serde_json::to_string(&Report::of(rungs)).expect("JSON")
}

/// FNV-1a, which any other program can be checked with.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[test]
fn every_scenario_that_comes_with_the_program_can_be_used() {
    for name in Scenario::names() {
        scenario(name, &[]).expect(name);
    }
}

#[test]
fn one_seed_gives_one_report_on_any_machine() {
    let text = report(1);
    assert_eq!(text, report(1));
    assert_ne!(text, report(2));
    // A change of the model, of the scenario or of a decision moves it: then it is for the page of calibration to say how.
    assert_eq!(format!("{:016x}", digest(&text)), "f299cdbba5aff607", "{text}");
}

#[test]
fn a_mistake_in_a_scenario_is_told_by_its_name() {
    for (setting, parts) in [
        ("fleet.replica=4", &["fleet", "unknown field `replica`", "replicas"][..]),
        ("fleet.replicas=0", &["fleet.replicas"]),
        ("fleet.replicas=many", &["fleet.replicas", "many"]),
        ("fleet.kv_tokens=100", &["fleet", "max_model_len"]),
        ("fleet.max_model_len=4000", &["fleet.max_model_len", "first turn"]),
        ("sessions=[]", &["sessions"]),
        ("sessions=none", &["sessions", "a number of sessions"]),
        ("arms=[fastest]", &["arms", "fastest", "affinity"]),
        ("workload.think_s={0: 1}", &["workload", "quantiles must begin with 0"]),
        ("window.measure_s=0", &["window.measure_s"]),
        ("balancer.spill_threshold=often", &["balancer"]),
    ] {
        let said = refusal(&[setting]);
        assert!(parts.iter().all(|part| said.contains(part)), "{setting}: {said}");
    }
    assert_eq!(Scenario::built_in("five-cards"), None);
}

#[test]
fn affinity_finds_histories_that_other_balancers_recompute() {
    let scenario = scenario("four-a4000", &[]).expect("a scenario");
    let [affinity, vllm] = [ArmName::Affinity, ArmName::Vllm].map(|arm| figures(&scenario, 8, arm));
    assert!(affinity.prefix_hit_percent > Some(80.0), "{affinity:?}");
    assert!(vllm.prefix_hit_percent < Some(60.0), "{vllm:?}");
    assert_eq!(affinity.stayed_percent, Some(100.0));
    assert!(affinity.output_tokens_per_min > vllm.output_tokens_per_min);
    assert_eq!((affinity.errors, vllm.errors), (Some(0.0), Some(0.0)));
}

/// Published figures, and the hits of the model at the scenario's own seed: the page of calibration has the rest.
#[test]
fn the_model_of_four_cards_finds_what_the_published_run_has_found() {
    let scenario = scenario("four-a4000", &[]).expect("a scenario");
    for (sessions, vllm, affinity) in
        [(4, 56.2, 86.4), (8, 44.3, 86.1), (16, 33.2, 48.6), (24, 32.8, 37.9), (32, 31.6, 31.6)]
    {
        for (arm, published) in [(ArmName::Vllm, vllm), (ArmName::Affinity, affinity)] {
            let hits = figures(&scenario, sessions, arm).prefix_hit_percent.expect("turns");
            assert!((hits - published).abs() < 8.0, "{sessions} sessions, {arm:?}: {hits}, published {published}");
        }
    }
}

#[test]
fn a_farm_holds_where_sessions_fit_and_collapses_where_a_hash_crowds_them() {
    let scenario = scenario("seven-5090", &[]).expect("a scenario");
    let placed = figures(&scenario, 16, ArmName::Affinity);
    let hashed = figures(&scenario, 26, ArmName::Hashed);
    assert!(placed.prefix_hit_percent > Some(75.0), "{placed:?}");
    assert!(hashed.prefix_hit_percent < Some(60.0), "{hashed:?}");
    assert!(hashed.replicas_busy < Some(5.0), "{hashed:?}");
}

#[test]
fn an_agent_waits_for_the_subagents_that_it_has_started() {
    let settings = [
        "sessions=2",
        "workload.turns=2",
        "workload.first_tokens=1000",
        "workload.subagents={bursts_percent: 100, count: 3, system_tokens: 500, first_tokens: 500, turns: 2}",
        "window.measure_s=600",
    ];
    let with = scenario("four-a4000", &settings).expect("a scenario");
    let without = scenario("four-a4000", &[&settings[..3], &settings[4..]].concat()).expect("a scenario");
    let [with, without] = [&with, &without].map(|scenario| figures(scenario, 2, ArmName::Affinity));
    // Two turns of its own, and the two of a subagent between them.
    let (longer, shorter) = (with.session_p50_s.expect("sessions"), without.session_p50_s.expect("sessions"));
    assert!(longer > shorter * 1.7 && longer < shorter * 2.6, "{longer} {shorter}");
    assert_eq!(with.errors, Some(0.0));
}
