//! Reading what the next destages will need.

use super::{BLOCK, RUN_MAX, SHARE, lacks};
use crate::Buf;
use crate::layer::{Io, IoResult, Outbox};
use crate::raid::array::Array;
use crate::raid::config::CacheUnit;
use crate::raid::members::Flight;
use crate::raid::plan::{Purpose, Run, plan};
use crate::raid::unit::Unit;

impl Array {
    /// Reads what the next destages will need, where that may be done now.
    pub fn go_on_prefetching(&mut self, out: &mut Outbox) {
        if !self.may_prefetch() {
            return;
        }
        let rested = self.cache.stamp().saturating_sub(self.config.prefetch_after);
        while let Some((written, unit)) = self.cache.written_after(self.prefetch.seen) {
            if written > rested {
                break;
            }
            self.prefetch.seen = written;
            self.prefetch.due.insert(unit);
        }
        while self.may_prefetch() {
            let due = &mut self.prefetch.due;
            let Some(unit) = due.range(self.prefetch.hand..).next().or(due.first()).copied() else { return };
            due.remove(&unit);
            self.prefetch.hand = unit + 1;
            if self.cache.get(unit).is_some_and(|entry| self.is_scattered(entry))
                && !self.recorder.is_unsynced(unit)
            {
                self.prefetch_unit(unit, out);
            }
        }
    }

    fn may_prefetch(&self) -> bool {
        let blocks_max = self.cache.capacity_bytes() as usize / BLOCK / SHARE;
        self.config.prefetch_after > 0
            && self.config.unit == CacheUnit::Stripe
            && !self.config.non_volatile
            && !self.recorder.broken
            && self.recorder.failed() == 0
            && self.clients.only_write()
            && self.prefetch.in_flight < self.config.flush_depth
            && self.prefetch.blocks < blocks_max
    }

    /// True when the unit's lock is free and the unit's dirty blocks are scattered.
    fn is_scattered(&self, unit: &Unit) -> bool {
        let data = self.layout.shape.data;
        let in_short_runs = |column: usize| {
            let mut run = 0;
            unit.blocks.iter().skip(column).step_by(data).all(|block| {
                run = if block.dirty == 0 { 0 } else { run + 1 };
                run <= RUN_MAX
            })
        };
        unit.is_dirty() && unit.may_leave() && unit.readers == 0 && (0..data).all(in_short_runs)
    }

    fn prefetch_unit(&mut self, unit: u64, out: &mut Outbox) {
        let plan = plan(&self.view(unit), &Purpose::Destage, self.config.contiguity.as_ref());
        let Ok(plan) = plan else { return };
        let has = &self.cache.get(unit).expect("it is dirty").prefetched;
        let of_data = plan.reads.iter().filter(|run| run.column < self.layout.shape.data);
        let runs: Vec<Run> = of_data.filter_map(|run| lacks(run, has)).collect();
        for run in runs {
            let at = self.layout.member_lba(unit, run.rows.start);
            let buf = self.cache.buffer(run.rows.len() * BLOCK);
            self.statistics.prefetches += 1;
            self.statistics.destage_reads += 1;
            self.statistics.destage_read_blocks += run.rows.len() as u64;
            self.prefetch.in_flight += 1;
            self.prefetch.blocks += run.rows.len();
            self.cache.unit(unit).readers += 1;
            let member = self.layout.member(unit, run.column);
            self.members.submit(member, Flight::Prefetch { unit, run }, Io::Read { at, buf }, out);
        }
    }

    /// A read has returned. One that failed is forgotten: the destage will see.
    pub fn prefetched(&mut self, unit: u64, run: Run, result: IoResult, out: &mut Outbox) {
        self.prefetch.in_flight -= 1;
        let entry = self.cache.unit(unit);
        entry.readers -= 1;
        match result.status {
            Ok(()) => entry.prefetched.push((run, result.buf)),
            Err(_) => self.prefetch.blocks -= run.rows.len(),
        }
        self.unlocked(unit, out);
    }

    /// Takes out what was read of a unit, as its exclusive lock is taken.
    pub fn take_prefetched(&mut self, unit: u64) -> Vec<(Run, Buf)> {
        let carries_bytes = self.cache.carries_bytes();
        let mut taken = std::mem::take(&mut self.cache.unit(unit).prefetched);
        for (run, buf) in &mut taken {
            self.prefetch.blocks -= run.rows.len();
            if buf.is_blank() && carries_bytes {
                *buf = Buf::zeroed(buf.len());
            }
        }
        taken
    }
}
