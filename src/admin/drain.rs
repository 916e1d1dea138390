//! Draining a replica by order: it takes no new conversations, and those it has are placed elsewhere with their next turn.

use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::balancer::{Order, Ordered};
use crate::dispatch::{Model, Table};

/// A replica that an operator means. The two are separate because either may have a slash in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// A name or an alias.
    pub model: String,
    pub replica: String,
}

/// What was ordered, and what there is still to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    pub model: String,
    pub replica: String,
    pub draining: bool,
    /// Turns that it still has to finish; drained at 0.
    pub in_flight: u32,
    /// Conversations that are pinned to it, and move with their next turn.
    pub conversations: u32,
}

/// Why an order can't be carried out, in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: StatusCode,
    pub message: String,
}

/// The most names that a refusal lists.
const NAMES_MAX: usize = 50;

/// Gives the order that the JSON in `body` names a replica for.
pub fn order(table: &Table, order: Order, body: &[u8]) -> Result<DrainAnswer, Refused> {
    let request: DrainRequest = serde_json::from_slice(body).map_err(|error| Refused {
        status: StatusCode::BAD_REQUEST,
        message: format!(r#"this takes {{"model": NAME, "replica": NAME}}: {error}"#),
    })?;
    let named = table.find(&request.model).ok_or_else(|| not_found("model", &request.model, models(table)))?;
    let model = &named.model;
    let (ordered, answer) = model
        .dispatcher
        .with(|balancer, now| {
            let id = balancer.replica_named(&request.replica)?;
            let ordered = balancer.order(id, order, now);
            let replica = balancer.snapshot(now).replicas.into_iter().find(|replica| replica.id == id)?;
            let held = replica.held;
            Some((ordered, (replica.drain.is_some(), replica.in_flight, held.active + held.idle + held.lost)))
        })
        .ok_or_else(|| not_found("replica", &request.replica, replicas(model)))?;
    let (draining, in_flight, conversations) = answer;
    match ordered {
        Ordered::Done => {
            Ok(DrainAnswer { model: model.name.clone(), replica: request.replica, draining, in_flight, conversations })
        }
        Ordered::NoReplica => Err(not_found("replica", &request.replica, replicas(model))),
        Ordered::Configured => Err(Refused {
            status: StatusCode::CONFLICT,
            message: format!(
                "{}/{} drains because the configuration says `drain: true`; change it there, and reload",
                model.name, request.replica
            ),
        }),
    }
}

pub(super) fn not_found(what: &str, named: &str, known: Vec<String>) -> Refused {
    let more = known.len().saturating_sub(NAMES_MAX);
    let mut names = known.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if more > 0 {
        names.push_str(&format!(" and {more} more"));
    }
    Refused { status: StatusCode::NOT_FOUND, message: format!("there is no {what} `{named}`; there is: {names}") }
}

pub(super) fn models(table: &Table) -> Vec<String> {
    table.models.iter().map(|model| model.name.clone()).collect()
}

fn replicas(model: &Arc<Model>) -> Vec<String> {
    model
        .dispatcher
        .with(|balancer, _| balancer.specs().map(|(_, spec)| Arc::clone(spec)).collect::<Vec<_>>())
        .iter()
        .map(|spec| spec.name.clone())
        .collect()
}
