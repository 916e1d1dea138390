//! Houses that are full: every replica's cache is taken by conversations that were let in.

// Each bench takes a part of it.
#![allow(dead_code)]

use std::time::Duration;

use kvpin::balancer::{Admission, Cost, Entry, Outcome, Place, Policy, Ticket, Turn};
use kvpin::conversation::ConversationKey;

use super::filled::{Filled, TURN_GAP, after, key, policy, spec, turn};

/// A turn as agents have it in the middle of a session.
const COST: Cost =
    Cost { request_bytes: 120_000, prompt: Some(30_000), cached: Some(29_000), completion: 500, asks: true };

/// What the first turn of a conversation finds: the system prompt and the tools that all of them have.
const FOUND_AT_FIRST: u64 = 3_500;

/// More than any cache.
const ROOMY: u64 = 1 << 40;

/// Rounds of turns in which it is learnt how much conversations take.
const ROUNDS: u64 = 3;

/// A box whose caches hold so many conversations, and not one more.
pub struct House {
    filled: Filled,
    residents: u64,
    next: u64,
}

impl House {
    /// With `waiting` others at the door: whose home is full, or who are new.
    pub fn new(replicas: u16, residents: u64, waiting: Waiting) -> House {
        // As many on each replica, so that none has room for one more.
        let residents = residents.next_multiple_of(u64::from(replicas));
        let entries_max = 1_000_000;
        let mut house = House { filled: Filled::with_room(replicas, entries_max), residents, next: 0 };
        let known = waiting.known();
        house.configure(replicas, policy(entries_max));
        for number in 0..known {
            house.serve(outsider(number), COST);
        }
        let roomy = Admission { capacity_tokens: Some(ROOMY), hold_max: Duration::MAX, ..Admission::default() };
        house.configure(replicas, Policy { admission: roomy, ..policy(entries_max) });
        for number in 0..residents {
            house.serve(key(number), Cost { cached: Some(FOUND_AT_FIRST), ..COST });
        }
        (0..ROUNDS * residents).for_each(|_| house.resident());
        let snapshot = house.filled.balancer.snapshot(house.filled.now);
        let rooms = snapshot.replicas.iter().filter_map(|replica| replica.room);
        let capacity_tokens = rooms.map(|room| room.working_set_tokens).max();
        let full = Admission { capacity_tokens, ..roomy };
        house.configure(replicas, Policy { admission: full, ..policy(entries_max) });
        for number in 0..waiting.count() {
            assert!(house.come(outsider(number)).is_some(), "the house is not full");
        }
        house
    }

    /// A turn of a resident, from its arrival to its end.
    pub fn resident(&mut self) {
        self.next = after(self.next, self.residents);
        self.serve(key(self.next), COST);
    }

    /// Somebody comes who does not fit, and leaves.
    pub fn come_and_leave(&mut self) {
        let place = self.come(key(u64::MAX / 4)).expect("the house is full");
        self.filled.balancer.leave_line(place, self.filled.now);
    }

    /// How many turns wait.
    pub fn held(&self) -> u64 {
        u64::from(self.filled.balancer.snapshot(self.filled.now).door.held)
    }

    fn serve(&mut self, conversation: ConversationKey, cost: Cost) {
        self.filled.now += TURN_GAP;
        match self.enter(conversation) {
            Ok(ticket) => self.answer(ticket, cost),
            Err(_) => panic!("a resident is held"),
        }
    }

    /// No time passes by it, in which residents would be silent for longer than they ever are.
    fn come(&mut self, conversation: ConversationKey) -> Option<Place> {
        self.enter(conversation).err()
    }

    fn enter(&mut self, conversation: ConversationKey) -> Result<Ticket, Place> {
        let turn = Turn { body_bytes: COST.request_bytes, ..turn(Some(conversation)) };
        match self.filled.balancer.admit(&turn, self.filled.now).expect("a replica is up") {
            Entry::Seated(ticket) => Ok(ticket),
            Entry::Held(place) => Err(place),
        }
    }

    fn answer(&mut self, mut ticket: Ticket, cost: Cost) {
        let (balancer, now) = (&mut self.filled.balancer, self.filled.now);
        balancer.served(&mut ticket, now);
        balancer.charge(&ticket, &cost, now);
        balancer.finish(ticket, Outcome::Completed, now);
        balancer.take_let_in();
    }

    fn configure(&mut self, replicas: u16, policy: Policy) {
        let specs = (0..replicas).map(spec).collect();
        self.filled.balancer.reconfigure(policy, specs, self.filled.now);
    }
}

/// Who waits at the door of a house.
#[derive(Clone, Copy)]
pub enum Waiting {
    Nobody,
    /// So many who were never there.
    New(u64),
    /// So many who were there, and wait for their home.
    Known(u64),
}

impl Waiting {
    fn known(self) -> u64 {
        match self {
            Waiting::Nobody | Waiting::New(_) => 0,
            Waiting::Known(count) => count,
        }
    }

    pub fn count(self) -> u64 {
        match self {
            Waiting::Nobody => 0,
            Waiting::New(count) | Waiting::Known(count) => count,
        }
    }
}

fn outsider(number: u64) -> ConversationKey {
    key(1 << 50 | number)
}
