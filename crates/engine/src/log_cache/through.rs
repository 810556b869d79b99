//! Writes that go through (`writes = "through"`): to the data disk first, which answers them. The log gets clean copies for reads, and
//! may be lost at any time.
//!
//! The mode promises:
//!
//! - No write passes the log before both copies of the superblock say that nothing in the log counts after a crash. So no start believes
//!   a record or a copy that is older than the data disk.
//! - From then on the log is never dirty. [`Report::WritesThrough`] tells the host.
//! - A copy that was put before a flush of the data disk failed is not read.
//!
//! | the cache is | until |
//! |---|---|
//! | writing back | the setting changes: turning |
//! | turning: the log is emptied, and what may pass it passes it | nothing in the log is dirty: marking |
//! | marking: writes wait for two superblocks | these are durable: writing through |
//! | writing through | the setting changes: writing back, from the next write on |

use serde::{Deserialize, Serialize};

use super::destager::{Destager, Destagers};
use super::env::{Env, View};
use super::format::{Entry, EntryKind, LogState, NO_COPIES};
use super::keep::Keep;
use super::log::Log;
use super::table::TablePart;
use super::{LogCacheConfig, LogCanary, Promise, Reads, WriteRoute};
use crate::layer::Report;
use crate::{Buf, Extent, Nanos, SECTOR_BYTES};

/// Superblocks that have to say that nothing counts: each of the two may be lost.
const MARKS: u8 = 2;
/// Dirty bytes of a log that is being emptied from which on writes wait for the end of that.
const WAIT_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ThroughPhase {
    #[default]
    Back,
    Turning,
    /// Number of durable superblocks that say so.
    Marking(u8),
    On,
}

/// Route of writes, for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritesState {
    #[default]
    Back,
    /// From back to through: the log still has data that the data disk lacks.
    Turning,
    Through,
}

/// See the module's documentation.
pub struct Through {
    phase: ThroughPhase,
    /// After a clean stop, copies in records before this one do not count.
    kept_seq: u64,
    /// The next part of the table whose copies are to be forgotten. Until all are, no copy is read.
    voiding: Option<TablePart>,
}

impl Through {
    pub const fn new(kept_seq: u64) -> Through {
        Through { phase: ThroughPhase::Back, kept_seq, voiding: None }
    }

    /// True when writes pass the log.
    pub fn is_on(&self) -> bool {
        self.phase == ThroughPhase::On
    }

    /// True while the log is emptied.
    pub fn is_turning(&self) -> bool {
        self.phase == ThroughPhase::Turning
    }

    /// True while copies in the log are being forgotten.
    pub const fn is_voiding(&self) -> bool {
        self.voiding.is_some()
    }

    pub const fn state(&self) -> WritesState {
        match self.phase {
            ThroughPhase::Back => WritesState::Back,
            ThroughPhase::Turning | ThroughPhase::Marking(_) => WritesState::Turning,
            ThroughPhase::On => WritesState::Through,
        }
    }

    /// True if a superblock in this state says that nothing in the log counts.
    pub const fn voids(&self, state: LogState) -> bool {
        matches!(state, LogState::Active) && matches!(self.phase, ThroughPhase::Marking(_) | ThroughPhase::On)
    }

    /// Value of `kept_seq` in a superblock.
    pub fn kept_seq(&self, state: LogState, durable_seq: u64) -> u64 {
        // Records that are not durable yet may become so: there is no number for them.
        if self.voids(state) || self.kept_seq > durable_seq { NO_COPIES } else { self.kept_seq }
    }

    /// Notes that no copy in a record before `next_seq` counts for a later start.
    pub const fn void(&mut self, next_seq: u64) {
        self.kept_seq = next_seq;
    }
}

/// Returns why writes cannot go through, if they are to: the order of writes to the data disk is promised, or there are several data disks,
/// for each of which nothing records that the log may be lost.
pub fn through_refusal(config: &LogCacheConfig, disks: usize) -> Option<&'static str> {
    match config.writes {
        WriteRoute::Back => None,
        WriteRoute::Through if config.promise == Promise::Ordered => {
            Some("writes = \"through\" and promise = \"ordered\" exclude each other: leave one out")
        }
        WriteRoute::Through if config.ordered_destage => {
            Some("writes = \"through\" and ordered-destage exclude each other: leave one out")
        }
        WriteRoute::Through if disks > 1 => {
            Some("writes = \"through\" is for a log with one data disk: leave it out")
        }
        WriteRoute::Through => None,
    }
}

