//! Pieces of a reader of JSON that comes in chunks cut anywhere and is never kept: how to pass over a value, and how to
//! decode a string. [`crate::conversation`] reads requests with them, [`crate::usage`] the answers.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod decode;
#[cfg(test)]
pub(crate) mod sample;
mod skip;

pub(crate) use decode::{Decoder, Sink, Stray};
pub(crate) use skip::{Skipper, begins_scalar, is_space, plain_length, scalar_length};
