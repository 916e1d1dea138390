//! Who is speaking: what a request says of its model and its conversation.

mod fields;
mod literal;
mod path;
mod scanner;
mod session;
mod skip;

pub use fields::{Fields, Model, Progress};
pub use scanner::{Scanner, Wanted};
pub use session::SessionValue;
