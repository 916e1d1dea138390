//! What the turns cost: each is billed when its response has ended, and its conversation's length is remembered.

use std::time::Duration;

use crate::conversation::ConversationKey;

use super::Balancer;
use super::cost::{Bill, Cold, Cost, Left};
use super::pin::Tokens;
use super::ticket::Ticket;

impl Balancer {
    /// Books what a turn has cost, before it is finished.
    pub fn charge(&mut self, ticket: &Ticket, cost: &Cost, now: Duration) -> Bill {
        let bill = self.bill(ticket, cost);
        let before = ticket.bound().and_then(|key| self.memory.pins.at(key)).map_or(0, |pin| pin.footprint());
        let books = self.replicas.books(ticket.replica);
        books.ledger.book(&bill, cost);
        *books.computed = books.computed.wrapping_add((bill.computed + bill.completion) as u32);
        if let Some(prompt) = cost.prompt {
            self.bytes_per_token.learn(cost.request_bytes, prompt);
            if let Some(conversation) = ticket.bound() {
                self.memory.pins.measure(conversation, self.tokens(ticket, conversation, prompt, cost.completion));
            }
        }
        self.learn_room(ticket, cost, &bill, before, now);
        bill
    }

    fn bill(&self, ticket: &Ticket, cost: &Cost) -> Bill {
        let completion = cost.completion;
        let Some(prompt) = cost.prompt else {
            return Bill { computed: self.bytes_per_token.tokens(cost.request_bytes), completion, ..Bill::default() };
        };
        let Some(cached) = cost.cached else {
            return Bill { computed: prompt, completion, is_measured: true, ..Bill::default() };
        };
        let cached = cached.min(prompt);
        let left = ticket.bound().and_then(|conversation| self.left(conversation));
        let cold = left.and_then(|left| Cold::of(ticket.decision, prompt, cached, &left));
        Bill { cached, computed: prompt - cached, completion, is_measured: true, cold }
    }

    /// What a conversation has left in the cache of its home, if a turn of it was measured.
    fn left(&self, conversation: ConversationKey) -> Option<Left> {
        let pin = self.memory.pins.at(conversation)?;
        let tokens = pin.tokens()?;
        let home = &self.replicas[pin.replica.index()];
        Some(Left {
            prompt: u64::from(tokens.prompt),
            was_spilled: tokens.was_spilled,
            computed_since: u64::from(home.computed.wrapping_sub(tokens.mark)),
            capacity: home.load.scrape().map_or(0, |scrape| scrape.kv_capacity_tokens),
        })
    }

    /// How long a conversation is after a turn of it.
    fn tokens(&self, ticket: &Ticket, conversation: ConversationKey, prompt: u64, completion: u64) -> Tokens {
        let home = self.memory.pins.at(conversation).map_or(ticket.replica, |pin| pin.replica);
        Tokens {
            prompt: u32::try_from(prompt).unwrap_or(u32::MAX),
            completion: u16::try_from(completion).unwrap_or(u16::MAX),
            mark: self.replicas[home.index()].computed,
            was_spilled: home != ticket.replica,
        }
    }
}
