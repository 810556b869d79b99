//! Backup marks of disks: the parts that clients have written, zeroed or discarded since each mark. In memory alone.
//!
//! A period lasts from one mark to the next. The last period of a disk takes all changes, so the changes since a mark are the union of its
//! period and of those behind it. A *grain* is the unit. A change is noted before its request is answered, and not when it arrives: a
//! request that is under way while a mark is made belongs to the new period.

use std::collections::{BTreeMap, TryReserveError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dcd_engine::{Extent, SECTOR_BYTES};

/// Sectors of a grain: 64 KiB.
pub const GRAIN_SECTORS: u64 = 128;
/// Maximum number of marks of a disk.
pub const MARKS_MAX: usize = 8;
const WORD_BITS: u64 = 64;
/// Maximum number of steps for one answer, of 64 grains at most: 16 GiB.
const STEPS_MAX: usize = 1 << 12;

/// Returns the number of words in a bitmap of a disk's grains.
pub const fn words(sectors: u64) -> usize {
    sectors.div_ceil(GRAIN_SECTORS).div_ceil(WORD_BITS) as usize
}

/// The time from a mark to the next one, and what changed in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkPeriod {
    pub mark: u64,
    /// Time of the mark, in seconds since 1970.
    pub made: u64,
    /// A bit for each grain of the disk.
    pub grains: Vec<u64>,
}

impl MarkPeriod {
    /// A period without changes.
    ///
    /// # Errors
    /// If there is no memory for its bitmap.
    pub fn new(mark: u64, made: u64, sectors: u64) -> Result<MarkPeriod, TryReserveError> {
        let mut grains = Vec::new();
        grains.try_reserve_exact(words(sectors))?;
        grains.resize(words(sectors), 0);
        Ok(MarkPeriod { mark, made, grains })
    }
}

/// A mark that cannot tell any more what has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMark {
    pub mark: u64,
    pub reason: String,
}

/// Sectors in a row that have changed since a mark, or have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    pub sectors: u64,
    pub changed: bool,
}

/// The marks of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskMarks {
    pub sectors: u64,
    /// The oldest first.
    pub periods: Vec<MarkPeriod>,
    /// The oldest first.
    pub lost: Vec<LostMark>,
}

impl DiskMarks {
    pub fn new(sectors: u64) -> DiskMarks {
        DiskMarks { sectors, ..DiskMarks::default() }
    }

    /// Forgets a mark. Older marks keep what has changed since. Returns false if there is no such mark.
    pub fn forget(&mut self, mark: u64) -> bool {
        let known = self.lost.len() + self.periods.len();
        self.lost.retain(|lost| lost.mark != mark);
        if let Some(place) = self.periods.iter().position(|period| period.mark == mark) {
            let gone = self.periods.remove(place);
            if let Some(before) = place.checked_sub(1) {
                let both = self.periods[before].grains.iter_mut().zip(&gone.grains);
                both.for_each(|(word, gone)| *word |= gone);
            }
        }
        self.lost.len() + self.periods.len() < known
    }

    /// Makes marks lost. The newest of the lost ones stay known.
    pub fn lose(&mut self, marks: impl IntoIterator<Item = u64>, reason: &str) {
        self.periods.clear();
        self.lost.extend(marks.into_iter().map(|mark| LostMark { mark, reason: reason.to_owned() }));
        let many = self.lost.len().saturating_sub(MARKS_MAX);
        self.lost.drain(..many);
    }

    /// Returns each mark, its time, and the bytes that have changed since.
    pub fn amounts(&self) -> Vec<(u64, u64, u64)> {
        let mut counts = vec![0; self.periods.len()];
        for at in 0..words(self.sectors) {
            let mut since = 0;
            for (period, count) in self.periods.iter().zip(&mut counts).rev() {
                since |= period.grains.get(at).copied().unwrap_or(0);
                *count += u64::from(since.count_ones());
            }
        }
        let bytes = |grains: u64| (grains * GRAIN_SECTORS).min(self.sectors) * SECTOR_BYTES;
        let of = |(period, grains): (&MarkPeriod, u64)| (period.mark, period.made, bytes(grains));
        self.periods.iter().zip(counts).map(of).collect()
    }

