//! Which of the ids in a request names its conversation: a table of rules, the first with a usable
//! value wins.
//!
//! Left out on purpose: request and trace ids (new with every turn), `user`, `safety_identifier`
//! and device ids (one for all conversations of a person or a machine). Keyed on the former nothing
//! is ever sticky; on the latter everything a person does lands on one replica.

use http::header::{HeaderMap, HeaderName};

use super::fields::Fields;
use super::session::SessionValue;

/// Where a conversation's id was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    ClaudeCodeSession,
    Thread,
    Session,
    SessionUnderscore,
    XSession,
    SessionAffinity,
    BodyMetadata,
    BodySession,
    BodyConversation,
    BodyConversationId,
    BodyPromptCacheKey,
}

impl Source {
    /// The word for logs and labels: the header's name, or `body.` and the field's path.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::ClaudeCodeSession => "x-claude-code-session-id",
            Source::Thread => "thread-id",
            Source::Session => "session-id",
            Source::SessionUnderscore => "session_id",
            Source::XSession => "x-session-id",
            Source::SessionAffinity => "x-session-affinity",
            Source::BodyMetadata => "body.metadata.user_id",
            Source::BodySession => "body.session_id",
            Source::BodyConversation => "body.conversation",
            Source::BodyConversationId => "body.conversation_id",
            Source::BodyPromptCacheKey => "body.prompt_cache_key",
        }
    }
}

/// An id that the client gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explicit {
    pub session: SessionValue,
    /// The agent within the session; `None` for a main agent. A subagent's prompt shares nothing
    /// with its parent's, so it is a conversation of its own.
    pub agent: Option<SessionValue>,
    pub source: Source,
}

/// Who is speaking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub conversation: Option<Explicit>,
}

struct HeaderRule {
    header: HeaderName,
    agent: Option<HeaderName>,
    source: Source,
}

struct BodyRule {
    value: fn(&Fields) -> Option<&SessionValue>,
    agent: Option<HeaderName>,
    source: Source,
}

const CLAUDE_CODE_AGENT: HeaderName = HeaderName::from_static("x-claude-code-agent-id");

/// In order of precedence, before every rule for the body. Codex's thread comes before its session
/// because subagents have the session in common and the thread not.
static HEADER_RULES: [HeaderRule; 6] = [
    header_rule(Source::ClaudeCodeSession, Some(CLAUDE_CODE_AGENT)),
    header_rule(Source::Thread, None),
    header_rule(Source::Session, None),
    header_rule(Source::SessionUnderscore, None),
    header_rule(Source::XSession, None),
    header_rule(Source::SessionAffinity, None),
];

/// In order of precedence. `metadata.user_id` holds the id that Claude Code also puts into its
/// session header, so the agent's header belongs to both.
static BODY_RULES: [BodyRule; 5] = [
    BodyRule {
        value: |fields| fields.metadata_session.as_ref(),
        agent: Some(CLAUDE_CODE_AGENT),
        source: Source::BodyMetadata,
    },
    BodyRule { value: |fields| fields.session_id.as_ref(), agent: None, source: Source::BodySession },
    BodyRule { value: |fields| fields.conversation.as_ref(), agent: None, source: Source::BodyConversation },
    BodyRule { value: |fields| fields.conversation_id.as_ref(), agent: None, source: Source::BodyConversationId },
    BodyRule { value: |fields| fields.prompt_cache_key.as_ref(), agent: None, source: Source::BodyPromptCacheKey },
];

const fn header_rule(source: Source, agent: Option<HeaderName>) -> HeaderRule {
    HeaderRule { header: HeaderName::from_static(source.as_str()), agent, source }
}

/// The conversation that head and body name.
pub fn identify(headers: &HeaderMap, fields: &Fields) -> Identity {
    Identity { conversation: headers_name_session(headers).or_else(|| body_names_session(headers, fields)) }
}

