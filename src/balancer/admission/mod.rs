//! Admission: which conversations may be resident, so that the caches keep what they hold.
//!
//! An engine evicts what was unused for longest. Conversations that together need more KV cache than there is therefore push
//! each other out in turn, and every one of them is read again from the start, however well they are placed. What helps is to let
//! only as many be *resident* on a replica as its cache holds, and to have the others wait at the door:
//!
//! - a turn of a resident conversation is never held;
//! - any other one waits in one line, first come, first served, and enters where its footprint fits. One that has been on a
//!   replica before waits for that one as long as its cache may still hold something of it; a new one takes the first room
//!   there is, and of several that on the least loaded replica;
//! - a resident that is silent for longer than its *stay* is worth gives its room to whoever waits for it. How long that is
//!   comes from how soon conversations come back;
//! - who has waited for the longest hold is let in over the line.
//!
//! As long as everything fits, the door is open and costs a look.

mod budget;
mod door;
mod gaps;
mod learnt;
mod line;
mod policy;
mod residents;
mod rooms;

pub use door::DoorCounters;
pub(super) use door::{Door, Look};
pub use line::Place;
pub(super) use line::Waiting;
pub use policy::{Admission, AdmissionMode, Stay, Tuning};

pub(super) use rooms::Claim;
