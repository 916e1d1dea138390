//! A replica's response as it comes: HTTP/1.1's head, and the body out of its frame.
//!
//! Pingora's client has a buffer of 64 KiB for every response, for as long as it lasts, hands on one chunk at a time, and
//! copies the head. A stream of an agent's turn lasts for minutes and is silent for most of them. Here what has been read is
//! handed on at once, all of it together, and nothing is kept between two reads but a few numbers.

use std::future::poll_fn;
use std::mem::{MaybeUninit, take};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Version};
use pingora::http::{IntoCaseHeaderName as _, ResponseHeader};
use pingora::protocols::Stream;
use pingora::{Error, ErrorType, OrErr as _, Result};
use tokio::io::{AsyncRead as _, ReadBuf, ReadHalf};

use super::deframe::{Deframed, Deframer};
use super::response_head;

/// What is read at once. On the stack, so that a silent stream has no part of it.
const READ_MAX: usize = 16 * 1024;

/// The most of a head. One that is longer is none that an engine writes.
const HEAD_MAX: usize = 64 * 1024;
const HEADERS_MAX: usize = 256;

/// One response on one connection.
pub struct Response {
    from: ReadHalf<Stream>,
    /// What has been read of a head.
    head: BytesMut,
    body: Option<Deframer>,
    /// Whether the connection stays open behind it, as far as the head says.
    stays_open: bool,
    /// Whether more came than the response: the connection is in no state that anybody knows.
    had_more: bool,
}

/// What comes next of a response.
#[derive(Debug)]
pub enum Part {
    /// Of an interim response too.
    Head(Box<ResponseHeader>),
    /// Never empty.
    Data(Bytes),
    End,
}

impl Response {
    pub fn new(from: ReadHalf<Stream>) -> Self {
        Response { from, head: BytesMut::new(), body: None, stays_open: false, had_more: false }
    }

    /// Waits for what comes next. Dropped while it waits, it loses nothing.
    ///
    /// # Errors
    /// If the connection ends or breaks before the response does, or what comes is no HTTP/1.1.
    pub async fn next(&mut self) -> Result<Part> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Whether it has come to its proper end.
    pub fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(Deframer::has_ended)
    }

    /// Whether another request may be sent on its connection.
    pub fn leaves_open(&self) -> bool {
        self.has_ended() && self.stays_open && !self.had_more
    }

    /// Its half of the connection.
    pub fn into_half(self) -> ReadHalf<Stream> {
        self.from
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Part>> {
        loop {
            self.body.as_ref().map_or(Ok(()), Deframer::check)?;
            match &self.body {
                Some(body) if body.has_ended() => return Poll::Ready(Ok(Part::End)),
                // What came together with the head.
                Some(_) if !self.head.is_empty() => {
                    let rest = take(&mut self.head);
                    if let Some(data) = self.deframe(&rest) {
                        return Poll::Ready(Ok(Part::Data(data)));
                    }
                    continue;
                }
                Some(_) => {}
                None => {
                    if let Some(head) = self.parse_head()? {
                        return Poll::Ready(Ok(Part::Head(head)));
                    }
                }
            }
            let mut room = [const { MaybeUninit::uninit() }; READ_MAX];
            let mut read = ReadBuf::uninit(&mut room);
            ready!(Pin::new(&mut self.from).poll_read(cx, &mut read)).or_err(ErrorType::ReadError, "of a response")?;
            let read = read.filled();
            if read.is_empty() {
                self.closed()?;
            } else if self.body.is_none() {
                self.head.extend_from_slice(read);
            } else if let Some(data) = self.deframe(read) {
                return Poll::Ready(Ok(Part::Data(data)));
            }
        }
    }

    /// The head, if all of it is there. The beginning of the body stays behind in its place.
    fn parse_head(&mut self) -> Result<Option<Box<ResponseHeader>>> {
        if self.head.is_empty() {
            return Ok(None);
        }
        let Some((mut head, length)) = parsed(&self.head)? else {
            if self.head.len() > HEAD_MAX {
                return Error::e_explain(ErrorType::InvalidHTTPHeader, "a head without end");
            }
            return Ok(None);
        };
        drop(self.head.split_to(length));
        if head.status.is_informational() {
            return Ok(Some(head));
        }
        let is_coded = head.headers.contains_key(TRANSFER_ENCODING);
        if is_coded {
            // Chunks win (RFC 9112, section 6.3).
            head.remove_header(&CONTENT_LENGTH);
        }
        let body = match (response_head::is_bare(head.status), is_coded) {
            (true, _) => Deframer::of_length(0),
            (false, true) if is_chunked(&head.headers) => Deframer::of_chunks(),
            (false, true) => Deframer::until_close(),
            (false, false) => length_of(&head.headers)?.map_or_else(Deframer::until_close, Deframer::of_length),
        };
        self.stays_open = stays_open(&head);
        self.had_more = body.has_ended() && !self.head.is_empty();
        self.body = Some(body);
        Ok(Some(head))
    }

    /// What of the body is in something that was read.
    fn deframe(&mut self, read: &[u8]) -> Option<Bytes> {
        let Deframed { data, used } = self.body.as_mut()?.deframe(read);
        self.had_more |= used < read.len();
        Some(data).filter(|data| !data.is_empty())
    }

    /// Nothing more will come.
    fn closed(&mut self) -> Result<()> {
        self.stays_open = false;
        match &mut self.body {
            Some(body) => body.close(),
            None => Error::e_explain(ErrorType::ConnectionClosed, "before the response's head had come"),
        }
    }
}

