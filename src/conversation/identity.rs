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
    /// A header that the operator lists.
    Operator,
    ClaudeCodeSession,
    Thread,
    ThreadUnderscore,
    Session,
    SessionUnderscore,
    XSession,
    SessionAffinity,
    OpencodeSession,
    LitellmSession,
    OpenwebuiChat,
    KilocodeTask,
    AgentSession,
    GooseSession,
    XConversation,
    ConversationUnderscore,
    DynamoSession,
    Affinity,
    GrokConversation,
    RooTask,
    BodyMetadata,
    BodySession,
    BodyConversation,
    BodyConversationId,
    BodyPromptCacheKey,
}

impl Source {
    /// The word for logs and labels: the header's name, `body.` and the field's path, or the key of the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Operator => "session_headers",
            Source::ClaudeCodeSession => "x-claude-code-session-id",
            Source::Thread => "thread-id",
            Source::ThreadUnderscore => "thread_id",
            Source::Session => "session-id",
            Source::SessionUnderscore => "session_id",
            Source::XSession => "x-session-id",
            Source::SessionAffinity => "x-session-affinity",
            Source::OpencodeSession => "x-opencode-session",
            Source::LitellmSession => "x-litellm-session-id",
            Source::OpenwebuiChat => "x-openwebui-chat-id",
            Source::KilocodeTask => "x-kilocode-taskid",
            Source::AgentSession => "agent-session-id",
            Source::GooseSession => "goose-session-id",
            Source::XConversation => "x-conversation-id",
            Source::ConversationUnderscore => "conversation_id",
            Source::DynamoSession => "x-dynamo-session-id",
            Source::Affinity => "x-affinity",
            Source::GrokConversation => "x-grok-conv-id",
            Source::RooTask => "x-roo-task-id",
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
    /// Other ids in the same request, in order of precedence, that name the same conversation: a client that sends two
    /// today may send only the lesser one tomorrow, or a gateway may drop the other.
    pub aliases: Vec<Explicit>,
    /// The conversation that this one was started by.
    pub parent: Option<Explicit>,
}

/// The rules, with the operator's own before all others.
#[derive(Clone, Debug, Default)]
pub struct IdentityRules {
    operator: Vec<HeaderName>,
}

/// What an id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A session, which subagents may share; where Claude Code's header names an agent, the agent within it.
    SessionWithAgents,
    /// A session, which subagents may share.
    Session,
    /// An agent's own history.
    Agent,
}

struct HeaderRule {
    header: HeaderName,
    unit: Unit,
    source: Source,
}

struct BodyRule {
    value: fn(&Fields) -> Option<&SessionValue>,
    unit: Unit,
    source: Source,
}

const CLAUDE_CODE_AGENT: HeaderName = HeaderName::from_static("x-claude-code-agent-id");
const CLAUDE_CODE_PARENT_AGENT: HeaderName = HeaderName::from_static("x-claude-code-parent-agent-id");

/// What names the parent session of a request by itself: of Codex, of OpenCode, of Kilo Code.
static PARENTS: [HeaderName; 3] = [
    HeaderName::from_static("x-codex-parent-thread-id"),
    HeaderName::from_static("x-parent-session-id"),
    HeaderName::from_static("x-kilocode-parent-taskid"),
];

/// What names the session that a thread is part of.
static SESSIONS: [HeaderName; 2] =
    [HeaderName::from_static(Source::Session.as_str()), HeaderName::from_static(Source::SessionUnderscore.as_str())];

/// In order of precedence, before every rule for the body. Codex's thread comes before its session
/// because subagents have the session in common and the thread not; its older versions wrote both with underscores, and
/// the oldest `conversation_id`.
static HEADER_RULES: [HeaderRule; 19] = [
    header_rule(Source::ClaudeCodeSession, Unit::SessionWithAgents),
    header_rule(Source::Thread, Unit::Agent),
    header_rule(Source::ThreadUnderscore, Unit::Agent),
    header_rule(Source::Session, Unit::Session),
    header_rule(Source::SessionUnderscore, Unit::Session),
    header_rule(Source::XSession, Unit::Session),
    header_rule(Source::SessionAffinity, Unit::Session),
    header_rule(Source::OpencodeSession, Unit::Session),
    header_rule(Source::LitellmSession, Unit::Session),
    header_rule(Source::OpenwebuiChat, Unit::Session),
    header_rule(Source::KilocodeTask, Unit::Session),
    header_rule(Source::AgentSession, Unit::Session),
    header_rule(Source::GooseSession, Unit::Session),
    header_rule(Source::XConversation, Unit::Session),
    header_rule(Source::ConversationUnderscore, Unit::Session),
    header_rule(Source::DynamoSession, Unit::Session),
    header_rule(Source::Affinity, Unit::Session),
    header_rule(Source::GrokConversation, Unit::Session),
    header_rule(Source::RooTask, Unit::Session),
];

