//! What kvpin shows of GPUs, by a library that stands in for NVIDIA's.

use serde_json::{Value, json};

use crate::support::call::Call;
use crate::support::kvpin::{Kvpin, config, sum_of};
use crate::support::recorder::Recorder;
use crate::support::standin::StandIn;
use crate::support::until;

const SECOND: &str = "GPU-00000000-0000-4000-8000-00000000000b";
const GIB: u64 = 1 << 30;

/// A configuration of two replicas, the first on both GPUs and the second on the second one.
fn two_on_gpus(recorders: &[Recorder; 2], nvml: Value) -> Value {
    let mut config = config(json!({ "m": { "replicas": [
        { "url": recorders[0].url(), "name": "both", "gpus": [0, 1] },
        { "url": recorders[1].url(), "name": "second", "gpus": [SECOND] },
    ]}}));
    config["nvml"] = nvml;
    config
}

fn recorders() -> [Recorder; 2] {
    [Recorder::start(), Recorder::start()]
}

async fn launch(standin: &StandIn, recorders: &[Recorder; 2]) -> Kvpin {
    let config = two_on_gpus(recorders, json!(standin.library()));
    Kvpin::launch_in(&config, &[], &environment(&standin.script_file().to_string_lossy())).await
}

fn environment(script: &str) -> [(&'static str, &str); 1] {
    [("NVML_STANDIN", script)]
}

/// Waits until the status satisfies `is_so`.
async fn until_status(kvpin: &Kvpin, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    until(what, async || Some(kvpin.status().await).filter(|status| is_so(status))).await
}

async fn until_state(kvpin: &Kvpin, state: &str) -> Value {
    until_status(kvpin, &format!("NVML is {state}"), |status| status["nvml"]["state"] == state).await
}

fn times_logged(kvpin: &Kvpin, part: &str) -> usize {
    kvpin.log().lines().filter(|line| line.contains(part)).count()
}

#[tokio::test]
async fn every_figure_of_two_gpus_stands_in_the_status_and_the_metrics_with_the_replicas_that_run_there() {
    let (standin, recorders) = (StandIn::build(&[], "busy=93"), recorders());
    let kvpin = launch(&standin, &recorders).await;
    let status = until_state(&kvpin, "reading").await;
    let first = json!({
        "index": 0, "uuid": "GPU-00000000-0000-4000-8000-00000000000a", "name": "Stand-in 0", "lost": false,
        "utilization_percent": 93, "memory_used_bytes": 60 * GIB, "memory_total_bytes": 80 * GIB,
        "power_watts": 412.5, "power_limit_watts": 700.0, "temperature_celsius": 61,
        "sm_clock_mhz": 1980, "memory_clock_mhz": 2619,
    });
    assert_eq!(status["gpus"][0], first);
    assert_eq!((&status["gpus"][1]["uuid"], &status["gpus"][1]["utilization_percent"]), (&json!(SECOND), &json!(94)));
    assert_eq!(status["gpus"].as_array().map(Vec::len), Some(2));
    assert!(status["nvml"]["age_s"].as_f64().is_some_and(|age| age < 10.0), "{}", status["nvml"]);
    let of = |at: usize| status["models"][0]["replicas"][at]["gpus"].clone();
    assert_eq!((of(0), of(1)), (json!([0, 1]), json!([1])));

    let page = kvpin.metrics().await;
    for (series, value) in [
        ("kvpin_gpu_info{gpu=\"0\",name=\"Stand-in 0\",uuid=\"GPU-00000000-0000-4000-8000-00000000000a\"}", 1.0),
        ("kvpin_gpu_lost{gpu=\"0\"}", 0.0),
        ("kvpin_gpu_utilization_ratio{gpu=\"0\"}", 0.93),
        ("kvpin_gpu_memory_used_bytes{gpu=\"1\"}", (61 * GIB) as f64),
        ("kvpin_gpu_memory_size_bytes{gpu=\"1\"}", (80 * GIB) as f64),
        ("kvpin_gpu_power_watts{gpu=\"0\"}", 412.5),
        ("kvpin_gpu_power_limit_watts{gpu=\"0\"}", 700.0),
        ("kvpin_gpu_temperature_celsius{gpu=\"1\"}", 62.0),
        ("kvpin_gpu_sm_clock_hertz{gpu=\"0\"}", 1.98e9),
        ("kvpin_gpu_memory_clock_hertz{gpu=\"0\"}", 2.619e9),
        ("kvpin_replica_gpu{gpu=\"0\",model=\"m\",replica=\"both\"}", 1.0),
        ("kvpin_replica_gpu{gpu=\"1\",model=\"m\",replica=\"both\"}", 1.0),
        ("kvpin_replica_gpu{gpu=\"1\",model=\"m\",replica=\"second\"}", 1.0),
    ] {
        assert!(page.lines().any(|line| line.starts_with(&format!("{series} "))), "{series} in\n{page}");
        assert_eq!(sum_of(&page, series), value, "{series}");
    }
    assert_eq!(sum_of(&page, "kvpin_replica_gpu{"), 3.0);

    standin.play("busy=7");
    until_status(&kvpin, "the figures move", |status| status["gpus"][0]["utilization_percent"] == 7).await;
    assert_eq!(times_logged(&kvpin, "NVML tells of 2 GPUs"), 1);
}

#[tokio::test]
async fn a_figure_that_a_gpu_does_not_have_or_the_library_does_not_know_is_left_out_and_the_others_stay() {
    let (standin, recorders) = (StandIn::build(&["-DWITHOUT_CLOCKS"], "nopower=1"), recorders());
    let kvpin = launch(&standin, &recorders).await;
    let status = until_state(&kvpin, "reading").await;
    let [first, second] = [&status["gpus"][0], &status["gpus"][1]];
    assert_eq!((&first["power_watts"], &second["power_watts"]), (&json!(412.5), &Value::Null));
    assert_eq!((&first["sm_clock_mhz"], &first["memory_clock_mhz"]), (&Value::Null, &Value::Null));
    assert_eq!((&second["temperature_celsius"], &second["lost"]), (&json!(62), &json!(false)));
    let page = kvpin.metrics().await;
    let has = |series: &str| page.lines().any(|line| line.starts_with(series));
    assert!(has("kvpin_gpu_power_watts{gpu=\"0\"}") && !has("kvpin_gpu_power_watts{gpu=\"1\"}"), "{page}");
    assert!(!has("kvpin_gpu_sm_clock_hertz"), "{page}");
}

#[tokio::test]
async fn a_gpu_that_is_lost_keeps_its_name_and_its_replica_and_has_no_figures_until_it_is_back() {
    let (standin, recorders) = (StandIn::build(&[], ""), recorders());
    let kvpin = launch(&standin, &recorders).await;
    until_state(&kvpin, "reading").await;
    standin.play("lost=1");
    let status = until_status(&kvpin, "it is lost", |status| status["gpus"][1]["lost"] == true).await;
    let gpu = &status["gpus"][1];
    assert_eq!((&gpu["uuid"], &gpu["name"]), (&json!(SECOND), &json!("Stand-in 1")));
    assert_eq!((&gpu["utilization_percent"], &gpu["memory_used_bytes"]), (&Value::Null, &Value::Null));
    assert_eq!(status["gpus"][0]["lost"], false);
    assert_eq!(status["models"][0]["replicas"][1]["gpus"], json!([1]));
    let page = kvpin.metrics().await;
    assert_eq!(sum_of(&page, "kvpin_gpu_lost{gpu=\"1\"}"), 1.0);
    standin.play("");
    until_status(&kvpin, "it is back", |status| status["gpus"][1]["utilization_percent"] == 41).await;
    kvpin.until_logged("GPU 1 is back").await;
    assert_eq!(times_logged(&kvpin, "GPU 1 is lost"), 1, "{}", kvpin.log());
}

#[tokio::test]
async fn without_nvml_kvpin_serves_and_says_so_once_and_warns_only_where_gpus_are_configured() {
    let recorders = recorders();
    let mut config = two_on_gpus(&recorders, json!("/nonexistent/libnvidia-ml.so.1"));
    let claimed = Kvpin::start(&config).await;
    let status = until_state(&claimed, "missing").await;
    assert!(status["nvml"]["reason"].as_str().is_some_and(|reason| reason.contains("/nonexistent/")), "{status}");
    assert_eq!((&status["gpus"], &status["models"][0]["replicas"][0]["gpus"]), (&json!([]), &json!([])));
    let line = claimed.until_logged("no NVML").await;
    assert!(line.contains("WARN"), "{line}");
    assert!(!claimed.metrics().await.contains("kvpin_gpu"), "no series of GPUs");
    assert_eq!(claimed.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await.status(), 200);

    config["models"]["m"]["replicas"] = json!([recorders[0].url()]);
    let unclaimed = Kvpin::start(&config).await;
    until_state(&unclaimed, "missing").await;
    let line = unclaimed.until_logged("no NVML").await;
    assert!(line.contains("INFO"), "{line}");
    assert_eq!((times_logged(&claimed, "no NVML"), times_logged(&unclaimed, "no NVML")), (1, 1));
}

#[tokio::test]
async fn a_library_that_can_not_be_begun_with_is_missing_with_its_reason_and_tried_again() {
    let (standin, recorders) = (StandIn::build(&[], "init=9"), recorders());
    let kvpin = launch(&standin, &recorders).await;
    let status = until_state(&kvpin, "missing").await;
    assert_eq!(status["nvml"]["reason"], "NVIDIA driver is not loaded");
    // A driver may be loaded after kvpin.
    standin.play("");
    let status = until_state(&kvpin, "reading").await;
    assert_eq!(status["gpus"].as_array().map(Vec::len), Some(2));
    standin.play("count=999");
    let status = until_state(&kvpin, "missing").await;
    assert_eq!((&status["nvml"]["age_s"], &status["gpus"]), (&Value::Null, &json!([])));
    assert_eq!(times_logged(&kvpin, "no NVML"), 2, "{}", kvpin.log());
}

#[tokio::test]
async fn a_reload_changes_which_gpus_a_replica_has_and_turns_their_figures_off() {
    let (standin, recorders) = (StandIn::build(&[], ""), recorders());
    let kvpin = launch(&standin, &recorders).await;
    until_state(&kvpin, "reading").await;
    let mut config = two_on_gpus(&recorders, json!(standin.library()));
    config["models"]["m"]["replicas"][0]["gpus"] = json!([0, 7]);
    assert!(kvpin.reload(&config).await);
    let status = kvpin.status().await;
    assert_eq!(status["models"][0]["replicas"][0]["gpus"], json!([0]));
    let notes = status["models"][0]["notes"].to_string();
    assert!(notes.contains("replica both: there is no GPU 7"), "{notes}");
    config["nvml"] = json!("off");
    assert!(kvpin.reload(&config).await);
    let status = until_state(&kvpin, "off").await;
    assert_eq!(status["gpus"], json!([]));
    assert!(!kvpin.metrics().await.contains("kvpin_gpu"), "no series of GPUs");
}

#[tokio::test]
async fn a_driver_that_never_answers_stops_neither_turns_nor_the_status_nor_the_end() {
    let (standin, recorders) = (StandIn::build(&[], ""), recorders());
    let mut kvpin = launch(&standin, &recorders).await;
    kvpin.until_health("up", |_| true).await;
    until_state(&kvpin, "reading").await;
    standin.play("hang");
    let status = until_state(&kvpin, "silent").await;
    assert_eq!((&status["gpus"][1]["name"], &status["gpus"][1]["power_watts"]), (&json!("Stand-in 1"), &Value::Null));
    assert!(!kvpin.metrics().await.contains("kvpin_gpu_power_watts{"), "old figures are none");
    assert_eq!(kvpin.call(&Call::post("/v1/messages", r#"{"model":"m"}"#)).await.status(), 200);
    kvpin.signal("TERM");
    assert!(kvpin.exit().await.success());
}
