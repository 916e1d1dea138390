//! What kind of turn a body asks for, collected as its parts are found. Of each part the first usable value decides.

use super::literal::Fault;
use super::path::Target;

/// What tells an agent's turn from its title generation and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// `tools` has at least one entry.
    pub has_tools: bool,
    /// `thinking` is there and not of type `disabled`.
    pub has_thinking: bool,
    /// The answer has to follow a JSON schema: `output_config.format`, `response_format` or `text.format` of type
    /// `json_schema`.
    pub has_json_schema: bool,
}

/// The parts of a [`Shape`], each undecided until it is found.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    tools: Option<bool>,
    thinking: Option<bool>,
    has_thinking_type: bool,
    output_format: Option<bool>,
    response_format: Option<bool>,
    text_format: Option<bool>,
}

impl Parts {
    pub(super) fn shape(&self) -> Shape {
        let formats = [self.output_format, self.response_format, self.text_format];
        Shape {
            has_tools: self.tools == Some(true),
            has_thinking: self.thinking == Some(true),
            has_json_schema: formats.contains(&Some(true)),
        }
    }

    /// Whether the target is a part that was found before.
    pub(super) fn is_decided(&self, target: Target) -> bool {
        target == Target::Tools && self.tools.is_some()
            || target == Target::Thinking && self.thinking.is_some()
            || target == Target::ThinkingType && self.has_thinking_type
    }

    /// `tools` is an array, and this byte is what stands first in it or closes it.
    pub(super) fn note_tools(&mut self, first: u8) {
        self.tools.get_or_insert(first != b']');
    }

    /// The value of a target begins with this byte.
    pub(super) fn note_value(&mut self, target: Target, byte: u8) {
        // Null is as good as nothing.
        if target == Target::Thinking && byte != b'n' {
            self.thinking.get_or_insert(true);
        }
    }

    pub(super) fn note_text(&mut self, target: Target, text: Result<&str, Fault>) {
        let Ok(text) = text else { return };
        if target == Target::ThinkingType {
            self.has_thinking_type = true;
            self.thinking = Some(text != "disabled");
        }
        let formats = [
            (Target::OutputFormatType, &mut self.output_format),
            (Target::ResponseFormatType, &mut self.response_format),
            (Target::TextFormatType, &mut self.text_format),
        ];
        for (_, format) in formats.into_iter().filter(|(part, _)| *part == target) {
            format.get_or_insert(text == "json_schema");
        }
    }
}
