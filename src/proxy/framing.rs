//! Heads of which two readers could make two different requests. They are refused, and their connection is closed.
//!
//! Pingora's parser takes what the RFCs let a recipient take: lines that end with a bare LF, a `Content-Length` beside a
//! `Transfer-Encoding`, the same length twice, codings before `chunked`. A proxy before kvpin may read such a head otherwise,
//! and take a part of one client's body for another one's request. No client of an engine sends any of it. What Pingora
//! refuses itself (400) isn't looked for again: folded lines, a space before a colon, lengths that differ or are no number,
//! two hosts, codings that don't end with `chunked`, `Transfer-Encoding` in HTTP/1.0.

use http::Version;
use http::uri::Authority;
use memchr::memchr_iter;

use super::refusal::Refusal;

/// How often a head has what says where its body ends, and whom it is for.
#[derive(Default)]
struct Seen {
    lengths: usize,
    codings: usize,
    hosts: usize,
}

/// Refuses a head as it came over the wire, up to its empty line. Reads it once.
pub fn check(raw: &[u8], version: Version) -> Result<(), Refusal> {
    let mut seen = Seen::default();
    let mut begin = 0;
    let mut is_request_line = true;
    for end in memchr_iter(b'\n', raw) {
        let Some(line) = raw[begin..end].strip_suffix(b"\r") else {
            return malformed("a line ends without CR");
        };
        begin = end + 1;
        // An empty line may come before a request.
        if line.is_empty() {
            continue;
        }
        if !std::mem::take(&mut is_request_line) {
            seen.look_at(line)?;
        }
    }
    seen.judge(version)
}

impl Seen {
    fn look_at(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let is_of_interest = matches!(line[0] | 0x20, b'c' | b't' | b'h');
        let Some(colon) = line.iter().position(|byte| *byte == b':').filter(|_| is_of_interest) else { return Ok(()) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            check_length(value)
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.codings += 1;
            check_coding(value)
        } else if name.eq_ignore_ascii_case(b"host") {
            self.hosts += 1;
            check_host(value)
        } else {
            Ok(())
        }
    }

    fn judge(&self, version: Version) -> Result<(), Refusal> {
        match self {
            Seen { lengths: 1.., codings: 1.., .. } => malformed("it has both Content-Length and Transfer-Encoding"),
            Seen { lengths: 2.., .. } => malformed("it has more than one Content-Length"),
            Seen { codings: 2.., .. } => malformed("it has more than one Transfer-Encoding"),
            Seen { hosts: 2.., .. } => malformed("it has more than one Host"),
            Seen { hosts: 0, .. } if version == Version::HTTP_11 => malformed("it has no Host"),
            Seen { .. } => Ok(()),
        }
    }
}

/// Some readers take a leading zero for octal digits.
fn check_length(value: &[u8]) -> Result<(), Refusal> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    if is_number && (value == b"0" || value[0] != b'0') { Ok(()) } else { malformed("its Content-Length is no number") }
}

fn check_coding(value: &[u8]) -> Result<(), Refusal> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let is_chunked_again = codings.all(|coding| coding.eq_ignore_ascii_case(b"chunked") || coding.is_empty());
    if is_chunked_again { malformed("its Transfer-Encoding is malformed") } else { Err(Refusal::UnknownCoding) }
}

/// An empty one is how a client says that it has none.
fn check_host(value: &[u8]) -> Result<(), Refusal> {
    if value.is_empty() || Authority::try_from(value).is_ok() { Ok(()) } else { malformed("its Host is malformed") }
}

fn malformed(what: &'static str) -> Result<(), Refusal> {
    Err(Refusal::MalformedHead { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(head: &str) -> Result<(), Refusal> {
        check(head.as_bytes(), Version::HTTP_11)
    }

    fn with(lines: &str) -> Result<(), Refusal> {
        checked(&format!("POST /v1/messages HTTP/1.1\r\nHost: kvpin.test\r\n{lines}\r\n"))
    }

    #[test]
    fn a_head_that_can_be_read_in_one_way_only_passes() {
        for lines in [
            "",
            "Content-Length: 0\r\n",
            "content-length:\t17 \r\nX-Content-Length: 18\r\n",
            "Transfer-Encoding: chunked\r\n",
            "TRANSFER-ENCODING:  Chunked\r\nTE: trailers\r\n",
            "Content-Lengths: 1, 2\r\nTransfer-Encoding-X: gzip\r\nHosts: a b\r\n",
            "X-Odd: : Content-Length: 3\r\n",
        ] {
            assert_eq!(with(lines), Ok(()), "{lines:?}");
        }
        for host in ["", "[::1]:8080", "10.0.0.1", "example.com:80", "under_score"] {
            assert_eq!(checked(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), Ok(()), "{host}");
        }
        assert_eq!(checked("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(()));
        assert_eq!(check(b"GET / HTTP/1.0\r\n\r\n", Version::HTTP_10), Ok(()));
    }

    #[test]
    fn a_head_that_can_be_read_in_two_ways_is_refused() {
        for lines in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 05\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: \r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: ,chunked\r\n",
            "Transfer-Encoding:\r\n",
            "X: 1\nContent-Length: 5\r\n",
            "X: 1\r\nContent-Length: 5\n",
            "Host: kvpin.test\r\n",
        ] {
            assert!(matches!(with(lines), Err(Refusal::MalformedHead { .. })), "{lines:?}: {:?}", with(lines));
        }
        for host in ["a b", "a/b", "a?b", "a\\b", "a@b", "[::1", "a:b:c"] {
            let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let refused = checked(&head);
            // That of a name and a password is refused by Pingora, before this.
            assert!(refused.is_err() || host.contains('@'), "{host}");
        }
        assert!(checked("GET / HTTP/1.1\r\nX: 1\r\n\r\n").is_err(), "no Host");
        assert!(checked("GET / HTTP/1.1\nHost: a\r\n\r\n").is_err());
        assert!(checked("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err());
        assert!(checked("GET / HTTP/1.1\r\nHost: a\r\n\n").is_err());
    }

    #[test]
    fn a_coding_that_nobody_here_undoes_is_refused_as_such() {
        for coding in ["gzip, chunked", "xchunked", "identity", "chunked;q=1", "chunked, identity", "\u{b}chunked"] {
            assert_eq!(with(&format!("Transfer-Encoding: {coding}\r\n")), Err(Refusal::UnknownCoding), "{coding}");
        }
    }
}
