//! From a request to what the balancer needs: the model, the conversation, and the replica if the client names one.

use std::sync::Arc;

use http::HeaderMap;

use crate::balancer::{Balancer, ReplicaId};
use crate::conversation::{Explicit, Fields};
use crate::dispatch::{Model, Routing, Table};

use super::context::EngineRequest;
use super::endpoint::Route;
use super::refusal::{Refusal, served_names};

/// Names the replica that a client wants.
pub const REPLICA_HEADER: &str = "x-kvpin-replica";
/// vLLM's own header for a data-parallel rank.
pub const RANK_HEADER: &str = "x-data-parallel-rank";

/// The scope of conversation keys while there are no API keys: one for all.
const NO_SCOPE: &[u8] = b"";

/// The model that a request is for.
pub fn choose_model(table: &Table, fields: &Fields) -> Result<Arc<Model>, Refusal> {
    if fields.duplicate_model {
        return Err(Refusal::TwoModels);
    }
    match fields.model.name() {
        Some(name) => table
            .find(name)
            .cloned()
            .ok_or_else(|| Refusal::UnknownModel { named: name.to_owned(), served: served_names(&table.models) }),
        // vLLM serves a request without a model too, and judges a body that kvpin can't read.
        None => table.fallback.clone().ok_or_else(|| Refusal::NoModel { served: served_names(&table.models) }),
    }
}

/// What is known of a request once its model and session are.
pub struct Asked {
    pub route: Route,
    pub model: Arc<Model>,
    pub conversation: Option<Explicit>,
}

/// Puts together what the balancer needs to know.
pub fn engine_request(routing: &Routing, headers: &HeaderMap, asked: Asked) -> Result<EngineRequest, Refusal> {
    let Asked { route, model, conversation } = asked;
    let client_pin = if model.client_pins { client_pin(&model, headers)? } else { None };
    let key = conversation.as_ref().map(|explicit| routing.key_secret().key(NO_SCOPE, &model.name, explicit));
    Ok(EngineRequest {
        model,
        kind: route.kind,
        ranks: route.ranks,
        conversation: key,
        source: conversation.map(|explicit| explicit.source),
        client_pin,
    })
}

/// The replica that the client names: kvpin's own header first, then a rank, if the model has ranks.
fn client_pin(model: &Model, headers: &HeaderMap) -> Result<Option<ReplicaId>, Refusal> {
    if let Some(value) = headers.get(REPLICA_HEADER) {
        let named = String::from_utf8_lossy(value.as_bytes()).into_owned();
        return model.dispatcher.with(|balancer, _| match balancer.replica_named(&named) {
            Some(id) => Ok(Some(id)),
            None => Err(Refusal::UnknownReplica { named, known: replica_names(balancer) }),
        });
    }
    let Some(value) = headers.get(RANK_HEADER) else { return Ok(None) };
    let named = String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
    model.dispatcher.with(|balancer, _| replica_of_rank(balancer, named))
}

fn replica_of_rank(balancer: &Balancer, named: String) -> Result<Option<ReplicaId>, Refusal> {
    let ranked: Vec<_> = balancer.specs().filter_map(|(id, spec)| Some((id, spec.rank?))).collect();
    if ranked.is_empty() {
        return Ok(None);
    }
    let rank = named.parse::<u16>().ok();
    let mut matching = ranked.iter().filter(|(_, known)| Some(*known) == rank);
    match (matching.next(), matching.next()) {
        (Some((id, _)), None) => Ok(Some(*id)),
        // Several servers have that rank, or none has it: only a replica's name can tell.
        (Some(_), Some(_)) | (None, _) => Err(Refusal::UnknownReplica { named, known: replica_names(balancer) }),
    }
}

fn replica_names(balancer: &Balancer) -> Vec<String> {
    balancer.specs().map(|(_, spec)| spec.name.clone()).collect()
}
