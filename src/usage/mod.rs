//! What a turn cost, as the engine itself says in its answer, read in passing.
//!
//! ```text
//!           +-- a stream --> Events --> the data of one event --+
//! chunks ---|                                                   +--> Reader --> Facts --> Account --> Report
//!           +-- a document -------------------------------------+
//! ```
//!
//! The chunks of a response's body come as they come off the wire, cut anywhere. Nothing of them is kept but the shape of
//! the last event (an event that differs in its text alone tells the same, and isn't read), nothing more is allocated, and an
//! [`Observer`] takes the same few hundred bytes whatever the length of the answer. It never fails: an answer that can't be
//! read tells nothing.
//!
//! Which API an answer belongs to need not be said: what one of them means by a key, no other one uses (the map is in
//! `place.rs`). An event of a stream is what its name says, or the `type` in its data where the name says nothing, and
//! counts once its empty line has come. Of events that tell the same figure the last one counts.
//!
//! The module is pure: no I/O, no clock, no entropy, no logging.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod alike;
mod events;
mod facts;
mod place;
#[cfg(test)]
mod properties;
mod reader;
#[cfg(any(test, fuzzing))]
pub mod reference;
#[cfg(test)]
mod tests;
mod word;

pub use facts::{Report, Usage};
pub use word::StopReason;

use alike::Alike;
use events::{Events, Field, Part};
use facts::Account;
use reader::{Document, Reader};
use word::{Kind, Word};

use crate::json::Sink as _;

/// May stand in front of a stream. Some servers write it in front of a document, too, and many clients pass over it.
const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Watches the body of one response.
#[derive(Clone, Debug)]
pub struct Observer {
    form: Form,
    /// Bytes of a byte order mark that were passed; all of them where there was none.
    mark: usize,
    reader: Reader,
    account: Account,
}

#[derive(Clone, Debug)]
enum Form {
    Document,
    Stream(Box<Stream>),
}

/// The event under way.
#[derive(Clone, Debug)]
struct Stream {
    events: Events,
    name: Word,
    /// By its name, once that was read.
    kind: Kind,
    has_data: bool,
    alike: Alike,
}

impl Observer {
    /// For an answer that is one JSON document.
    pub fn of_document() -> Self {
        Self::new(Form::Document)
    }

    /// For an answer that is a stream of events.
    pub fn of_stream() -> Self {
        Self::new(Form::Stream(Box::new(Stream {
            events: Events::new(),
            name: Word::new(),
            kind: Kind::default(),
            has_data: false,
            alike: Alike::new(),
        })))
    }

    fn new(form: Form) -> Self {
        Self { form, mark: 0, reader: Reader::new(), account: Account::default() }
    }

    /// Takes the next bytes of the body. Says how many events with content ended in them: at the first one that isn't 0,
    /// the first token is there.
    pub fn observe(&mut self, chunk: &[u8]) -> u64 {
        let mut rest = chunk;
        while self.mark < BYTE_ORDER_MARK.len() {
            let Some(byte) = rest.first() else { return 0 };
            if *byte != BYTE_ORDER_MARK[self.mark] {
                let begun = std::mem::replace(&mut self.mark, BYTE_ORDER_MARK.len());
                self.take(&BYTE_ORDER_MARK[..begun]);
                break;
            }
            self.mark += 1;
            rest = &rest[1..];
        }
        self.take(rest)
    }

    /// What was told so far.
    pub fn report(&self) -> Report {
        self.account.report()
    }

    fn take(&mut self, bytes: &[u8]) -> u64 {
        match &mut self.form {
            Form::Document => {
                self.reader.feed(bytes);
                if let Document::Object(facts) = self.reader.document() {
                    self.account.document(facts);
                }
                0
            }
            Form::Stream(stream) => stream.take(bytes, &mut self.reader, &mut self.account),
        }
    }
}

impl Stream {
    fn take(&mut self, bytes: &[u8], reader: &mut Reader, account: &mut Account) -> u64 {
        let mut rest = bytes;
        let mut content_events = 0;
        // Where in `bytes` the event under way began; `None` if before them.
        let mut begun = None;
        while !rest.is_empty() {
            if self.is_between_events() {
                if let Some(length) = self.alike.length_of(rest) {
                    content_events += u64::from(account.event(self.alike.kind, Some(&self.alike.facts)));
                    rest = &rest[length..];
                    continue;
                }
                begun = Some(bytes.len() - rest.len());
            }
            let (used, part) = self.events.next(rest);
            rest = &rest[used..];
            match part {
                Part::Nothing | Part::End(Field::Data) => {}
                Part::Begin(Field::Event) => self.name.begin(),
                Part::Value(Field::Event, value) => self.name.push(value),
                Part::End(Field::Event) => self.kind = Kind::of(self.name.bytes()),
                Part::Begin(Field::Data) => self.begin_data(reader),
                Part::Value(Field::Data, _) if self.kind == Kind::Idle => {}
                Part::Value(Field::Data, value) => reader.feed(value),
                Part::Event => {
                    let event = begun.take().map(|begun| &bytes[begun..bytes.len() - rest.len()]);
                    content_events += u64::from(self.end(event, reader, account));
                }
            }
        }
        content_events
    }

    /// The lines of an event's data are one document.
    fn begin_data(&mut self, reader: &mut Reader) {
        if self.has_data {
            reader.feed(b"\n");
        } else {
            reader.begin();
            self.has_data = true;
        }
    }

    /// Whether the next byte begins an event.
    fn is_between_events(&self) -> bool {
        !self.has_data && self.kind == Kind::default() && self.events.is_at_line()
    }

    /// Whether the event that has ended carried content. One without data is none. Its bytes are at hand if they came together.
    fn end(&mut self, event: Option<&[u8]>, reader: &Reader, account: &mut Account) -> bool {
        let kind = std::mem::take(&mut self.kind);
        if !std::mem::take(&mut self.has_data) || kind == Kind::Idle {
            return false;
        }
        match reader.document() {
            Document::Object(facts) => {
                let kind = if kind == Kind::Telling { facts.kind } else { kind };
                if let Some(event) = event {
                    self.alike.see(event, kind, facts);
                }
                account.event(kind, Some(facts))
            }
            Document::Unreadable => account.event(kind, None),
            Document::Done => {
                account.end();
                false
            }
        }
    }
}
