//! A parser of vLLM's metrics: picks the series that kvpin uses out of the Prometheus text exposition.
//!
//! vLLM labels a series with its engine's index, which is the data-parallel rank. What is not wanted, not understood or
//! out of bounds is passed over: a scrape is advice, and half of one is better than none.

use std::collections::BTreeMap;

/// The most engines of one server that are kept, so that a server can't make kvpin hold what it likes. vLLM's largest
/// documented deployments have 32 ranks behind one server.
pub const ENGINES_MAX: usize = 1_024;

/// The count of vLLM's histogram of tokens a step (`v1/metrics/loggers.py`).
const STEPS: &str = "iteration_tokens_total_count";

/// What one engine says of itself. Counters count since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineSeries {
    /// Requests in the batch, and requests that wait for a place in it.
    pub running: u64,
    pub waiting: u64,
    /// Share of the KV blocks that live requests hold, 0 to 1.
    pub kv_use: f64,
    /// Tokens looked up in the prefix cache, and found there.
    pub prefix_queries_tokens: u64,
    pub prefix_hits_tokens: u64,
    pub prompt_tokens: u64,
    pub prompt_cached_tokens: u64,
    /// `None` where the engine doesn't say.
    pub generation_tokens: Option<u64>,
    /// Steps that brought forth a token; `None` where the engine doesn't say.
    pub steps: Option<u64>,
    /// `None` where the engine doesn't say.
    pub is_asleep: Option<bool>,
    pub preemptions: u64,
    /// Tokens of a KV block; `None` where the engine doesn't say.
    pub block_tokens: Option<u64>,
    /// KV blocks of *all* engines of the server: vLLM 0.32 prints the sum on each engine's series
    /// (`v1/engine/core_client.py`).
    pub server_blocks: Option<u64>,
    /// Tokens of KV cache of this engine.
    pub kv_tokens: Option<u64>,
    /// Seconds since the Unix epoch. Absent where several API servers share the metrics.
    pub process_start_s: Option<f64>,
}

/// A line of the exposition: `name{labels} value`.
struct Sample<'a> {
    name: &'a str,
    /// What stands between the braces.
    labels: &'a str,
    value: f64,
}

/// The pairs of a label set, in the order in which they stand. Values are raw: an escape in them stays escaped, which is
/// of no consequence for the numbers that are wanted. Ends at the first thing that is not a pair.
struct Labels<'a>(&'a str);

/// The series of each engine that `text` speaks of, by the engine's index. A series without an engine is engine 0's, as
/// in versions that knew only one.
pub fn parse(text: &str) -> BTreeMap<u16, EngineSeries> {
    let mut engines = BTreeMap::new();
    let mut process_start_s = None;
    for sample in text.lines().filter_map(Sample::parse) {
        if sample.name == "process_start_time_seconds" {
            process_start_s = Some(sample.value);
        } else if let Some(name) = sample.name.strip_prefix("vllm:") {
            take(&mut engines, name, &sample);
        }
    }
    for engine in engines.values_mut() {
        engine.process_start_s = process_start_s;
    }
    engines
}

/// Puts a sample where it belongs, if it is wanted.
fn take(engines: &mut BTreeMap<u16, EngineSeries>, name: &str, sample: &Sample<'_>) {
    // Older versions print their counters without the suffix.
    let name = name.strip_suffix("_total").unwrap_or(name);
    if !is_wanted(name) {
        return;
    }
    let Some(index) = sample.engine() else { return };
    if engines.len() >= ENGINES_MAX && !engines.contains_key(&index) {
        return;
    }
    engines.entry(index).or_default().set(name, sample);
}

fn is_wanted(name: &str) -> bool {
    let is_of_a_kind = matches!(
        name,
        "cache_config_info" | "kv_cache_usage_perc" | "engine_sleep_state" | "generation_tokens" | STEPS
    );
    is_of_a_kind || EngineSeries::default().count_named(name).is_some()
}

impl EngineSeries {
    /// Tokens of KV cache of this engine, which shares its server with `engines` in all.
    pub fn kv_capacity_tokens(&self, engines: usize) -> Option<u64> {
        self.kv_tokens.or_else(|| {
            let blocks = self.server_blocks?.checked_div(u64::try_from(engines).ok()?)?;
            blocks.checked_mul(self.block_tokens?)
        })
    }

