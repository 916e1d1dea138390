//! Where in an answer the figures and words of interest are: the whole map of keys that the reader knows.
//!
//! One map serves every API, since what one means by a key means nothing in another: the answer tells what it is.
//!
//! ```text
//! chat, completions   usage{..}  choices[{finish_reason, text, delta|message{content, reasoning, tool_calls ..}}]  error
//! messages            type  message{usage, stop_reason}  delta{text, thinking, partial_json, stop_reason}  usage  error
//!                     content_block{type};  not streamed: usage  stop_reason  content[{type}]
//! responses           type  delta  item{type}  response{usage, status, incomplete_details{reason}, output[{type}], error};
//!                     not streamed: what is in `response` here
//! ```

/// The deepest place that is read: `response.output[].type` and `response.usage.input_tokens_details.cached_tokens`.
pub(super) const DEEPEST: usize = 4;

/// An object or an array that is read. Every other one is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Root,
    /// `message` or `response` of an event: an answer, as it is when it isn't streamed.
    Answer,
    Usage,
    PromptDetails,
    IncompleteDetails,
    Choices,
    Choice,
    /// `delta` or `message` of a choice.
    Message,
    /// `delta` of an event of the Messages API.
    Delta,
    /// `content` or `output` of an answer.
    Blocks,
    Block,
}

/// What a value is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Nothing,
    /// What the event is.
    Kind,
    /// `object` of the root, which is `error` in errors of older versions of vLLM.
    Object,
    Answer,
    Usage,
    PromptDetails,
    Figure(Figure),
    StopReason,
    Status,
    IncompleteDetails,
    Choices,
    Choice,
    Message,
    /// `delta` of an event: text in the Responses API, an object in the Messages API.
    Delta,
    /// Text that was generated, if there is any.
    Generated,
    ToolCalls,
    /// The form that `tool_calls` had before.
    FunctionCall,
    Blocks,
    Block,
    BlockType,
    Error,
}

/// A count of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// `prompt_tokens`: the whole prompt.
    Prompt,
    /// `input_tokens`: the whole prompt of the Responses API, and of the Messages API what neither of the next two counts.
    Input,
    CacheRead,
    CacheCreation,
    /// In the details of the whole prompt.
    Cached,
    Completion,
}

impl Scope {
    pub(super) fn is_array(self) -> bool {
        match self {
            Scope::Choices | Scope::Blocks => true,
            Scope::Root
            | Scope::Answer
            | Scope::Usage
            | Scope::PromptDetails
            | Scope::IncompleteDetails
            | Scope::Choice
            | Scope::Message
            | Scope::Delta
            | Scope::Block => false,
        }
    }

    /// What the items of an array are.
    pub(super) fn item(self) -> Target {
        match self {
            Scope::Choices => Target::Choice,
            Scope::Blocks => Target::Block,
            Scope::Root
            | Scope::Answer
            | Scope::Usage
            | Scope::PromptDetails
            | Scope::IncompleteDetails
            | Scope::Choice
            | Scope::Message
            | Scope::Delta
            | Scope::Block => Target::Nothing,
        }
    }

    /// What the value after a key of an object is.
    pub(super) fn target(self, key: &[u8]) -> Target {
        match self {
            Scope::Root => of_root(key),
            Scope::Answer => of_answer(key),
            Scope::Usage => of_usage(key),
            Scope::Choice => of_choice(key),
            Scope::Message => of_message(key),
            Scope::Delta => of_delta(key),
            Scope::PromptDetails if key == b"cached_tokens" => Target::Figure(Figure::Cached),
            Scope::IncompleteDetails if key == b"reason" => Target::StopReason,
            Scope::Block if key == b"type" => Target::BlockType,
            Scope::PromptDetails | Scope::IncompleteDetails | Scope::Block | Scope::Choices | Scope::Blocks => {
                Target::Nothing
            }
        }
    }
}

fn of_root(key: &[u8]) -> Target {
    match key {
        b"type" => Target::Kind,
        b"object" => Target::Object,
        b"choices" => Target::Choices,
        b"delta" => Target::Delta,
        b"message" | b"response" => Target::Answer,
        b"item" | b"content_block" => Target::Block,
        _ => of_answer(key),
    }
}

fn of_answer(key: &[u8]) -> Target {
    match key {
        b"usage" => Target::Usage,
        b"stop_reason" => Target::StopReason,
        b"status" => Target::Status,
        b"incomplete_details" => Target::IncompleteDetails,
        b"content" | b"output" => Target::Blocks,
        b"error" => Target::Error,
        _ => Target::Nothing,
    }
}

fn of_usage(key: &[u8]) -> Target {
    match key {
        b"prompt_tokens" => Target::Figure(Figure::Prompt),
        b"input_tokens" => Target::Figure(Figure::Input),
        b"completion_tokens" | b"output_tokens" => Target::Figure(Figure::Completion),
        b"cache_read_input_tokens" => Target::Figure(Figure::CacheRead),
        b"cache_creation_input_tokens" => Target::Figure(Figure::CacheCreation),
        b"prompt_tokens_details" | b"input_tokens_details" => Target::PromptDetails,
        _ => Target::Nothing,
    }
}

fn of_choice(key: &[u8]) -> Target {
    match key {
        b"delta" | b"message" => Target::Message,
        b"text" => Target::Generated,
        b"finish_reason" => Target::StopReason,
        _ => Target::Nothing,
    }
}

fn of_message(key: &[u8]) -> Target {
    match key {
        // `reasoning_content` in older versions of vLLM and in other engines.
        b"content" | b"reasoning" | b"reasoning_content" | b"refusal" => Target::Generated,
        b"tool_calls" => Target::ToolCalls,
        b"function_call" => Target::FunctionCall,
        _ => Target::Nothing,
    }
}

fn of_delta(key: &[u8]) -> Target {
    match key {
        b"text" | b"thinking" | b"partial_json" => Target::Generated,
        b"stop_reason" => Target::StopReason,
        _ => Target::Nothing,
    }
}

/// What can be made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Its first bytes say all.
    Seen,
    Word,
    Inside(Scope),
}

impl Target {
    fn purpose(self) -> Use {
        match self {
            Target::Kind | Target::Object | Target::StopReason | Target::Status | Target::BlockType => Use::Word,
            Target::Answer => Use::Inside(Scope::Answer),
            Target::Usage => Use::Inside(Scope::Usage),
            Target::PromptDetails => Use::Inside(Scope::PromptDetails),
            Target::IncompleteDetails => Use::Inside(Scope::IncompleteDetails),
            Target::Choices => Use::Inside(Scope::Choices),
            Target::Choice => Use::Inside(Scope::Choice),
            Target::Message => Use::Inside(Scope::Message),
            Target::Delta => Use::Inside(Scope::Delta),
            Target::Blocks => Use::Inside(Scope::Blocks),
            Target::Block => Use::Inside(Scope::Block),
            Target::Nothing
            | Target::Figure(_)
            | Target::Generated
            | Target::ToolCalls
            | Target::FunctionCall
            | Target::Error => Use::Seen,
        }
    }

    /// Whether a text is a word that is read.
    pub(super) fn is_word(self) -> bool {
        self.purpose() == Use::Word
    }

    /// What is read of a value that this bracket opens.
    pub(super) fn inside(self, bracket: u8) -> Option<Scope> {
        match self.purpose() {
            Use::Inside(scope) => (scope.is_array() == (bracket == b'[')).then_some(scope),
            Use::Seen | Use::Word => None,
        }
    }
}
