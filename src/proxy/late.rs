//! A search that goes on while a body passes.

use super::search::BodySearch;

/// A search that goes on while the body passes: what the rest says comes too late for the decision, and is learned from.
#[derive(Debug)]
pub struct LateSearch {
    pub search: BodySearch,
    /// How much of the body it has looked at.
    seen: usize,
    /// How much of the body has passed in this attempt.
    passed: usize,
}

impl LateSearch {
    /// Goes on with a search that has looked at the first `seen` bytes.
    pub fn new(search: BodySearch, seen: usize) -> Self {
        LateSearch { search, seen, passed: 0 }
    }

    /// The body comes again from its first byte.
    pub fn begin(&mut self) {
        self.passed = 0;
    }

    /// The next piece of the body.
    pub fn pass(&mut self, piece: &[u8]) {
        let known = self.seen.saturating_sub(self.passed).min(piece.len());
        self.search.feed(&piece[known..]);
        self.passed += piece.len();
        self.seen = self.seen.max(self.passed);
    }
}
