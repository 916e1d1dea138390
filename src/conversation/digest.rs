//! The hashes that a history is made of. Pins outlive the process, so a value is the same in every build, on every
//! platform and however a text was cut: rapidhash V3 promises the first two, blocks of a fixed length the third.

use std::fmt;

use rapidhash::v3::rapidhash_v3;

/// Bytes of a text that are hashed at once. More are no faster (`bench/hot_path.rs`), half as many a few percent slower. A
/// text that is shorter is still whole in the buffer when it ends, to be compared.
const BLOCK: usize = 256;

/// Bytes that are copied at once where as many or fewer are to be.
const FEW: usize = 32;

/// What a hash stands for goes into it, so that no number equals a text and no list an object. Digits of π, as good as
/// any others.
const TEXT: u64 = 0x243F_6A88_85A3_08D3;
const SCALAR: u64 = 0x1319_8A2E_0370_7344;
const RAW: u64 = 0xA409_3822_299F_31D0;
const OBJECT: u64 = 0x082E_FA98_EC4E_6C89;
const ARRAY: u64 = 0x4528_21E6_38D0_1377;
const LEFT: u64 = 0xBE54_66CF_34E9_0C6C;
const RIGHT: u64 = 0xC0AC_29B7_C97C_50DD;

/// Of two hashes one, by their order: the halves of a product, folded.
pub(super) const fn mix(left: u64, right: u64) -> u64 {
    let product = (left ^ LEFT) as u128 * (right ^ RIGHT) as u128;
    (product as u64) ^ ((product >> 64) as u64)
}

/// The hash of a whole text; what a [`Text`] says of the same bytes.
pub(super) const fn text(bytes: &[u8]) -> u64 {
    let mut blocks = TEXT;
    let mut rest = bytes;
    while let Some((block, after)) = rest.split_at_checked(BLOCK) {
        blocks = mix(blocks, rapidhash_v3(block));
        rest = after;
    }
    mix(blocks, rapidhash_v3(rest))
}

/// The hash of a number, `true`, `false` or `null`, by that of its token.
pub(super) const fn scalar(token: u64) -> u64 {
    mix(token, SCALAR)
}

/// The hash of a value that was not looked into, by that of its bytes.
pub(super) const fn raw(bytes: u64) -> u64 {
    mix(bytes, RAW)
}

/// The hash of an object, by the sum of its [`member`]s, which does not depend on their order.
pub(super) const fn object(members: u64) -> u64 {
    mix(members, OBJECT)
}

pub(super) const fn member(key: u64, value: u64) -> u64 {
    mix(key, value)
}

/// The hash of an array, by its items: [`mix`]ed one after the other into [`NO_ITEMS`].
pub(super) const fn array(items: u64) -> u64 {
    mix(items, ARRAY)
}

pub(super) const NO_ITEMS: u64 = ARRAY;

/// A text that is complete.
#[derive(Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) hash: u64,
    pub(super) bytes: u64,
    /// The text itself where it is shorter than a block; of a longer one nothing.
    pub(super) short: &'a [u8],
}

impl<'a> Found<'a> {
    pub(super) fn whole(bytes: &'a [u8]) -> Self {
        let short = if bytes.len() < BLOCK { bytes } else { &[] };
        Self { hash: text(bytes), bytes: bytes.len() as u64, short }
    }
}

/// A text that comes in pieces.
#[derive(Clone)]
pub(super) struct Text {
    /// Over the full blocks so far.
    blocks: u64,
    /// Bytes in those.
    before: u64,
    /// Bytes of `block` that are filled, always fewer than it has.
    filled: usize,
    block: [u8; BLOCK + FEW],
}

impl Text {
    pub(super) fn new() -> Self {
        Self { blocks: TEXT, before: 0, filled: 0, block: [0; BLOCK + FEW] }
    }

