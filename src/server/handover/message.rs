//! What two processes say to each other.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::balancer::Records;
use crate::state::codec::{self, Unread};

/// Grows with every change after which an older or newer kvpin would misread a message.
pub const PROTOCOL: u32 = 1;

/// Descriptors that one message carries; the kernel's own limit is 253.
const DESCRIPTORS_MAX: usize = 64;

/// From either to the other.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    Hello {
        protocol: u32,
        state_version: u32,
        kvpin: String,
    },
    /// With the listening sockets behind it, in this order: as they are configured.
    Welcome {
        key_secret: [u8; 16],
        sockets: Vec<SocketAddr>,
    },
    /// It can serve: these addresses, as they are configured, and maybe some that the old process doesn't have.
    Prepared {
        listens: Vec<SocketAddr>,
    },
    Ready,
    /// What follows is what was learned since; the same as behind `Go`.
    Go,
    /// Nobody is to fall back on the old process any more.
    LetGo,
    /// What a turn that the old process has finished has taught of a model's conversations.
    Learned {
        model: String,
        records: Records,
    },
    /// So much for this time, and the answer: it is known.
    Lesson(u64),
    Known(u64),
    /// The old process was told to reload.
    Reload,
    /// The old process has finished everything.
    Done,
}

/// One end of the way between two processes.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Channel {
    pub fn new(stream: UnixStream) -> Self {
        Channel { stream, buffer: Vec::new() }
    }

    /// Another handle of the same end, for another thread.
    pub fn try_clone(&self) -> io::Result<Channel> {
        self.stream.try_clone().map(Channel::new)
    }

    /// The way itself, for what is no message.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let payload = postcard::to_stdvec(message).map_err(io::Error::other)?;
        let mut frame = Vec::with_capacity(payload.len() + 8);
        codec::write_frame(&mut frame, &payload)?;
        self.stream.write_all(&frame)
    }

    /// Waits for the next message, for as long as the stream's timeout.
    pub fn receive(&mut self) -> io::Result<Message> {
        codec::read_frame(&mut self.stream, &mut self.buffer).map_err(|unread| match unread {
            Unread::Io(error) => error,
            Unread::TooLarge | Unread::Altered => damaged(),
        })?;
        codec::decode(&self.buffer).ok_or_else(damaged)
    }

    pub fn send_descriptors(&self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !ancillary.push(SendAncillaryMessage::ScmRights(some)) {
                return Err(io::Error::other("too many descriptors for one message"));
            }
            // Descriptors need a byte to travel with.
            sendmsg(&self.stream, &[IoSlice::new(&[some.len() as u8])], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    pub fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let received =
                recvmsg(&self.stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = message {
                    descriptors.extend(some);
                }
            }
            if received.bytes == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        if descriptors.len() == count { Ok(descriptors) } else { Err(damaged()) }
    }
}

fn damaged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "what came can't be understood")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    #[test]
    fn listening_sockets_arrive_and_can_be_accepted_on() {
        let (mut old, mut new) = pair();
        let listeners: Vec<_> = (0..100).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let sockets: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        old.send(&Message::Welcome { key_secret: [3; 16], sockets: sockets.clone() }).unwrap();
        old.send_descriptors(&listeners.iter().map(AsFd::as_fd).collect::<Vec<_>>()).unwrap();
        old.send(&Message::Go).unwrap();
        drop(listeners);
        let Message::Welcome { key_secret, sockets: told } = new.receive().unwrap() else { panic!("no welcome") };
        assert_eq!((key_secret, &told), ([3; 16], &sockets));
        let descriptors = new.receive_descriptors(told.len()).unwrap();
        assert!(matches!(new.receive().unwrap(), Message::Go));
        for (address, descriptor) in sockets.into_iter().zip(descriptors) {
            let listener = TcpListener::from(descriptor);
            assert_eq!(listener.local_addr().unwrap(), address);
            let _client = TcpStream::connect(address).unwrap();
            listener.accept().unwrap();
        }
    }

    #[test]
    fn the_end_of_the_other_process_is_an_error() {
        let (old, mut new) = pair();
        drop(old);
        assert_eq!(new.receive().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(new.receive_descriptors(1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(new.send(&Message::Ready).is_err());
    }
}