    fn set(&mut self, name: &str, sample: &Sample<'_>) {
        match name {
            "cache_config_info" => self.set_cache_config(sample.labels),
            "kv_cache_usage_perc" => self.kv_use = sample.value.clamp(0.0, 1.0),
            "engine_sleep_state" => self.set_sleep_state(sample),
            "generation_tokens" => self.generation_tokens = Some(whole(sample.value)),
            STEPS => self.steps = Some(whole(sample.value)),
            _ => {
                if let Some(count) = self.count_named(name) {
                    *count = whole(sample.value);
                }
            }
        }
    }

    /// One series says whether it is awake; the others say how it sleeps.
    fn set_sleep_state(&mut self, sample: &Sample<'_>) {
        if Labels(sample.labels).any(|pair| pair == ("sleep_state", "awake")) {
            self.is_asleep = Some(sample.value == 0.0);
        }
    }

    fn set_cache_config(&mut self, labels: &str) {
        for (name, value) in Labels(labels) {
            match name {
                "block_size" => self.block_tokens = value.parse().ok(),
                "num_gpu_blocks" => self.server_blocks = value.parse().ok(),
                "kv_cache_size_tokens" => self.kv_tokens = value.parse().ok(),
                _ => {}
            }
        }
    }

    fn count_named(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "num_requests_running" => &mut self.running,
            "num_requests_waiting" => &mut self.waiting,
            "prefix_cache_queries" => &mut self.prefix_queries_tokens,
            "prefix_cache_hits" => &mut self.prefix_hits_tokens,
            "prompt_tokens" => &mut self.prompt_tokens,
            "prompt_tokens_cached" => &mut self.prompt_cached_tokens,
            "num_preemptions" => &mut self.preemptions,
            _ => return None,
        })
    }
}

impl<'a> Sample<'a> {
    /// `None` for a comment, a blank line, what is no sample, and a value that is no finite number.
    fn parse(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let (name, rest) = line.split_at(name_end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => {
                let end = labels_end(inside)?;
                (&inside[..end], &inside[end + 1..])
            }
            None => ("", rest),
        };
        // A timestamp may follow the value.
        let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some(Sample { name, labels, value })
    }

    /// The index of the engine; `None` where the label is no such number.
    fn engine(&self) -> Option<u16> {
        match Labels(self.labels).find(|(name, _)| *name == "engine") {
            Some((_, index)) => index.parse().ok(),
            None => Some(0),
        }
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = self.0.trim_start_matches([',', ' ']).split_once("=\"")?;
        let end = quote_end(rest)?;
        self.0 = &rest[end + 1..];
        Some((name, &rest[..end]))
    }
}

/// Where the label set that `text` begins with is closed: at the first brace outside of quotes.
fn labels_end(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        match text[at..].find(['"', '}'])? + at {
            end if text[end..].starts_with('}') => return Some(end),
            quote => at = quote + 1 + quote_end(&text[quote + 1..])? + 1,
        }
    }
}