    /// Begins the next text.
    pub(super) fn begin(&mut self) {
        self.blocks = TEXT;
        self.before = 0;
        self.filled = 0;
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        if self.filled > 0 {
            let (head, rest) = bytes.split_at(bytes.len().min(BLOCK - self.filled));
            self.block[self.filled..][..head.len()].copy_from_slice(head);
            self.filled += head.len();
            if self.filled < BLOCK {
                return;
            }
            self.end_block();
            bytes = rest;
        }
        while let Some((block, rest)) = bytes.split_at_checked(BLOCK) {
            self.blocks = mix(self.blocks, rapidhash_v3(block));
            self.before += BLOCK as u64;
            bytes = rest;
        }
        self.block[..bytes.len()].copy_from_slice(bytes);
        self.filled = bytes.len();
    }

    /// Pushes the first so many of the bytes, and one more. A few are copied as if they were more, which spares a call.
    #[inline]
    pub(super) fn push_escaped(&mut self, count: usize, bytes: &[u8], escaped: u8) {
        let end = self.filled + count;
        if let (true, Some(few)) = (count <= FEW && end + 1 < BLOCK, bytes.first_chunk::<FEW>()) {
            self.block[self.filled..][..FEW].copy_from_slice(few);
            self.block[end] = escaped;
            self.filled = end + 1;
        } else {
            self.push(&bytes[..count]);
            self.push_byte(escaped);
        }
    }

    #[inline]
    pub(super) fn push_byte(&mut self, byte: u8) {
        self.block[self.filled] = byte;
        self.filled += 1;
        if self.filled == BLOCK {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        self.blocks = mix(self.blocks, rapidhash_v3(&self.block[..BLOCK]));
        self.before += BLOCK as u64;
        self.filled = 0;
    }

    pub(super) fn hash(&self) -> u64 {
        mix(self.blocks, rapidhash_v3(&self.block[..self.filled]))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.before + self.filled as u64
    }

    /// The text, as [`Found::whole`] would have it.
    pub(super) fn found(&self) -> Found<'_> {
        let short = if self.before == 0 { &self.block[..self.filled] } else { &[] };
        Found { hash: self.hash(), bytes: self.bytes(), short }
    }
}

impl fmt::Debug for Text {
    /// Says nothing of the text, which is a prompt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Text(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_hashes_the_same_however_it_is_cut() {
        let bytes: Vec<u8> = (0..1500_u32).map(|at| (at * 31 % 251) as u8).collect();
        for length in [0, 1, 255, 256, 257, 511, 512, 513, 1500] {
            let expected = text(&bytes[..length]);
            for piece in [1, 2, 7, 255, 256, 257, 600] {
                let mut pieces = Text::new();
                pieces.push(b"of another text");
                pieces.begin();
                for piece in bytes[..length].chunks(piece) {
                    if let [byte] = piece { pieces.push_byte(*byte) } else { pieces.push(piece) }
                }
                assert_eq!((pieces.hash(), pieces.bytes()), (expected, length as u64), "{length} by {piece}");
            }
        }
    }

    #[test]
    fn a_hash_depends_on_every_byte_and_on_what_it_stands_for() {
        let long = [b'a'; 600];
        let mut hashes = vec![
            text(b""),
            text(b"1"),
            scalar(text(b"1")),
            raw(text(b"1")),
            text(&long),
            text(&long[..512]),
            object(0),
            array(NO_ITEMS),
        ];
        for at in [0, 255, 256, 511, 512, 599] {
            let mut other = long;
            other[at] = b'b';
            hashes.push(text(&other));
        }
        let all = hashes.len();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), all);
    }

    #[test]
    fn a_hash_is_the_same_in_every_build() {
        let value = object(member(text(b"a"), scalar(text(b"1"))));
        let hashes = [text(b"user"), text(&[b'a'; 600]), array(mix(NO_ITEMS, value))];
        assert_eq!(
            hashes,
            [0x5CB4_B547_D575_5BDD, 0x7CD9_7840_08BC_E725, 0xBBD9_0002_1F09_1AA7],
            "snapshots of pins from before would lose their conversations"
        );
    }
}
