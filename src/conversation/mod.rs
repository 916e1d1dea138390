//! Who is speaking: what a request says of its model and its conversation.
//!
//! ```text
//! body --> Scanner (JSON) or FormScanner (multipart) --> Fields --+
//!             |                                                   +--> identify --> Identity
//! head -------|--------------------------------------- HeaderMap -+                     |
//!             |                                      KeySecret, scope, model --> ConversationKey
//!             +--> History (JSON)                    KeySecret, scope, model --> Chain
//! ```
//!
//! The proxy hands over the body as it arrives until the [`Progress`] is no longer
//! [`Progress::More`]; [`IdentityRules::identify`] ranks what head and body name, and [`KeySecret::key`] turns the
//! winner into the value that everything else knows a conversation by. Where a body was fed to its
//! end, [`Scanner::history`] knows the conversation by its messages, and [`KeySecret::chain`] keys
//! them.
//!
//! The module is pure: no I/O, no clock, no entropy, no logging. The secret of the keys comes in as
//! an argument. The scanners hold a bounded state whatever they are fed, and never fail: a body
//! that cannot be read names nothing.
//!
//! Session ids are private. Types that hold one print nothing of it; the hexadecimal form of a
//! [`ConversationKey`] is the only one that may reach a log, a label or a page.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods)]

mod digest;
mod fields;
mod history;
mod identity;
mod key;
mod literal;
mod message;
mod multipart;
mod parameter;
mod path;
mod preamble;
#[cfg(test)]
mod properties;
mod purpose;
#[cfg(any(test, fuzzing))]
pub mod reference;
mod scanner;
mod session;
mod shape;
mod tree;
mod walk;

pub use fields::{Fields, Model, Progress, RootKeys};
pub use history::{Chain, ChainKey, History, Link};
pub use identity::{Explicit, Identity, IdentityRules, Source};
pub use key::{ConversationKey, KeySecret};
pub use multipart::FormScanner;
pub use purpose::{AUXILIARY_BYTES_MAX, Api, Purpose};
pub use scanner::{Scanner, Wanted};
pub use session::SessionValue;
pub use shape::Shape;
