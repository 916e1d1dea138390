//! A request on its way to a replica: its head and the pieces of its body, framed for HTTP/1.1.
//!
//! Pieces are written as far as the replica takes them, and what isn't written yet is remembered, so that the writing can be
//! left for the response or for the client at any time and gone on with. Some pieces are taken in ahead of the one that is
//! being written: that is how a client is heard that leaves meanwhile, as long as it hasn't much more on the way.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::take;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes};
use http::header::TRANSFER_ENCODING;
use log::debug;
use pingora::http::RequestHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::v1::client::http_req_header_to_wire;
use pingora::{Error, ErrorType, OkOrErr as _, Result};
use tokio::io::{AsyncWrite as _, WriteHalf};
use tokio::time::{Instant, timeout_at};

/// How much may be taken in ahead. Only where a replica is slower than its client is there anything.
const AHEAD_BYTES_MAX: usize = 256 * 1024;

/// The request, as far as it has come.
pub struct Upload {
    to: WriteHalf<Stream>,
    framing: Framing,
    state: State,
    /// What is being written: what comes before a piece, the piece, and what comes behind it.
    frame: Frame,
    /// The pieces that come next.
    ahead: VecDeque<Piece>,
    /// Whether the last piece is there.
    is_complete: bool,
    /// When the replica last took something.
    moved: Instant,
    /// How long it may take nothing.
    limit: Duration,
}

/// A part of a body.
pub struct Piece {
    pub bytes: Bytes,
    pub is_last: bool,
}

type Frame = Chain<Chain<Bytes, Bytes>, Bytes>;

#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunks,
}

#[derive(Default)]
enum State {
    /// All that was given has been written.
    #[default]
    Waits,
    Writes {
        is_last: bool,
    },
    /// The replica has all of it.
    Sent,
    /// The replica doesn't take the rest. It may have answered before.
    Refused(Box<Error>),
}

impl Upload {
    /// Begins with a head and the first piece.
    pub fn new(to: WriteHalf<Stream>, head: &RequestHeader, first: Piece, limit: Duration) -> Result<Self> {
        let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
        let framing = if is_chunked { Framing::Chunks } else { Framing::Length };
        let head = http_req_header_to_wire(head).or_err(ErrorType::InternalError, "a head that can't be written")?;
        let is_complete = first.is_last;
        let state = State::Writes { is_last: is_complete };
        let frame = framing.frame(head.freeze(), first);
        Ok(Upload { to, framing, state, frame, ahead: VecDeque::new(), is_complete, moved: Instant::now(), limit })
    }

    /// Whether another piece can be taken in.
    pub fn has_room(&self) -> bool {
        let ahead = self.ahead.iter().map(|piece| piece.bytes.len()).sum::<usize>();
        match self.state {
            State::Waits | State::Writes { .. } => !self.is_complete && ahead < AHEAD_BYTES_MAX,
            State::Sent | State::Refused(_) => false,
        }
    }

    /// Whether there is something to write.
    pub fn is_writing(&self) -> bool {
        matches!(self.state, State::Writes { .. })
    }

