//! The message under way, by its hashes with all and without what is left out of the user's first one.

use super::digest::{self, Found, NO_ITEMS, mix};
use super::history::Said;
use super::preamble::Lead;

const ROLE: u64 = digest::text(b"role");
const USER: u64 = digest::text(b"user");
const CONTENT: u64 = digest::text(b"content");
const TYPE: u64 = digest::text(b"type");
/// Both a key and what every type of a text counts as.
pub(super) const TEXT: u64 = digest::text(b"text");

/// The message under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    pub(super) said: Said,
    /// Over its members, with what was left out of its content.
    pub(super) parts: u64,
    /// Over the items of its content, with the preambles that no words have followed yet, and without them.
    with: u64,
    without: u64,
    /// Bytes of those preambles.
    pending: u64,
}

/// The block under way in the content of a message, or in the system prompt.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Over its members, with what was left out of its text.
    pub(super) parts: u64,
    pub(super) is_text: bool,
    pub(super) lead: Lead,
    pub(super) is_billing: bool,
    /// Bytes of the message before it.
    begun_at: u64,
}

impl Block {
    pub(super) fn begin(begun_at: u64) -> Self {
        Self { parts: 0, is_text: false, lead: Lead::Blank, is_billing: false, begun_at }
    }
}

impl Message {
    /// The message that a bare string stands for, and its hash.
    pub(super) fn of_user(whole: Found, words: u64, lead: Lead) -> (Self, u64) {
        let mut message = Self::default();
        message.said.note_role(b"user");
        let (_, content) = message.take_content(whole, words, lead);
        let members = digest::member(ROLE, USER).wrapping_add(digest::member(CONTENT, content));
        (message, digest::object(members))
    }

    /// A part of the content that is no text.
    pub(super) fn take(&mut self, hash: u64) {
        self.with = mix(self.with, hash);
        self.without = mix(self.without, hash);
    }

    /// A text of the content, by its hashes with all and without what is left out of it.
    fn take_text(&mut self, lead: Lead, whole: u64, without: u64, bytes: u64) {
        match lead {
            Lead::Blank => self.take(whole),
            Lead::Preamble => {
                self.with = mix(self.with, whole);
                self.pending += bytes;
            }
            Lead::Words { left_out, .. } => {
                self.without = mix(self.without, without);
                self.with = self.without;
                self.said.left_out += self.pending + left_out;
                self.pending = 0;
            }
        }
    }

    /// The content is a string. Gives its hashes with all and without what is left out.
    pub(super) fn take_content(&mut self, whole: Found, words: u64, lead: Lead) -> (u64, u64) {
        self.said.bytes += whole.bytes;
        self.begin_content();
        let block = text_block(whole.hash);
        self.take_text(lead, block, text_block(words), whole.bytes);
        (text_list(whole.hash), self.content())
    }

    /// A block has ended, by the hash of all of it.
    pub(super) fn take_block(&mut self, block: &Block, whole: u64) {
        if block.is_text {
            let bytes = self.said.bytes - block.begun_at;
            self.take_text(block.lead, whole, digest::object(block.parts), bytes);
        } else {
            self.take(whole);
        }
    }

    /// The hash of the content without what is left out.
    pub(super) fn content(&self) -> u64 {
        digest::array(self.with)
    }

    pub(super) fn begin_content(&mut self) {
        self.with = NO_ITEMS;
        self.without = NO_ITEMS;
        self.pending = 0;
    }
}

/// What a text equals where blocks may stand: a list with one block, by the hash of the text.
pub(super) fn text_list(text: u64) -> u64 {
    digest::array(mix(NO_ITEMS, text_block(text)))
}

fn text_block(text: u64) -> u64 {
    digest::object(digest::member(TYPE, TEXT).wrapping_add(digest::member(TEXT, text)))
}
