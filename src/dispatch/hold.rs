//! Turns that wait at the door of a model until their conversations fit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::balancer::{Entry, Place, Refusal, Turn};

use super::{Dispatcher, Lease};

/// How often the line is looked at while nothing happens: stays run out and holds end without anybody saying so.
const TICKS_APART: Duration = Duration::from_millis(100);

/// What comes of a turn that asks to be let in.
pub enum Admitted {
    In(Lease),
    Held(Hold),
}

/// A place in the line. Dropping it leaves the line.
#[derive(Debug)]
pub struct Hold {
    dispatcher: Arc<Dispatcher>,
    place: Place,
    let_in: oneshot::Receiver<()>,
}

/// Who waits, and whether somebody looks at the line for them.
#[derive(Debug, Default)]
pub struct Holds(Mutex<Waiters>);

#[derive(Debug, Default)]
struct Waiters {
    waiting: HashMap<Place, Vec<oneshot::Sender<()>>>,
    is_ticking: bool,
}

impl Dispatcher {
    /// Decides where a turn goes and takes its slot, or has it wait until its conversation fits. Has to be called on a runtime.
    pub fn admit(self: &Arc<Self>, turn: &Turn<'_>) -> Result<Admitted, Refusal> {
        let entry = self.with(|balancer, now| {
            Ok(match balancer.admit(turn, now)? {
                Entry::Seated(ticket) => {
                    let replica = Arc::clone(balancer.spec(&ticket));
                    Ok((ticket, replica))
                }
                // Within the balancer's lock, so that nobody is called who isn't known yet.
                Entry::Held(place) => Err((place, self.holds.add(place))),
            })
        })?;
        Ok(match entry {
            Ok((ticket, replica)) => Admitted::In(self.lease(ticket, replica)),
            Err((place, let_in)) => {
                self.keep_ticking();
                Admitted::Held(Hold { dispatcher: Arc::clone(self), place, let_in })
            }
        })
    }

    /// Calls those who may enter.
    pub(super) fn call(&self, places: Vec<Place>) {
        if places.is_empty() {
            return;
        }
        let mut waiters = self.holds.0.lock();
        for place in places {
            for waiter in waiters.waiting.remove(&place).unwrap_or_default() {
                if waiter.send(()).is_err() {
                    // It has left meanwhile, and needs no call.
                    continue;
                }
            }
        }
    }

    /// Has somebody look at the line as long as there is one.
    fn keep_ticking(self: &Arc<Self>) {
        if std::mem::replace(&mut self.holds.0.lock().is_ticking, true) {
            return;
        }
        let dispatcher = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                sleep(TICKS_APART).await;
                let has_line = dispatcher.with(|balancer, now| {
                    balancer.tick(now);
                    // Within the lock: who joins the line next finds nobody ticking and begins anew.
                    let has_line = balancer.has_line();
                    dispatcher.holds.0.lock().is_ticking = has_line;
                    has_line
                });
                if !has_line {
                    return;
                }
            }
        });
    }
}

impl Holds {
    fn add(&self, place: Place) -> oneshot::Receiver<()> {
        let (call, let_in) = oneshot::channel();
        self.0.lock().waiting.entry(place).or_default().push(call);
        let_in
    }

    /// Forgets waiters that have left.
    fn forget(&self, place: Place) {
        let mut waiters = self.0.lock();
        if let Some(waiting) = waiters.waiting.get_mut(&place) {
            waiting.retain(|waiter| !waiter.is_closed());
            if waiting.is_empty() {
                waiters.waiting.remove(&place);
            }
        }
    }
}

impl Hold {
    /// Ends when the turn may enter: it [takes its slot](Dispatcher::acquire) then.
    pub async fn wait(&mut self) {
        // Nobody but a call ends it: a dispatcher lives as long as who waits for it.
        drop((&mut self.let_in).await);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.let_in.close();
        self.dispatcher.holds.forget(self.place);
        // One that was let in is not in the line any more, and this is nothing to it.
        self.dispatcher.with(|balancer, now| balancer.leave_line(self.place, now));
    }
}
