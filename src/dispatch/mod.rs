//! The shell round the balancer: its lock, its clock, and the lease that gives a slot back by itself.
//!
//! One mutex a model, held for the decision only: nothing inside it waits, logs or formats. The mutex is parking_lot's,
//! so a panic inside a decision costs one request and poisons nothing.

mod events;
mod hold;
mod routing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use log::info;
use parking_lot::Mutex;

use crate::balancer::{
    Balancer, Bill, Cost, Decision, Health, News, Outcome, Recognised, Refusal, ReplicaId, ReplicaSpec, Ticket, Turn,
};
use crate::conversation::ConversationKey;

pub use events::{Event, EventKind, Events};
pub use hold::{Admitted, Hold};
pub use routing::{Gone, Model, Named, Reloaded, Routing, Table};

/// The time that every balancer goes by. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Instant,
}

/// One model's balancer behind its lock.
#[derive(Debug)]
pub struct Dispatcher {
    /// The model's name, for the log.
    model: String,
    clock: Clock,
    balancer: Mutex<Balancer>,
    events: Arc<Events>,
    holds: hold::Holds,
}

/// A turn's slot on a replica. Dropping it gives the slot back, with the outcome that was noted last.
#[derive(Debug)]
pub struct Lease {
    dispatcher: Arc<Dispatcher>,
    ticket: Option<Ticket>,
    replica: Arc<ReplicaSpec>,
    id: ReplicaId,
    decision: Decision,
    conversation: Option<ConversationKey>,
    recognised: Option<Recognised>,
    outcome: Outcome,
}

/// What a clock shows when it starts. There was a time before it, in which what is restored was used; a conversation is
/// remembered for 30 days at most.
const ORIGIN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

impl Clock {
    pub fn start() -> Self {
        Clock { epoch: Instant::now() }
    }

    pub fn now(&self) -> Duration {
        ORIGIN + self.epoch.elapsed()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }
}

impl Dispatcher {
    pub fn new(model: &str, clock: Clock, events: Arc<Events>, balancer: Balancer) -> Self {
        Dispatcher {
            model: model.to_owned(),
            clock,
            balancer: Mutex::new(balancer),
            events,
            holds: hold::Holds::default(),
        }
    }

    /// Decides where a turn goes and takes its slot.
    pub fn acquire(self: &Arc<Self>, turn: &Turn<'_>) -> Result<Lease, Refusal> {
        let (ticket, replica) = self.with(|balancer, now| {
            let ticket = balancer.arrive(turn, now)?;
            let replica = Arc::clone(balancer.spec(&ticket));
            Ok((ticket, replica))
        })?;
        Ok(self.lease(ticket, replica))
    }

    fn lease(self: &Arc<Self>, ticket: Ticket, replica: Arc<ReplicaSpec>) -> Lease {
        Lease {
            dispatcher: Arc::clone(self),
            id: ticket.replica,
            decision: ticket.decision,
            conversation: ticket.conversation,
            recognised: ticket.recognised,
            ticket: Some(ticket),
            replica,
            // What holds if nobody says otherwise: the request's context was dropped because its client left.
            outcome: Outcome::Abandoned,
        }
    }

    /// Whether a replica is down at this moment; one that a reload took out isn't.
    pub fn is_down(&self, replica: ReplicaId) -> bool {
        matches!(self.with(|balancer, _| balancer.health_of(replica)), Some(Health::Down(_)))
    }

    /// Runs `f` on the balancer under its lock. The clock is read inside, so that time never goes back between calls. What
    /// happened to the replicas is logged behind the lock, whoever saw it.
    pub fn with<R>(&self, f: impl FnOnce(&mut Balancer, Duration) -> R) -> R {
        let mut balancer = self.balancer.lock();
        let now = self.clock.now();
        let result = f(&mut balancer, now);
        let news = balancer.take_news();
        let let_in = balancer.take_let_in();
        drop(balancer);
        self.call(let_in);
        news.iter().for_each(|news| self.log(news));
        result
    }

    /// Tells the log and the time line.
    fn log(&self, news: &News) {
        let model = &self.model;
        let add = |kind, replica: &ReplicaSpec, text| self.events.add(kind, model, &replica.name, text);
        match news {
            News::Changed { replica, was, is, after } => {
                let reason = is.reason().map_or(String::new(), |reason| format!(" reason={reason}"));
                let (name, was_word, is_word, after_s) = (&replica.name, was.as_str(), is.as_str(), after.as_secs());
                info!("model={model} replica={name} is {is_word}{reason} was={was_word} after_s={after_s}");
                let why = is.reason().map_or(String::new(), |reason| format!(" ({reason})"));
                add(EventKind::Health, replica, format!("is {is_word}{why}, was {was_word}"));
            }
            News::Restarted { replica, cause } => {
                let (name, cause) = (&replica.name, cause.as_str());
                info!("model={model} replica={name} was restarted cause={cause}: its cache is empty");
                add(EventKind::Restart, replica, format!("restarted ({cause}): its cache is empty"));
            }
            News::Drained { replica } => {
                info!("model={model} replica={} is drained", replica.name);
                add(EventKind::Drained, replica, "is drained".to_owned());
            }
        }
    }
}

impl Lease {
    pub fn replica(&self) -> &ReplicaSpec {
        &self.replica
    }

    /// The balancer that has given it.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }

    pub fn id(&self) -> ReplicaId {
        self.id
    }

    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Whether its replica is down at this moment.
    pub fn is_down(&self) -> bool {
        self.dispatcher.is_down(self.id)
    }

    /// The conversation that the turn belongs to, as the balancer knows it; `None` for one that belongs to none.
    pub fn conversation(&self) -> Option<ConversationKey> {
        self.conversation
    }

    /// How the conversation was recognised.
    pub fn recognised(&self) -> Option<Recognised> {
        self.recognised
    }

    /// The rest of the request's body has come, and with it more of the turn, before the response: see
    /// [`Balancer::learn_more`].
    pub fn learn_more(&mut self, turn: &Turn<'_>) {
        if let Some(ticket) = &mut self.ticket {
            self.dispatcher.with(|balancer, now| balancer.learn_more(ticket, turn, now));
        }
    }

    /// The first byte of a good response has come.
    pub fn served(&mut self) {
        if let Some(ticket) = &mut self.ticket {
            self.dispatcher.with(|balancer, now| balancer.served(ticket, now));
        }
    }

    /// The first token has come, so long after the request.
    pub fn note_first_token(&self, took: Duration) {
        if let Some(ticket) = &self.ticket {
            self.dispatcher.with(|balancer, _| balancer.note_first_byte(ticket, took));
        }
    }

    /// Books what the turn has cost.
    pub fn charge(&self, cost: &Cost) -> Option<Bill> {
        let ticket = self.ticket.as_ref()?;
        Some(self.dispatcher.with(|balancer, now| balancer.charge(ticket, cost, now)))
    }

    /// Notes how the turn ends, unless something more is heard before the lease is dropped.
    pub fn note(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.dispatcher.with(|balancer, now| balancer.finish(ticket, self.outcome, now));
        }
    }
}
