//! Answers that need no engine step: what the server is, and what its tokenizer says.

use std::fmt;
use std::hash::Hasher;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use siphasher::sip::SipHasher13;

use super::Site;
use super::call::check_model;
use super::metrics::{self, Page};
use super::refusal::Refusal;
use crate::sim::{prompt, tokens};

/// Numbers in an embedding: enough to be recognised as one.
const DIMENSIONS: u8 = 8;

/// Seconds since 1970, with fractions; 0 if the clock stands before that.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// `/v1/messages/count_tokens`
pub fn count_tokens(site: &Site, body: &Map<String, Value>) -> Result<String, Refusal> {
    check_model(body, &site.options.model)?;
    let count = prompt::of_messages(body)?.len();
    Ok(json!({"input_tokens": count, "context_management": {"original_input_tokens": count}}).to_string())
}

/// `/tokenize`, of a prompt or of messages.
pub fn tokenize(site: &Site, body: &Map<String, Value>) -> Result<String, Refusal> {
    check_model(body, &site.options.model)?;
    let tokens = match body.get("prompt") {
        Some(text) => prompt::of_text(text)?,
        None => prompt::of_chat(body)?,
    };
    let max_model_len = site.options.engine.max_model_len;
    let answer = json!({"count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens, "token_strs": null});
    Ok(answer.to_string())
}

/// `/detokenize`
pub fn detokenize(site: &Site, body: &Map<String, Value>) -> Result<String, Refusal> {
    check_model(body, &site.options.model)?;
    let tokens = prompt::of_text(body.get("tokens").ok_or_else(|| Refusal::missing("tokens"))?)?;
    Ok(json!({"prompt": tokens::decode(&tokens)}).to_string())
}

/// `/v1/embeddings`: one vector for the whole input, equal for equal inputs.
pub fn embeddings(site: &Site, body: &Map<String, Value>) -> Result<String, Refusal> {
    check_model(body, &site.options.model)?;
    let tokens = prompt::of_text(body.get("input").ok_or_else(|| Refusal::missing("input"))?)?;
    let vector: Vec<f64> = (0..DIMENSIONS).map(|dimension| coordinate(&tokens, dimension)).collect();
    let usage = json!({
        "prompt_tokens": tokens.len(), "total_tokens": tokens.len(), "completion_tokens": 0, "prompt_tokens_details": null,
    });
    let answer = json!({
        "id": "embd-0",
        "object": "list",
        "created": unix_seconds() as u64,
        "model": site.options.model,
        "data": [{"index": 0, "object": "embedding", "embedding": vector}],
        "usage": usage,
    });
    Ok(answer.to_string())
}

fn coordinate(tokens: &[u32], dimension: u8) -> f64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u8(dimension);
    tokens.iter().for_each(|token| hasher.write_u32(*token));
    hasher.finish() as f64 / u64::MAX as f64 * 2.0 - 1.0
}

/// `/v1/models`
pub fn models(site: &Site) -> String {
    let model = &site.options.model;
    json!({"object": "list", "data": [{
        "id": model,
        "object": "model",
        "created": site.started as u64,
        "owned_by": "vllm",
        "root": model,
        "parent": null,
        "max_model_len": site.options.engine.max_model_len,
        "permission": [],
    }]})
    .to_string()
}

/// `/version`
pub fn version() -> String {
    r#"{"version":"0.32.0"}"#.into()
}

/// `/server_info`: nested with `config_format=json`, otherwise one text, as vLLM has it.
pub fn server_info(site: &Site, query: Option<&str>) -> String {
    let engine = &site.options.engine;
    let config = json!({
        "model_config": {"model": site.options.model, "max_model_len": engine.max_model_len},
        "cache_config": {"block_size": engine.block_size, "num_gpu_blocks": engine.blocks()},
        "parallel_config": {"data_parallel_size": site.ranks.len()},
        "scheduler_config": {
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
        },
    });
    let nested = query.is_some_and(|query| query.split('&').any(|pair| pair == "config_format=json"));
    let config = if nested { config } else { Value::from(config.to_string()) };
    json!({"vllm_config": config}).to_string()
}

/// `/sim/running`: the requests in each rank at this moment.
pub fn running(site: &Site) -> String {
    let ranks: Vec<Value> = site
        .ranks
        .iter()
        .map(|rank| {
            let (running, waiting) = rank.load();
            json!({"running": running, "waiting": waiting})
        })
        .collect();
    json!({"ranks": ranks}).to_string()
}

/// `/metrics`
pub fn metrics(site: &Site) -> Result<String, fmt::Error> {
    metrics::render(&Page {
        model: &site.options.model,
        engine: &site.options.engine,
        ranks: site.ranks.iter().map(|rank| rank.stats()).collect(),
        started: site.started,
        is_asleep: site.manner.lock().is_asleep,
    })
}
