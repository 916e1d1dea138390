//! What a request is to its conversation: a turn, or a side call such as the generation of a title.
//!
//! Agents send side calls under the session's own id, and some of them before the session's first turn. Pinned by one of
//! those, a conversation would start where a title was cheap to make; counted as turns, they would keep dead
//! conversations alive.

use http::header::{HeaderMap, USER_AGENT};

use super::shape::Shape;

/// What the head says of a request's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A turn, whatever its body looks like.
    Turn,
    /// A side call.
    Auxiliary,
    /// From an agent whose turns always carry tools: the body's [`Shape`] tells.
    ByShape,
}

/// The API that a request is made in, as far as agents differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Anthropic's `/v1/messages`, the only one that Claude Code speaks.
    Messages,
    /// Any of OpenAI's.
    OpenAi,
}

/// Up to this size a body without tools is taken for a side call of an agent. Its title calls have 2 to 4 KB and its
/// turns, with their tools, 24 KB and more (measured from Claude Code 2.1.332 and OpenCode 1.18.33). An agent that is
/// run without any tools has its turns unpinned until they are larger, when there is something to lose.
pub const AUXILIARY_BYTES_MAX: usize = 16 * 1024;

/// What Claude Code calls its requests, where it was told to say so: `CLAUDE_CODE_GATEWAY_HINT_HEADERS=1`.
const REQUEST_CLASS: &str = "x-claude-code-request-class";
/// Codex's background work on its memories: under either header it belongs to no thread.
const CODEX_SUBAGENT: &str = "x-openai-subagent";
const CODEX_MEMORIES: &str = "x-openai-memgen-request";
const CLAUDE_CODE_SESSION: &str = "x-claude-code-session-id";

/// How the user agents of agents begin whose turns always carry tools. Qwen Code calls itself `claude-cli` too.
const AGENTS: [&[u8]; 4] = [b"claude-cli/", b"opencode/", b"codex_", b"QwenCode/"];

impl Purpose {
    /// Reads what a head says.
    pub fn of(headers: &HeaderMap, api: Api) -> Purpose {
        let is = |name, value: &[u8]| headers.get(name).is_some_and(|given| given.as_bytes() == value);
        if is(CODEX_SUBAGENT, b"memory_consolidation") || is(CODEX_MEMORIES, b"true") {
            return Purpose::Auxiliary;
        }
        match headers.get(REQUEST_CLASS) {
            Some(class) if class.as_bytes() == b"auxiliary" => Purpose::Auxiliary,
            Some(_) => Purpose::Turn,
            None if is_agent(headers, api) => Purpose::ByShape,
            None => Purpose::Turn,
        }
    }
}

impl Shape {
    /// Whether a whole body of so many bytes, from an agent whose turns always carry tools, is a side call.
    pub fn is_auxiliary(self, bytes: usize) -> bool {
        !self.has_tools && !self.has_thinking && (self.has_json_schema || bytes <= AUXILIARY_BYTES_MAX)
    }
}

fn is_agent(headers: &HeaderMap, api: Api) -> bool {
    let agent = headers.get(USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
    let is_claude_code = api == Api::Messages && headers.contains_key(CLAUDE_CODE_SESSION);
    is_claude_code || AGENTS.iter().any(|known| agent.starts_with(known))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn head(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_hint_decides_and_else_the_client() {
        for (lines, purpose) in [
            (&[("x-claude-code-request-class", "auxiliary")][..], Purpose::Auxiliary),
            (&[("x-claude-code-request-class", "main"), ("user-agent", "claude-cli/2")], Purpose::Turn),
            (&[("x-claude-code-request-class", "subagent")], Purpose::Turn),
            (&[("x-claude-code-request-class", "compaction")], Purpose::Turn),
            (&[("x-claude-code-session-id", "s")], Purpose::ByShape),
            (&[("user-agent", "claude-cli/2.1.332 (external, cli)")], Purpose::ByShape),
            (&[("user-agent", "opencode/1.18.33 ai-sdk/provider-utils/4.0.23")], Purpose::ByShape),
            (&[("user-agent", "codex_exec/0.171.0 (Debian 12.0.0; x86_64)")], Purpose::ByShape),
            (
                &[("user-agent", "codex_exec/0.171.0"), ("x-openai-subagent", "memory_consolidation")],
                Purpose::Auxiliary,
            ),
            (&[("user-agent", "codex_exec/0.171.0"), ("x-openai-subagent", "collab_spawn")], Purpose::ByShape),
            (&[("x-openai-memgen-request", "true")], Purpose::Auxiliary),
            (&[("user-agent", "OpenAI/Python 2.8.1")], Purpose::Turn),
            (&[], Purpose::Turn),
        ] {
            assert_eq!(Purpose::of(&head(lines), Api::Messages), purpose, "{lines:?}");
        }
        let elsewhere = head(&[("x-claude-code-session-id", "s")]);
        assert_eq!(Purpose::of(&elsewhere, Api::OpenAi), Purpose::Turn, "Claude Code doesn't speak it");
    }

    #[test]
    fn a_side_call_has_neither_tools_nor_thinking_and_is_small_or_bound_to_a_schema() {
        let nothing = Shape::default();
        assert!(nothing.is_auxiliary(4045));
        assert!(nothing.is_auxiliary(AUXILIARY_BYTES_MAX));
        assert!(!nothing.is_auxiliary(AUXILIARY_BYTES_MAX + 1));
        assert!(Shape { has_json_schema: true, ..nothing }.is_auxiliary(1_000_000));
        assert!(!Shape { has_json_schema: true, has_tools: true, ..nothing }.is_auxiliary(4045));
        assert!(!Shape { has_thinking: true, ..nothing }.is_auxiliary(4045));
    }
}
