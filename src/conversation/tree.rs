//! The canonical hashes of the values that enter a history, put together as their parts come. The rules are in
//! [`super::history`].

use super::digest::{self, Found, NO_ITEMS, mix};
use super::history::{History, Messages};
use super::message::{Block, Message, TEXT, text_list};
use super::preamble::Lead;

/// How deep values are looked into. Messages of agents nest 6 deep, and the arguments of a tool a little deeper.
const DEEPEST: usize = 24;

/// What a tree is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Messages,
    System,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
}

/// What an object or an array under way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Messages,
    Message,
    /// The content of a message that may be the first one of the user.
    Content,
    Block,
    System,
    SystemBlock,
    Object,
    Array,
}

/// What the value after a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    Other,
    CacheControl,
    Content,
    Role,
    Type,
    Text,
    /// Nothing that the model reads as text.
    Opaque,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    role: Role,
    /// The key under way.
    member: Member,
    key: u64,
    /// Over the members or the items so far.
    parts: u64,
}

/// How a string has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Plain,
    /// It may begin with preambles.
    Headed,
    /// It may be about billing.
    System,
}

/// The value under way and the history before it.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    subject: Subject,
    frames: [Frame; DEEPEST],
    depth: usize,
    messages: Messages,
    message: Message,
    block: Block,
}

impl Tree {
    pub(super) fn new() -> Self {
        let frame = Frame { role: Role::Array, member: Member::Other, key: 0, parts: 0 };
        Self {
            subject: Subject::System,
            frames: [frame; DEEPEST],
            depth: 0,
            messages: Messages::default(),
            message: Message::default(),
            block: Block::begin(0),
        }
    }

    pub(super) fn begin(&mut self, subject: Subject) {
        self.subject = subject;
        self.depth = 0;
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn history(&self) -> &History {
        self.messages.history()
    }

    /// The innermost object or array.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.frames[..self.depth].last().map(|frame| frame.role.kind())
    }

    fn top(&self) -> Option<(Role, Member)> {
        self.frames[..self.depth].last().map(|frame| (frame.role, frame.member))
    }

    /// A bracket opens. False: too deep to be looked into.
    pub(super) fn open(&mut self, kind: Kind) -> bool {
        if self.depth == DEEPEST {
            return false;
        }
        let role = self.role(kind);
        match role {
            Role::Message => self.message = Message::default(),
            Role::Content => self.message.begin_content(),
            Role::Block | Role::SystemBlock => self.block = Block::begin(self.message.said.bytes),
            Role::Messages | Role::System | Role::Object | Role::Array => {}
        }
        let parts = match kind {
            Kind::Object => 0,
            Kind::Array => NO_ITEMS,
        };
        self.frames[self.depth] = Frame { role, member: Member::Other, key: 0, parts };
        self.depth += 1;
        true
    }

    fn role(&self, kind: Kind) -> Role {
        match (self.top(), kind) {
            (None, Kind::Array) if self.subject == Subject::Messages => Role::Messages,
            (None, Kind::Array) => Role::System,
            (Some((Role::Messages, _)), Kind::Object) => Role::Message,
            (Some((Role::Message, Member::Content)), Kind::Array) if self.messages.awaits_user() => Role::Content,
            (Some((Role::Content, _)), Kind::Object) => Role::Block,
            (Some((Role::System, _)), Kind::Object) => Role::SystemBlock,
            (_, Kind::Object) => Role::Object,
            (_, Kind::Array) => Role::Array,
        }
    }

    /// A key has ended. False: its value counts for nothing.
    pub(super) fn key(&mut self, key: Found) -> bool {
        let member = Member::of(key.short);
        if let Some(frame) = self.frames[..self.depth].last_mut() {
            frame.key = key.hash;
            frame.member = member;
        }
        member != Member::CacheControl
    }

    /// How the string that begins has to be read.
    pub(super) fn manner(&self) -> Manner {
        match self.top() {
            Some((Role::Message, Member::Content) | (Role::Block, Member::Text)) if self.messages.awaits_user() => {
                Manner::Headed
            }
            Some((Role::SystemBlock, Member::Text)) => Manner::System,
            None if self.subject == Subject::Messages => Manner::Headed,
            None => Manner::System,
            Some(_) => Manner::Plain,
        }
    }

    /// A string has ended that was read plainly.
    pub(super) fn text(&mut self, found: Found) {
        let Some((role, member)) = self.top() else { return };
        match member {
            Member::Content if role.kind() == Kind::Object => {
                self.message.said.bytes += found.bytes;
                self.value(text_list(found.hash));
            }
            Member::Other | Member::Content | Member::Text => {
                self.message.said.bytes += found.bytes;
                self.value(found.hash);
            }
            Member::Role => {
                if role == Role::Message {
                    self.message.said.note_role(found.short);
                }
                self.value(found.hash);
            }
            Member::Type => self.type_text(role, found),
            Member::Opaque | Member::CacheControl => self.value(found.hash),
        }
    }

