//! How a request ended: for the balancer, for the client that may still be told, and for the log.

use log::error;
use pingora::{Error, ErrorSource};

use crate::balancer::Outcome;

use super::context::Context;
use super::downstream;
use super::refusal::Refusal;

/// Why a request failed in Pingora's hands.
pub fn refusal_of(error: &Error, context: &Context) -> Refusal {
    match error.esource() {
        ErrorSource::Upstream => Refusal::ReplicaFailed {
            replica: context.lease.as_ref().map_or_else(String::new, |lease| lease.replica().name.clone()),
        },
        ErrorSource::Downstream => downstream::refusal_of(error),
        ErrorSource::Internal | ErrorSource::Unset => Refusal::Internal,
    }
}

/// What became of the turn.
pub fn outcome_of(error: Option<&Error>, context: &Context) -> Outcome {
    match error {
        None if context.is_good() => Outcome::Completed,
        None => Outcome::Rejected,
        Some(error) if *error.esource() == ErrorSource::Downstream => Outcome::Abandoned,
        Some(_) if context.refusal.as_ref().is_some_and(Refusal::is_clients_fault) => Outcome::Abandoned,
        Some(_) => Outcome::Failed,
    }
}

/// A turn that was lost is an error; everything else is in the access log.
pub fn log_failure(error: &Error, outcome: Outcome, context: &Context) {
    if outcome != Outcome::Failed {
        return;
    }
    let model = context.request.as_ref().map_or("-", |request| &request.model.name);
    let replica = context.lease.as_ref().map_or("-", |lease| &lease.replica().name);
    error!("model={model} replica={replica} lost a turn: {:?} {:?}", error.esource(), error.etype());
}
