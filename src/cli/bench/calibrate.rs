//! What this text is in the server's own tokens, found out by asking it.

use std::time::Duration;

use anyhow::bail;
use serde::Serialize;

use crate::sim::agent::{
    ASSUMED_BYTES_PER_TOKEN, AgentWorkload, HttpClient, Shape, Span, TurnFailure, TurnOutcome, TurnResult,
};

/// A prompt of a long context takes a slow engine minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Tokens of the sample by which text is measured: enough that what frames it counts little.
const SAMPLE_TOKENS: u32 = 2_000;

/// What is measured has salts that are small.
const PROBE_SALT: u64 = 1 << 60;

/// What asking the server came to, in its own tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    pub bytes_per_token: f64,
    /// The system prompt that all sessions share.
    pub system_tokens: Option<u64>,
    /// The first message, the smallest of its range.
    pub first_message_tokens: Option<u64>,
    /// A first turn in all, with what the server puts round it.
    pub first_turn_tokens: Option<u64>,
}

/// Measures the text on what `workload` is for, and sets its measure. The probes' text is none that is used later; `number` tells
/// the probes of several servers apart, which may have the same engines behind them.
pub async fn calibrate(workload: &mut AgentWorkload, client: &HttpClient, number: u64) -> anyhow::Result<Sizes> {
    workload.bytes_per_token = ASSUMED_BYTES_PER_TOKEN;
    let ask = async |workload: &AgentWorkload, system: u32, message: u32| {
        let shape = Shape {
            system_tokens: system,
            first_tokens: Span::of(message),
            reply_tokens: Span::of(1),
            ..workload.shape
        };
        // Another text for each probe, so that the caches hold nothing of it.
        let salt = workload.salt ^ (u64::from(system) << 32) ^ u64::from(message) ^ (PROBE_SALT + number);
        let probe = AgentWorkload { shape, salt, ..workload.clone() };
        let result = probe.probe(client.clone(), PATIENCE).await;
        prompt_tokens(workload, result)
    };
    let Some(frame) = ask(workload, 1, 1).await? else {
        let bytes_per_token = workload.bytes_per_token;
        return Ok(Sizes { bytes_per_token, system_tokens: None, first_message_tokens: None, first_turn_tokens: None });
    };
    if let Some(sample) = ask(workload, 1, SAMPLE_TOKENS).await?.and_then(|tokens| tokens.checked_sub(frame)) {
        workload.bytes_per_token = f64::from(SAMPLE_TOKENS) * ASSUMED_BYTES_PER_TOKEN / sample.max(1) as f64;
    }
    let system = ask(workload, workload.shape.system_tokens, 1).await?;
    let whole = ask(workload, workload.shape.system_tokens, workload.shape.first_tokens.least).await?;
    Ok(Sizes {
        bytes_per_token: (workload.bytes_per_token * 1_000.0).round() / 1_000.0,
        system_tokens: system.map(|tokens| tokens.saturating_sub(frame)),
        first_message_tokens: whole.zip(system).map(|(whole, system)| whole.saturating_sub(system)),
        first_turn_tokens: whole,
    })
}

/// The tokens of a probe's prompt; `None` where the server doesn't tell.
fn prompt_tokens(workload: &AgentWorkload, result: TurnResult) -> anyhow::Result<Option<u64>> {
    let said = result.said.unwrap_or_default();
    let (base, model) = (&workload.base, &workload.model);
    match result.outcome {
        TurnOutcome::Complete => Ok(result.usage.map(|usage| usage.prompt_tokens).filter(|tokens| *tokens > 0)),
        TurnOutcome::Refused => {
            let status = result.status.map_or_else(String::new, |status| status.to_string());
            bail!("{base} answers {status} to a turn for the model `{model}`: {said}")
        }
        TurnOutcome::Failed(TurnFailure::NoAnswer) => bail!("nothing answers at {base}: {said}"),
        TurnOutcome::Failed(TurnFailure::InStream) => bail!("{base} breaks off with an error: {said}"),
        TurnOutcome::Failed(TurnFailure::CutOff) => bail!("{base} breaks off before the answer's end"),
        TurnOutcome::Cut => bail!("{base} gives no answer within {} s", PATIENCE.as_secs()),
    }
}
