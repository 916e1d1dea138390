//! What one document of an answer tells, and what all of them tell together.

use super::place::{Figure, Target};
use super::word::{Kind, StopReason, calls_tool};

/// What an engine says that a turn cost, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The whole prompt, with what was found in the cache.
    pub prompt: u64,
    /// Of the prompt, what was found in the cache. `None` where the engine doesn't tell.
    pub cached: Option<u64>,
    /// What was generated, reasoning and tool calls included.
    pub completion: u64,
}

/// The counts of a `usage` as they stand in it. A count that is no whole number, or that no turn can have, is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    prompt: Option<u32>,
    input: Option<u32>,
    cache_read: Option<u32>,
    cache_creation: Option<u32>,
    cached: Option<u32>,
    completion: Option<u32>,
}

impl Figures {
    pub(super) fn set(&mut self, figure: Figure, count: Option<u32>) {
        *self.slot(figure) = count;
    }

    fn slot(&mut self, figure: Figure) -> &mut Option<u32> {
        match figure {
            Figure::Prompt => &mut self.prompt,
            Figure::Input => &mut self.input,
            Figure::CacheRead => &mut self.cache_read,
            Figure::CacheCreation => &mut self.cache_creation,
            Figure::Cached => &mut self.cached,
            Figure::Completion => &mut self.completion,
        }
    }

    /// Takes what a later `usage` says, and keeps what it doesn't. The Messages API tells the prompt in its first event and
    /// the completion in its last; vLLM tells in the last one what was cached, too.
    fn update(&mut self, later: &Figures) {
        let Figures { prompt, input, cache_read, cache_creation, cached, completion } = *later;
        self.prompt = prompt.or(self.prompt);
        self.input = input.or(self.input);
        self.cache_read = cache_read.or(self.cache_read);
        self.cache_creation = cache_creation.or(self.cache_creation);
        self.cached = cached.or(self.cached);
        self.completion = completion.or(self.completion);
    }

    /// `None` where not even the prompt is told. An engine that tells no completion has generated nothing: that is so with
    /// embeddings.
    pub(super) fn usage(&self) -> Option<Usage> {
        let tokens = |count: Option<u32>| u64::from(count.unwrap_or(0));
        // Where both are told, the first is the whole prompt.
        let prompt = match (self.prompt, self.input) {
            (Some(prompt), _) => u64::from(prompt),
            (None, Some(input)) => u64::from(input) + tokens(self.cache_read) + tokens(self.cache_creation),
            (None, None) => return None,
        };
        let cached = self.cached.or(self.cache_read).map(u64::from).filter(|cached| *cached <= prompt);
        Some(Usage { prompt, cached, completion: tokens(self.completion) })
    }
}

/// What one document says: an event of a stream, or a whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub kind: Kind,
    pub figures: Figures,
    pub stop_reason: Option<StopReason>,
    /// From the status of a response, which says less than a reason.
    pub status: Option<StopReason>,
    /// Something that was generated stands in it.
    pub is_content: bool,
    pub has_tool_call: bool,
    pub has_error: bool,
}

impl Facts {
    /// A value begins. Of figures that stand twice the last ones count, whatever they are.
    pub(super) fn forget(&mut self, target: Target) {
        if let Target::Figure(figure) = target {
            self.figures.set(figure, None);
        } else if target == Target::PromptDetails {
            self.figures.set(Figure::Cached, None);
        } else if target == Target::Usage {
            self.figures = Figures::default();
        }
    }

    /// Takes what the first byte of a value says, where no more of it is read.
    pub(super) fn see(&mut self, target: Target, byte: u8) {
        if target == Target::Error {
            self.has_error |= matches!(byte, b'{' | b'"');
        } else if target == Target::FunctionCall && byte == b'{' {
            self.is_content = true;
            self.has_tool_call = true;
        }
    }

    /// Takes a word. One that is not known tells nothing, so that one before it stays.
    pub(super) fn word(&mut self, target: Target, word: &[u8]) {
        if target == Target::Kind {
            self.kind = Kind::of(word);
        } else if target == Target::Object {
            self.has_error |= word == b"error";
        } else if target == Target::StopReason {
            self.stop_reason = StopReason::of(word).or(self.stop_reason);
        } else if target == Target::Status {
            self.status = StopReason::of_status(word).or(self.status);
        } else if target == Target::BlockType {
            self.has_tool_call |= calls_tool(word);
        }
    }
}

/// What an answer has told so far. Only of one that has ended without an error is it the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// `None` where the engine has not told it, which in most APIs it does only in the end, and in streams only if asked.
    pub usage: Option<Usage>,
    /// Events of a stream that carry something generated: text, reasoning, or a piece of a tool call. One may carry
    /// several tokens.
    pub content_events: u64,
    /// Whether the model has begun to call a tool of the client's.
    pub has_tool_call: bool,
    pub stop_reason: Option<StopReason>,
    /// Whether the answer has come to its own end: `[DONE]`, `message_stop`, `response.completed` and the like, or the
    /// brace that closes a document.
    pub has_ended: bool,
    /// Whether the answer is an error, or has one in it.
    pub has_error: bool,
}

/// All the documents of an answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    figures: Figures,
    report: Report,
}

impl Account {
    pub(super) fn report(&self) -> Report {
        Report { usage: self.figures.usage(), ..self.report }
    }

    pub(super) fn end(&mut self) {
        self.report.has_ended = true;
    }

    /// Takes an event of a kind, with what its data says if that was readable. Whether it carried content.
    pub(super) fn event(&mut self, kind: Kind, facts: Option<&Facts>) -> bool {
        match kind {
            Kind::Idle => return false,
            Kind::Telling => {}
            Kind::Error => self.report.has_error = true,
            Kind::Last => self.end(),
            Kind::Failed => {
                self.end();
                self.report.has_error = true;
            }
        }
        let Some(facts) = facts else { return false };
        self.tell(facts);
        self.report.content_events += u64::from(facts.is_content);
        facts.is_content
    }

    /// Takes an answer that isn't streamed.
    pub(super) fn document(&mut self, facts: &Facts) {
        self.report.has_error |= facts.kind == Kind::Error;
        self.tell(facts);
        self.end();
    }

    fn tell(&mut self, facts: &Facts) {
        self.figures.update(&facts.figures);
        self.report.stop_reason = facts.stop_reason.or(facts.status).or(self.report.stop_reason);
        self.report.has_tool_call |= facts.has_tool_call;
        self.report.has_error |= facts.has_error;
    }
}
