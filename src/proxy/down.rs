//! A replica that goes down while a turn waits there.
//!
//! An engine that hangs keeps its connections open, and so does a vLLM server that was told to end and whose engine is gone.
//! A turn that waits for its first event would hear nothing for as long as `response_timeout_s` lets it. That the replica is
//! down is found out from the outside, by its figures that stand still or its port that refuses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::balancer::ReplicaId;
use crate::dispatch::{Dispatcher, Lease};

/// How often a waiting turn asks whether its replica is down by now. It takes the balancer's lock.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// The replica of a lease, to be asked after.
pub struct Waited {
    dispatcher: Arc<Dispatcher>,
    replica: ReplicaId,
}

impl Waited {
    pub fn on(lease: &Lease) -> Self {
        Waited { dispatcher: Arc::clone(lease.dispatcher()), replica: lease.id() }
    }

    /// Ends when the replica is down.
    pub async fn until_down(&self) {
        loop {
            sleep(ASKED_EVERY).await;
            if self.dispatcher.is_down(self.replica) {
                return;
            }
        }
    }
}
