//! A hot upgrade: another process takes the listening sockets and what is remembered over, and not one connection is refused.
//!
//! ```text
//! old process                                       new process, its child, with their socket as its stdin
//!     starts it  ---------------------------------->  reads its configuration
//!                <-- Hello: the protocol that it speaks
//!     Welcome, and the listening sockets  --------->  binds what is new, looks at the replicas
//!                <-- Prepared
//!     the state  ---------------------------------->  restores it
//!                <-- Ready
//!     what was learned meanwhile  ----------------->  remembers that too: Known, and so before each answer's first byte
//!     stops accepting, Go  ------------------------>  accepts
//!     ends when its last turn has, Done
//! ```
//!
//! Until Go the old process serves as if nothing were; whatever fails before ends the new one and nothing else. Between the
//! two, connections wait in the kernel. As long as the old process has turns to finish it keeps the sockets, and if the new one
//! is gone it accepts again: systemd would not notice, which is told of the ends of its own children only. The new one has it
//! let go of them when it is about to end in order, or to be replaced itself.

mod give;
mod message;
mod take;
mod teach;

pub use give::{Launch, Retiree, Successor};
pub use take::{Following, Predecessor};
pub use teach::Heard;
