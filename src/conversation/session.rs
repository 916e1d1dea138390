//! A session id as a client gives it: which values count as one, and how `metadata.user_id` hides
//! one.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

/// Longest id that counts, in bytes. The longest that any known client sends has 64; CLIProxyAPI
/// draws the line here too.
const LONGEST: usize = 256;

/// What a client's template engine or serialiser leaves where an id should have been.
const PLACEHOLDERS: [&str; 3] = ["null", "undefined", "none"];

/// A usable session or agent id: 1 to 256 bytes, trimmed, free of control characters, not a
/// placeholder such as `null`.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionValue(Box<str>);

impl SessionValue {
    /// `None` where the text is no id, so that the next rule gets its turn.
    pub fn parse(text: &str) -> Option<Self> {
        // Before trimming, which would hide a line break at an end: an id that carries one was not
        // made by a client.
        if text.chars().any(char::is_control) {
            return None;
        }
        let text = text.trim();
        let placeholder = PLACEHOLDERS.iter().any(|word| text.eq_ignore_ascii_case(word));
        if text.is_empty() || text.len() > LONGEST || placeholder {
            return None;
        }
        Some(Self(text.into()))
    }

    /// The session in the text of `metadata.user_id`: a JSON document with a `session_id`, or the
    /// legacy `user_<hash>_account_<uuid>_session_<uuid>`. Any other text names a user, and a user
    /// is no conversation.
    pub(super) fn from_user_id(text: &str) -> Option<Self> {
        if text.trim_start().starts_with('{') {
            let user_id: UserId = serde_json::from_str(text).ok()?;
            return Self::parse(&user_id.session_id);
        }
        let (_, session) = text.rsplit_once("_session_")?;
        // An application's `bob_session_manager` is a user as well.
        is_uuid(session).then(|| Self(session.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionValue {
    /// Says nothing of the id: a log that prints a request's fields must not carry it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionValue(..)")
    }
}

#[derive(Deserialize)]
struct UserId<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "be1bd76a-8294-49e0-b3d2-e58bc1e620a9";

    fn parsed(text: &str) -> Option<String> {
        SessionValue::parse(text).map(|value| value.as_str().to_owned())
    }

    fn session_of(user_id: &str) -> Option<String> {
        SessionValue::from_user_id(user_id).map(|value| value.as_str().to_owned())
    }

    #[test]
    fn ids_are_trimmed_and_kept_as_they_are() {
        for (text, id) in [
            (UUID, UUID),
            ("  ses_1 ", "ses_1"),
            ("20260809_29", "20260809_29"),
            ("conversación", "conversación"),
            ("nullable", "nullable"),
            ("0", "0"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(id), "{text:?}");
        }
        assert_eq!(parsed(&"x".repeat(256)).as_deref(), Some(&*"x".repeat(256)));
    }

    #[test]
    fn what_no_client_meant_as_an_id_is_no_value() {
        for text in [
            "",
            " ",
            "\u{a0}\u{2003}",
            "null",
            "NULL",
            " undefined ",
            "None",
            "a\nb",
            "a\n",
            "\ta",
            "a\u{0}",
            "a\u{7f}b",
            "a\u{85}b",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
        assert_eq!(parsed(&"x".repeat(257)), None);
    }

    #[test]
    fn the_text_forms_of_user_id_name_their_session() {
        let hash = "0f".repeat(32);
        for user_id in [
            format!(r#"{{"device_id":"{hash}","account_uuid":"","session_id":"{UUID}"}}"#),
            format!(r#" {{ "session_id" : "{UUID}" }} "#),
            format!(r#"{{"session_id":"\u0062{}"}}"#, &UUID[1..]),
            format!("user_{hash}_account__session_{UUID}"),
            format!("user_{hash}_account_{UUID}_session_{UUID}"),
        ] {
            assert_eq!(session_of(&user_id).as_deref(), Some(UUID), "{user_id}");
        }
    }

    #[test]
    fn a_user_id_that_names_a_user_or_a_device_is_no_session() {
        for user_id in [
            "",
            "bob",
            UUID,
            "bob_session_manager",
            "user_1_account__session_",
            "user_1_account__session_be1bd76a-8294-49e0-b3d2-e58bc1e620a",
            r#"{"device_id":"d"}"#,
            r#"{"session_id":null}"#,
            r#"{"session_id":5}"#,
            r#"{"session_id":""}"#,
            r#"{"session_id":"none"}"#,
            r#"{"session_id":"a","session_id":"b"}"#,
            r#"{"session_id":"a""#,
            r#"{"a":{"session_id":"a"}}"#,
        ] {
            assert_eq!(session_of(user_id), None, "{user_id}");
        }
    }

    #[test]
    fn printing_a_value_does_not_give_the_id_away() {
        let value = SessionValue::parse("secret-id").unwrap();
        assert!(!format!("{value:?}").contains("secret"));
    }
}
