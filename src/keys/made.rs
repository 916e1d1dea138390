//! Keys as kvpin makes them: `kvp_`, 64 hexadecimal digits of randomness, and 8 that tell a typing error from a wrong key.

use sha2::{Digest as _, Sha256};

use crate::config::{KEY_PREFIX, Secret};

/// As many as a hash has; half of them would be beyond guessing too.
pub const KEY_RANDOM_BYTES: usize = 32;

const DIGITS: usize = 2 * KEY_RANDOM_BYTES;
const CHECK_BYTES: usize = 4;

/// The key of so much randomness.
pub fn made_of(random: &[u8; KEY_RANDOM_BYTES]) -> Secret {
    let digits = hex(random);
    Secret::new(&format!("{KEY_PREFIX}{digits}{}", check(&digits)))
}

/// Whether this looks like a key that kvpin has made, and is none.
pub fn is_mistyped(key: &str) -> bool {
    let Some(digits) = key.strip_prefix(KEY_PREFIX) else { return false };
    match digits.split_at_checked(DIGITS) {
        Some((digits, said)) => check(digits) != said,
        None => true,
    }
}

fn check(digits: &str) -> String {
    let hash = Sha256::new().chain_update(b"kvpin api key check 1\0").chain_update(digits).finalize();
    hex(&hash[..CHECK_BYTES])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_typing_error_is_noticed() {
        let key = made_of(&[0xA5; KEY_RANDOM_BYTES]).expose().to_owned();
        assert_eq!(key.len(), 76);
        assert!(!is_mistyped(&key));
        for at in KEY_PREFIX.len()..key.len() {
            for digit in "0123456789abcdefX".chars().filter(|digit| !key[at..].starts_with(*digit)) {
                let mut wrong = key.clone();
                wrong.replace_range(at..=at, &digit.to_string());
                assert!(is_mistyped(&wrong), "{wrong}");
            }
        }
        assert!(is_mistyped(&key[..75]) && is_mistyped(&format!("{key}0")) && is_mistyped("kvp_"));
    }

    #[test]
    fn somebody_elses_key_is_not_judged() {
        assert!(!is_mistyped("sk-ant-0123456789abcdef"));
    }
}
