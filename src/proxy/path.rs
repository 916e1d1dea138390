//! What a path means, however it is spelled.
//!
//! vLLM decodes paths before it matches them (`/%6detrics` is `/metrics`), and what stands before kvpin may resolve dots and
//! slashes. So a path is matched by its meaning. What goes to an engine is never the client's spelling but the path of the
//! table that it was matched with, so there is nothing that the engine could read otherwise.

/// Longer than any served path with a model's name in it; what is longer means nothing here.
const BYTES_MAX: usize = 1024;

/// The path decoded once, then without empty and `.` segments, and with each `..` resolved. `None` for what isn't a path, and
/// for one that only a second reading could make harmless: control bytes, backslashes, broken escapes, no UTF-8.
pub fn meant_by(path: &str) -> Option<String> {
    if path.len() > BYTES_MAX || !path.starts_with('/') {
        return None;
    }
    let decoded = String::from_utf8(decoded(path.as_bytes())?).ok()?;
    if decoded.chars().any(|c| c.is_control() || c == '\\') {
        return None;
    }
    let mut segments = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    Some(format!("/{}", segments.join("/")))
}

fn decoded(path: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(hex(digits[0])? << 4 | hex(digits[1])?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_means_the_same_path() {
        for spelling in [
            "/v1/messages",
            "/v1/messages/",
            "//v1///messages",
            "/v1/./messages/.",
            "/v1/x/../messages",
            "/../../v1/messages",
            "/%76%31/messages",
            "/v1%2fmessages",
            "/v1%2F%6Dessages",
            "/v1/x/%2e%2E/messages",
            "/%2e/v1/messages",
        ] {
            assert_eq!(meant_by(spelling).as_deref(), Some("/v1/messages"), "{spelling}");
        }
        assert_eq!(meant_by("/v1/../metrics").as_deref(), Some("/metrics"));
        assert_eq!(meant_by("/..").as_deref(), Some("/"));
        assert_eq!(meant_by("/v1/models/caf%C3%A9").as_deref(), Some("/v1/models/café"));
    }

    #[test]
    fn a_path_is_decoded_once() {
        assert_eq!(meant_by("/v1/%256dessages").as_deref(), Some("/v1/%6dessages"));
        assert_eq!(meant_by("/v1/%252e%252e/metrics").as_deref(), Some("/v1/%2e%2e/metrics"));
    }

    #[test]
    fn what_is_no_path_means_nothing() {
        for path in [
            "",
            "*",
            "v1/messages",
            "http:/v1/messages",
            "/v1/messages%",
            "/v1/messages%0",
            "/v1/messages%zz",
            "/v1/messages%+1",
            "/v1/messages%00",
            "/v1/%0d%0amessages",
            "/v1\\messages",
            "/v1/..%5cmetrics",
            "/v1/%ff",
        ] {
            assert_eq!(meant_by(path), None, "{path}");
        }
        assert_eq!(meant_by(&"/x".repeat(BYTES_MAX)), None);
    }
}
