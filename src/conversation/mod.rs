//! Who is speaking: what a request says of its model and its conversation.

mod fields;
mod literal;
mod multipart;
mod parameter;
mod path;
mod scanner;
mod session;
mod skip;

pub use fields::{Fields, Model, Progress};
pub use multipart::FormScanner;
pub use scanner::{Scanner, Wanted};
pub use session::SessionValue;
