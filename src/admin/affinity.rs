//! Switching a model's affinity by order, so that the same replicas can be compared with and without it. It holds until the next
//! reload, upgrade or restart, which go by the file; the status says so, and the time line of events has each switch.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::config::Balancing;
use crate::dispatch::Routing;

use super::MODELS;
use super::drain::{Refused, models, not_found};

/// The most bytes of an order, which has two words.
pub(super) const ORDER_BYTES_MAX: usize = 1_024;
const SUFFIX: &str = "/affinity";

/// How a model is to place turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffinityOrder {
    pub affinity: bool,
    /// Who chooses without affinity. Default: the engine's own balancer among the ranks of a server, and kvpin, by load, among
    /// servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balancing: Option<Balancing>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffinityAnswer {
    pub model: String,
    pub affinity: bool,
    /// What is otherwise than before, a line each. Empty if it was so already.
    pub changes: Vec<String>,
}

/// The path that switches a model.
pub fn path_of(model: &str) -> String {
    let encoded: String = model
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    format!("{MODELS}{encoded}{SUFFIX}")
}

/// The model's name as the path has it, if it is such a path. What is in the middle may have slashes, as names of models do.
pub(super) fn model_of(path: &str) -> Option<&str> {
    path.strip_prefix(MODELS)?.strip_suffix(SUFFIX).filter(|name| !name.is_empty())
}

/// Gives the order in `body` to the model that `path` names.
pub(super) fn switch(routing: &Routing, path: &str, body: &[u8]) -> Result<AffinityAnswer, Refused> {
    let order: AffinityOrder = serde_json::from_slice(body).map_err(|error| Refused {
        status: StatusCode::BAD_REQUEST,
        message: format!(r#"this takes {{"affinity": true}} or {{"affinity": false}}: {error}"#),
    })?;
    let table = routing.table();
    let named = model_of(path).and_then(decoded).unwrap_or_default();
    let model = table.find(&named).ok_or_else(|| not_found("model", &named, models(&table)))?;
    let model = model.model.name.clone();
    let balancing = order.balancing.unwrap_or(Balancing::Engine);
    let changes = routing
        .switch_affinity(&model, order.affinity, balancing)
        .map_err(|message| Refused { status: StatusCode::CONFLICT, message })?;
    let word = if order.affinity { "on" } else { "off" };
    log::info!("model={model} affinity is {word} by order: {}", changes.join("; "));
    Ok(AffinityAnswer { model, affinity: order.affinity, changes })
}

/// A path's text with its percent signs read; `None` where that makes no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_survives_the_way_into_a_path_and_back() {
        for name in ["qwen3-4b", "Qwen/Qwen3-4B", "ein Modell%", "模型", "a/affinity"] {
            let path = path_of(name);
            assert!(path.is_ascii());
            assert_eq!(model_of(&path).and_then(decoded).as_deref(), Some(name), "{path}");
        }
        for path in ["/api/v1/models//affinity", "/api/v1/models/m", "/api/v1/models/m/affinity/"] {
            assert_eq!(model_of(path), None, "{path}");
        }
        for text in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(decoded(text), None, "{text}");
        }
    }
}
