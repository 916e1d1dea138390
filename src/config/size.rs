//! Sizes in bytes, as the file has them.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A size in bytes, written as an integer or as `32MiB`.
#[derive(Clone, Copy)]
pub(super) struct Bytes(pub(super) u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;

        impl Visitor<'_> for Size {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or one with KiB, MiB or GiB like 32MiB")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_str<E: Error>(self, size: &str) -> Result<Bytes, E> {
                bytes(size).ok_or_else(|| E::invalid_value(Unexpected::Str(size), &self))
            }
        }

        deserializer.deserialize_any(Size)
    }
}

/// `None` for what is no size, or too large for 64 bits. KB and MB are no units here: they mean 1000 to some and 1024 to others.
fn bytes(size: &str) -> Option<Bytes> {
    let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match size[digits.len()..].trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Bytes)
}
