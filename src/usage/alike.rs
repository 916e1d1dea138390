//! Events that are like the one before them but for their text, as nearly all events of a stream are. What one tells, the
//! other tells too, so it needn't be read.

use memchr::memmem;

use super::facts::Facts;
use super::word::Kind;

/// Longer events are read. One of vLLM's has 120 to 330 bytes.
const HELD_MAX: usize = 384;

/// Keys of what was generated, in any of the APIs. What the text is matters nowhere, only whether there is any.
const TEXTS: [&[u8]; 8] =
    [b"content", b"text", b"delta", b"reasoning_content", b"reasoning", b"thinking", b"partial_json", b"arguments"];

/// Between a key and its text, as engines write it.
const COLON: &[u8] = b"\":\"";

/// After so many events in a row of which none was like the one before, no more is expected.
const MISSES_MAX: u8 = 8;

/// What an event told, and its bytes without the text.
#[derive(Clone, Debug)]
pub(super) struct Alike {
    bytes: [u8; HELD_MAX],
    /// So many of them stand before the text, and so many there are. 0 until an event was seen.
    before: usize,
    length: usize,
    misses: u8,
    pub(super) kind: Kind,
    pub(super) facts: Facts,
}

impl Alike {
    pub(super) fn new() -> Self {
        Alike { bytes: [0; HELD_MAX], before: 0, length: 0, misses: 0, kind: Kind::default(), facts: Facts::default() }
    }

    /// The length of the event that these bytes begin with, if it is like the one that was seen.
    pub(super) fn length_of(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.length == 0 {
            return None;
        }
        let rest = bytes.strip_prefix(&self.bytes[..self.before])?;
        let text = plain(rest).filter(|length| *length > 0)?;
        let behind = &self.bytes[self.before..self.length];
        if !rest[text..].starts_with(behind) {
            return None;
        }
        self.misses = 0;
        Some(self.before + text + behind.len())
    }

    /// An event that was read told this.
    pub(super) fn see(&mut self, event: &[u8], kind: Kind, facts: &Facts) {
        if self.misses == MISSES_MAX {
            return;
        }
        self.misses += 1;
        self.length = 0;
        // Nothing of it is left over: the next byte begins another event.
        if !event.ends_with(b"\n\n") && !event.ends_with(b"\r\n\r\n") {
            return;
        }
        let Some((begin, end)) = text_of(event) else { return };
        let length = event.len() - (end - begin);
        if length > HELD_MAX {
            return;
        }
        self.bytes[..begin].copy_from_slice(&event[..begin]);
        self.bytes[begin..length].copy_from_slice(&event[end..]);
        (self.before, self.length, self.kind, self.facts) = (begin, length, kind, *facts);
    }
}

/// Where the last text of an event stands. A quote within a string is escaped, so `":"` stands between a key and a string only.
fn text_of(event: &[u8]) -> Option<(usize, usize)> {
    let is_text = |at: &usize| {
        let key = event[..*at].rsplit(|byte| *byte == b'"').next();
        key.is_some_and(|key| TEXTS.contains(&key))
    };
    let begins = memmem::find_iter(event, COLON).filter(is_text).map(|at| at + COLON.len());
    let begin = begins.last()?;
    let end = begin + plain(&event[begin..]).filter(|length| *length > 0)?;
    Some((begin, end))
}

/// The length of a text up to its quote, if it is plain up to there.
fn plain(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\'))?;
    (bytes[end] == b'"').then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &[u8] =
        b"data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n";

    fn seen(event: &[u8]) -> Alike {
        let mut alike = Alike::new();
        alike.see(event, Kind::Telling, &Facts { is_content: true, ..Facts::default() });
        alike
    }

    #[test]
    fn an_event_that_differs_in_its_text_alone_is_like_the_one_before() {
        let mut alike = seen(ONE);
        assert_eq!(alike.length_of(ONE), Some(ONE.len()));
        let other = b"data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"content\":\" \xf0\x9f\x8d\x8b, or so\"},\"finish_reason\":null}]}\n\ndata: [DONE]";
        assert_eq!(alike.length_of(other), Some(other.len() - b"data: [DONE]".len()));
        assert!(alike.facts.is_content);
    }

    #[test]
    fn one_that_differs_elsewhere_is_cut_or_is_not_plain_has_to_be_read() {
        let mut alike = seen(ONE);
        for (from, to) in [
            ("\"a\"", "\"b\""),
            ("null", "\"stop\""),
            ("Hel", ""),
            ("Hel", "\\n"),
            ("Hel", "H\n"),
            ("\n\n", "\n"),
            ("\n\n", "\r\n"),
            ("\"content\"", "\"text\""),
        ] {
            let other = String::from_utf8_lossy(ONE).replacen(from, to, 1);
            assert_eq!(alike.length_of(other.as_bytes()), None, "{other:?}");
        }
        for end in 0..ONE.len() {
            assert_eq!(alike.length_of(&ONE[..end]), None);
        }
    }

    #[test]
    fn what_has_no_text_is_too_long_or_is_never_the_same_is_not_compared() {
        for event in
            [&b"data: {\"text\":\"\"}\n\n"[..], b"data: {\"type\":\"ping\"}\n\n", b"data: {\"text\":\"a\"}\r\r"]
        {
            assert_eq!(seen(event).length_of(event), None);
        }
        let long = format!("data: {{\"text\":\"a\",\"x\":\"{}\"}}\n\n", "x".repeat(HELD_MAX));
        assert_eq!(seen(long.as_bytes()).length_of(long.as_bytes()), None);
        let mut alike = Alike::new();
        (0..=MISSES_MAX).for_each(|_| alike.see(b"data: {\"type\":\"ping\"}\n\n", Kind::Idle, &Facts::default()));
        alike.see(ONE, Kind::Telling, &Facts::default());
        assert_eq!(alike.length_of(ONE), None);
    }
}
