//! What is remembered, from the balancers to wherever it is kept, and back into them.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::balancer::{Records, Restore};
use crate::dispatch::{Model, Routing, Table};
use crate::state::{Frame, Head, SLICE_MAX, SLICE_PAUSE, Writer};

/// What the state of this process begins with.
pub fn head(routing: &Routing) -> Head {
    Head {
        saved_at_ms: unix_ms(),
        key_secret: routing.key_secret().to_bytes(),
        kvpin: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Writes every model and all that is remembered of it, while turns go on.
pub fn write_models<W: Write>(table: &Table, writer: &mut Writer<W>) -> io::Result<()> {
    for model in &table.models {
        let dispatcher = &model.dispatcher;
        let (replicas, mut export) =
            dispatcher.with(|balancer, now| (balancer.replica_records(), balancer.begin_export(now)));
        writer.model(&model.name, replicas)?;
        while let Some(records) = dispatcher.with(|balancer, _| balancer.export(&mut export, SLICE_MAX)) {
            let is_large = records.len() == SLICE_MAX;
            writer.records(records)?;
            if is_large {
                std::thread::sleep(SLICE_PAUSE);
            }
        }
    }
    Ok(())
}

/// Gives a state's frames to the models that are still there.
pub struct Restorer {
    table: Arc<Table>,
    /// What has passed since the state was taken. A clock that was set back meanwhile shows nothing.
    downtime: Duration,
    /// Those of the state that are served, with how its replicas are found.
    models: Vec<(Arc<Model>, Restore)>,
    /// Whether the records that come next are of the last of `models`.
    is_served: bool,
    pub conversations: usize,
    pub dropped: usize,
}

impl Restorer {
    pub fn new(routing: &Routing, head: &Head) -> Self {
        Restorer {
            table: routing.table(),
            downtime: Duration::from_millis(unix_ms().saturating_sub(head.saved_at_ms)),
            models: Vec::new(),
            is_served: false,
            conversations: 0,
            dropped: 0,
        }
    }

    pub fn downtime(&self) -> Duration {
        self.downtime
    }

    /// Takes the next frame of a state.
    pub fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Model { name, replicas } => {
                let model = self.table.models.iter().find(|model| model.name == name);
                self.is_served = model.is_some();
                if let Some(model) = model {
                    let restore =
                        model.dispatcher.with(|balancer, now| balancer.begin_restore(&replicas, self.downtime, now));
                    self.models.push((Arc::clone(model), restore));
                }
            }
            Frame::Records(records) => {
                let model = self.models.last().filter(|_| self.is_served);
                let restored = model.map(|(model, restore)| {
                    model.dispatcher.with(|balancer, now| balancer.restore(restore, &records, now))
                });
                let restored = restored.unwrap_or_default();
                if let Records::Pins(pins) = &records {
                    self.conversations += restored.kept;
                    self.dropped += pins.len() - restored.kept;
                }
            }
            Frame::Head(_) | Frame::End { .. } => {}
        }
    }

    /// Takes what has come of a model since its state was taken.
    pub fn take_more(&self, name: &str, records: &Records) {
        let named = self.models.iter().find(|(model, _)| model.name == name);
        if let Some((model, restore)) = named {
            model.dispatcher.with(|balancer, now| balancer.restore(restore, records, now));
        }
    }
}

pub fn unix_ms() -> u64 {
    // A clock that stands before the epoch says nothing that could be counted from.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