/// The head at the beginning of these bytes with its length, if its end is there.
fn parsed(bytes: &BytesMut) -> Result<Option<(Box<ResponseHeader>, usize)>> {
    let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let mut parser = httparse::ParserConfig::default();
    // A proxy takes the space away (RFC 9112, section 5.1).
    parser.allow_spaces_after_header_name_in_responses(true);
    let status = parser
        .parse_response_with_uninit_headers(&mut response, bytes, &mut room)
        .or_err(ErrorType::InvalidHTTPHeader, "of a response")?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let whole = Bytes::copy_from_slice(&bytes[..length]);
    let mut head = Box::new(ResponseHeader::build(response.code.unwrap_or_default(), Some(response.headers.len()))?);
    head.set_version(if response.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 });
    head.set_reason_phrase(response.reason.filter(|reason| !reason.is_empty()))?;
    for header in response.headers.iter() {
        // Both lie within the bytes that were parsed.
        let within = |part: &[u8]| {
            let begin = part.as_ptr() as usize - bytes.as_ptr() as usize;
            whole.slice(begin..begin + part.len())
        };
        let value = HeaderValue::from_maybe_shared(within(header.value));
        let value = value.or_err(ErrorType::InvalidHTTPHeader, "a header's value")?;
        head.append_header(within(header.name.as_bytes()).into_case_header_name(), value)?;
    }
    Ok(Some((head, length)))
}

/// Whether the last of its codings is the one in chunks.
fn is_chunked(headers: &HeaderMap) -> bool {
    let last = headers.get_all(TRANSFER_ENCODING).iter().next_back();
    let last = last.and_then(|codings| codings.as_bytes().rsplit(|byte| *byte == b',').next());
    last.is_some_and(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// The length that a head gives its body: a number, and wherever it stands again the same one.
fn length_of(headers: &HeaderMap) -> Result<Option<u64>> {
    let mut lengths =
        headers.get_all(CONTENT_LENGTH).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next() else { return Ok(None) };
    let number = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits.trim_ascii()).ok()?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten()
    };
    let length = number(first).filter(|length| lengths.all(|again| number(again) == Some(*length)));
    length.map(Some).ok_or_else(|| Error::explain(ErrorType::InvalidHTTPHeader, "a length that is none"))
}

