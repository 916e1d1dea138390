//! `/metrics`: the series of vLLM that say something about load and cache, under vLLM's names.

use std::fmt::{self, Write};

use crate::sim::config::EngineConfig;
use crate::sim::stats::{Counters, Gauges, ITERATION_BOUNDS};

/// One rank's figures.
pub type RankStats = (Gauges, Counters);

/// What a page is made from.
#[derive(Debug)]
pub struct Page<'a> {
    /// The served model's name.
    pub model: &'a str,
    /// The sizes of every rank.
    pub engine: &'a EngineConfig,
    /// One entry a rank.
    pub ranks: Vec<RankStats>,
    /// Seconds since 1970 at which the server started.
    pub started: f64,
    pub is_asleep: bool,
}

/// A series with one value a rank: name, type, HELP, further labels with a blank of their own before, value.
struct Series {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    values: &'static [(&'static str, Value)],
}

type Value = fn(&RankStats) -> f64;

const NONE: Value = |_| 0.0;

const SERIES: &[Series] = &[
    Series {
        name: "num_requests_running",
        kind: "gauge",
        help: "Number of requests in model execution batches.",
        values: &[("", |(gauges, _)| gauges.running as f64)],
    },
    Series {
        name: "num_requests_waiting",
        kind: "gauge",
        help: "Number of requests waiting to be processed.",
        values: &[("", |(gauges, _)| gauges.waiting as f64)],
    },
    Series {
        name: "num_requests_waiting_by_reason",
        kind: "gauge",
        help: "Number of waiting requests by reason.",
        values: &[(r#",reason="capacity""#, |(gauges, _)| gauges.waiting as f64), (r#",reason="deferred""#, NONE)],
    },
    Series {
        name: "kv_cache_usage_perc",
        kind: "gauge",
        help: "KV-cache usage. 1 means 100 percent usage.",
        values: &[("", |(gauges, _)| gauges.kv_usage)],
    },
    Series {
        name: "prefix_cache_queries_total",
        kind: "counter",
        help: "Prefix cache queries, in terms of number of queried tokens.",
        values: &[("", |(_, counters)| counters.prefix_queries as f64)],
    },
    Series {
        name: "prefix_cache_hits_total",
        kind: "counter",
        help: "Prefix cache hits, in terms of number of cached tokens.",
        values: &[("", |(_, counters)| counters.prefix_hits as f64)],
    },
    Series {
        name: "prompt_tokens_total",
        kind: "counter",
        help: "Number of prefill tokens processed.",
        values: &[("", |(_, counters)| counters.prompt_tokens as f64)],
    },
    Series {
        name: "prompt_tokens_cached_total",
        kind: "counter",
        help: "Number of cached prompt tokens (local + external).",
        values: &[("", |(_, counters)| counters.prompt_tokens_cached as f64)],
    },
    Series {
        name: "generation_tokens_total",
        kind: "counter",
        help: "Number of generation tokens processed.",
        values: &[("", |(_, counters)| counters.generation_tokens as f64)],
    },
    Series {
        name: "num_preemptions_total",
        kind: "counter",
        help: "Cumulative number of preemption from the engine.",
        values: &[("", |(_, counters)| counters.preemptions as f64)],
    },
    Series {
        name: "request_success_total",
        kind: "counter",
        help: "Count of successfully processed requests.",
        values: &[
            (r#",finished_reason="stop""#, |(_, counters)| counters.finished_stop as f64),
            (r#",finished_reason="length""#, |(_, counters)| counters.finished_length as f64),
            // An aborted request never reaches vLLM's statistics.
            (r#",finished_reason="abort""#, NONE),
            (r#",finished_reason="error""#, NONE),
            (r#",finished_reason="repetition""#, NONE),
        ],
    },
];

/// The page as text.
pub fn render(page: &Page<'_>) -> Result<String, fmt::Error> {
    let mut out = String::new();
    for series in SERIES {
        header(&mut out, series.name, series.kind, series.help)?;
        for (labels, value) in series.values {
            for (rank, stats) in page.ranks.iter().enumerate() {
                let (name, model, value) = (series.name, page.model, value(stats));
                writeln!(out, "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\"{labels}}} {value:?}")?;
            }
        }
    }
    sleep_state(&mut out, page)?;
    iterations(&mut out, page)?;
    cache_config(&mut out, page)?;
    // A server of several ranks has several processes, whose merged registry shows none of them.
    if page.ranks.len() == 1 {
        writeln!(out, "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.")?;
        writeln!(out, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:?}", page.started)?;
    }
    Ok(out)
}

fn header(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}")
}

/// Asleep at level 1.
fn sleep_state(out: &mut String, page: &Page<'_>) -> fmt::Result {
    let (name, model) = ("engine_sleep_state", page.model);
    header(
        out,
        name,
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake.",
    )?;
    let asleep = f64::from(u8::from(page.is_asleep));
    for (state, value) in [("awake", 1.0 - asleep), ("weights_offloaded", asleep), ("discard_all", 0.0)] {
        for rank in 0..page.ranks.len() {
            writeln!(out, "vllm:{name}{{engine=\"{rank}\",model_name=\"{model}\",sleep_state=\"{state}\"}} {value:?}")?;
        }
    }
    Ok(())
}

fn iterations(out: &mut String, page: &Page<'_>) -> fmt::Result {
    let (name, model) = ("iteration_tokens_total", page.model);
    header(out, name, "histogram", "Histogram of number of tokens per engine_step.")?;
    for (rank, (_, counters)) in page.ranks.iter().enumerate() {
        let labels = format!("engine=\"{rank}\",model_name=\"{model}\"");
        writeln!(out, "vllm:{name}_sum{{{labels}}} {:?}", counters.iteration_tokens as f64)?;
        let mut steps = 0;
        for (bound, count) in ITERATION_BOUNDS.iter().zip(counters.iterations) {
            steps += count;
            let (bound, steps) = (*bound as f64, steps as f64);
            writeln!(out, "vllm:{name}_bucket{{engine=\"{rank}\",le=\"{bound:?}\",model_name=\"{model}\"}} {steps:?}")?;
        }
        let all = counters.iteration_count() as f64;
        writeln!(out, "vllm:{name}_bucket{{engine=\"{rank}\",le=\"+Inf\",model_name=\"{model}\"}} {all:?}")?;
        writeln!(out, "vllm:{name}_count{{{labels}}} {all:?}")?;
    }
    Ok(())
}

/// vLLM writes the blocks of all ranks into every rank's series, but the tokens of one.
fn cache_config(out: &mut String, page: &Page<'_>) -> fmt::Result {
    let name = "cache_config_info";
    header(out, name, "gauge", "Information of the LLMEngine CacheConfig")?;
    let (block_size, blocks) = (page.engine.block_size, page.engine.blocks());
    let (tokens, all_blocks) = (blocks * block_size, u64::from(blocks) * page.ranks.len() as u64);
    let concurrency = f64::from(tokens) / f64::from(page.engine.max_model_len);
    for rank in 0..page.ranks.len() {
        writeln!(
            out,
            "vllm:{name}{{block_size=\"{block_size}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"{rank}\",\
             gpu_memory_utilization=\"0.92\",kv_cache_max_concurrency=\"{concurrency:?}\",kv_cache_size_tokens=\"{tokens}\",\
             num_cpu_blocks=\"None\",num_gpu_blocks=\"{all_blocks}\",num_gpu_blocks_override=\"None\",\
             prefix_caching_hash_algo=\"sha256\",sliding_window=\"None\"}} 1.0"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(ranks: usize) -> String {
        let engine = EngineConfig::default();
        let mut counters = Counters::default();
        counters.count_iteration(2048);
        let stats = (Gauges { running: 3, waiting: 1, kv_usage: 0.25 }, counters);
        render(&Page { model: "m", engine: &engine, ranks: vec![stats; ranks], started: 12.5, is_asleep: false })
            .expect("renders")
    }

    #[test]
    fn series_carry_engine_and_model() {
        let page = page(2);
        assert!(page.contains("\nvllm:num_requests_running{engine=\"1\",model_name=\"m\"} 3.0\n"));
        assert!(page.contains("\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n"));
        assert!(
            page.contains("\nvllm:iteration_tokens_total_bucket{engine=\"0\",le=\"1024.0\",model_name=\"m\"} 0.0\n")
        );
        assert!(page.contains("\nvllm:iteration_tokens_total_count{engine=\"0\",model_name=\"m\"} 1.0\n"));
    }

    #[test]
    fn blocks_are_those_of_all_ranks_and_tokens_those_of_one() {
        let page = page(2);
        assert!(page.contains("kv_cache_size_tokens=\"33280\""));
        assert!(page.contains("num_gpu_blocks=\"4160\""));
    }

    #[test]
    fn the_start_time_is_shown_by_one_rank_alone() {
        assert!(page(1).contains("\nprocess_start_time_seconds 12.5\n"));
        assert!(!page(2).contains("process_start_time_seconds"));
    }
}
