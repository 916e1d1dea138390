//! From the engine's tokens to a body: collected, or event by event as they come.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use thiserror::Error;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Site;
use super::dialect::{Dialect, Piece, Usage};
use super::journal::ArrivalId;
use super::rank::Generation;
use super::refusal::Refusal;
use super::reply::Reply;
use crate::sim::request::{Completion, TokenEvent};
use crate::sim::tokens;

/// The connection is closed in the middle of an answer, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the simulated server was told to cut this answer")]
pub struct Cut;

/// What an answer needs to know besides its tokens.
#[derive(Debug)]
pub struct Terms {
    /// The server, for its sizes and its journal.
    pub site: Arc<Site>,
    /// The request's entry in the journal.
    pub arrival: ArrivalId,
    /// The prompt's length in tokens.
    pub prompt_tokens: u32,
    /// What its tokens are.
    pub reply: Reply,
    /// Tokens after which the answer is cut.
    pub cut_after: Option<u32>,
}

/// How collecting an answer ended.
#[derive(Debug)]
pub enum Collected {
    /// It is complete: its text and what it used.
    Whole(String, Usage),
    /// The engine died.
    Died,
}

impl Terms {
    fn usage(&self, completion: Completion) -> Usage {
        let block_size = self.site.options.engine.block_size;
        let stored = completion.prompt_tokens / block_size * block_size;
        Usage { completion, created_tokens: stored.saturating_sub(completion.cached_tokens) }
    }

    /// Books a token; an error if the answer ends before it.
    fn see(&self, event: &TokenEvent) -> Result<(), Cut> {
        if event.index == 0 {
            self.site.journal.note_cached(self.arrival, event.cached_tokens);
        }
        if self.cut_after.is_some_and(|tokens| event.index >= tokens) { Err(Cut) } else { Ok(()) }
    }
}

/// Waits for the last token.
pub async fn collect(terms: &Terms, mut generation: Generation) -> Result<Collected, Cut> {
    let mut reply = Vec::new();
    while let Some(event) = generation.next().await {
        terms.see(&event)?;
        reply.push(event.token);
        if let Some(completion) = event.finished {
            return Ok(Collected::Whole(tokens::decode(&reply), terms.usage(completion)));
        }
    }
    Ok(Collected::Died)
}

/// A streamed body: one frame an event, which hyper sends as one chunk. Dropping it, as hyper does when the client is gone,
/// aborts the request.
pub struct EventStream {
    terms: Terms,
    dialect: Box<dyn Dialect>,
    generation: Option<Generation>,
    ready: VecDeque<Bytes>,
    keep_alive: Option<Interval>,
}

impl EventStream {
    /// A stream of `generation`; it starts before the generation does.
    pub fn new(terms: Terms, mut dialect: Box<dyn Dialect>, generation: Generation) -> Self {
        let ready = VecDeque::from(dialect.opening());
        Self { terms, dialect, generation: Some(generation), ready, keep_alive: None }
    }

    /// A stream in which nothing but an error comes.
    pub fn failed(terms: Terms, dialect: Box<dyn Dialect>, refusal: &Refusal) -> Self {
        let ready = VecDeque::from(dialect.failure(refusal));
        Self { terms, dialect, generation: None, ready, keep_alive: None }
    }

    /// The same stream with a comment after every `period` without an event.
    pub fn with_keep_alive(mut self, period: Option<Duration>) -> Self {
        self.keep_alive = period.map(|period| {
            let mut ticks = interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks.reset();
            ticks
        });
        self
    }

    fn take(&mut self, event: &TokenEvent) -> Result<(), Cut> {
        self.terms.see(event)?;
        let text = tokens::decode(&[event.token]);
        let piece = Piece {
            text: &text,
            part: self.terms.reply.part(event.index),
            index: event.index,
            prompt_tokens: self.terms.prompt_tokens,
            finish: event.finished.map(|completion| completion.reason),
        };
        self.ready.extend(self.dialect.token(piece));
        if let Some(completion) = event.finished {
            self.ready.extend(self.dialect.closing(&self.terms.usage(completion)));
            self.generation = None;
        }
        Ok(())
    }

    fn die(&mut self) {
        self.ready.extend(self.dialect.failure(&Refusal::engine_dead()));
        self.generation = None;
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            let Some(generation) = &mut self.generation else {
                return Poll::Ready(None);
            };
            match generation.poll_next(context) {
                Poll::Ready(Some(event)) => {
                    if let Err(cut) = self.take(&event) {
                        self.generation = None;
                        return Poll::Ready(Some(Err(cut)));
                    }
                    if let Some(ticks) = &mut self.keep_alive {
                        ticks.reset();
                    }
                }
                Poll::Ready(None) => self.die(),
                Poll::Pending => {
                    let Some(ticks) = &mut self.keep_alive else {
                        return Poll::Pending;
                    };
                    ready!(ticks.poll_tick(context));
                    self.ready.push_back(Bytes::from_static(b": keep-alive\n\n"));
                }
            }
        }
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        self.get_mut().poll_event(context).map(|event| event.map(|event| event.map(Frame::data)))
    }
}
