//! Lines of the cached device, and the pieces of a line that the log has.

use std::ops::Range;

use super::packed::PLACE_MAX;
use crate::{Buf, Extent, LINE_SECTORS, Lba, SECTOR_BYTES};

/// Maximum number of pieces of a line: one for each sector.
pub const PIECES_MAX: usize = LINE_SECTORS as usize;

/// A sector of the log device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

/// The number of a cache line on the cached device: its LBA divided by the sectors of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line(pub u64);

impl Line {
    pub const fn of(lba: Lba) -> Line {
        Line(lba.0 / LINE_SECTORS)
    }

    pub const fn start(self) -> Lba {
        Lba(self.0 * LINE_SECTORS)
    }

    pub const fn extent(self) -> Extent {
        Extent::new(self.start(), LINE_SECTORS)
    }

    /// The lines that `extent` touches.
    pub fn touching(extent: Extent) -> Range<u64> {
        if extent.sectors == 0 {
            return 0..0;
        }
        extent.start.0 / LINE_SECTORS..(extent.end().0 - 1) / LINE_SECTORS + 1
    }

    /// Returns the sectors of the line that `extent` covers.
    pub fn mask_of(self, extent: Extent) -> u8 {
        match self.extent().intersection(extent) {
            Some(common) => sectors_mask((common.start - self.start()) as u8, common.sectors as u8),
            None => 0,
        }
    }

    /// Calls `f` with each run of adjacent sectors in a mask.
    pub fn runs(self, mask: u8, mut f: impl FnMut(Extent)) {
        let mut rest = u16::from(mask);
        let mut at = 0;
        while rest != 0 {
            let skip = rest.trailing_zeros();
            rest >>= skip;
            at += skip;
            let run = rest.trailing_ones();
            f(Extent::new(self.start() + u64::from(at), u64::from(run)));
            rest >>= run;
            at += run;
        }
    }
}

/// The bits of `count` sectors from `first` on.
pub const fn sectors_mask(first: u8, count: u8) -> u8 {
    (((1u16 << count) - 1) << first) as u8
}

/// Sectors of one line that were written together, and so have one address and one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Place in the log of the piece's first sector, as it was written.
    pub place: Place,
    /// The extent as it was written, in sectors of the line. `crc` is over all of it, including sectors that are no longer valid.
    pub first: u8,
    pub count: u8,
    pub crc: u32,
    /// The sectors of the line for which this is still the newest copy.
    pub mask: u8,
    /// Not yet on the data disk.
    pub dirty: bool,
    /// Read since it came to the log.
    pub hit: bool,
    /// Read from the data disk and copied to the log: recovery takes it for clean, too.
    pub kept: bool,
}

impl Piece {
    /// Creates a piece just written: all of it is valid and dirty.
    pub fn written(place: Place, first: u8, count: u8, crc: u32) -> Piece {
        let mask = sectors_mask(first, count);
        Piece { place, first, count, crc, mask, dirty: true, hit: false, kept: false }
    }

    /// Creates a clean copy of sectors of the data disk.
    pub fn copied(place: Place, first: u8, count: u8, crc: u32) -> Piece {
        Piece { dirty: false, kept: true, ..Piece::written(place, first, count, crc) }
    }

    /// True when no sector of it was replaced.
    pub const fn is_whole(&self) -> bool {
        self.mask == sectors_mask(self.first, self.count)
    }

    /// True when the piece, as it was read from the log into `source` at byte `at`, matches its checksum.
    pub fn is_intact(&self, source: &Buf, at: usize) -> bool {
        let bytes = usize::from(self.count) * SECTOR_BYTES as usize;
        source.is_blank() || crc32c::crc32c(&source.bytes()[at..at + bytes]) == self.crc
    }

    /// Counts the sectors that are still valid.
    pub fn sectors(&self) -> u8 {
        self.mask.count_ones() as u8
    }

    /// Returns the place in the log of the given sector of the line; it must be one of the piece's.
    pub fn place_of(&self, sector: u8) -> Place {
        assert!(self.first <= sector && sector < self.first + self.count);
        Place(self.place.0 + u64::from(sector - self.first))
    }

    pub(super) fn check(&self) {
        assert!(
            1 <= self.count && self.count <= 8 && self.first <= 8 - self.count,
            "not within a line: {self:?}"
        );
        assert!(self.mask != 0, "a piece with nothing valid: {self:?}");
        assert!(self.mask & !sectors_mask(self.first, self.count) == 0, "valid but never written: {self:?}");
        assert!(self.place.0 + 8 <= PLACE_MAX, "beyond any log: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_mask() {
        let runs = |mask| {
            let mut all = Vec::new();
            Line(2).runs(mask, |run| all.push((run.start.0 - 16, run.sectors)));
            all
        };
        assert_eq!(runs(0xff), [(0, 8)]);
        assert_eq!(runs(0b0110_1001), [(0, 1), (3, 1), (5, 2)]);
        assert_eq!(runs(0), []);
    }
}
