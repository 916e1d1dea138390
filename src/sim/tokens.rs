//! A stand-in for a tokenizer: four bytes of text are one token, counted from the start of each segment.
//!
//! Four bytes a token is about what Qwen's tokenizer gives on English and code. The token *is* its bytes, so decoding is
//! exact and needs no vocabulary. Segments are what keeps a grown prompt an extension of the old one: text added in a new
//! segment never shifts the pieces before it.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Bytes of text in one token; the last piece of a segment may be shorter.
pub const BYTES_PER_TOKEN: usize = 4;

/// Appends the tokens of one segment.
pub fn encode_into(segment: &str, tokens: &mut Vec<u32>) {
    tokens.extend(segment.as_bytes().chunks(BYTES_PER_TOKEN).map(|piece| {
        let mut bytes = [0; BYTES_PER_TOKEN];
        bytes[..piece.len()].copy_from_slice(piece);
        u32::from_le_bytes(bytes)
    }));
}

/// The text of `tokens`; bytes that are no UTF-8 become replacement characters.
pub fn decode(tokens: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(tokens.len() * BYTES_PER_TOKEN);
    for token in tokens {
        let piece = token.to_le_bytes();
        let padding = piece.iter().rev().take_while(|byte| **byte == 0).count();
        bytes.extend_from_slice(&piece[..BYTES_PER_TOKEN - padding]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The token number `index` of the reply that belongs to `seed`: three letters and a blank. A client that sends the reply
/// back gets the same tokens, so generated blocks are hit by the next turn as they are in vLLM; the blank is last because
/// clients trim the end of a reply rather than its start.
pub fn output_token(seed: u64, index: u32) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(seed, 0);
    hasher.write_u32(index);
    let bits = hasher.finish().to_le_bytes();
    u32::from_le_bytes([letter(bits[0]), letter(bits[1]), letter(bits[2]), b' '])
}

fn letter(bits: u8) -> u8 {
    b'a' + bits % 26
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_a_round_trip() {
        for text in ["", "a", "four", "fives", "naïve 日本語 text"] {
            let mut tokens = Vec::new();
            encode_into(text, &mut tokens);
            assert_eq!(decode(&tokens), text);
            assert_eq!(tokens.len(), text.len().div_ceil(BYTES_PER_TOKEN));
        }
    }

    #[test]
    fn a_reply_sent_back_has_the_tokens_it_was_generated_with() {
        let generated: Vec<u32> = (0..50).map(|index| output_token(7, index)).collect();
        let mut sent_back = Vec::new();
        encode_into(&decode(&generated), &mut sent_back);
        assert_eq!(sent_back, generated);
    }
}
