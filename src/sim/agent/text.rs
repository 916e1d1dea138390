//! Text of a given length that only a seed decides.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::sim::tokens::BYTES_PER_TOKEN;

/// Common words of prose and code: one token each, or nearly, in a real tokenizer.
const WORDS: [&str; 64] = [
    "the", "file", "error", "test", "function", "value", "return", "line", "of", "in", "to", "and", "is", "not", "for",
    "with", "path", "name", "list", "type", "data", "code", "call", "read", "write", "open", "close", "start", "end",
    "first", "last", "next", "old", "new", "user", "server", "client", "request", "response", "header", "body", "key",
    "index", "count", "size", "time", "state", "string", "number", "object", "class", "method", "module", "import",
    "change", "check", "build", "run", "log", "output", "input", "result", "case", "when",
];

/// How many bytes of this text are a token where nothing else is known: as the stand-in for a tokenizer has it.
pub const ASSUMED_BYTES_PER_TOKEN: f64 = BYTES_PER_TOKEN as f64;

/// Words of `seed`, `length` bytes or a few more, under a heading that makes texts of different titles differ from their first
/// token on.
pub fn words(seed: u64, title: &str, length: usize) -> String {
    let mut text = format!("{title}:");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while text.len() < length {
        text.push(' ');
        text.push_str(WORDS[rng.random_range(0..WORDS.len())]);
    }
    text
}

/// A share, from 0 up to 1, that depends on the seed alone.
pub fn share(seed: u64) -> f64 {
    ChaCha8Rng::seed_from_u64(seed).random()
}

/// A session's id in the form of a UUID.
pub fn session_id(seed: u64) -> String {
    let bits = ChaCha8Rng::seed_from_u64(seed).random::<u128>();
    let hex = format!("{bits:032x}");
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
