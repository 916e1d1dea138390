//! `kvpin simulate` as a shell sees it.

use std::fs;

use serde_json::Value;

use crate::support::kvpin::run;

/// A minute of two small replicas.
const SMALL: &str = "
about: two small replicas
sessions: [2, 6]
arms: [vllm, affinity]
window: {warmup_s: 0, measure_s: 60}
workload:
  system_tokens: 500
  first_tokens: 2000
  turn_tokens: {0: 100, 50: 300, 100: 900}
  reply_tokens: 60
  turns: 4
  think_s: {0: 0.1, 50: 1, 99: 5, 100: 9}
fleet:
  replicas: 2
  kv_tokens: 16000
  block_size: 16
  max_model_len: 8192
  max_num_seqs: 8
  max_num_batched_tokens: 2048
  prefill_tokens_per_s: 4000
  step_ms: 20
  decode_ms: 0.1
  context_tokens_per_s: 3000000
balancer: {spill_threshold: auto}
";

fn rungs(arguments: &[&str]) -> Vec<Value> {
    let output = run(&[&["simulate", "--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    report["rungs"].as_array().expect("rungs").clone()
}

#[test]
fn a_scenario_of_ones_own_is_simulated_and_a_seed_repeats_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("small.yaml");
    fs::write(&file, SMALL).expect("written");
    let path = file.to_str().expect("a path of text");
    let report = rungs(&[path, "--seed", "7"]);
    let names: Vec<(u64, &str)> = report
        .iter()
        .map(|rung| (rung["sessions"].as_u64().expect("a count"), rung["arm"].as_str().expect("an arm")))
        .collect();
    assert_eq!(names, [(2, "vllm"), (2, "affinity"), (6, "vllm"), (6, "affinity")]);
    let hits = |index: usize| report[index]["prefix_hit_percent"].as_f64().expect("hits");
    assert!(hits(1) > hits(0) && hits(3) > hits(2), "{report:?}");
    for rung in &report {
        assert!(
            rung["output_tokens_per_min"].as_f64() > Some(0.0) && rung["ttfb_p50_s"].as_f64() > Some(0.0),
            "{rung}"
        );
        assert_eq!(rung["errors"], 0, "{rung}");
    }
    assert_eq!(rungs(&[path, "--seed", "7"]), report);
    assert_ne!(rungs(&[path, "--seed", "8"]), report);
}

#[test]
fn a_setting_replaces_what_the_scenario_says() {
    let set = ["--set", "sessions=3", "--set", "window.measure_s=20", "--set", "arms=[affinity]"];
    let report = rungs(&[&["four-a4000"], &set[..]].concat());
    assert_eq!(report.len(), 1);
    assert_eq!((report[0]["sessions"].as_u64(), report[0]["arm"].as_str()), (Some(3), Some("affinity")));
}

#[test]
fn the_table_has_a_row_for_each_rung_and_arm_and_the_detail_one_for_each_replica() {
    let output = run(&["simulate", "four-a4000", "--set", "sessions=[4]", "--set", "window.measure_s=30", "--detail"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    let rows = |with: &str| text.lines().filter(|line| line.contains(with)).count();
    assert_eq!((rows("| affinity |"), rows("|     vllm |")), (1, 1), "{text}");
    assert_eq!(rows("| replica | running | waiting |"), 2, "{text}");
    assert_eq!(
        text.lines().filter(|line| line.starts_with("| 3 |") && line.matches('|').count() == 8).count(),
        2,
        "{text}"
    );
}

#[test]
fn what_is_no_scenario_is_told_with_those_that_there_are() {
    for (arguments, parts) in [
        (&["five-cards"][..], &["five-cards", "four-a4000", "seven-5090", "trace-like", "hundred-replicas"][..]),
        (&["four-a4000", "--set", "fleet.gpus=3"], &["fleet", "unknown field", "gpus", "replicas"]),
        (&["four-a4000", "--set", "flet.replicas=3"], &["flet"]),
        (&["four-a4000", "--set", "arms=[quickest]"], &["quickest", "affinity", "vllm"]),
    ] {
        let output = run(&[&["simulate"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
    }
}
