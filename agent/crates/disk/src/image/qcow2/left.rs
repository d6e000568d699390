//! What has gone by in a file and belongs to nothing yet.
//!
//! QEMU puts compressed clusters into what is left of a cluster of the file, however far back that is when clusters that do
//! not shrink came in between, and those of other threads get their places before their table has one. So the bytes
//! between all that the tables so far have promised are kept: a few hundred at the end of a cluster, as a rule.

use std::collections::VecDeque;

use crate::image::target::is_zero;

/// What a piece takes up besides its bytes, so that countless tiny ones are bounded too.
const PIECE_BYTES: usize = 64;

/// Pieces of a file in the order of the file, the last ones that fit.
#[derive(Debug)]
pub(super) struct Leftovers {
    pieces: VecDeque<Piece>,
    /// What all pieces take up, and what they may.
    used: usize,
    limit: usize,
}

#[derive(Debug)]
struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + u64::try_from(self.bytes.len()).unwrap_or_default()
    }
}

impl Leftovers {
    /// Up to `limit` bytes are kept; none with 0.
    pub(super) const fn new(limit: usize) -> Self {
        Self { pieces: VecDeque::new(), used: 0, limit }
    }

    /// Adds bytes that lie at `start`; what lies before the end of those that were added before is left out.
    pub(super) fn push(&mut self, start: u64, bytes: &[u8]) {
        let known = self.pieces.back().map_or(0, |last| last.end().saturating_sub(start));
        let bytes = bytes.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        let start = start + known;
        if bytes.is_empty() || self.limit == 0 {
            return;
        }
        let over = bytes.len().saturating_sub(self.limit);
        let (start, bytes) = (start + u64::try_from(over).unwrap_or_default(), bytes.get(over..).unwrap_or(bytes));
        match self.pieces.back_mut() {
            Some(last) if last.end() == start => last.bytes.extend_from_slice(bytes),
            _ => {
                self.drop_zeroes();
                self.pieces.push_back(Piece { start, bytes: bytes.to_vec() });
                self.used += PIECE_BYTES;
            }
        }
        self.used += bytes.len();
        while self.used > self.limit + PIECE_BYTES {
            self.shrink();
        }
    }

    /// No compressed cluster is all zeroes, so the last piece is of no use if it is.
    fn drop_zeroes(&mut self) {
        if let Some(last) = self.pieces.pop_back_if(|last| is_zero(&last.bytes)) {
            self.used -= last.bytes.len() + PIECE_BYTES;
        }
    }

    /// Drops the first piece, or the first half of the only one.
    fn shrink(&mut self) {
        if self.pieces.len() > 1 {
            self.used -= self.pieces.pop_front().map_or(0, |piece| piece.bytes.len() + PIECE_BYTES);
        } else if let Some(piece) = self.pieces.front_mut() {
            let half = piece.bytes.len().div_ceil(2);
            piece.bytes.drain(..half);
            piece.start += u64::try_from(half).unwrap_or_default();
            self.used -= half;
        }
    }

    /// The bytes from `offset` on, up to the end of their piece; empty when they are not kept.
    pub(super) fn from(&self, offset: u64) -> &[u8] {
        let index = self.pieces.partition_point(|piece| piece.end() <= offset);
        let piece = self.pieces.get(index).filter(|piece| piece.start <= offset);
        piece.and_then(|piece| piece.bytes.get(usize::try_from(offset - piece.start).ok()?..)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_left_is_found_by_its_place() {
        let mut left = Leftovers::new(1000);
        left.push(100, &[1; 10]);
        left.push(110, &[2; 10]);
        left.push(500, &[0; 50]);
        left.push(600, &[3; 5]);
        assert_eq!(left.from(99), [0; 0]);
        assert_eq!(left.from(109), [&[1; 1][..], &[2; 10]].concat());
        assert_eq!(left.from(119), [2]);
        assert_eq!(left.from(120), [0; 0]);
        assert_eq!(left.from(510), [0; 0], "zeroes are not kept once something comes behind them");
        assert_eq!(left.from(602), [3; 3]);
        let mut none = Leftovers::new(0);
        none.push(100, &[1; 10]);
        assert_eq!(none.from(100), [0; 0]);
    }

    proptest! {
        /// The last bytes are there, and all of them take no more than the limit.
        #[test]
        fn any_number_of_pieces_is_bounded(pieces in proptest::collection::vec((0_u64..100, 1_usize..3000), 1..200)) {
            let mut left = Leftovers::new(4096);
            let mut at = 0;
            for (gap, len) in pieces {
                at += gap;
                left.push(at, &vec![7; len]);
                let len = u64::try_from(len).unwrap();
                prop_assert_eq!(left.from(at + len - 1), [7]);
                at += len;
                let used: usize = left.pieces.iter().map(|piece| piece.bytes.len() + PIECE_BYTES).sum();
                prop_assert!(used == left.used && used <= 4096 + PIECE_BYTES, "{used}");
            }
        }
    }
}
