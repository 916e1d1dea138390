//! What outlives the process, as bytes: in the state file, and on the way from one process to the next.
//!
//! ```text
//! "kvpin st", version | frame: length, checksum, payload | frame | ...
//!                       head, then for each model its replicas and its records, then the end
//! ```
//!
//! A reader believes nothing: what is cut short, altered, of another version or larger than it may be is an error and
//! allocates no more than one frame may have. This is a leaf: it knows the balancer's plain values and no more of it.

use std::time::Duration;

pub mod codec;
pub mod file;

pub use codec::{Damage, Frame, Head, Reader, Writer};

/// Records that are taken out of a balancer at once. Its lock is held for about a tenth of a microsecond each, so a decision
/// waits for less than a millisecond (`bench/state.rs`).
pub const SLICE_MAX: usize = 4_096;

/// Between two slices, so that decisions have the lock for most of the time.
pub const SLICE_PAUSE: Duration = Duration::from_millis(1);
