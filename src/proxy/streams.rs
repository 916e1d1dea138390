//! How many requests for the engines are served at a time, whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The requests for engines at this moment.
#[derive(Debug, Default)]
pub struct Streams(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Stream(Arc<AtomicUsize>);

impl Streams {
    /// One more, unless `max` are there.
    pub fn enter(&self, max: usize) -> Option<Stream> {
        let fits = |count| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Stream(Arc::clone(&self.0)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_are_there_and_one_that_ends_makes_room() {
        let streams = Streams::default();
        let first = streams.enter(2);
        let second = streams.enter(2);
        assert!(first.is_some() && second.is_some() && streams.enter(2).is_none());
        assert!(streams.enter(3).is_some(), "a reload may raise it");
        drop(first);
        assert!(streams.enter(2).is_some());
    }
}
