//! Destaging: writes dirty blocks back to the data disk (section 3.5.3).
//!
//! A batch goes through these phases; the next request suspends it between two operations (see [`crate::destage::when`]):
//!
//! | phase | what happens | then |
//! |---|---|---|
//! | idle | a policy says when | choose |
//! | choose | the table is looked through for dirty blocks, a part in each event | ranges |
//! | epoch | only where destage is ordered: a flush epoch is read from the log (`ordered`) | ranges |
//! | ranges | discards and zeroes that are durable are written, before any newer data over them | blocks |
//! | blocks | window by window: read from the log, check, write in the policy's order | flush |
//! | flush | the data disk is flushed; only then is anything clean (rules 6 and 9) | idle |
//!
//! `depth` says how many operations may be in flight, and `rate` how many bytes may be written in a second. `choose` chooses a batch (`stripes`: whole stripes of an array; `sweep`: the next part of a sweep over the disk), and this file begins it and notes what is clean; `plan` says what is
//! read and written for a part of it (`gaps`: also what lies between its blocks), and `carry` does so, in the memory of `room`.
//!
//! Only what is durable in the log is destaged, so the data disk is never ahead of what a crash leaves of the log.

mod batch;
mod carry;
mod choose;
mod depth;
mod gaps;
#[cfg(test)]
mod gaps_tests;
pub mod ordered;
mod plan;
mod rate;
#[cfg(test)]
mod rate_tests;
mod room;
mod stripes;
#[cfg(test)]
mod stripes_tests;
mod sweep;
#[cfg(test)]
mod sweep_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use super::config::LogCacheConfig;
use super::disks::AddressSpace;
use super::env::{DiskView, Env, View};
use super::format::LogSuperblock;
use super::lost::LostPieces;
use super::table::{Line, RangeKind};
use crate::layer::Geometry;
use crate::slab::Slab;
use crate::{Extent, Nanos};
pub use batch::{BatchEnd, Wait};
use choose::Choosing;
use depth::Patience;
use ordered::Ordered;
use rate::Throttle;
pub use room::ReadBuffers;
use room::{BatchFlight, Room};
use sweep::Sweep;

/// Delay after a failed batch; doubles up to the second value.
const RETRY_FIRST: Nanos = Nanos::from_secs(1);
const RETRY_MAX: Nanos = Nanos::from_secs(30);
/// A batch that has not moved for so long hangs.
const HANGS_AFTER: Nanos = Nanos::from_secs(2);
/// Time for which a drain and a stop wait for a disk that answers nothing at all: a disk that sleeps has started by then.
pub const ANSWERS_WITHIN: Nanos = Nanos::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchPhase {
    Idle,
    /// Looking for what is destaged, in parts of the table.
    Choose,
    /// Reading a flush epoch from the log, where destage is ordered.
    Epoch,
    Ranges,
    /// Reading a window from the log.
    Read,
    /// Writing a window.
    Write,
    Flush,
}

/// Destaging to each data disk.
pub struct Destagers {
    disks: Vec<Destager>,
    space: AddressSpace,
}

impl Destagers {
    pub fn new(disks: Vec<Destager>, space: AddressSpace) -> Destagers {
        Destagers { disks, space }
    }

    /// Takes a disk that has so many sectors, in a new place or in one whose disk has left.
    pub fn set(&mut self, disk: usize, sectors: u64, mut destager: Destager) {
        destager.held = self.disks[0].held;
        self.space.set(disk, sectors);
        match self.disks.get_mut(disk) {
            Some(known) => {
                assert!(known.is_idle() && known.flights.is_empty(), "no batch of the disk before is left");
                *known = destager;
            }
            None => self.disks.push(destager),
        }
    }

