//! Bands: stripes that move together, and the old stripes that they come from.
//!
//! The array has the same strips in the same order before and after; a stripe of the new layout only has more of them. So what a new
//! stripe gets comes from the old stripe of the same number, or from one behind it: from the same only while the number is
//! less than that of the old data members (the *critical section*), and then it must be kept elsewhere while it is
//! overwritten.

use crate::Lba;
use crate::raid::layout::DATA_SECTOR;
use crate::raid::layout::Layout;

/// Some rows of one stripe, or all rows of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    pub stripe: u64,
    pub stripes: u64,
    /// First sector in the strip.
    pub first: u64,
    pub sectors: u64,
}

impl Band {
    /// The sector at which it begins on each member.
    pub fn lba(&self, layout: &Layout) -> Lba {
        Lba(DATA_SECTOR + self.position(layout))
    }

    /// Start of the band in sectors of a member, from the beginning of the first stripe.
    pub const fn position(&self, layout: &Layout) -> u64 {
        self.stripe * layout.strip_sectors + self.first
    }

    /// Sectors on each member.
    pub const fn member_sectors(&self) -> u64 {
        self.stripes * self.sectors
    }

    pub const fn end(&self, layout: &Layout) -> u64 {
        self.position(layout) + self.member_sectors()
    }
}

/// Both layouts, and how much moves at a time.
#[derive(Clone, Copy, Debug)]
pub struct Bands {
    pub old: Layout,
    pub new: Layout,
    /// Data of one band, about.
    pub sectors_max: u64,
    /// The most sectors of each member that can be kept elsewhere.
    pub backup_sectors_max: u64,
}

impl Bands {
    /// New stripes that get data of the old ones; the last of them may get less than it has room for.
    pub const fn stripes(&self) -> u64 {
        (self.old.stripes * self.old.shape.data as u64).div_ceil(self.new.shape.data as u64)
    }

    /// The end of the move, in sectors of each member.
    pub const fn end(&self) -> u64 {
        self.stripes() * self.new.strip_sectors
    }

    /// True when a band overwrites the data that it is made of.
    pub const fn is_critical(&self, band: &Band) -> bool {
        band.stripe < self.old.shape.data as u64
    }

    /// The band that moves next, from a position.
    pub fn at(&self, position: u64) -> Band {
        let strip = self.new.strip_sectors;
        let (stripe, first) = (position / strip, position % strip);
        let data = self.new.shape.data as u64;
        // The source of a band begins so many stripes behind it.
        let ahead = stripe / self.old.shape.data as u64;
        let whole = (self.sectors_max / (strip * data)).min(ahead).min(self.stripes() - stripe);
        if first == 0 && whole > 1 {
            return Band { stripe, stripes: whole, first, sectors: strip };
        }
        let most =
            (self.sectors_max / data / crate::LINE_SECTORS * crate::LINE_SECTORS).max(crate::LINE_SECTORS);
        let most = if ahead == 0 { most.min(self.backup_sectors_max) } else { most };
        Band { stripe, stripes: 1, first, sectors: most.min(strip - first) }
    }

    /// The old stripes that a band is made of, with the same rows.
    pub fn source(&self, band: &Band) -> Band {
        let (old, new) = (self.old.shape.data as u64, self.new.shape.data as u64);
        let first = band.stripe * new / old;
        let end = ((band.stripe + band.stripes) * new).div_ceil(old).min(self.old.stripes);
        Band { stripe: first, stripes: end - first, ..*band }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::config::{CacheUnit, Level};

    fn bands(level: Level, members: usize, strip: u64, stripes: u64) -> Bands {
        let layout = |members| {
            let shape = level.shape(members).expect("enough members");
            Layout::new(shape, strip, strip * stripes, CacheUnit::Stripe)
        };
        Bands {
            old: layout(members),
            new: layout(members + 1),
            sectors_max: 20 * strip,
            backup_sectors_max: 24,
        }
    }

    #[test]
    fn no_band_overwrites_what_a_later_one_needs_or_what_it_is_made_of_itself() {
        for (level, members) in [(Level::Raid5, 3), (Level::Raid5, 6), (Level::Raid6, 4), (Level::Raid6, 7)] {
            for (strip, stripes) in [(8, 1), (32, 5), (32, 200)] {
                let bands = bands(level, members, strip, stripes);
                let (mut position, mut several) = (0, false);
                while position < bands.end() {
                    let band = bands.at(position);
                    let source = bands.source(&band);
                    assert_eq!(band.position(&bands.new), position, "nothing is left out");
                    let behind = source.stripe >= band.stripe + band.stripes;
                    assert!(behind || (bands.is_critical(&band) && band.stripes == 1), "{band:?} {source:?}");
                    assert!(behind || band.sectors <= bands.backup_sectors_max);
                    assert!(source.stripe >= band.stripe && source.stripe + source.stripes <= stripes);
                    several |= band.stripes > 1;
                    position = band.end(&bands.new);
                }
                assert_eq!(position, bands.end());
                assert!(several || stripes < 200, "large arrays move many stripes at a time");
            }
        }
    }
}