/// The conversation that the head names by itself. `Some`: nothing in the body outranks it, so the
/// body is searched for the model only.
pub fn headers_name_session(headers: &HeaderMap) -> Option<Explicit> {
    HEADER_RULES.iter().find_map(|rule| {
        let session = header_value(headers, &rule.header)?;
        let agent = rule.agent.as_ref().and_then(|agent| header_value(headers, agent));
        Some(Explicit { session, agent, source: rule.source })
    })
}

fn body_names_session(headers: &HeaderMap, fields: &Fields) -> Option<Explicit> {
    BODY_RULES.iter().find_map(|rule| {
        let session = (rule.value)(fields)?.clone();
        let agent = rule.agent.as_ref().and_then(|agent| header_value(headers, agent));
        Some(Explicit { session, agent, source: rule.source })
    })
}

/// A header given twice has a value only where both say the same: one of them was added on the way.
fn header_value(headers: &HeaderMap, name: &HeaderName) -> Option<SessionValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.as_bytes();
    if values.any(|other| other.as_bytes() != first) {
        return None;
    }
    SessionValue::parse(std::str::from_utf8(first).ok()?)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::conversation::{Scanner, Wanted};

    fn head(lines: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn fields(body: &str) -> Fields {
        let mut scanner = Scanner::new(Wanted::ModelAndSession);
        scanner.feed(body.as_bytes());
        scanner.fields().clone()
    }

    /// (source, session, agent) of what head and body name.
    fn named(headers: &HeaderMap, body: &str) -> Option<(Source, String, Option<String>)> {
        let explicit = identify(headers, &fields(body)).conversation?;
        let agent = explicit.agent.map(|agent| agent.as_str().to_owned());
        Some((explicit.source, explicit.session.as_str().to_owned(), agent))
    }

    const ALL_HEADERS: [&str; 6] =
        ["x-claude-code-session-id", "thread-id", "session-id", "session_id", "x-session-id", "x-session-affinity"];

    const ALL_FIELDS: [(&str, &str); 5] = [
        ("body.metadata.user_id", r#""metadata":{"user_id":{"session_id":"value"}}"#),
        ("body.session_id", r#""session_id":"value""#),
        ("body.conversation", r#""conversation":{"id":"value"}"#),
        ("body.conversation_id", r#""conversation_id":"value""#),
        ("body.prompt_cache_key", r#""prompt_cache_key":"value""#),
    ];

    #[test]
    fn each_rule_wins_over_all_rules_behind_it() {
        for first in 0..ALL_HEADERS.len() + ALL_FIELDS.len() {
            let mut headers = HeaderMap::new();
            for name in ALL_HEADERS.iter().skip(first) {
                headers.insert(*name, HeaderValue::from_static("value"));
            }
            let body_rules = ALL_FIELDS.iter().skip(first.saturating_sub(ALL_HEADERS.len()));
            // Backwards, so that the order in the body is not the one that decides.
            let body: Vec<_> = body_rules.rev().map(|(_, field)| *field).collect();
            let expected = ALL_HEADERS.into_iter().chain(ALL_FIELDS.map(|(word, _)| word)).nth(first);
            let (source, session, _) = named(&headers, &format!("{{{}}}", body.join(","))).unwrap();
            assert_eq!((Some(source.as_str()), &*session), (expected, "value"));
            assert_eq!(headers_name_session(&headers).is_some(), first < ALL_HEADERS.len());
        }
    }

    #[test]
    fn a_header_without_a_usable_value_leaves_its_turn_to_the_next() {
        for value in
            [&b""[..], b"  ", b"null", b"Undefined", b"NONE", b"a\tb", b"\xff\xfe", &[b'x'; 257], "\u{85}x".as_bytes()]
        {
            let mut headers = head(&[("x-session-id", b"next")]);
            headers.insert("thread-id", HeaderValue::from_bytes(value).unwrap());
            let expected = Some((Source::XSession, "next".to_owned(), None));
            assert_eq!(named(&headers, "{}"), expected, "{value:?}");
        }
    }

    #[test]
    fn a_header_given_twice_counts_where_both_say_the_same() {
        let same = head(&[("thread-id", b"a"), ("thread-id", b"a"), ("session-id", b"s")]);
        assert_eq!(named(&same, "{}").unwrap().0, Source::Thread);
        let different = head(&[("thread-id", b"a"), ("thread-id", b"b"), ("session-id", b"s")]);
        assert_eq!(named(&different, "{}").unwrap().0, Source::Session);
    }

    #[test]
    fn real_heads_name_their_agent() {
        let claude_code = head(&[
            ("x-claude-code-session-id", b"30d418a4-d156-4e85-9525-99b830507607"),
            ("x-claude-code-agent-id", b"a47b7e553d913f94c"),
            ("x-claude-code-prompt-id", b"5f8b4880-e0e7-4a0b-b318-0c098c15f976"),
        ]);
        let agent = Some("a47b7e553d913f94c".to_owned());
        let session = "30d418a4-d156-4e85-9525-99b830507607".to_owned();
        assert_eq!(named(&claude_code, "{}"), Some((Source::ClaudeCodeSession, session, agent)));

        let codex_subagent = head(&[
            ("x-codex-parent-thread-id", b"01a227b8-9298-7682-b1c2-fa5a36bb6031"),
            ("x-client-request-id", b"01a227b8-9364-70d0-a3ae-192bb749c55e"),
            ("session-id", b"01a227b8-9298-7682-b1c2-fa5a36bb6031"),
            ("thread-id", b"01a227b8-9364-70d0-a3ae-192bb749c55e"),
        ]);
        let thread = "01a227b8-9364-70d0-a3ae-192bb749c55e".to_owned();
        assert_eq!(named(&codex_subagent, "{}"), Some((Source::Thread, thread, None)));

        let opencode =
            head(&[("x-session-affinity", b"ses_1"), ("x-session-id", b"ses_1"), ("x-parent-session-id", b"ses_0")]);
        assert_eq!(named(&opencode, "{}"), Some((Source::XSession, "ses_1".to_owned(), None)));
    }

    #[test]
    fn the_agent_belongs_to_claude_codes_session_in_head_and_body_only() {
        let agent_only = head(&[("x-claude-code-agent-id", b"a1")]);
        let body = r#"{"metadata":{"user_id":"{\"session_id\":\"s\"}"}}"#;
        let expected = Some((Source::BodyMetadata, "s".to_owned(), Some("a1".to_owned())));
        assert_eq!(named(&agent_only, body), expected);
        assert_eq!(named(&agent_only, r#"{"session_id":"s"}"#), Some((Source::BodySession, "s".to_owned(), None)));
        assert_eq!(named(&agent_only, "{}"), None);

        let unusable_agent = head(&[("x-claude-code-session-id", b"s"), ("x-claude-code-agent-id", b"undefined")]);
        assert_eq!(named(&unusable_agent, "{}"), Some((Source::ClaudeCodeSession, "s".to_owned(), None)));
    }

    #[test]
    fn requests_users_and_devices_name_no_conversation() {
        let headers = head(&[
            ("x-request-id", b"r"),
            ("x-client-request-id", b"r"),
            ("x-correlation-id", b"r"),
            ("traceparent", b"r"),
            ("x-user-id", b"u"),
            ("authorization", b"Bearer k"),
            ("user-agent", b"claude-cli/2.1.332"),
        ]);
        let body =
            r#"{"user":"u","safety_identifier":"u","request_id":"r","metadata":{"user_id":"{\"device_id\":\"d\"}"}}"#;
        assert_eq!(named(&headers, body), None);
    }

    #[test]
    fn every_source_has_a_word_of_its_own() {
        let sources = HEADER_RULES.iter().map(|rule| rule.source).chain(BODY_RULES.iter().map(|rule| rule.source));
        let words: std::collections::BTreeSet<_> = sources.map(Source::as_str).collect();
        assert_eq!(words.len(), HEADER_RULES.len() + BODY_RULES.len());
    }
}