/// In order of precedence. `metadata.user_id` holds the id that Claude Code also puts into its
/// session header, so the agent's header belongs to both.
static BODY_RULES: [BodyRule; 5] = [
    body_rule(Source::BodyMetadata, Unit::SessionWithAgents, |fields| fields.metadata_session.as_ref()),
    body_rule(Source::BodySession, Unit::Session, |fields| fields.session_id.as_ref()),
    body_rule(Source::BodyConversation, Unit::Session, |fields| fields.conversation.as_ref()),
    body_rule(Source::BodyConversationId, Unit::Session, |fields| fields.conversation_id.as_ref()),
    body_rule(Source::BodyPromptCacheKey, Unit::Session, |fields| fields.prompt_cache_key.as_ref()),
];

const fn header_rule(source: Source, unit: Unit) -> HeaderRule {
    HeaderRule { header: HeaderName::from_static(source.as_str()), unit, source }
}

const fn body_rule(source: Source, unit: Unit, value: fn(&Fields) -> Option<&SessionValue>) -> BodyRule {
    BodyRule { value, unit, source }
}

impl IdentityRules {
    /// `operator` lists the headers that go before all others, in order of precedence.
    pub fn new(operator: Vec<HeaderName>) -> Self {
        Self { operator }
    }

    /// The conversation that the head names by itself. `Some`: nothing in the body outranks it, so the
    /// body is searched for the model only.
    pub fn headers_name_session(&self, headers: &HeaderMap) -> Option<Explicit> {
        self.named_in_head(headers).next()
    }

    /// The conversation that head and body name, and what it is to others.
    pub fn identify(&self, headers: &HeaderMap, fields: &Fields) -> Identity {
        let mut named = self.named_in_head(headers).chain(named_in_body(headers, fields));
        let Some(conversation) = named.next() else { return Identity::default() };
        let aliases = named.filter(|other| is_alias(&conversation, other)).collect();
        let parent = parent(headers, &conversation);
        Identity { conversation: Some(conversation), aliases, parent }
    }

    fn named_in_head(&self, headers: &HeaderMap) -> impl Iterator<Item = Explicit> {
        let operator = self.operator.iter().map(|header| (header, Unit::SessionWithAgents, Source::Operator));
        let known = HEADER_RULES.iter().map(|rule| (&rule.header, rule.unit, rule.source));
        operator
            .chain(known)
            .filter_map(|(header, unit, source)| Some(explicit(headers, header_value(headers, header)?, unit, source)))
    }
}

fn named_in_body(headers: &HeaderMap, fields: &Fields) -> impl Iterator<Item = Explicit> {
    BODY_RULES.iter().filter_map(|rule| {
        let session = (rule.value)(fields)?.clone();
        Some(explicit(headers, session, rule.unit, rule.source))
    })
}

fn explicit(headers: &HeaderMap, session: SessionValue, unit: Unit, source: Source) -> Explicit {
    let agent = match unit {
        Unit::SessionWithAgents => header_value(headers, &CLAUDE_CODE_AGENT),
        Unit::Session | Unit::Agent => None,
    };
    Explicit { session, agent, source }
}

/// Whether `other` names the same conversation as the id that won. An id of a whole session is none for one agent in it:
/// it would hand the session's own conversation to the first subagent that comes by.
fn is_alias(conversation: &Explicit, other: &Explicit) -> bool {
    let is_of_one_agent = is_thread(conversation) || conversation.agent != other.agent;
    let is_the_same = conversation.session == other.session && conversation.agent == other.agent;
    !is_of_one_agent && !is_the_same
}

/// What started a conversation: the parent that a header names, else the session that an agent is part of.
fn parent(headers: &HeaderMap, conversation: &Explicit) -> Option<Explicit> {
    let of = |session, agent| Explicit { session, agent, source: conversation.source };
    let parent = if conversation.agent.is_some() {
        of(conversation.session.clone(), header_value(headers, &CLAUDE_CODE_PARENT_AGENT))
    } else {
        let named = PARENTS.iter().find_map(|header| header_value(headers, header));
        let session =
            || SESSIONS.iter().filter(|_| is_thread(conversation)).find_map(|name| header_value(headers, name));
        of(named.or_else(session)?, None)
    };
    let is_itself = parent.session == conversation.session && parent.agent == conversation.agent;
    (!is_itself).then_some(parent)
}

