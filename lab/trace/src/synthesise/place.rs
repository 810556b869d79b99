//! Places new data: regions of the disk, some busier than others, and what of them is taken.

use dcd_engine::{Extent, Lba, SECTOR_BYTES};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rustc_hash::FxHashMap;

use super::description::Space;

/// More regions than this only cost memory.
const REGIONS_MAX: u64 = 1 << 20;
/// Random places tried for new data before the nearest free one is looked for.
const TRIES: usize = 16;
/// Places looked at, one behind the other, for a free one.
const PROBES: usize = 4096;

/// A set of sectors.
#[derive(Default)]
pub struct Touched(FxHashMap<u64, u64>);

impl Touched {
    /// The words of 64 sectors that an extent touches, with its bits in them.
    fn words(extent: Extent) -> impl Iterator<Item = (u64, u64)> {
        let (start, end) = (extent.start.0, extent.end().0);
        (start / 64..end.div_ceil(64)).map(move |word| {
            let (from, to) = (start.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
            (word, (u64::MAX >> (64 - (to - from))) << from)
        })
    }

    pub fn touches(&self, extent: Extent) -> bool {
        Touched::words(extent).any(|(word, bits)| self.0.get(&word).is_some_and(|have| have & bits != 0))
    }

    pub fn add(&mut self, extent: Extent) {
        for (word, bits) in Touched::words(extent) {
            *self.0.entry(word).or_default() |= bits;
        }
    }
}

/// The disk, in regions.
pub struct Places {
    sectors: u64,
    align: u64,
    region_sectors: u64,
    stay: f64,
    together: f64,
    /// Region of the newest data of all.
    region: Option<u64>,
    /// Cumulative shares of the regions by rank, and which region has the rank.
    busy: Vec<f64>,
    region_of_rank: Vec<u32>,
    /// End of the newest data of a region, by region.
    newest: Vec<u64>,
}

impl Places {
    pub fn new(space: &Space, rng: &mut ChaCha8Rng) -> Places {
        let align = space.align_bytes / SECTOR_BYTES;
        let sectors = space.bytes / SECTOR_BYTES / align * align;
        let least = sectors.div_ceil(REGIONS_MAX);
        let region_sectors = (space.region_bytes / SECTOR_BYTES).max(least).next_multiple_of(align);
        let regions = sectors.div_ceil(region_sectors);
        let mut total = 0.0;
        let mut weigh = |rank: u64| {
            total += (rank as f64).powf(-space.skew);
            total
        };
        let mut busy: Vec<f64> = (1..=regions).map(&mut weigh).collect();
        busy.iter_mut().for_each(|weight| *weight /= total);
        let mut region_of_rank: Vec<u32> = (0..regions as u32).collect();
        region_of_rank.shuffle(rng);
        let newest = (0..regions).map(|region| region * region_sectors).collect();
        Places {
            sectors,
            align,
            region_sectors,
            stay: space.stay,
            together: space.together,
            region: None,
            busy,
            region_of_rank,
            newest,
        }
    }

    /// The size that is nearest to `bytes`, in sectors.
    pub fn size(&self, bytes: f64) -> u64 {
        let units = (bytes / (self.align * SECTOR_BYTES) as f64).round().max(1.0) as u64;
        (units * self.align).min(self.sectors / 2 / self.align * self.align).max(self.align)
    }

    /// Returns the extent that follows `extent`, if it is on the disk.
    pub fn behind(&self, extent: Extent, sectors: u64) -> Option<Extent> {
        let next = Extent::new(extent.end(), sectors);
        (next.end().0 <= self.sectors).then_some(next)
    }

    /// A place for new data that `taken` does not refuse. On a disk that is all but full, it may be one that it does.
    pub fn place(&mut self, sectors: u64, rng: &mut ChaCha8Rng, taken: impl Fn(Extent) -> bool) -> Extent {
        let mut extent = Extent::new(Lba(0), sectors);
        for _ in 0..TRIES {
            extent.start = self.anywhere(sectors, rng);
            if !taken(extent) {
                self.note(extent);
                return extent;
            }
        }
        for _ in 0..PROBES {
            extent.start = self.behind(extent, sectors).map_or(Lba(0), |next| next.start);
            if !taken(extent) {
                break;
            }
        }
        self.note(extent);
        extent
    }

    fn anywhere(&self, sectors: u64, rng: &mut ChaCha8Rng) -> Lba {
        let stays = self.region.filter(|_| rng.random::<f64>() < self.stay);
        let region = stays.unwrap_or_else(|| {
            let u: f64 = rng.random();
            let rank = self.busy.partition_point(|&share| share <= u).min(self.busy.len() - 1);
            u64::from(self.region_of_rank[rank])
        });
        let start = if rng.random::<f64>() < self.together {
            self.newest[region as usize]
        } else {
            let within = rng.random_range(0..self.region_sectors.div_ceil(self.align)) * self.align;
            region * self.region_sectors + within
        };
        Lba(start.min((self.sectors - sectors) / self.align * self.align))
    }

    /// Remembers where the newest data of its region ends.
    pub fn note(&mut self, extent: Extent) {
        let region = extent.start.0 / self.region_sectors;
        self.region = Some(region);
        let first = region * self.region_sectors;
        let end = extent.end().0;
        let wraps = end >= (first + self.region_sectors).min(self.sectors);
        self.newest[region as usize] = if wraps { first } else { end };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_remembered_across_words() {
        let mut touched = Touched::default();
        touched.add(Extent::new(Lba(60), 70));
        let has = |start, sectors| touched.touches(Extent::new(Lba(start), sectors));
        assert!(!has(0, 60) && has(59, 2) && has(64, 64) && has(129, 1) && !has(130, 100));
    }
}
