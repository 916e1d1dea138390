//! What outlives the process, as bytes: in the state file, and on the way from one process to the next.
//!
//! ```text
//! "kvpin st", version | frame: length, checksum, payload | frame | ...
//!                       head, then for each model its replicas and its records, then the end
//! ```
//!
//! A reader believes nothing: what is cut short, altered, of another version or larger than it may be is an error and
//! allocates no more than one frame may have. This is a leaf: it knows the balancer's plain values and no more of it.

pub mod codec;
pub mod file;

pub use codec::{Damage, Frame, Head, Reader, Writer};
