//! Words of an answer that mean something: kinds of events, reasons to stop, blocks that call a tool.

use crate::json::{Sink, Stray};

/// Bytes of the longest word that is read. The longest known ones, names of events of the Responses API, have 40.
pub(super) const LONGEST: usize = 48;

/// A word under way: a key, a value, or the name of an event.
#[derive(Clone, Debug)]
pub(super) struct Word {
    bytes: [u8; LONGEST],
    length: usize,
    is_whole: bool,
}

impl Word {
    pub(super) fn new() -> Self {
        Self { bytes: [0; LONGEST], length: 0, is_whole: true }
    }

    pub(super) fn begin(&mut self) {
        self.length = 0;
        self.is_whole = true;
    }

    /// What was read. Empty, which no known word is, where it was too long or no text.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.is_whole { &self.bytes[..self.length] } else { b"" }
    }
}

impl Sink for Word {
    fn push(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.is_whole = false,
        }
    }

    fn stray(&mut self, _: Stray) {
        self.is_whole = false;
    }
}

/// What an event is, by its name, or by the `type` in its data where the name says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// One that may tell something.
    #[default]
    Telling,
    /// One that tells nothing, or repeats at length what others told.
    Idle,
    Error,
    /// The last of a stream.
    Last,
    /// The last of a stream that failed.
    Failed,
}

impl Kind {
    pub(super) fn of(word: &[u8]) -> Self {
        match word {
            b"error" => Kind::Error,
            b"message_stop" | b"response.completed" | b"response.incomplete" => Kind::Last,
            b"response.failed" => Kind::Failed,
            b"ping" | b"content_block_stop" => Kind::Idle,
            b"response.created" | b"response.queued" | b"response.in_progress" => Kind::Idle,
            word if word.ends_with(b".done") => Kind::Idle,
            _ => Kind::Telling,
        }
    }
}

/// Why an engine has stopped to generate. Engines have different words for the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model has come to the end of what it had to say: `stop`, `end_turn`, `stop_sequence`, `completed`.
    Stop,
    /// A limit was reached: `length`, `max_tokens`, `max_output_tokens`, `model_context_window_exceeded`.
    Length,
    /// The model waits for a tool: `tool_calls`, `tool_use`, `function_call`.
    ToolCalls,
    /// `content_filter`, `refusal`.
    Refusal,
    /// The model means to go on: `pause_turn`.
    Pause,
    /// vLLM's own reason: the model went round in circles.
    Repetition,
    /// `abort`, `cancelled`.
    Abort,
    /// `error`, `failed`.
    Error,
    /// A word that is not known.
    Other,
}

impl StopReason {
    /// The word for it in logs and labels.
    pub fn name(self) -> &'static str {
        match self {
            StopReason::Stop => "stop",
            StopReason::Length => "length",
            StopReason::ToolCalls => "tool_calls",
            StopReason::Refusal => "refusal",
            StopReason::Pause => "pause",
            StopReason::Repetition => "repetition",
            StopReason::Abort => "abort",
            StopReason::Error => "error",
            StopReason::Other => "other",
        }
    }

    /// Of `finish_reason`, `stop_reason` and `incomplete_details.reason`. An empty one, which some servers send with every
    /// event, is none.
    pub(super) fn of(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"" => return None,
            b"stop" | b"end_turn" | b"stop_sequence" | b"completed" => StopReason::Stop,
            b"length" | b"max_tokens" | b"max_output_tokens" | b"model_context_window_exceeded" => StopReason::Length,
            b"tool_calls" | b"tool_use" | b"function_call" => StopReason::ToolCalls,
            b"content_filter" | b"refusal" => StopReason::Refusal,
            b"pause_turn" => StopReason::Pause,
            b"repetition" => StopReason::Repetition,
            b"abort" | b"cancelled" => StopReason::Abort,
            b"error" | b"failed" => StopReason::Error,
            _ => StopReason::Other,
        })
    }

    /// Of the `status` of a response, which may as well say that it has not stopped.
    pub(super) fn of_status(word: &[u8]) -> Option<Self> {
        match word {
            b"completed" => Some(StopReason::Stop),
            b"incomplete" => Some(StopReason::Other),
            b"failed" => Some(StopReason::Error),
            b"cancelled" => Some(StopReason::Abort),
            _ => None,
        }
    }
}

/// Whether a block or an item of this type is a call that the client has to answer. What an engine calls itself, such as
/// `web_search_call` or `server_tool_use`, is none.
pub(super) fn calls_tool(block_type: &[u8]) -> bool {
    matches!(
        block_type,
        b"tool_use"
            | b"function_call"
            | b"custom_tool_call"
            | b"local_shell_call"
            | b"shell_call"
            | b"apply_patch_call"
            | b"computer_call"
    )
}
