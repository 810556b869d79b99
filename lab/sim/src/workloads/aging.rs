//! Writing files into a file system that has aged (Baek and Park, section IV-D): files with sizes around a mean fill it up
//! to a share of its space; then a share of them is removed, and others take their place and names, again and again.

use dcd_engine::{SECTOR_BYTES, Stack};
use dcd_model::ffs::{Ffs, FfsConfig, Op};

use super::host::{Host, set_up, set_up_file};
use super::steps::{Step, Steps, write_file};
use super::{Measured, RunError};
use dcd_crash::{SimDevice, SimRng, VirtualDriver};

/// Bytes that a program writes at a time.
const PIECE: u64 = 64 << 10;
/// Files take up whole blocks.
const BLOCK: u64 = 4 << 10;
/// Files in a directory.
const DIRECTORY_FILES: u64 = 256;

/// See the module's documentation. The defaults are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aging {
    /// Sizes have a normal distribution with this mean and a quarter of it as deviation.
    pub mean_bytes: u64,
    /// Percent of the device that files take up.
    pub fill_percent: u64,
    /// Percent of the files that are removed in each cycle.
    pub removed_percent: u64,
    /// Cycles before the one that is measured; none: a new file system is filled.
    pub cycles: u32,
    /// Bytes of blocks that the measured part writes at most.
    pub measured_bytes: u64,
}

/// A file system that has aged, up to what is measured: several stacks can have the same.
pub struct Aged {
    aging: Aging,
    ffs: Ffs,
    files: Files,
    /// Bytes of files that fill it.
    full: u64,
}

/// The files that are there: number and size.
#[derive(Clone)]
struct Files {
    random: SimRng,
    all: Vec<(u64, u64)>,
    bytes: u64,
    next: u64,
    /// Numbers of files that were removed, the highest first.
    vacant: Vec<u64>,
    directories: u64,
}

/// A number with a normal distribution, mean 0 and deviation 1.
pub(super) fn normal(random: &mut SimRng) -> f64 {
    // Twelve even numbers have a sum with deviation 1 and mean 6.
    (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
}

fn directory(number: u64) -> u64 {
    number / DIRECTORY_FILES
}

fn path(number: u64) -> String {
    format!("/d{}/f{number}", directory(number))
}

impl Files {
    fn new(seed: u64) -> Files {
        let random = SimRng::new(seed);
        Files { random, all: Vec::new(), bytes: 0, next: 0, vacant: Vec::new(), directories: 0 }
    }

    /// A number and a size for another file.
    fn draw(&mut self, mean: u64) -> (u64, u64) {
        let bytes = (mean as f64 * (1.0 + normal(&mut self.random) / 4.0)).max(1.0) as u64;
        let number = self.vacant.pop().unwrap_or(self.next);
        self.next = self.next.max(number + 1);
        self.bytes += bytes.next_multiple_of(BLOCK);
        self.all.push((number, bytes));
        (number, bytes)
    }

    fn make_directory(&mut self, ffs: &mut Ffs, number: u64) -> Result<(), RunError> {
        while self.directories <= directory(number) {
            set_up(ffs, Op::Mkdir { path: format!("/d{}", self.directories) })?;
            self.directories += 1;
        }
        Ok(())
    }

    /// Fills up in no time.
    fn fill(&mut self, ffs: &mut Ffs, mean: u64, bytes: u64) -> Result<(), RunError> {
        while self.bytes + mean <= bytes {
            let (number, size) = self.draw(mean);
            self.make_directory(ffs, number)?;
            set_up_file(ffs, &path(number), size)?;
        }
        Ok(())
    }

    /// Lets a share of the files be gone; gives the calls that remove them.
    fn remove(&mut self, percent: u64) -> Vec<Op> {
        let mut calls = Vec::new();
        for _ in 0..self.all.len() as u64 * percent / 100 {
            let index = self.random.below(self.all.len() as u64) as usize;
            let (number, bytes) = self.all.swap_remove(index);
            self.bytes -= bytes.next_multiple_of(BLOCK);
            self.vacant.push(number);
            calls.push(Op::Unlink { path: path(number) });
        }
        self.vacant.sort_unstable_by(|a, b| b.cmp(a));
        calls
    }
}

impl Aging {
    /// Fills a new file system on so many sectors, and lets it age in no time.
    pub fn age(&self, config: &FfsConfig, sectors: u64, seed: u64) -> Result<Aged, RunError> {
        let (mut ffs, mut files) = (Ffs::new(*config, sectors)?, Files::new(seed));
        let full = sectors * SECTOR_BYTES / 100 * self.fill_percent;
        if self.cycles > 0 {
            files.fill(&mut ffs, self.mean_bytes, full)?;
        }
        for _ in 1..self.cycles {
            for call in files.remove(self.removed_percent) {
                set_up(&mut ffs, call)?;
            }
            files.fill(&mut ffs, self.mean_bytes, full)?;
        }
        Ok(Aged { aging: *self, ffs, files, full })
    }
}

impl Aged {
    /// The phase "write" on a stack of the file system's size: files take the place of those that are removed before, and all
    /// of it is synced.
    pub fn run<D: SimDevice>(
        &self,
        stack: &mut Stack,
        driver: &mut VirtualDriver<D>,
    ) -> Result<Measured, RunError> {
        let (Aged { aging, full, .. }, mut files) = (self, self.files.clone());
        let mut host = Host::new(stack, driver, self.ffs.copy());
        if aging.cycles > 0 {
            // The host comes from there, and has in memory what it needed for that.
            let mut removals = files.remove(aging.removed_percent);
            removals.push(Op::Sync);
            host.script(removals)?;
        }
        let room = full.saturating_sub(files.bytes).min(aging.measured_bytes);
        let mut drawn = Vec::new();
        let end = files.bytes + room;
        while files.bytes + aging.mean_bytes <= end {
            let (number, bytes) = files.draw(aging.mean_bytes);
            files.make_directory(&mut host.ffs, number)?;
            drawn.push((number, bytes));
        }
        let writes = drawn.into_iter().flat_map(|(number, bytes)| write_file(path(number), bytes, PIECE));
        let mut program = Steps::new(writes.chain(std::iter::once(Step::Plain(Op::Sync))));
        host.phase("write", &mut [&mut program])?;
        Ok(host.take_measured())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_take_the_names_of_those_that_were_removed_before_new_ones() {
        let mut files = Files::new(1);
        for number in 0..1000 {
            assert_eq!(files.draw(16 << 10).0, number);
        }
        let calls = files.remove(20);
        assert_eq!((calls.len(), files.all.len()), (200, 800));
        let mut drawn: Vec<u64> = (0..201).map(|_| files.draw(16 << 10).0).collect();
        assert!(drawn.is_sorted(), "one directory after the other: {drawn:?}");
        assert_eq!(drawn.pop(), Some(1000));
        let gone = |number: &u64| calls.contains(&Op::Unlink { path: path(*number) });
        assert!(drawn.iter().all(gone));
        let mut all: Vec<u64> = files.all.iter().map(|(number, _)| *number).collect();
        all.sort_unstable();
        assert_eq!(all, (0..=1000).collect::<Vec<_>>());
    }
}
