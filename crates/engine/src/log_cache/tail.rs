//! The tail of the log: how far segments are free, and the superblock that says so.

use super::destager::Destagers;
use super::destager::ordered::Cursor;
use super::env::{Env, LOG, Op, View};
use super::format::LogState;
use super::index::Index;
use super::log::Log;
use super::{LogCacheConfig, LogCanary};
use crate::machine::Lifecycle;
use crate::{IoError, Nanos};

/// Moves the tail over segments that are not needed.
pub fn advance_tail(config: &LogCacheConfig, log: &mut Log, index: &mut Index, destagers: &mut Destagers) {
    let safe = log.safe_seq();
    skip_clean(safe, log, index, destagers);
    if config.canary.is(LogCanary::ReclaimOutOfOrder) {
        advance_tail_out_of_order(safe, log, index);
    }
    if config.canary.is(LogCanary::TailOfOne) {
        let mut segments = (log.ring().tail()..log.ring().head()).map(|number| log.ring().index(number));
        while let Some(segment) = segments.next().filter(|segment| index.dirty_sectors_of(*segment, 0) == 0) {
            index.skip(segment);
        }
    }
    let careless = config.canary.is(LogCanary::ReuseInFlight);
    let ended = if careless { u64::MAX } else { safe };
    log.advance_tail(|segment| index.is_clean(segment, safe), ended, destagers.hold());
}

/// Moves the tail as far as any clean segment lies, also over dirty ones: a planted bug (rule 1 broken).
fn advance_tail_out_of_order(safe: u64, log: &mut Log, index: &mut Index) {
    let mut dirty_or_clean = log.ring().tail()..log.ring().head();
    if let Some(number) = dirty_or_clean.rfind(|number| index.is_clean(log.ring().index(*number), safe)) {
        for skipped in log.ring().tail()..number {
            index.skip(log.ring().index(skipped));
        }
        log.skip_to(number + 1);
    }
}

/// Lets ordered destage pass over records that are not needed any more.
fn skip_clean(safe: u64, log: &Log, index: &Index, destagers: &mut Destagers) {
    let empty = log.buffers().is_empty() && safe == log.last_seq();
    if empty && !index.is_dirty() && destagers.are_idle() {
        let (seq, segment, epoch) = (log.next_seq(), log.ring().head(), log.superblock().epoch);
        destagers.iter_mut().for_each(|destager| destager.skip_to(Cursor { seq, segment, epoch }));
    }
}

impl View<'_> {
    /// Returns when a superblock states how far a log at rest is durable.
    pub fn mark_at(&self) -> Option<Nanos> {
        let told = self.config.canary.is_any(LogCanary::is_of_rot);
        self.log.mark_at().filter(|_| !told && self.life.serves())
    }

    /// The segment from which recovery is to read. With kept reads, that is only as much of the log later than it could be as leaves a
    /// quarter of it to write: recovery finds their copies again.
    pub fn walk_start(&self) -> Option<u64> {
        let ring = self.log.ring();
        if !self.keeps_copies() {
            return None;
        }
        let free = (ring.count() / 4).max(self.few_segments() + 1);
        let from = (ring.head() + 1 + free).saturating_sub(ring.count());
        Some(from.max(ring.kept()).min(ring.tail()))
    }
}

impl Env<'_> {
    /// Writes a superblock when segments run short, when the log has become empty, or when it has come to rest.
    pub fn maybe_release(&mut self, destagers: &mut Destagers) {
        if self.log.is_releasing() || matches!(self.life, Lifecycle::Marking | Lifecycle::Stopped) {
            return;
        }
        let view = self.view();
        let ring = view.log.ring();
        let gained = ring.tail() - ring.kept();
        let table = view.index.table();
        let is_table_full = || ring.remembered() == 0 && !table.has_room(table.lines_max() / 8);
        let is_pressed = || view.queue.wants_space() || is_table_full();
        let is_short = || ring.free() <= view.few_segments() || is_pressed();
        let is_empty = || !view.index.is_dirty() && view.oldest_live_seq() == view.log.next_seq();
        let is_stale = || match view.keeps_copies() && !view.life.drains() {
            // Copies alone are no reason.
            true => view.log.superblock().live_seq <= view.log.needed_seq(),
            false => view.log.superblock().tail_seq != view.log.next_seq(),
        };
        let is_unpinned = || !ring.is_pinned(ring.kept()..ring.tail());
        let rested = view.mark_at().is_some_and(|at| at <= view.now);
        let mark = destagers.take_mark() || rested;
        if mark || gained > 0 && is_short() || is_stale() && is_empty() && is_unpinned() {
            let from = if is_pressed() || view.life.drains() { None } else { view.walk_start() };
            self.write_superblock(LogState::Active, from);
        }
    }

    pub fn write_superblock(&mut self, state: LogState, from: Option<u64>) {
        let (live_seq, destaged_seq) = (self.view().oldest_live_seq(), self.destaged_seq.unwrap_or(0));
        self.data.iter_mut().for_each(|data| data.fingerprint.pass(live_seq));
        let needs_records = self.data.iter().any(|data| data.fingerprint.needs_records());
        let fingerprints = self.data.iter().map(|data| data.fingerprint.fingerprint());
        let io =
            self.log.write_superblock(state, needs_records, from, (live_seq, destaged_seq), fingerprints);
        self.statistics.superblocks += 1;
        self.submit(LOG, Op::Superblock, io);
    }

    /// Takes a superblock that was written, which is not that of a stop: the segments before its tail are free.
    pub fn superblock_written(&mut self, status: Result<(), IoError>) -> bool {
        let freed = self.log.end_release();
        if let Err(error) = status {
            self.log_failed(error);
            return false;
        }
        self.log.marked();
        let (kept, ring) = (freed.end, self.log.ring());
        // This superblock names the next record if the log is empty. A later one may name the first record of that segment again.
        let first_seq = ring.at(ring.index(kept)).first_seq;
        self.index.release(first_seq, freed.map(|number| ring.index(number)));
        self.log.keep_from(kept);
        true
    }
}