/// Where the quoted value that `text` begins with is closed: at the first quote that no backslash escapes.
fn quote_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// The whole number that a float stands for, nothing below 0. Exact up to 2⁵³.
fn whole(value: f64) -> u64 {
    value.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two ranks as vLLM 0.32 prints them, with neighbours whose names begin alike.
    const TWO_RANKS: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny-agent"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny-agent"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny-agent"} 1.0
vllm:num_requests_waiting{engine="1",model_name="tiny-agent"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny-agent",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny-agent"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny-agent"} 13053.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny-agent"} 1.7959674159562247e+09
vllm:prefix_cache_queries_total{engine="1",model_name="tiny-agent"} 17070.0
vllm:external_prefix_cache_queries_total{engine="0",model_name="tiny-agent"} 5.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny-agent"} 4960.0
vllm:prefix_cache_hits_total{engine="1",model_name="tiny-agent"} 7936.0
vllm:num_preemptions_total{engine="1",model_name="tiny-agent"} 8.0
vllm:prompt_tokens_total{engine="0",model_name="tiny-agent"} 13053.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny-agent",source="local_compute"} 8093.0
vllm:prompt_tokens_cached_total{engine="0",model_name="tiny-agent"} 4960.0
vllm:generation_tokens_total{engine="0",model_name="tiny-agent"} 2.6e+01
vllm:iteration_tokens_total_sum{engine="0",model_name="tiny-agent"} 13079.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="tiny-agent"} 30.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny-agent"} 30.0
vllm:engine_sleep_state{engine="0",model_name="tiny-agent",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="tiny-agent",sleep_state="discard_all"} 0.0
vllm:engine_sleep_state{engine="1",model_name="tiny-agent",sleep_state="awake"} 0.0
vllm:cache_config_info{block_size="32",engine="0",kv_cache_dtype_skip_layers="[]",kv_cache_size_tokens="35200",num_gpu_blocks="2200",num_gpu_blocks_override="1100"} 1.0
vllm:cache_config_info{block_size="32",engine="1",kv_cache_size_tokens="None",num_gpu_blocks="2200",num_gpu_blocks_override="1100"} 1.0
"#;

    #[test]
    fn each_rank_has_its_own_figures() {
        let engines = parse(TWO_RANKS);
        assert_eq!(engines.keys().copied().collect::<Vec<_>>(), [0, 1]);
        let expected = EngineSeries {
            running: 3,
            waiting: 1,
            kv_use: 0.25,
            prefix_queries_tokens: 13_053,
            prefix_hits_tokens: 4_960,
            prompt_tokens: 13_053,
            prompt_cached_tokens: 4_960,
            generation_tokens: Some(26),
            steps: Some(30),
            is_asleep: Some(false),
            preemptions: 0,
            block_tokens: Some(32),
            server_blocks: Some(2_200),
            kv_tokens: Some(35_200),
            process_start_s: None,
        };
        assert_eq!(engines[&0], expected);
        assert_eq!((engines[&1].prefix_hits_tokens, engines[&1].preemptions), (7_936, 8));
        assert_eq!((engines[&1].steps, engines[&1].is_asleep), (None, Some(true)));
    }

    #[test]
    fn a_rank_that_tells_only_blocks_has_its_share_of_the_servers() {
        let engines = parse(TWO_RANKS);
        assert_eq!(engines[&1].kv_tokens, None);
        assert_eq!(engines[&1].kv_capacity_tokens(engines.len()), Some(35_200));
        assert_eq!(engines[&1].kv_capacity_tokens(0), None);
    }

    #[test]
    fn older_names_and_a_missing_engine_label_are_understood() {
        let engines = parse(
            "process_start_time_seconds 1.79596737823e+09\n\
             vllm:prompt_tokens{model_name=\"m\"} 12\n\
             vllm:num_requests_running 2 1700000000000\n",
        );
        let engine = engines[&0];
        assert_eq!((engine.prompt_tokens, engine.running), (12, 2));
        assert_eq!(engine.process_start_s, Some(1_795_967_378.23));
    }

    #[test]
    fn label_values_may_hold_anything_that_ends_a_label_elsewhere() {
        let engines = parse(r#"vllm:num_requests_running{model_name="a\"},engine=\"9\" ü\\",engine="4"} 5"#);
        assert_eq!(engines.iter().map(|(index, engine)| (*index, engine.running)).collect::<Vec<_>>(), [(4, 5)]);
    }

    #[test]
    fn what_is_broken_is_passed_over() {
        let engines = parse(
            "vllm:num_requests_running{engine=\"0\"\nvllm:num_requests_running{engine=\"0} 1\n\
             vllm:num_requests_running{engine=\"-1\"} 1\nvllm:num_requests_running{engine=\"70000\"} 1\n\
             vllm:num_requests_running{engine=\"0\"} NaN\nvllm:num_requests_running{engine=\"0\"}\n\
             vllm:num_requests_running\n{} 1\n\n#\nvllm:num_requests_waiting{engine=\"0\"} -3\n",
        );
        assert_eq!(engines.into_iter().collect::<Vec<_>>(), [(0, EngineSeries::default())]);
    }

    #[test]
    fn a_server_cannot_make_kvpin_hold_engines_without_bound() {
        let text: String =
            (0..2_000).map(|index| format!("vllm:num_requests_running{{engine=\"{index}\"}} 1\n")).collect();
        assert_eq!(parse(&text).len(), ENGINES_MAX);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            parse(&text);
        }

        #[test]
        fn nothing_that_looks_like_a_sample_makes_it_panic(
            inside in r#"[a-z="\\{},é ]{0,40}"#,
            value in r#"[-+0-9.eE "}na∞]{0,20}"#,
        ) {
            parse(&format!("vllm:num_requests_running{{{inside}}} {value}"));
            parse(&format!("vllm:cache_config_info{{engine=\"0\",{inside}}} {value}"));
        }

        #[test]
        fn every_count_is_read_back(running in 0u64..1 << 53, hits in 0u64..1 << 53, index in 0u16..) {
            let engines = parse(&format!(
                "vllm:num_requests_running{{engine=\"{index}\"}} {running}\n\
                 vllm:prefix_cache_hits_total{{engine=\"{index}\"}} {hits}.0\n",
            ));
            prop_assert_eq!((engines[&index].running, engines[&index].prefix_hits_tokens), (running, hits));
        }
    }
}
