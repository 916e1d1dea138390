//! Bytes that are kept in the pieces in which they came, without a copy of the large ones.

use bytes::{Bytes, BytesMut};

use super::splice::joined;

/// Smaller pieces are put together, so that a body in crumbs takes no more memory than its bytes.
const LARGE: usize = 4 * 1024;
/// Up to so many.
const TOGETHER_MAX: usize = 16 * 1024;

/// Pieces in their order.
#[derive(Debug, Default)]
pub struct Pieces {
    kept: Vec<Bytes>,
    /// Small ones that came after those.
    crumbs: BytesMut,
    length: usize,
}

impl Pieces {
    pub fn push(&mut self, piece: &Bytes) {
        self.length += piece.len();
        if piece.len() < LARGE {
            self.crumbs.extend_from_slice(piece);
        }
        if piece.len() >= LARGE || self.crumbs.len() >= TOGETHER_MAX {
            self.keep_crumbs();
        }
        if piece.len() >= LARGE {
            self.kept.push(piece.clone());
        }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// All of them behind `first`, as one piece. There are none afterwards.
    pub fn take_behind(&mut self, first: &Bytes) -> Bytes {
        let Pieces { kept, crumbs, length } = std::mem::take(self);
        if length == 0 {
            return first.clone();
        }
        let kept = kept.iter().map(Bytes::as_ref);
        joined(&[first.as_ref()].into_iter().chain(kept).chain([crumbs.as_ref()]).collect::<Vec<_>>())
    }

    fn keep_crumbs(&mut self) {
        if !self.crumbs.is_empty() {
            self.kept.push(std::mem::take(&mut self.crumbs).freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_in_pieces_of_any_size_is_given_back_whole_and_in_order() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        let mut pieces = Pieces::default();
        let mut rest = Bytes::from(bytes.clone());
        let first = rest.split_to(10);
        let sizes = [1, 5_000, 4_095, 4_096, 2, 20_000, 4_000, 4_000, 4_000, 4_000, 4_000, 3];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            pieces.push(&rest.split_to((*size).min(rest.len())));
        }
        assert_eq!(pieces.len(), bytes.len() - 10);
        assert_eq!(pieces.take_behind(&first), bytes);
        assert_eq!((pieces.len(), pieces.take_behind(&first)), (0, first));
    }

    #[test]
    fn crumbs_are_put_together() {
        let mut pieces = Pieces::default();
        (0..100_000).for_each(|_| pieces.push(&Bytes::from_static(b"x")));
        assert!(pieces.kept.len() < 10, "{}", pieces.kept.len());
    }
}