    /// Destaging to the disk that an extent lies on.
    pub fn of(&self, extent: Extent) -> &Destager {
        &self.disks[self.space.disk_of(extent.start)]
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Destager> {
        self.disks.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Destager> {
        self.disks.iter_mut()
    }

    pub fn are_idle(&self) -> bool {
        self.iter().all(Destager::is_idle)
    }

    /// Returns the disks, as bits, that have dirty blocks of which none becomes clean. With one disk, nobody else would wait.
    pub fn stuck(&self, view: &View) -> u64 {
        let is_stuck = |disk: usize| self.disks[disk].is_stuck(view.now) && view.index.is_dirty_on(disk);
        let bit = |disk: usize| if self.disks.len() > 1 && is_stuck(disk) { 1 << disk } else { 0 };
        (0..self.disks.len()).map(bit).sum()
    }

    /// Returns the disks, as bits, whose dirty blocks a drain leaves in the log. With one disk, it waits.
    pub fn left(&self, view: &View) -> u64 {
        let is_left = |disk: usize| self.disks[disk].is_left(view.now) && view.index.is_dirty_on(disk);
        let bit = |disk: usize| if self.disks.len() > 1 && is_left(disk) { 1 << disk } else { 0 };
        (0..self.disks.len()).map(bit).sum()
    }

    /// Has the batches of these disks give up what they have of the segments up to this one, which nothing dirty of these disks is in any
    /// more. True if a batch held one of them.
    pub fn let_go(&mut self, disks: u64, number: u64, env: &mut Env) -> bool {
        let batches = self.disks.iter_mut().enumerate().filter(|(disk, _)| disks >> disk & 1 == 1);
        batches.fold(false, |was_held, (_, destager)| destager.let_go(number, env) | was_held)
    }

    pub fn wants_durable(&self) -> bool {
        self.iter().any(|destager| destager.stalled)
    }

    pub fn log_took(&mut self, took: Nanos, most: usize) {
        self.iter_mut().for_each(|destager| destager.log_took(took, most));
    }

    /// See [`Destager::hold`].
    pub fn hold(&self) -> u64 {
        self.iter().map(Destager::hold).min().unwrap_or(u64::MAX)
    }

    /// A superblock must say what is destaged.
    pub fn take_mark(&mut self) -> bool {
        self.iter_mut().fold(false, |mark, destager| std::mem::take(&mut destager.wants_mark) | mark)
    }

    /// Returns the record before which everything is destaged, if destage is ordered: then there is one disk.
    pub fn destaged_seq(&self) -> Option<u64> {
        self.disks[0].ordered.as_ref().map(|ordered| ordered.destaged_seq())
    }
}

impl Index<usize> for Destagers {
    type Output = Destager;
    fn index(&self, disk: usize) -> &Destager {
        &self.disks[disk]
    }
}

impl IndexMut<usize> for Destagers {
    fn index_mut(&mut self, disk: usize) -> &mut Destager {
        &mut self.disks[disk]
    }
}

/// The state of destaging to a data disk.
pub struct Destager {
    disk: usize,
    /// The disk is missing: nothing is destaged to it.
    is_missing: bool,
    phase: BatchPhase,
    /// See [`Destager::flush_failed`].
    failed_flush: bool,
    room: Room,
    /// The next item that is not in a window yet.
    next: usize,
    next_run: usize,
    sweep: Sweep,
    choosing: Choosing,
    next_block: usize,
    range_ids: Vec<u64>,
    range_parts: VecDeque<(Extent, RangeKind)>,
    flights: Slab<BatchFlight>,
    errors: u64,
    /// Pieces of the batch that could not be read from the log.
    unread: usize,
    retry_at: Option<Nanos>,
    retry: Nanos,
    /// Time when an operation of the batch completed last, or the policy let it wait.
    moved_at: Nanos,
    /// Everything that is dirty is not durable yet: waits for the log.
    stalled: bool,
    /// A superblock must say what is destaged before the next flush epoch begins.
    wants_mark: bool,
    /// Ranges were left out of the batch, as a write that bypasses the log is still on its way to the same place.
    ranges_behind: bool,
    running: bool,
    /// The high mark was reached, and the low mark not since.
    triggered: bool,
    started: Nanos,
    suspended: bool,
    per_sector: f64,
    patience: Patience,
    throttle: Throttle,
    /// The host holds destaging back.
    held: bool,
    batch_sectors: u64,
    hold: u64,
    ordered: Option<Box<Ordered>>,
    /// True if no block can be destaged before something changes.
    pub rests: bool,
}

impl Destager {
    pub fn new(
        config: &LogCacheConfig,
        superblock: &LogSuperblock,
        ordered: Option<Ordered>,
        log: &Geometry,
        (disk, data): (usize, &Geometry),
    ) -> Destager {
        Destager {
            disk,
            is_missing: config.is_missing(disk),
            phase: BatchPhase::Idle,
            failed_flush: false,
            room: Room::new(config, superblock, log.rotational),
            next: 0,
            next_run: 0,
            sweep: Sweep::new(
                Line::touching(AddressSpace::of(disk, data.sectors)),
                superblock.segments as usize,
            ),
            choosing: Choosing::default(),
            next_block: 0,
            range_ids: Vec::new(),
            range_parts: VecDeque::new(),
            flights: Slab::default(),
            errors: 0,
            unread: 0,
            retry_at: None,
            retry: RETRY_FIRST,
            moved_at: Nanos::ZERO,
            stalled: false,
            wants_mark: false,
            ranges_behind: false,
            running: false,
            triggered: false,
            started: Nanos::ZERO,
            suspended: false,
            // Until the first batch has been timed: 1 ms, or 20 us, for a line.
            per_sector: if data.rotational { 125_000.0 } else { 2_500.0 },
            patience: Patience::default(),
            throttle: Throttle::default(),
            held: false,
            batch_sectors: 0,
            hold: u64::MAX,
            ordered: ordered.map(Box::new),
            rests: false,
        }
    }

    /// Memory for what is written.
    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        self.room.memory_bytes()
    }

    pub const fn nanos_per_sector(&self) -> f64 {
        self.per_sector
    }

    /// Returns by how many nanoseconds the answer of a write follows the one before. From the high mark on, answers are delayed, more and
    /// more: clients slow down to the speed of destaging before the log is full, and the free space lasts until the tail moves.
    pub fn pace(&self, sectors: u64, view: &View) -> Option<u64> {
        let high = f64::from(view.config.high_mark.min(99)) / 100.0;
        let over = (view.log.ring().utilisation() - high) / (1.0 - high);
        let nanos = self.per_sector * sectors as f64 * self.sweep.slowdown().max(over * 1.1);
        (over > 0.0).then_some(nanos as u64)
    }

    /// Notes how long a write of the log took; so many operations may run beside it at most.
    pub fn log_took(&mut self, took: Nanos, most: usize) {
        if self.running && self.phase != BatchPhase::Idle {
            self.patience.learn(took, most);
        }
    }

    /// The oldest segment that the batch reads: its places must not be used again before the batch ends, or a newer copy
    /// at the same place would be taken for the one that was destaged.
    pub fn hold(&self) -> u64 {
        self.ordered.as_ref().map_or(self.hold, |ordered| ordered.hold().min(self.hold))
    }

    /// See [`Destagers::let_go`]. Those blocks were moved or replaced: their places may be written again, so the batch must neither read
    /// them nor call them clean. What it has written of them is written again with a later batch.
    fn let_go(&mut self, number: u64, env: &mut Env) -> bool {
        if self.hold > number {
            return false;
        }
        let mut hold = u64::MAX;
        let items = self.room.items.iter_mut().chain(&mut self.room.clean);
        for item in items.filter(|item| !item.failed) {
            let segment = env.log.number_of(item.piece.place);
            item.failed = segment <= number;
            if item.failed {
                env.data[self.disk].fingerprint.unexplained(item.line.extent());
            } else {
                hold = hold.min(segment);
            }
        }
        self.hold = if self.phase == BatchPhase::Choose { number + 1 } else { hold };
        true
    }

    /// Gives up the batch; it is tried again later.
    pub fn fail(&mut self) {
        self.errors += 1;
        self.room.items.clear();
        self.range_parts.clear();
        self.phase = BatchPhase::Flush;
    }

    /// Skips the log up to this place: nothing before it is dirty, so ordered destage need not read it.
    pub fn skip_to(&mut self, cursor: ordered::Cursor) {
        if let Some(ordered) = &mut self.ordered {
            ordered.skip_to(cursor);
        }
    }

    /// Something dirty has to wait for a write that bypasses the log.
    const fn behind_bypass(&self) -> bool {
        self.ranges_behind || self.choosing.behind_bypass
    }

    /// A write that bypassed the log has ended: dirty blocks may have waited for it.
    pub fn bypass_ended(&mut self) {
        if self.behind_bypass() {
            self.choosing.look_again();
        }
    }

    /// An administrator asks for what could not be read or written: perhaps the device was mended. (Ordered destage tries again in any case.)
    pub fn try_again(&mut self, lost: &mut LostPieces) {
        (self.retry, self.retry_at) = (RETRY_FIRST, None);
        if self.ordered.is_none() {
            lost.try_again();
            self.choosing.look_again();
        }
    }

    /// The batch before this one failed.
    pub fn is_after_failure(&self) -> bool {
        self.retry > RETRY_FIRST
    }

    /// True for a disk that is missing.
    pub const fn is_missing(&self) -> bool {
        self.is_missing
    }

    /// True while nothing of the disk becomes clean although it should: it is missing, its batches fail, or the batch hangs.
    pub fn is_stuck(&self, now: Nanos) -> bool {
        self.is_missing || self.is_after_failure() || (!self.flights.is_empty() && self.hangs_at() <= now)
    }

    /// Like [`Destager::is_stuck`], but with more patience for a batch that hangs.
    fn is_left(&self, now: Nanos) -> bool {
        self.is_missing
            || self.is_after_failure()
            || (!self.flights.is_empty() && self.moved_at.saturating_add(ANSWERS_WITHIN) <= now)
    }

    /// Time when the batch counts as one that hangs, if nothing of it moves.
    fn hangs_at(&self) -> Nanos {
        self.moved_at.saturating_add(HANGS_AFTER)
    }

    /// Returns when the batch will hang. With one disk, nobody else waits.
    pub fn hang_deadline(&self, view: &DiskView) -> Option<Nanos> {
        let may_hang = !self.flights.is_empty() && view.all_disks() > 1;
        let left_at = Some(self.moved_at.saturating_add(ANSWERS_WITHIN)).filter(|_| view.life.drains());
        [Some(self.hangs_at()), left_at].into_iter().flatten().filter(|at| may_hang && *at > view.now).min()
    }

    /// Holds destaging back, or no longer. See [`crate::Control::HoldDestage`].
    pub const fn hold_back(&mut self, held: bool) {
        self.held = held;
    }

    pub const fn is_held_back(&self) -> bool {
        self.held
    }

    /// True while the batch waits for `destage_rate`.
    pub fn is_limited(&self, view: &DiskView) -> bool {
        self.writes_at(view).is_some()
    }

    /// Returns when the rate lets the batch write on; none if it lets it now, or the batch does not write.
    fn writes_at(&self, view: &DiskView) -> Option<Nanos> {
        let writes = matches!(self.phase, BatchPhase::Ranges | BatchPhase::Write);
        self.throttle.until(view).filter(|_| writes)
    }

    pub fn is_idle(&self) -> bool {
        self.phase == BatchPhase::Idle
    }

    /// Notes that a flush of the data disk has failed that was not of this batch: what the batch has written by then may be gone (rule 6).
    pub fn flush_failed(&mut self) {
        self.failed_flush = !matches!(self.phase, BatchPhase::Idle | BatchPhase::Choose);
    }
}