    fn type_text(&mut self, role: Role, found: Found) {
        let is_text = matches!(found.short, b"text" | b"input_text" | b"output_text");
        match role {
            Role::Block | Role::SystemBlock => self.block.is_text |= is_text,
            Role::Message => self.message.said.note_type(found.short),
            Role::Messages | Role::Content | Role::System | Role::Object | Role::Array => {}
        }
        self.value(if is_text { TEXT } else { found.hash });
    }

    /// A string has ended that was read for preambles.
    pub(super) fn headed_text(&mut self, whole: Found, lead: Lead) {
        let words = if let Lead::Words { hash, .. } = lead { hash } else { whole.hash };
        match self.top() {
            Some((Role::Block, _)) => {
                self.message.said.bytes += whole.bytes;
                self.block.lead = lead;
                self.add(whole.hash, words);
            }
            Some(_) => {
                let (whole, without) = self.message.take_content(whole, words, lead);
                self.add(whole, without);
            }
            None => {
                let (message, hash) = Message::of_user(whole, words, lead);
                self.messages.add(hash, &message.said);
                self.messages.end();
            }
        }
    }

    /// A text of the system prompt has ended.
    pub(super) fn system_text(&mut self, whole: Found) {
        if self.depth > 0 {
            return self.value(whole.hash);
        }
        self.messages.note_system(text_list(whole.hash));
    }

    /// A text of the system prompt has ended that is about billing.
    pub(super) fn billing_text(&mut self, whole: Found) {
        if self.depth > 0 {
            self.block.is_billing = true;
            return self.value(whole.hash);
        }
        self.messages.note_system(digest::array(NO_ITEMS));
    }

    /// A value is complete.
    pub(super) fn value(&mut self, hash: u64) {
        self.add(hash, hash);
    }

    /// A value is complete: its hash with all, and without what is left out of it if its message turns out to be the
    /// user's first.
    fn add(&mut self, whole: u64, without: u64) {
        let Some(frame) = self.frames[..self.depth].last_mut() else { return };
        match frame.role {
            Role::Array | Role::System => frame.parts = mix(frame.parts, whole),
            Role::Object | Role::SystemBlock => {
                frame.parts = frame.parts.wrapping_add(digest::member(frame.key, whole));
            }
            Role::Message => {
                frame.parts = frame.parts.wrapping_add(digest::member(frame.key, whole));
                self.message.parts = self.message.parts.wrapping_add(digest::member(frame.key, without));
            }
            Role::Block => {
                frame.parts = frame.parts.wrapping_add(digest::member(frame.key, whole));
                self.block.parts = self.block.parts.wrapping_add(digest::member(frame.key, without));
            }
            Role::Content => {
                frame.parts = mix(frame.parts, whole);
                self.message.take(whole);
            }
            // Whatever stands in the place of a message.
            Role::Messages => {
                self.message = Message::default();
                self.messages.add(whole, &self.message.said);
            }
        }
    }

    /// A bracket closes that was opened.
    pub(super) fn close(&mut self) {
        let Some(frame) = self.frames[..self.depth].last().copied() else { return };
        self.depth -= 1;
        let whole = match frame.role.kind() {
            Kind::Object => digest::object(frame.parts),
            Kind::Array => digest::array(frame.parts),
        };
        match frame.role {
            Role::Messages => self.messages.end(),
            Role::System => self.messages.note_system(whole),
            Role::Message => self.end_message(frame.parts, self.message.parts),
            Role::Content => self.add(whole, self.message.content()),
            Role::Block => self.end_block(whole),
            Role::SystemBlock if self.block.is_text && self.block.is_billing => {}
            Role::SystemBlock | Role::Object | Role::Array => self.value(whole),
        }
    }

    fn end_message(&mut self, whole: u64, without: u64) {
        let parts = if self.message.said.is_first_of_user(&self.messages) { without } else { whole };
        self.messages.add(digest::object(parts), &self.message.said);
    }

    fn end_block(&mut self, whole: u64) {
        let Some(content) = self.frames[..self.depth].last_mut() else { return };
        content.parts = mix(content.parts, whole);
        self.message.take_block(&self.block, whole);
    }
}

impl Role {
    fn kind(self) -> Kind {
        match self {
            Role::Message | Role::Block | Role::SystemBlock | Role::Object => Kind::Object,
            Role::Messages | Role::Content | Role::System | Role::Array => Kind::Array,
        }
    }
}

impl Member {
    fn of(key: &[u8]) -> Self {
        match key {
            b"cache_control" => Member::CacheControl,
            b"content" => Member::Content,
            b"role" => Member::Role,
            b"type" => Member::Type,
            b"text" => Member::Text,
            b"id" | b"call_id" | b"tool_use_id" | b"tool_call_id" => Member::Opaque,
            b"media_type" | b"data" | b"url" | b"image_url" | b"file_data" | b"encrypted_content" | b"signature" => {
                Member::Opaque
            }
            _ => Member::Other,
        }
    }
}