/// Whether a server means to keep its connection.
fn stays_open(head: &ResponseHeader) -> bool {
    let says = |word: &str| {
        let values = head.headers.get_all(CONNECTION).iter();
        let mut words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        words.any(|said| said.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    let is_new = head.version != Version::HTTP_10;
    !says("close") && (is_new || says("keep-alive") && !head.headers.contains_key(TRANSFER_ENCODING))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex, split};

    use super::*;

    fn response_on(connection: DuplexStream) -> Response {
        Response::new(split(Box::new(connection) as Stream).0)
    }

    /// What comes of a response that arrives in pieces of so many bytes and then ends: statuses, the body, whether it came to its
    /// end, and whether its connection is left open.
    async fn came(bytes: &[u8], piece: usize) -> (Vec<u16>, Vec<u8>, Result<()>, bool) {
        let (connection, mut replica) = duplex(bytes.len().max(1));
        let mut response = response_on(connection);
        let (mut statuses, mut body) = (Vec::new(), Vec::new());
        let mut pieces = bytes.chunks(piece);
        let mut replica = Some(&mut replica);
        let mut closed = None;
        let ended = loop {
            let next = tokio::select! {
                biased;
                next = response.next() => next,
                () = std::future::ready(()) => {
                    match (pieces.next(), &mut replica) {
                        (Some(piece), Some(replica)) => replica.write_all(piece).await.unwrap(),
                        _ => closed = replica.take().map(|replica| replica.shutdown()),
                    }
                    if let Some(closing) = closed.take() {
                        closing.await.unwrap();
                    }
                    continue;
                }
            };
            match next {
                Ok(Part::Head(head)) => statuses.push(head.status.as_u16()),
                Ok(Part::Data(data)) => {
                    assert!(!data.is_empty());
                    body.extend_from_slice(&data);
                }
                Ok(Part::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (statuses, body, ended, response.leaves_open())
    }

    #[tokio::test]
    async fn a_body_is_the_same_however_it_is_framed_and_cut() {
        let cases: &[(&str, &[u16], &str, bool)] = &[
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", &[200], "hello", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\ncontent-length: 5\r\n\r\nhello", &[200], "hello", true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n",
                &[200],
                "hello",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n00a\r\n0123456789\r\n0\r\n\r\n",
                &[200],
                "0123456789",
                true,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end", &[200], "until the end", false),
            ("HTTP/1.1 200\r\nTransfer-Encoding: gzip\r\n\r\nuntil the end", &[200], "until the end", false),
            (
                "HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                &[103, 100, 200],
                "ok",
                true,
            ),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", &[204], "", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", &[200], "", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", &[200], "ok", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok", &[200], "ok", true),
        ];
        for (bytes, statuses, body, is_open) in cases {
            for piece in [1, 2, 3, 7, 1000] {
                let (seen, got, ended, left_open) = came(bytes.as_bytes(), piece).await;
                assert_eq!(
                    (seen.as_slice(), std::str::from_utf8(&got).unwrap()),
                    (*statuses, *body),
                    "{bytes} {piece}"
                );
                assert!(ended.is_ok(), "{bytes}");
                assert_eq!(left_open, *is_open, "{bytes}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_response_is_an_error_and_what_breaks_off_is_another() {
        let cases: &[(&str, ErrorType)] = &[
            ("", ErrorType::ConnectionClosed),
            ("HTTP/1.1 200 OK\r\n", ErrorType::ConnectionClosed),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", ErrorType::ConnectionClosed),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", ErrorType::ConnectionClosed),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", ErrorType::ConnectionClosed),
            ("SSH-2.0-OpenSSH_9.2\r\n", ErrorType::InvalidHTTPHeader),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", ErrorType::InvalidHTTPHeader),
            ("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello", ErrorType::InvalidHTTPHeader),
            ("HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello", ErrorType::InvalidHTTPHeader),
            ("HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", ErrorType::InvalidHTTPHeader),
        ];
        for (bytes, kind) in cases {
            for piece in [1, 1000] {
                let (_, _, ended, left_open) = came(bytes.as_bytes(), piece).await;
                assert_eq!(ended.unwrap_err().etype(), kind, "{bytes}");
                assert!(!left_open);
            }
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_MAX + 1));
        assert_eq!(*came(long.as_bytes(), 4096).await.2.unwrap_err().etype(), ErrorType::InvalidHTTPHeader);
    }

    #[tokio::test]
    async fn a_connection_on_which_more_came_than_the_response_is_not_used_again() {
        for more in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!", "HTTP/1.1 204 No Content\r\n\r\n!"] {
            let (_, body, ended, left_open) = came(more.as_bytes(), 1000).await;
            assert!(ended.is_ok() && !body.contains(&b'!') && !left_open, "{more}");
        }
    }

    #[tokio::test]
    async fn chunks_that_come_together_are_handed_on_together() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n";
        let (connection, mut replica) = duplex(1000);
        replica.write_all(bytes).await.unwrap();
        let mut response = response_on(connection);
        assert!(matches!(response.next().await.unwrap(), Part::Head(head) if head.status == 200));
        assert!(matches!(response.next().await.unwrap(), Part::Data(data) if data == "abc"));
        assert!(response.has_ended());
    }

    #[tokio::test]
    async fn names_keep_the_letters_they_were_written_in() {
        let (connection, mut replica) = duplex(1000);
        replica.write_all(b"HTTP/1.1 200 Fine\r\nX-Odd-cAse : 1\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        let mut response = response_on(connection);
        let Part::Head(head) = response.next().await.unwrap() else { panic!("no head") };
        let names: Vec<_> = head.case_header_iter().map(|(name, _)| name.as_slice().to_vec()).collect();
        assert_eq!(names, [b"X-Odd-cAse".to_vec(), b"content-length".to_vec()]);
        assert_eq!(head.get_reason_phrase(), Some("Fine"));
    }
}