    pub fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent)
    }

    /// Its half of the connection.
    pub fn into_half(self) -> WriteHalf<Stream> {
        self.to
    }

    /// What the replica refused the rest with, once.
    pub fn refused(&mut self) -> Option<Box<Error>> {
        match take(&mut self.state) {
            State::Refused(error) => Some(error),
            state => {
                self.state = state;
                None
            }
        }
    }

    /// Takes a piece in. There has to be room for it.
    pub fn push(&mut self, piece: Piece) {
        self.is_complete = piece.is_last;
        if self.is_writing() {
            self.ahead.push_back(piece);
        } else {
            self.moved = Instant::now();
            self.begin(piece);
        }
    }

    /// Writes all that there is. Dropped while it waits, it goes on with the next call.
    ///
    /// # Errors
    /// If the replica took nothing for too long. That it refuses the rest is no error: the answer may be there.
    pub async fn write(&mut self) -> Result<()> {
        loop {
            let deadline = self.moved + self.limit;
            match timeout_at(deadline, poll_fn(|cx| self.poll_write(cx))).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => {
                    debug!("a replica doesn't take the body: {}", error.kind());
                    let error = Error::because(ErrorType::WriteError, "while a request was sent", error);
                    self.state = State::Refused(error.into_up());
                    return Ok(());
                }
                Err(_) if self.moved + self.limit > Instant::now() => {}
                Err(_) => return Err(Error::explain(ErrorType::WriteTimedout, "the replica takes nothing").into_up()),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let State::Writes { is_last } = self.state {
            while self.frame.has_remaining() {
                let written = ready!(self.poll_write_some(cx))?;
                self.frame.advance(written);
                self.moved = Instant::now();
            }
            ready!(Pin::new(&mut self.to).poll_flush(cx))?;
            // What was written would else be kept for as long as the answer takes.
            self.frame = Bytes::new().chain(Bytes::new()).chain(Bytes::new());
            self.state = if is_last { State::Sent } else { State::Waits };
            if let Some(piece) = self.ahead.pop_front() {
                self.begin(piece);
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = self.frame.chunks_vectored(&mut slices);
        match ready!(Pin::new(&mut self.to).poll_write_vectored(cx, &slices[..count]))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => Poll::Ready(Ok(written)),
        }
    }

    fn begin(&mut self, piece: Piece) {
        self.state = State::Writes { is_last: piece.is_last };
        self.frame = self.framing.frame(Bytes::new(), piece);
    }
}

impl Framing {
    /// Puts a piece into its frame, behind `before`.
    fn frame(self, before: Bytes, piece: Piece) -> Frame {
        let Piece { bytes, is_last } = piece;
        let (size, end): (_, &[u8]) = match (self, bytes.len(), is_last) {
            (Framing::Length, _, _) | (Framing::Chunks, 0, false) => (None, b""),
            // An empty chunk would be the end.
            (Framing::Chunks, 0, true) => (None, b"0\r\n\r\n"),
            (Framing::Chunks, size, false) => (Some(size), b"\r\n"),
            (Framing::Chunks, size, true) => (Some(size), b"\r\n0\r\n\r\n"),
        };
        let before = match size {
            Some(size) => [before, format!("{size:X}\r\n").into()].concat().into(),
            None => before,
        };
        before.chain(bytes).chain(Bytes::from_static(end))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn piece(bytes: &'static str, is_last: bool) -> Piece {
        Piece { bytes: Bytes::from_static(bytes.as_bytes()), is_last }
    }

    /// To a replica whose connection holds so many bytes.
    fn upload(framing: (&'static str, &str), first: Piece, holds: usize) -> (Upload, DuplexStream) {
        let (connection, replica) = duplex(holds);
        let mut head = RequestHeader::build("POST", b"/v1/messages", None).unwrap();
        head.insert_header(framing.0, framing.1).unwrap();
        let (_, to) = tokio::io::split(Box::new(connection) as Stream);
        (Upload::new(to, &head, first, LIMIT).unwrap(), replica)
    }

    /// What arrives of these pieces, given as there is room for them, when the writing is left again and again.
    async fn arrived(framing: (&'static str, &str), pieces: &[&'static str], holds: usize) -> String {
        let is_last = |number: usize| number + 1 == pieces.len();
        let (mut upload, mut replica) = upload(framing, piece(pieces[0], is_last(0)), holds);
        let reading = tokio::spawn(async move {
            let mut bytes = Vec::new();
            replica.read_to_end(&mut bytes).await.unwrap();
            String::from_utf8(bytes).unwrap()
        });
        for (number, bytes) in pieces.iter().enumerate().skip(1) {
            assert!(upload.has_room());
            upload.push(piece(bytes, is_last(number)));
            // Left at once, wherever it is.
            assert!(timeout(Duration::ZERO, upload.write()).await.is_err() || !upload.is_writing());
        }
        assert!(!upload.has_room());
        upload.write().await.unwrap();
        assert!(upload.is_sent());
        drop(upload);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn what_arrives_is_the_request_however_its_body_is_cut_and_however_little_is_taken_at_a_time() {
        for holds in [1, 2, 7, 1000] {
            let by_length = arrived(("content-length", "9"), &["{\"a", "", "\":", "1,2}"], holds).await;
            assert_eq!(by_length, "POST /v1/messages HTTP/1.1\r\ncontent-length: 9\r\n\r\n{\"a\":1,2}");
            for (pieces, body) in [
                (&[""][..], "0\r\n\r\n"),
                (&["x"], "1\r\nx\r\n0\r\n\r\n"),
                (&["", "0123456789abcdef", "y", ""], "10\r\n0123456789abcdef\r\n1\r\ny\r\n0\r\n\r\n"),
            ] {
                let expected = format!("POST /v1/messages HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{body}");
                assert_eq!(arrived(("transfer-encoding", "chunked"), pieces, holds).await, expected);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_takes_nothing_is_given_up_and_one_that_takes_a_little_is_not() {
        let (mut upload, mut replica) = upload(("content-length", "4000"), piece("x", false), 100);
        upload.push(Piece { bytes: vec![b'x'; 3000].into(), is_last: false });
        let begun = Instant::now();
        let taking = async {
            for _ in 0..20 {
                tokio::time::sleep(LIMIT / 2).await;
                replica.read_exact(&mut [0; 10]).await.unwrap();
            }
        };
        let (error, ()) = tokio::join!(upload.write(), taking);
        assert_eq!(*error.unwrap_err().etype(), ErrorType::WriteTimedout);
        assert_eq!(begun.elapsed(), LIMIT * 11);
    }

    #[tokio::test]
    async fn no_more_than_a_little_is_taken_in_ahead() {
        let (mut upload, _replica) = upload(("transfer-encoding", "chunked"), piece("x", false), 1);
        let mut ahead = 0;
        while upload.has_room() {
            upload.push(Piece { bytes: vec![0; 64 * 1024].into(), is_last: false });
            ahead += 64 * 1024;
        }
        assert_eq!(ahead, AHEAD_BYTES_MAX);
    }

    #[tokio::test]
    async fn a_replica_that_has_closed_refuses_the_rest_and_its_answer_may_be_there() {
        let (mut upload, replica) = upload(("content-length", "2"), piece("{", false), 1000);
        upload.write().await.unwrap();
        assert!(upload.has_room() && upload.refused().is_none());
        drop(replica);
        upload.push(piece("}", true));
        upload.write().await.unwrap();
        assert!(!upload.has_room() && !upload.is_sent() && !upload.is_writing());
        assert_eq!(*upload.refused().unwrap().etype(), ErrorType::WriteError);
    }
}