impl View<'_> {
    /// True if the log gets clean copies, which a start finds again.
    pub const fn keeps_copies(&self) -> bool {
        matches!(self.config.reads, Reads::Keep)
            || matches!(self.config.writes, WriteRoute::Through) && !self.log.geometry().rotational
    }

    /// True while writes wait: the log is nearly empty, or the superblocks are on their way. Where nothing can be destaged they do not wait.
    pub fn holds_writes(&self, destagers: &Destagers) -> bool {
        let may_wait = self.life.serves() && !self.log.has_failed() && self.log.chain().is_none();
        may_wait
            && match self.log.through().phase {
                ThroughPhase::Back | ThroughPhase::On => false,
                ThroughPhase::Marking(_) => true,
                ThroughPhase::Turning => {
                    self.index.dirty_data_bytes() <= WAIT_BYTES
                        && self.index.lost.len() == 0
                        && !destagers.iter().any(Destager::is_after_failure)
                }
            }
    }

    /// True when nothing in the log is needed, and nothing is on its way to it.
    fn is_log_empty(&self, destagers: &Destagers) -> bool {
        !self.index.is_dirty()
            && self.index.lost.len() == 0
            && destagers.are_idle()
            && self.log.buffers().is_empty()
            && self.log.safe_seq() == self.log.last_seq()
            && self.oldest_live_seq() == self.log.next_seq()
            && !self.log.is_releasing()
    }

    /// Returns when the mode is to change: at once, if the setting has changed.
    pub fn through_deadline(&self) -> Option<Nanos> {
        let is_back = self.log.through().phase == ThroughPhase::Back;
        let has_changed = is_back != (self.config.writes == WriteRoute::Back);
        let is_due = self.log.through().is_voiding() || has_changed;
        (is_due && self.life.serves() && !self.log.has_failed()).then_some(self.now)
    }
}

impl Env<'_> {
    /// Goes on with a change of the mode; runs after every event. True if writes that wait may go on.
    pub fn step_through(&mut self, destagers: &Destagers) -> bool {
        if !self.life.serves() || self.log.has_failed() {
            return false;
        }
        if let Some(part) = self.log.through().voiding {
            self.log.through_mut().voiding = self.index.forget_kept(part);
        }
        let phase = self.log.through().phase;
        match (self.config.writes, phase) {
            (WriteRoute::Through, ThroughPhase::Back) => {
                self.log.through_mut().phase = ThroughPhase::Turning;
                if self.config.canary.is(LogCanary::EarlyReport) {
                    self.cx.report(Report::WritesThrough);
                }
            }
            (WriteRoute::Back, ThroughPhase::Turning | ThroughPhase::Marking(_) | ThroughPhase::On) => {
                let next_seq = self.log.next_seq();
                let through = self.log.through_mut();
                through.phase = ThroughPhase::Back;
                if phase != ThroughPhase::Turning {
                    // A write over a copy may be on its way.
                    through.void(next_seq);
                }
                return true;
            }
            _ => {}
        }
        match self.log.through().phase {
            ThroughPhase::Turning if self.view().is_log_empty(destagers) => {
                self.log.begin_anew();
                self.log.through_mut().phase = ThroughPhase::Marking(0);
                self.mark_void();
                if self.config.canary.is(LogCanary::EarlyThrough) {
                    self.begin_through();
                    return true;
                }
            }
            ThroughPhase::Marking(marks) if !self.log.is_releasing() => match marks < MARKS {
                true => self.mark_void(),
                false => {
                    self.begin_through();
                    return true;
                }
            },
            _ => {}
        }
        false
    }

    fn mark_void(&mut self) {
        let from = self.view().walk_start();
        self.write_superblock(LogState::Active, from);
    }

    fn begin_through(&mut self) {
        self.log.through_mut().phase = ThroughPhase::On;
        self.cx.report(Report::WritesThrough);
    }

    /// Notes that a write passes the log. Copies of its range are old from now on.
    pub fn pass_log(&mut self, extent: Extent) {
        self.data.at_mut(extent).fingerprint.unknown(extent);
        let is_known = !self.index.is_visible_in(extent) && self.index.is_silent_on(extent);
        if !is_known && !self.config.canary.is(LogCanary::UnnotedPass) {
            // For a start after a clean stop. No crash makes a difference.
            match self.make_room_for_copy(0) {
                true => {
                    self.open_record();
                    self.log.note(Entry { kind: EntryKind::Invalidate, extent, crc: 0 });
                }
                false => {
                    let next_seq = self.log.next_seq();
                    self.log.through_mut().void(next_seq);
                }
            }
        }
        self.index.forget(extent, 0);
    }

    /// Copies a write that the data disk has to the log.
    pub fn copy_passed(&mut self, extent: Extent, buf: &Buf, keep: &mut Keep) {
        // Zeroes and discards have no data.
        let has_data = buf.len() as u64 == extent.sectors * SECTOR_BYTES;
        let is_small = has_data && !self.config.is_large(extent);
        if self.log.through().is_on() && self.view().keeps_copies() && is_small {
            keep.copy_written(extent, buf, self);
        }
    }

    /// A flush of the data disk failed: it may have lost what was written since the last one. Copies of that are not read any more.
    pub fn void_copies(&mut self) {
        let next_seq = self.log.next_seq();
        let part = TablePart::first(self.config.scan_slots);
        let through = self.log.through_mut();
        through.void(next_seq);
        through.voiding = Some(part);
    }
}

impl Log {
    /// Notes that a superblock is durable.
    pub fn marked(&mut self) {
        if let ThroughPhase::Marking(marks) = &mut self.through_mut().phase {
            *marks += 1;
        }
    }
}

#[cfg(test)]
#[path = "through_tests.rs"]
mod tests;
