//! Sixteen bytes that hold either an entry of the table or a node of a fragment list.
//!
//! ```text
//! low word    0..40 key   40..48 mask   48..51 first   51..54 count - 1   54 dirty   55 broken   56..64 crc, high byte
//! high word   0..38 place   38 hit   39 kept                                         40..64 crc, low three bytes
//! ```
//!
//! In an entry the key is the line; in a node it is the next node of the list. An entry of a *broken* line (several pieces) holds no
//! piece: its place is the first node of the list. A low word of zero is an empty slot: no piece has an empty mask, and an entry without
//! a mask has the flag `broken`.

use super::piece::{Line, Piece, Place};

/// Bits of a line or a node number: 2^40 lines of data disk are 4 EiB.
const WIDE_BITS: u32 = 40;
pub(super) const WIDE_MAX: u64 = (1 << WIDE_BITS) - 1;
/// Bits of a place.
const PLACE_BITS: u32 = 38;
/// The last sector of the largest log.
pub const PLACE_MAX: u64 = (1 << PLACE_BITS) - 1;

const MASK_SHIFT: u32 = 40;
const FIRST_SHIFT: u32 = 48;
const COUNT_SHIFT: u32 = 51;
const DIRTY_BIT: u64 = 1 << 54;
const BROKEN_BIT: u64 = 1 << 55;
const HIT_BIT: u64 = 1 << PLACE_BITS;
const KEPT_BIT: u64 = HIT_BIT << 1;
const CRC_HIGH_SHIFT: u32 = 56;
const CRC_LOW_BITS: u32 = 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Packed {
    low: u64,
    high: u64,
}

const _: () = assert!(size_of::<Packed>() == 16);

impl Packed {
    pub const EMPTY: Packed = Packed { low: 0, high: 0 };

    /// Creates an entry or node that holds `piece`. The caller has checked the piece (`Piece::check`) and the key.
    #[inline]
    pub fn whole(key: u64, piece: &Piece) -> Packed {
        let low = key
            | u64::from(piece.mask) << MASK_SHIFT
            | u64::from(piece.first) << FIRST_SHIFT
            | u64::from(piece.count - 1) << COUNT_SHIFT
            | if piece.dirty { DIRTY_BIT } else { 0 }
            | u64::from(piece.crc >> CRC_LOW_BITS) << CRC_HIGH_SHIFT;
        let high = piece.place.0
            | if piece.hit { HIT_BIT } else { 0 }
            | if piece.kept { KEPT_BIT } else { 0 }
            | u64::from(piece.crc) << WIDE_BITS;
        Packed { low, high }
    }

    /// Creates the entry of a broken line, whose pieces are in the list that starts at `head`.
    #[inline]
    pub fn broken(line: Line, head: u64) -> Packed {
        Packed { low: line.0 | BROKEN_BIT, high: head }
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.low == 0
    }

    #[inline]
    pub fn is_broken(self) -> bool {
        self.low & BROKEN_BIT != 0
    }

    /// True for a line in one piece that is clean.
    #[inline]
    pub fn is_clean(self) -> bool {
        self.low & (DIRTY_BIT | BROKEN_BIT) == 0
    }

    #[inline]
    pub fn key(self) -> u64 {
        self.low & WIDE_MAX
    }

    #[inline]
    pub fn line(self) -> Line {
        Line(self.key())
    }

    /// The first node of a broken line.
    #[inline]
    pub fn head(self) -> u64 {
        debug_assert!(self.is_broken());
        self.high & WIDE_MAX
    }

    /// Returns the place of the piece of a line in one piece.
    #[inline]
    pub fn place(self) -> Place {
        debug_assert!(!self.is_broken() && !self.is_empty());
        Place(self.high & PLACE_MAX)
    }

    #[inline]
    pub fn piece(self) -> Piece {
        Piece {
            place: self.place(),
            crc: (self.high >> WIDE_BITS) as u32 | ((self.low >> CRC_HIGH_SHIFT) as u32) << CRC_LOW_BITS,
            first: (self.low >> FIRST_SHIFT) as u8 & 7,
            count: ((self.low >> COUNT_SHIFT) as u8 & 7) + 1,
            mask: (self.low >> MASK_SHIFT) as u8,
            dirty: self.low & DIRTY_BIT != 0,
            hit: self.high & HIT_BIT != 0,
            kept: self.high & KEPT_BIT != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_survives_packing_at_its_limits() {
        for (line, place, crc, first, count, mask, dirty, hit, kept) in [
            (0, 0, 0, 0, 1, 1, false, false, false),
            (WIDE_MAX, PLACE_MAX, u32::MAX, 0, 8, 0xff, true, false, false),
            (1 << 39, 1, 0x8000_0001, 7, 1, 0x80, true, true, false),
            (5, 1 << 37, 0x0100_0000, 3, 4, 0b0101_0000, false, true, true),
            (6, PLACE_MAX, u32::MAX, 0, 8, 0xff, false, false, true),
        ] {
            let piece = Piece { place: Place(place), first, count, crc, mask, dirty, hit, kept };
            let packed = Packed::whole(line, &piece);
            assert!(!packed.is_empty() && !packed.is_broken());
            assert_eq!((packed.key(), packed.piece()), (line, piece));
        }
    }

    #[test]
    fn a_broken_entry_is_not_empty_even_for_line_zero() {
        let entry = Packed::broken(Line(0), 0);
        assert!(entry.is_broken() && !entry.is_empty());
        assert_eq!((entry.line(), entry.head()), (Line(0), 0));
        assert_eq!(Packed::broken(Line(WIDE_MAX), 77).head(), 77);
        assert!(Packed::EMPTY.is_empty());
    }
}
