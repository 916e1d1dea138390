//! A request on its way to a replica: its head and the pieces of its body, framed for HTTP/1.1.
//!
//! Pieces are written as far as the replica takes them, and what isn't written yet is remembered, so that the writing can be
//! left for the response or for the client at any time and gone on with. One piece is taken in ahead of the one that is being
//! written: that is how a client is heard that leaves meanwhile.

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
use pingora::protocols::http::v1::client::http_req_header_to_wire;
use pingora::{Error, ErrorType, OkOrErr as _, Result};
use tokio::io::AsyncWrite as _;
use tokio::time::{Instant, timeout_at};

use super::duplex::Duplex;

/// The request, as far as it has come.
pub struct Upload {
    to: Duplex,
    framing: Framing,
    state: State,
    /// What is being written: what comes before a piece, the piece, and what comes behind it.
    frame: Frame,
    /// The piece that comes next, if it is there already.
    ahead: Option<Piece>,
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
    pub fn new(to: Duplex, head: &RequestHeader, first: Piece, limit: Duration) -> Result<Self> {
        let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
        let framing = if is_chunked { Framing::Chunks } else { Framing::Length };
        let head = http_req_header_to_wire(head).or_err(ErrorType::InternalError, "a head that can't be written")?;
        let state = State::Writes { is_last: first.is_last };
        let frame = framing.frame(head.freeze(), first);
        Ok(Upload { to, framing, state, frame, ahead: None, moved: Instant::now(), limit })
    }

    /// Whether another piece can be taken in.
    pub fn has_room(&self) -> bool {
        match self.state {
            State::Waits => true,
            State::Writes { is_last } => !is_last && self.ahead.is_none(),
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
        if self.is_writing() {
            self.ahead = Some(piece);
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
            self.state = if is_last { State::Sent } else { State::Waits };
            if let Some(piece) = self.ahead.take() {
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