    /// Bits of 64 grains that have changed in a period or later.
    fn word(&self, place: usize, at: u64) -> u64 {
        let of = |period: &MarkPeriod| period.grains.get(at as usize).copied().unwrap_or(0);
        self.periods[place..].iter().fold(0, |word, period| word | of(period))
    }

    /// Notes that a client has changed sectors.
    fn note(&mut self, extent: Extent) {
        let Some(last) = self.periods.last_mut().filter(|_| extent.sectors > 0) else { return };
        let first = extent.start.0 / GRAIN_SECTORS;
        let end = extent.start.0.saturating_add(extent.sectors).div_ceil(GRAIN_SECTORS);
        let words = last.grains.len() as u64;
        for at in first / WORD_BITS..end.div_ceil(WORD_BITS).min(words) {
            let base = at * WORD_BITS;
            let (from, to) = (first.max(base) - base, end.min(base + WORD_BITS) - base);
            last.grains[at as usize] |= u64::MAX >> (WORD_BITS - to) & u64::MAX << from;
        }
    }

    /// Tells the first sectors of an extent that have changed since a mark, and those that have not. All count as changed since a mark that
    /// is not known.
    pub fn changed(&self, mark: u64, extent: Extent, runs_max: usize) -> Vec<ChangedRun> {
        let Some(place) = self.periods.iter().position(|period| period.mark == mark) else {
            return vec![ChangedRun { sectors: extent.sectors, changed: true }];
        };
        let mut runs: Vec<ChangedRun> = Vec::new();
        let (mut at, end) = (extent.start.0, extent.end().0);
        for _ in 0..STEPS_MAX {
            let (grain, bit) = (at / GRAIN_SECTORS, at / GRAIN_SECTORS % WORD_BITS);
            let bits = self.word(place, grain / WORD_BITS) >> bit;
            let changed = bits & 1 == 1;
            let like_it = if changed { bits.trailing_ones() } else { bits.trailing_zeros() };
            let until = ((grain + u64::from(like_it).min(WORD_BITS - bit)) * GRAIN_SECTORS).min(end);
            let is_full = runs.len() == runs_max;
            match runs.last_mut() {
                Some(last) if last.changed == changed => last.sectors += until - at,
                _ if is_full => break,
                _ => runs.push(ChangedRun { sectors: until - at, changed }),
            }
            at = until;
            if at == end {
                break;
            }
        }
        runs
    }
}

/// The marks of all disks of a server, by the numbers of the disks. The driver, the sessions and the host share them, on one thread.
#[derive(Clone, Debug, Default)]
pub struct BackupMarks(Arc<SharedMarks>);

#[derive(Debug, Default)]
struct SharedMarks {
    /// True if a disk has a mark.
    are_kept: AtomicBool,
    disks: Mutex<BTreeMap<usize, DiskMarks>>,
}