/// A thread is one agent of a session.
fn is_thread(conversation: &Explicit) -> bool {
    matches!(conversation.source, Source::Thread | Source::ThreadUnderscore)
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
        let explicit = IdentityRules::default().identify(headers, &fields(body)).conversation?;
        let agent = explicit.agent.map(|agent| agent.as_str().to_owned());
        Some((explicit.source, explicit.session.as_str().to_owned(), agent))
    }

    const ALL_HEADERS: [&str; 19] = [
        "x-claude-code-session-id",
        "thread-id",
        "thread_id",
        "session-id",
        "session_id",
        "x-session-id",
        "x-session-affinity",
        "x-opencode-session",
        "x-litellm-session-id",
        "x-openwebui-chat-id",
        "x-kilocode-taskid",
        "agent-session-id",
        "goose-session-id",
        "x-conversation-id",
        "conversation_id",
        "x-dynamo-session-id",
        "x-affinity",
        "x-grok-conv-id",
        "x-roo-task-id",
    ];

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
            let rules = IdentityRules::default();
            assert_eq!(rules.headers_name_session(&headers).is_some(), first < ALL_HEADERS.len());
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

    /// (session, agent) of an id.
    fn said(explicit: &Explicit) -> (&str, Option<&str>) {
        (explicit.session.as_str(), explicit.agent.as_ref().map(SessionValue::as_str))
    }

    #[test]
    fn the_operators_headers_come_first_in_their_order() {
        let rules =
            IdentityRules::new(vec![HeaderName::from_static("x-tenant-chat"), HeaderName::from_static("x-other")]);
        let all = head(&[("thread-id", b"t"), ("x-other", b"o"), ("x-tenant-chat", b"c")]);
        let named = rules.headers_name_session(&all).unwrap();
        assert_eq!((said(&named), named.source), (("c", None), Source::Operator));
        let second = head(&[("thread-id", b"t"), ("x-other", b"o"), ("x-tenant-chat", b"null")]);
        assert_eq!(said(&rules.headers_name_session(&second).unwrap()), ("o", None));
        let agent = head(&[("x-other", b"o"), ("x-claude-code-agent-id", b"a1")]);
        assert_eq!(said(&rules.headers_name_session(&agent).unwrap()), ("o", Some("a1")), "a subagent is its own");
    }

    #[test]
    fn other_ids_of_the_same_session_are_aliases() {
        let headers = head(&[("x-session-id", b"s1"), ("x-litellm-session-id", b"s2"), ("x-session-affinity", b"s1")]);
        let identity = IdentityRules::default()
            .identify(&headers, &fields(r#"{"prompt_cache_key":"p","conversation":"s1","user":"u"}"#));
        assert_eq!(said(identity.conversation.as_ref().unwrap()), ("s1", None));
        assert_eq!(identity.aliases.iter().map(said).collect::<Vec<_>>(), [("s2", None), ("p", None)]);
    }

    #[test]
    fn the_id_of_a_session_is_no_alias_of_an_agent_in_it() {
        let codex = head(&[("thread-id", b"t2"), ("session-id", b"t1")]);
        let identity = IdentityRules::default().identify(&codex, &fields(r#"{"prompt_cache_key":"t1"}"#));
        assert_eq!(identity.aliases, []);

        let claude_code =
            head(&[("x-claude-code-session-id", b"s"), ("x-claude-code-agent-id", b"a"), ("x-session-id", b"x")]);
        let body = r#"{"metadata":{"user_id":{"session_id":"other"}},"session_id":"y"}"#;
        let identity = IdentityRules::default().identify(&claude_code, &fields(body));
        assert_eq!(identity.aliases.iter().map(said).collect::<Vec<_>>(), [("other", Some("a"))]);
    }

    #[test]
    fn an_agent_knows_what_started_it() {
        type Lines = &'static [(&'static str, &'static [u8])];
        type Said = (&'static str, Option<&'static str>);
        let cases: [(Lines, Option<Said>); 9] = [
            (&[("x-claude-code-session-id", b"s")], None),
            (&[("x-claude-code-session-id", b"s"), ("x-claude-code-agent-id", b"a")], Some(("s", None))),
            (
                &[
                    ("x-claude-code-session-id", b"s"),
                    ("x-claude-code-agent-id", b"a"),
                    ("x-claude-code-parent-agent-id", b"b"),
                ],
                Some(("s", Some("b"))),
            ),
            (&[("thread-id", b"t"), ("session-id", b"t")], None),
            (&[("thread-id", b"t"), ("session-id", b"s")], Some(("s", None))),
            (&[("thread_id", b"t"), ("session_id", b"s")], Some(("s", None))),
            (&[("thread-id", b"t"), ("session-id", b"s"), ("x-codex-parent-thread-id", b"p")], Some(("p", None))),
            (&[("x-session-id", b"c"), ("x-parent-session-id", b"p")], Some(("p", None))),
            (&[("x-kilocode-taskid", b"c"), ("x-kilocode-parent-taskid", b"p")], Some(("p", None))),
        ];
        for (lines, expected) in cases {
            let identity = IdentityRules::default().identify(&head(lines), &Fields::default());
            assert_eq!(identity.parent.as_ref().map(said), expected, "{lines:?}");
        }
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
        let words: std::collections::BTreeSet<_> = sources.chain([Source::Operator]).map(Source::as_str).collect();
        assert_eq!(words.len(), HEADER_RULES.len() + BODY_RULES.len() + 1);
    }
}
