//! Prefetching reads the old content of dirty blocks before their destage needs it.
//!
//! While clients write into the cache, members have time. The old content changes only under the exclusive lock of its unit. So it is read
//! under the shared lock, and whichever operation takes the exclusive lock takes the content out: a destage uses it, a pass forgets it.
//! Parity is not read: more of it goes in one command when all of a stripe is destaged.
//!
//! Prefetches concern units that rest and whose dirty blocks are scattered: a unit that is being filled needs none of them. While clients
//! read, or wait for a destage, nothing is prefetched.

use std::collections::BTreeSet;

use crate::layer::{Io, IoResult};
use crate::raid::cache::StripeCache;
use crate::raid::clients::Clients;
use crate::raid::config::CacheUnit;
use crate::raid::env::Env;
use crate::raid::flight::Flight;
use crate::raid::operation::view;
use crate::raid::plan::{BlockRun, PlanPurpose, plan};
use crate::raid::unit::Unit;
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// A longer run of dirty blocks is a stream that may go on.
const RUN_MAX: usize = 4;
/// Prefetched blocks take at most this part of the stripe cache's capacity, beside it.
const SHARE: usize = 8;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Prefetch {
    /// Units whose last write has this stamp or an older one have been looked at.
    seen: u64,
    /// Units that are next, and the place where the sweep through them continues.
    due: BTreeSet<u64>,
    hand: u64,
    /// Reads that have not returned.
    pub in_flight: u32,
    /// Blocks that are here, or will be.
    pub blocks: usize,
}

/// The part of a run that is not here. What lies between two such parts is read again.
pub(super) fn lacks(run: &BlockRun, here: &[(BlockRun, Buf)]) -> Option<BlockRun> {
    let of_column = |(other, _): &&(BlockRun, Buf)| other.column == run.column;
    let is_lacked = |row: &usize| !here.iter().filter(of_column).any(|(other, _)| other.rows.contains(row));
    let first = run.rows.clone().find(is_lacked)?;
    let last = run.rows.clone().rfind(is_lacked)?;
    Some(BlockRun { column: run.column, rows: first..last + 1 })
}

/// True when the unit's lock is free and the unit's dirty blocks are scattered. `data`: its columns.
fn is_scattered(unit: &Unit, data: usize) -> bool {
    let in_short_runs = |column: usize| {
        let mut run = 0;
        unit.blocks.iter().skip(column).step_by(data).all(|block| {
            run = if block.dirty == 0 { 0 } else { run + 1 };
            run <= RUN_MAX
        })
    };
    unit.is_dirty() && unit.may_leave() && unit.readers == 0 && (0..data).all(in_short_runs)
}

impl Prefetch {
    /// Reads what the next destages will need, where that may be done now.
    pub fn go_on(&mut self, cache: &mut StripeCache, clients: &Clients, env: &mut Env) {
        if !self.may_read(cache, clients, env) {
            return;
        }
        let rested = cache.stamp().saturating_sub(env.config.prefetch_after);
        while let Some((written, unit)) = cache.written_after(self.seen) {
            if written > rested {
                break;
            }
            self.seen = written;
            self.due.insert(unit);
        }
        while self.may_read(cache, clients, env) {
            let next = self.due.range(self.hand..).next().or(self.due.first());
            let Some(unit) = next.copied() else { return };
            self.due.remove(&unit);
            self.hand = unit + 1;
            let data = env.layout.shape.data;
            if cache.get(unit).is_some_and(|entry| is_scattered(entry, data))
                && !env.recorder.is_unsynced(unit)
            {
                self.read(unit, cache, env);
            }
        }
    }

    fn may_read(&self, cache: &StripeCache, clients: &Clients, env: &Env) -> bool {
        let blocks_max = cache.capacity_bytes() as usize / BLOCK / SHARE;
        env.config.prefetch_after > 0
            && env.config.unit == CacheUnit::Stripe
            && !env.config.non_volatile
            && !env.recorder.broken
            && env.recorder.failed() == 0
            && clients.only_write()
            && self.in_flight < env.config.flush_depth
            && self.blocks < blocks_max
    }

    fn read(&mut self, unit: u64, cache: &mut StripeCache, env: &mut Env) {
        let view = view(unit, cache, env.recorder);
        let Ok(plan) = plan(&view, &PlanPurpose::Destage, env.config.contiguity.as_ref()) else { return };
        let has = &cache.get(unit).expect("it is dirty").prefetched;
        let of_data = plan.reads.iter().filter(|run| run.column < env.layout.shape.data);
        let runs: Vec<BlockRun> = of_data.filter_map(|run| lacks(run, has)).collect();
        for run in runs {
            let at = env.layout.member_lba(unit, run.rows.start);
            let buf = cache.buffer(run.rows.len() * BLOCK);
            env.statistics.prefetches += 1;
            env.statistics.destage_reads += 1;
            env.statistics.destage_read_blocks += run.rows.len() as u64;
            self.in_flight += 1;
            self.blocks += run.rows.len();
            cache.unit(unit).readers += 1;
            let member = env.layout.member(unit, run.column);
            env.submit(member, Flight::Prefetch { unit, run }, Io::Read { at, buf });
        }
    }

    /// A read has returned. One that failed is forgotten: the destage will see.
    pub fn returned(&mut self, unit: u64, run: BlockRun, result: IoResult, cache: &mut StripeCache) {
        self.in_flight -= 1;
        let entry = cache.unit(unit);
        entry.readers -= 1;
        match result.status {
            Ok(()) => entry.prefetched.push((run, result.buf)),
            Err(_) => self.blocks -= run.rows.len(),
        }
    }

    /// Takes out what was read of a unit, as its exclusive lock is taken.
    pub fn take(&mut self, unit: u64, cache: &mut StripeCache) -> Vec<(BlockRun, Buf)> {
        let carries_bytes = cache.carries_bytes();
        let mut taken = std::mem::take(&mut cache.unit(unit).prefetched);
        for (run, buf) in &mut taken {
            self.blocks -= run.rows.len();
            if buf.is_blank() && carries_bytes {
                *buf = Buf::zeroed(buf.len());
            }
        }
        taken
    }
}
