//! What must never be shown: keys and tokens, and the hashes that stand for them. Neither prints anything of itself.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::hint::black_box;

use sha2::{Digest as _, Sha256};

/// Text that is used and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

/// What stands for an API key in the keys file and in memory.
///
/// A fast hash on purpose. A slow one (Argon2, bcrypt) makes guessing dear where people choose what is hashed. A key is
/// drawn from 256 random bits, so no guess ever hits, whatever it costs, and the slowness would only hit kvpin: every
/// wrong key that a stranger sends would burn the CPU that a password hash is made to burn.
///
/// The prefix that is hashed with a key keeps these hashes apart from what other systems make of the same key: a leaked
/// keys file can't be compared with a leaked table of plain SHA-256.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; Self::BYTES]);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl KeyHash {
    const BYTES: usize = 32;
    const DOMAIN: &[u8] = b"kvpin api key 1\0";
    /// Before the digits in the file, so that nobody takes them for a plain SHA-256. Another way to hash gets another one.
    const PREFIX: &str = "kvpin1-";

    /// Of a key as a client sends it.
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::new().chain_update(Self::DOMAIN).chain_update(key).finalize().into())
    }

    /// As the keys file has it; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?.as_bytes();
        let mut hash = [0; Self::BYTES];
        if digits.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Self(hash))
    }

    /// For the keys file, and for nothing else.
    pub fn to_text(self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}{digits}", Self::PREFIX)
    }
}

/// In a time that does not depend on where two hashes differ. What a comparison that stops early gives away is a
/// beginning of a stored hash, from which no key can be worked out; but so nobody has to rely on that.
impl PartialEq for KeyHash {
    fn eq(&self, other: &Self) -> bool {
        let differing =
            self.0.iter().zip(&other.0).fold(0, |differing, (one, other)| black_box(differing | (one ^ other)));
        differing == 0
    }
}

impl Eq for KeyHash {}

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// The value of a lower-case hexadecimal digit, so that a hash has one spelling only.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out with `printf 'kvpin api key 1\0secret' | sha256sum`: a hash that changed would lock every client out.
    const OF_SECRET: &str = "kvpin1-4d7694192d419fa57ad48d4c92288714b2a54ace225502318114b172c677d8d2";

    #[test]
    fn a_hash_is_the_same_in_every_build_and_reads_back() {
        let hash = KeyHash::of(b"secret");
        assert_eq!(hash.to_text(), OF_SECRET);
        assert_eq!(KeyHash::parse(OF_SECRET), Some(hash));
        assert_ne!(hash, KeyHash::of(b"Secret"));
    }

    #[test]
    fn hashes_that_differ_in_one_bit_anywhere_differ() {
        let hash = KeyHash::of(b"secret");
        for bit in 0..256 {
            let mut other = hash;
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(hash, other, "{bit}");
        }
    }

    #[test]
    fn what_is_no_hash_of_this_kind_is_refused() {
        let digits = &OF_SECRET["kvpin1-".len()..];
        for text in [
            "",
            digits,
            "kvpin1-",
            &format!("sha256-{digits}"),
            &format!("kvpin1-{}", &digits[1..]),
            &format!("{OF_SECRET}0"),
            &format!("kvpin1-{}", digits.to_ascii_uppercase()),
            &format!("kvpin1-g{}", &digits[1..]),
        ] {
            assert_eq!(KeyHash::parse(text), None, "{text}");
        }
    }

    #[test]
    fn nothing_secret_prints() {
        assert_eq!(format!("{:?} {:?}", Secret::new("abc"), KeyHash::of(b"abc")), "Secret(..) KeyHash(..)");
    }
}