impl BackupMarks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, DiskMarks>> {
        self.0.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the marks.
    pub fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<usize, DiskMarks>) -> T) -> T {
        let mut disks = self.lock();
        let result = change(&mut disks);
        let are_kept = disks.values().any(|own| !own.periods.is_empty());
        self.0.are_kept.store(are_kept, Ordering::Release);
        result
    }

    /// Reads the marks of a disk; none if it cannot have any.
    pub fn of<T>(&self, disk: usize, read: impl FnOnce(&DiskMarks) -> T) -> Option<T> {
        self.lock().get(&disk).map(read)
    }

    /// Notes that a client has changed sectors.
    #[inline]
    pub(crate) fn note(&self, disk: usize, extent: Extent) {
        if self.0.are_kept.load(Ordering::Acquire)
            && let Some(own) = self.lock().get_mut(&disk)
        {
            own.note(extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::Lba;

    use super::*;

    fn begin(marks: &mut DiskMarks, mark: u64) {
        marks.periods.push(MarkPeriod::new(mark, 0, marks.sectors).unwrap());
    }

    fn marks(sectors: u64) -> DiskMarks {
        let mut marks = DiskMarks::new(sectors);
        begin(&mut marks, 1);
        marks
    }

    /// The changed grains since a mark, by their numbers.
    fn changed(marks: &DiskMarks, mark: u64) -> Vec<u64> {
        let (mut at, mut found) = (0, Vec::new());
        while at < marks.sectors {
            let all = Extent::new(Lba(at), marks.sectors - at);
            for run in marks.changed(mark, all, 3) {
                let end = at + run.sectors;
                if run.changed {
                    found.extend(at / GRAIN_SECTORS..end.div_ceil(GRAIN_SECTORS));
                }
                at = end;
            }
        }
        found
    }

    #[test]
    fn what_changes_is_told_by_grains_since_each_mark_and_the_rest_is_not() {
        let sectors = 1000 * GRAIN_SECTORS + 8;
        let mut marks = marks(sectors);
        for (at, length) in [(0, 1), (127, 2), (64 * 128 - 1, 1), (70 * 128, 130 * 128), (sectors - 1, 1)] {
            marks.note(Extent::new(Lba(at), length));
        }
        marks.note(Extent::new(Lba(500 * 128), 0));
        let first: Vec<u64> = [0, 1, 63].into_iter().chain(70..200).chain([1000]).collect();
        assert_eq!(changed(&marks, 1), first);
        begin(&mut marks, 2);
        assert_eq!(changed(&marks, 2), [0; 0]);
        marks.note(Extent::new(Lba(300 * 128), 1));
        marks.note(Extent::new(Lba(sectors - 8), 8));
        // Past the end of the disk nothing breaks.
        marks.clone().note(Extent::new(Lba(sectors - 8), 1 << 40));
        marks.clone().note(Extent::new(Lba(u64::MAX - 8), u64::MAX));
        assert_eq!(changed(&marks, 2), [300, 1000]);
        assert_eq!(changed(&marks, 1), [&first[..133], &[300, 1000]].concat());
        assert_eq!(marks.amounts(), [(1, 0, 135 * 65536), (2, 0, 2 * 65536)]);
        let all = [ChangedRun { sectors: 8, changed: true }];
        assert_eq!(marks.changed(3, Extent::new(Lba(0), 8), 1), all, "an unknown mark");
    }

    #[test]
    fn a_mark_that_goes_leaves_its_changes_to_the_older_ones() {
        let sectors = 100 * GRAIN_SECTORS;
        let mut marks = marks(sectors);
        for (mark, grain) in [(2, 10), (3, 20), (4, 30)] {
            marks.note(Extent::new(Lba(grain * 128), 1));
            begin(&mut marks, mark);
        }
        assert!(marks.forget(3) && !marks.forget(3));
        assert_eq!((changed(&marks, 1), changed(&marks, 2)), (vec![10, 20, 30], vec![20, 30]));
        assert!(marks.forget(1) && marks.forget(4));
        assert_eq!(changed(&marks, 2), [20, 30]);
        marks.lose([2], "why");
        assert!((marks.lost.len(), marks.periods.len()) == (1, 0));
        assert!(marks.forget(2) && marks.lost.is_empty());
        marks.lose(1..=20, "why");
        assert!((marks.lost.len(), marks.lost[0].mark) == (MARKS_MAX, 13));
    }

    #[test]
    fn one_answer_takes_a_bounded_number_of_steps_and_the_next_ones_tell_the_rest() {
        let sectors = 40 << 21;
        let mut marks = marks(sectors);
        marks.note(Extent::new(Lba(sectors - 8), 8));
        let told = marks.changed(1, Extent::new(Lba(0), sectors), 512);
        assert_eq!(told, [ChangedRun { sectors: 16 << 21, changed: false }]);
        assert_eq!(changed(&marks, 1), [sectors / GRAIN_SECTORS - 1]);
    }

    #[test]
    fn only_disks_with_marks_note_changes() {
        let (shared, extent) = (BackupMarks::default(), Extent::new(Lba(0), 8));
        shared.note(0, extent);
        shared.change(|disks| disks.extend([(0, marks(128)), (1, DiskMarks::new(128))]));
        shared.note(0, extent);
        shared.note(1, extent);
        shared.note(2, extent);
        assert_eq!(shared.of(0, DiskMarks::amounts), Some(vec![(1, 0, 65536)]));
        assert_eq!(
            (shared.of(1, DiskMarks::amounts), shared.of(2, DiskMarks::amounts)),
            (Some(vec![]), None)
        );
    }
}
