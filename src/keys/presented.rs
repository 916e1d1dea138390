//! The key that a request shows: `Authorization: Bearer KEY`, as OpenAI's clients do, or `x-api-key: KEY`, as Anthropic's do.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use thiserror::Error;

/// The header of Anthropic's clients.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The longest key that is hashed. A longer one is nobody's, and a head may have a megabyte of them.
pub const KEY_BYTES_MAX: usize = 1024;

const BEARER: &[u8] = b"bearer";

/// What a head shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presented<'a> {
    Nothing,
    Key(&'a [u8]),
    /// Longer than any key that there can be.
    TooLong,
}

/// Two keys that differ: one of them is not meant for this, and which one is not for kvpin to guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("two different API keys")]
pub struct TwoKeys;

/// Finds the key, in however many headers it stands. Another scheme than `Bearer`, and a header without a value, show none.
pub fn presented(headers: &HeaderMap) -> Result<Presented<'_>, TwoKeys> {
    let bearers = headers.get_all(AUTHORIZATION).iter().filter_map(|value| bearer(value.as_bytes()));
    let keys = headers.get_all(API_KEY).iter().map(|value| value.as_bytes().trim_ascii());
    let mut shown = bearers.chain(keys).filter(|key| !key.is_empty());
    let Some(key) = shown.next() else { return Ok(Presented::Nothing) };
    if shown.any(|other| other != key) {
        return Err(TwoKeys);
    }
    Ok(if key.len() > KEY_BYTES_MAX { Presented::TooLong } else { Presented::Key(key) })
}

/// The scheme's name in any case, then spaces, as RFC 9110 section 11.4 has it.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.trim_ascii().split_at_checked(BEARER.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(BEARER) && key.first().is_none_or(u8::is_ascii_whitespace);
    is_bearer.then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn shown(lines: &[(&str, &[u8])]) -> Result<Option<String>, TwoKeys> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        presented(&headers).map(|presented| match presented {
            Presented::Nothing => None,
            Presented::Key(key) => Some(String::from_utf8_lossy(key).into_owned()),
            Presented::TooLong => Some("too long".to_owned()),
        })
    }

    #[test]
    fn the_key_is_found_however_it_is_shown() {
        for lines in [
            &[("authorization", &b"Bearer k"[..])][..],
            &[("authorization", b"bearer k")],
            &[("authorization", b"BEARER   k  ")],
            &[("authorization", b"\tBearer\tk")],
            &[("x-api-key", b"k")],
            &[("x-api-key", b" k ")],
            &[("authorization", b"Bearer k"), ("x-api-key", b"k")],
            &[("authorization", b"Bearer k"), ("authorization", b"Bearer k")],
            &[("authorization", b"Basic dTpw"), ("authorization", b"Bearer k")],
            &[("authorization", b"Basic dTpw"), ("x-api-key", b"k")],
            &[("authorization", b"Bearer"), ("x-api-key", b"k")],
            &[("authorization", b"Bearer k"), ("x-api-key", b"")],
        ] {
            assert_eq!(shown(lines), Ok(Some("k".to_owned())), "{lines:?}");
        }
    }

    #[test]
    fn what_shows_no_key_shows_none() {
        for lines in [
            &[][..],
            &[("authorization", &b""[..])],
            &[("authorization", b"Bearer")],
            &[("authorization", b"Bearer  ")],
            &[("authorization", b"k")],
            &[("authorization", b"Bearerk")],
            &[("authorization", b"Basic dTpw")],
            &[("authorization", b"Token k")],
            &[("x-api-key", b"  ")],
            &[("proxy-authorization", b"Bearer k")],
            &[("api-key", b"k")],
        ] {
            assert_eq!(shown(lines), Ok(None), "{lines:?}");
        }
    }

    #[test]
    fn two_keys_are_one_too_many_wherever_they_stand() {
        for lines in [
            &[("authorization", &b"Bearer a"[..]), ("x-api-key", b"b")][..],
            &[("authorization", b"Bearer a"), ("authorization", b"Bearer b")],
            &[("x-api-key", b"a"), ("x-api-key", b"b")],
            &[("authorization", b"Bearer a"), ("authorization", b"bearer A")],
        ] {
            assert_eq!(shown(lines), Err(TwoKeys), "{lines:?}");
        }
    }

    #[test]
    fn bytes_count_as_they_are_and_a_key_has_a_length() {
        assert_eq!(shown(&[("x-api-key", "schlüssel".as_bytes())]), Ok(Some("schlüssel".to_owned())));
        assert_eq!(shown(&[("x-api-key", b"a b")]), Ok(Some("a b".to_owned())), "spaces within are the key's own");
        assert_eq!(shown(&[("x-api-key", &[b'k'; KEY_BYTES_MAX])]), Ok(Some("k".repeat(KEY_BYTES_MAX))));
        assert_eq!(shown(&[("x-api-key", &[b'k'; KEY_BYTES_MAX + 1])]), Ok(Some("too long".to_owned())));
    }
}
