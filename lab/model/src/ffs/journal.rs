//! ext3's journal with `data=ordered`: metadata is written back later than data.
//!
//! | when                                        | what is written                                                    |
//! |---------------------------------------------|--------------------------------------------------------------------|
//! | a commit: every update interval, at a sync, | all dirty data; and the blocks of metadata that have changed since |
//! | and when those that have changed would fill | the last one into the journal, in a row with those that describe   |
//! | a quarter of the journal                    | them and the one that ends it                                      |
//! | at a sync, for room in memory, 30 s after   | blocks of metadata, at their home                                  |
//! | their commit, and before the journal is full|                                                                    |
//!
//! What has changed since the last commit may not be written back, and what was freed since then is not used again, unless all
//! else is. A commit here does not wait for its data, as that only counts where the disk's own cache may lose it; nothing
//! replays this journal.

use std::collections::{BTreeMap, BTreeSet};

use dcd_engine::Nanos;

use super::buffers::{Content, Slot};
use super::config::BLOCK_FRAGMENTS;
use super::disk_io::Which;
use super::layout::Frag;
use super::machine::Ffs;
use super::measure::RequestClass;

/// Age at which Linux writes a dirty buffer by itself (`dirty_expire_centisecs`), in update intervals of 5 s.
const EXPIRY_INTERVALS: u64 = 6;
/// Bytes of a block that describes others, for each of those.
const TAG_BYTES: u32 = 8;

pub(crate) struct Journal {
    first: Frag,
    blocks: u32,
    /// The block that is written next.
    next: u32,
    /// Blocks that were written since all metadata was written back.
    used: u32,
    changed: BTreeSet<Frag>,
    /// Freed since the last commit.
    pub freed: Vec<(Frag, u32)>,
    /// Commit times of the blocks that are not written back.
    committed: BTreeMap<Frag, Nanos>,
}

impl Journal {
    pub fn new(first: Frag, blocks: u32) -> Journal {
        let (changed, freed, committed) = (BTreeSet::new(), Vec::new(), BTreeMap::new());
        Journal { first, blocks, next: 0, used: 0, changed, freed, committed }
    }

    #[cfg(test)]
    pub fn place(&self) -> (Frag, u32) {
        (self.first, self.blocks * BLOCK_FRAGMENTS)
    }

    /// Number of blocks that a commit writes: the changed ones, one that describes them for every `tags` of them, and one that ends it.
    const fn length(changed: u32, tags: u32) -> u32 {
        changed + changed.div_ceil(tags) + 1
    }

    /// The next so many blocks, in pieces that lie in a row and are no longer than `most`.
    fn take(&mut self, mut count: u32, most: u32) -> Vec<(Frag, u32)> {
        let mut pieces = Vec::new();
        self.used += count;
        while count > 0 {
            let length = count.min(most).min(self.blocks - self.next);
            pieces.push((self.first.plus(self.next * BLOCK_FRAGMENTS), length * BLOCK_FRAGMENTS));
            self.next = (self.next + length) % self.blocks;
            count -= length;
        }
        pieces
    }
}

impl Ffs {
    /// A block in memory has changed.
    pub(crate) fn set_changed(&mut self, slot: Slot) {
        self.cache.set_dirty(slot, self.now);
        let buffer = self.cache.get(slot);
        let Some(journal) = self.journal.as_mut().filter(|_| buffer.content != Content::Data) else { return };
        journal.changed.insert(buffer.at);
        journal.committed.remove(&buffer.at);
        if journal.changed.len() as u32 >= journal.blocks / 4 {
            self.commit();
        }
    }

    /// A block of metadata is at its place, or worth nothing any more.
    pub(crate) fn leave_journal(&mut self, at: Frag) {
        if let Some(journal) = &mut self.journal {
            if journal.changed.remove(&at) {
                self.cache.look_again();
            }
            journal.committed.remove(&at);
        }
    }

    /// True where the journal has to have a block before its place may.
    pub(crate) fn is_held(&self, at: Frag) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.changed.contains(&at))
    }

    /// Writes the data, and then what has changed of the metadata into the journal; no call waits.
    pub(crate) fn commit(&mut self) {
        self.write_all(Which::Data);
        let config = &self.volume.config;
        let (tags, most) = (config.block_bytes / TAG_BYTES, config.cluster_blocks());
        let Some(journal) = &mut self.journal else { return };
        for (at, frags) in journal.freed.drain(..) {
            self.volume.allocator.give(at, frags);
        }
        if journal.changed.is_empty() {
            return;
        }
        let length = Journal::length(journal.changed.len() as u32, tags);
        if journal.used + length > journal.blocks / 4 * 3 {
            journal.used = 0;
            let committed: Vec<Frag> = journal.committed.keys().copied().collect();
            self.write_home(&committed);
        }
        let now = self.now;
        let journal = self.journal.as_mut().expect("there is one");
        journal.committed.extend(std::mem::take(&mut journal.changed).into_iter().map(|at| (at, now)));
        self.cache.look_again();
        for (at, frags) in journal.take(length, most) {
            self.submit(None, RequestClass::Journal, at, frags);
        }
    }

    /// The update daemon has its turn.
    pub(crate) fn commit_and_expire(&mut self) {
        self.commit();
        let age = Nanos(self.volume.config.update_interval.0 * EXPIRY_INTERVALS);
        let Some(journal) = &self.journal else { return };
        let is_old = |(at, committed): (&Frag, &Nanos)| (*committed + age <= self.now).then_some(*at);
        let old: Vec<Frag> = journal.committed.iter().filter_map(is_old).collect();
        self.write_home(&old);
    }

    /// Fragments are free: from the next commit on, if there is a journal.
    pub(crate) fn give_back(&mut self, at: Frag, frags: u32) {
        match &mut self.journal {
            Some(journal) => journal.freed.push((at, frags)),
            None => self.volume.allocator.give(at, frags),
        }
    }

    /// Commits where space on the disk is wanted; true where that gave some.
    pub(crate) fn commit_for_space(&mut self) -> bool {
        let gives = self.journal.as_ref().is_some_and(|journal| !journal.freed.is_empty());
        if gives {
            self.commit();
        }
        gives
    }

    /// Commits where room in memory is wanted, only blocks that the journal lacks are left, and nothing is under way that would make room.
    pub(crate) fn commit_for_room(&mut self) -> bool {
        let lacks = self.journal.as_ref().is_some_and(|journal| !journal.changed.is_empty());
        if lacks && self.flights.writes() == 0 {
            self.commit();
            return true;
        }
        false
    }
}
