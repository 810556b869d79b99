//! The disks: their queues, and their purges.
//!
//! | an operation is | until                                                                       |
//! |-----------------|-----------------------------------------------------------------------------|
//! | queued          | its turn comes, first come first served: started                            |
//! | started         | all its commands have returned: over, and the next one starts               |
//!
//! A region that cannot be written rests for a while, and the others are purged meanwhile.
//!
//! A purge that no request waits for is never queued: the policy starts it. What bypasses the cache runs alone, so that no
//! older copy of the same block is being written meanwhile.

mod run;

use std::collections::VecDeque;

use dcd_engine::{IoError, Nanos, Port};

use crate::write_cache::clients::ClientPiece;
use crate::write_cache::stow::Stow;
use crate::write_cache::{DiskMap, Position, RegionId};

/// After a purge failed, its region is left alone for so long: it would only fail again at once.
pub(super) const BACK_OFF: Nanos = Nanos::from_secs(1);
/// If so many regions rest, the disk as a whole is left alone: it is not only a region that fails.
pub(super) const RESTING_MAX: usize = 64;

/// A region of which a write has failed.
pub(super) struct Resting {
    pub until: Nanos,
    pub region: RegionId,
    pub error: IoError,
}

pub(super) enum Job {
    Read(ClientPiece),
    /// Around the cache: a write that is larger than the cache, a discard, zeroes.
    Through(ClientPiece),
    /// A purge that writes of this share of the cache wait for.
    Purge(usize),
}

pub(super) struct Queued {
    pub job: Job,
    pub arrived: Nanos,
    /// The time that the disk had been busy with writes by then.
    pub write_busy: Nanos,
}

/// See the module's documentation.
pub(super) struct Disk {
    pub port: Port,
    /// In the layer's space of addresses.
    pub first_sector: u64,
    pub sectors: u64,
    pub map: DiskMap,
    pub queue: VecDeque<Queued>,
    /// Operations started and not over.
    pub operations: u32,
    pub purges: u32,
    pub alone: bool,
    /// Reads that are under way.
    pub reading: Vec<u64>,
    /// The region that was visited last, and the one that a sweep purged last.
    pub arm_at: u32,
    hand: u32,
    stow: Stow,
    /// The regions that rest, in the order in which they may be tried again.
    pub resting: VecDeque<Resting>,
    /// Operations whose data may be in the disk's volatile cache: how many there were, and how many a flush has covered.
    pub unflushed: u64,
    pub flushed: u64,
    writing: u32,
    writing_since: Nanos,
    written_for: Nanos,
}

impl Disk {
    /// Operations that wait or are under way.
    pub fn foreground(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.operations)
    }

    pub fn new(port: Port, first_sector: u64, sectors: u64, map: DiskMap) -> Disk {
        Disk {
            port,
            first_sector,
            sectors,
            map,
            queue: VecDeque::new(),
            operations: 0,
            purges: 0,
            alone: false,
            reading: Vec::new(),
            arm_at: 0,
            hand: 0,
            stow: Stow::default(),
            resting: VecDeque::new(),
            // A server that was killed may have left writes in the disk's cache: the first flush covers them.
            unflushed: 1,
            flushed: 0,
            writing: 0,
            writing_since: Nanos::ZERO,
            written_for: Nanos::ZERO,
        }
    }

    /// Too many regions rest.
    pub fn is_backing_off(&self) -> bool {
        self.resting.len() >= RESTING_MAX
    }

    /// The position that policies see; `index`: the number of this disk.
    fn position(&self, index: u32) -> Position {
        Position { disk: index, hand: self.hand, arm_at: self.arm_at }
    }

    /// The time that the disk has been busy with writes.
    pub fn write_busy(&self, now: Nanos) -> Nanos {
        let current = if self.writing > 0 { now.since(self.writing_since) } else { Nanos::ZERO };
        self.written_for + current
    }

    pub fn write_begins(&mut self, now: Nanos) {
        if self.writing == 0 {
            self.writing_since = now;
        }
        self.writing += 1;
    }

    pub fn write_ends(&mut self, now: Nanos) {
        self.written_for = self.write_busy(now);
        self.writing -= 1;
        self.writing_since = now;
    }
}
