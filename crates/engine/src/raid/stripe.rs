//! Carries out an operation on one unit of the cache, under its exclusive lock: a destage, or the recovery of blocks that a member
//! cannot give.
//!
//! | it is      | until                                                          | then                                |
//! |------------|----------------------------------------------------------------|-------------------------------------|
//! | reading    | all that its plan reads has returned                           | computed, or planned anew if a read failed |
//! | held       | the superblocks say that writes are under way, and name the failed members | journaling or writing   |
//! | journaling | its record is durable                                          | writing                             |
//! | writing    | all that its plan writes is durable                            | ending                              |
//! | ending     | the superblocks name a member that failed meanwhile            | over                                |
//!
//! A read that failed makes the block a bad sector, which the next plan computes from the others and writes again. A write
//! that failed makes the member a failed one: what it should have had is in the parity by then.

use crate::layer::{Durability, Io, IoResult};
use crate::raid::cache::StripeCache;
use crate::raid::clients::Clients;
use crate::raid::config::ArrayCanary;
use crate::raid::destaging::Destaging;
use crate::raid::env::Env;
use crate::raid::flight::Flight;
use crate::raid::lost::unknown;
use crate::raid::matrix::{BlockStatus, Ops};
use crate::raid::operation::{Goal, Operation, OperationPhase, PlanReads, PlannedWork, view};
use crate::raid::plan::{BlockRun, Cycle, PlanPurpose, StripeView, TooManyMissing, plan};
use crate::raid::prefetch::{Prefetch, lacks};
use crate::slab::Slab;
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// The stripe cache, and what is under way on its units.
pub(super) struct ActiveStripes {
    pub cache: StripeCache,
    pub operations: Slab<Operation>,
    /// Operations that wait for the superblocks.
    pub held_back: Vec<u64>,
    pub destaging: Destaging,
    pub prefetch: Prefetch,
}

/// Those that may end an operation return the unit that this has freed.
impl ActiveStripes {
    pub fn new(cache: StripeCache) -> ActiveStripes {
        ActiveStripes {
            cache,
            operations: Slab::default(),
            held_back: Vec::new(),
            destaging: Destaging::default(),
            prefetch: Prefetch::default(),
        }
    }

    /// Locks a unit for an operation, and begins it.
    pub fn start(&mut self, unit: u64, goal: Goal, clients: &mut Clients, env: &mut Env) -> Option<u64> {
        let entry = self.cache.unit(unit);
        assert!(!entry.exclusive && entry.readers == 0, "a lock is shared or exclusive");
        (entry.exclusive, entry.wanted) = (true, false);
        let mut blocks = 0;
        if goal == Goal::Destage {
            blocks = entry.dirty_blocks();
            self.destaging.begin(unit, blocks);
            self.cache.set_leaving(unit, true);
        }
        let prefetched = self.prefetch.take(unit, &mut self.cache);
        let key = self.operations.insert(Operation::new(unit, goal, blocks, prefetched));
        self.plan_and_read(key, clients, env)
    }

    fn plan_and_read(&mut self, key: u64, clients: &mut Clients, env: &mut Env) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        let (unit, goal) = (operation.unit, operation.goal);
        (operation.phase, operation.failed_reads) = (OperationPhase::Reading, false);
        let view = view(unit, &self.cache, env.recorder);
        let entry = self.cache.get(unit).expect("it is locked");
        let purpose = match goal {
            Goal::Fetch => PlanPurpose::Fetch(entry.fetch.clone().expect("somebody waits for it")),
            Goal::Destage if !env.recorder.is_unsynced(unit) => PlanPurpose::Destage,
            Goal::Destage => {
                let right = |row: &usize| env.recorder.right_rows.contains(unit, *row);
                PlanPurpose::Resync((0..env.layout.rows).filter(right).collect())
            }
        };
        let singly = entry.singly;
        let plan = match plan(&view, &purpose, env.config.contiguity.as_ref()) {
            Ok(plan) => plan,
            Err(TooManyMissing { row }) => return self.cannot_compute(key, row, &view, clients, env),
        };
        if goal == Goal::Destage {
            // No client may write what the plan counts on before the parity is computed. A dirty block may change: its new content counts.
            self.cache.pin(unit, |place| match view.z[place] {
                BlockStatus::Dirty | BlockStatus::Partial => false,
                BlockStatus::Empty => plan.matrix[place] != Ops::NONE,
                BlockStatus::Clean => true,
            });
        }
        let prefetched = std::mem::take(&mut self.operations.get_mut(key).prefetched);
        let wanted: Vec<BlockRun> = plan.reads.iter().filter_map(|run| lacks(run, &prefetched)).collect();
        let mut runs: Vec<(BlockRun, Option<Buf>)> =
            prefetched.into_iter().map(|(run, buf)| (run, Some(buf))).collect();
        let here = runs.len();
        for run in wanted {
            let step = if singly { 1 } else { run.rows.len() };
            for first in run.rows.step_by(step) {
                runs.push((BlockRun { column: run.column, rows: first..first + step }, None));
            }
        }
        let wanted: Vec<BlockRun> = runs[here..].iter().map(|(run, _)| run.clone()).collect();
        let operation = self.operations.get_mut(key);
        operation.left = wanted.len() as u32;
        operation.work = Some(PlannedWork { reads: PlanReads::new(runs, &view), view, plan });
        if wanted.is_empty() {
            return self.compute(key, clients, env);
        }
        for (number, run) in (here..).zip(wanted) {
            let buf = self.cache.buffer(run.rows.len() * BLOCK);
            let at = env.layout.member_lba(unit, run.rows.start);
            env.statistics.destage_reads += 1;
            env.statistics.destage_read_blocks += run.rows.len() as u64;
            let member = env.layout.member(unit, run.column);
            env.submit(member, Flight::OperationRead { key, run: number }, Io::Read { at, buf });
        }
        if goal == Goal::Destage && !env.recorder.broken {
            self.announce(unit, clients, env);
        }
        None
    }

    /// A read of an operation has returned.
    pub fn read_returned(&mut self, key: u64, run: usize, result: IoResult) {
        let carries_bytes = self.cache.carries_bytes();
        let operation = self.operations.get_mut(key);
        operation.left -= 1;
        let (unit, work) = (operation.unit, operation.work.as_mut().expect("it reads for a plan"));
        let (place, buf) = &mut work.reads.runs[run];
        let place = place.clone();
        if result.status.is_ok() {
            let blank = result.buf.is_blank() && carries_bytes;
            *buf = Some(if blank { Buf::zeroed(result.buf.len()) } else { result.buf });
        } else {
            operation.failed_reads = true;
            let entry = self.cache.unit(unit);
            match place.rows.len() {
                1 => entry.bad.extend([(place.rows.start, place.column)]),
                _ => entry.singly = true,
            }
        }
    }

    /// Between the reads and the writes: what was read is in the cache afterwards, the parity is computed.
    fn compute(&mut self, key: u64, clients: &mut Clients, env: &mut Env) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        let (unit, work) = (operation.unit, operation.work.take().expect("it has read for a plan"));
        self.cache.materialise(unit);
        let writes = work.compute(unit, &mut self.cache);
        let unsynced = env.recorder.is_unsynced(unit);
        let operation = self.operations.get_mut(key);
        if unsynced && operation.goal == Goal::Destage {
            let whole =
                |row: &usize| matches!(work.plan.cycles[*row], Cycle::ReconstructWrite | Cycle::Recover);
            operation.made_right = (0..work.view.rows()).filter(whole).collect();
        }
        operation.writes = writes;
        if operation.writes.is_empty() {
            return self.end(key, env);
        }
        operation.phase = OperationPhase::Held;
        if operation.goal == Goal::Destage {
            self.cache.take_along(unit, |place| work.view.z[place].is_dirty());
            // None of them can use the lock: the operation has it.
            for piece in std::mem::take(&mut self.cache.unit(unit).waiting) {
                clients.begin(piece, &mut self.cache, env);
            }
        }
        self.go_on(key, clients, env)
    }

    /// Goes on with an operation whose commands have returned, or that has waited.
    pub fn go_on(&mut self, key: u64, clients: &mut Clients, env: &mut Env) -> Option<u64> {
        let Operation { phase, unit, left, failed_reads, .. } = *self.operations.get_mut(key);
        match phase {
            OperationPhase::Reading | OperationPhase::Writing if left > 0 => {}
            OperationPhase::Reading if failed_reads => return self.plan_and_read(key, clients, env),
            OperationPhase::Reading => return self.compute(key, clients, env),
            OperationPhase::Held | OperationPhase::Journaling if env.recorder.broken => {
                return self.not_written(key, env);
            }
            OperationPhase::Held if !self.may_write(unit, clients, env) => self.held_back.push(key),
            OperationPhase::Held => {
                let journal = env.recorder.journal.as_mut();
                let Some(journal) = journal.filter(|_| !env.config.canary.is(ArrayCanary::SkipJournal))
                else {
                    return self.write_members(key, env);
                };
                self.operations.get_mut(key).phase = OperationPhase::Journaling;
                journal.queue(key);
                env.write_record(&mut self.operations);
            }
            OperationPhase::Journaling => return self.write_members(key, env),
            OperationPhase::Writing => return self.written(key, env),
            OperationPhase::Ending => return self.finish(key, env),
        }
        None
    }

    /// Lets an operation that waits to be recorded go on without that, as soon as the superblocks say that the array has no journal any
    /// more.
    pub fn go_on_unrecorded(&mut self, key: u64, clients: &mut Clients, env: &mut Env) -> Option<u64> {
        self.operations.get_mut(key).phase = OperationPhase::Held;
        self.go_on(key, clients, env)
    }

    /// Sends an operation's writes. A member that has failed since it was planned gets none: the parity has it all.
    fn write_members(&mut self, key: u64, env: &mut Env) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        operation.phase = OperationPhase::Writing;
        let unit = operation.unit;
        let writes = std::mem::take(&mut operation.writes);
        let (layout, mut sent) = (env.layout, 0);
        for (run, buf) in writes {
            let member = layout.member(unit, run.column);
            if env.recorder.has_failed_at(member, unit) {
                continue;
            }
            let at = layout.member_lba(unit, run.rows.start);
            env.statistics.destage_writes += 1;
            env.statistics.destage_written_blocks += run.rows.len() as u64;
            let io = Io::Write { at, buf, durability: Durability::Durable };
            env.submit(member, Flight::OperationWrite { key, run }, io);
            sent += 1;
        }
        self.operations.get_mut(key).left = sent;
        if sent == 0 { self.written(key, env) } else { None }
    }

    /// A write of an operation has returned.
    pub fn write_returned(
        &mut self,
        key: u64,
        run: &BlockRun,
        is_ok: bool,
        made_up_for: bool,
        env: &mut Env,
    ) {
        let operation = self.operations.get_mut(key);
        operation.unwritten |= !made_up_for;
        operation.left -= 1;
        if is_ok {
            let bad = &mut self.cache.unit(operation.unit).bad;
            let before = bad.len();
            bad.retain(|(row, column)| *column != run.column || !run.rows.contains(row));
            env.statistics.sectors_repaired += (before - bad.len()) as u64;
        }
    }

    /// Ends an operation without a write: dirty blocks stay dirty.
    pub fn not_written(&mut self, key: u64, env: &mut Env) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        operation.unwritten = true;
        let unit = operation.unit;
        env.recorder.right_rows.forget_unit(unit);
        self.end(key, env)
    }

    fn written(&mut self, key: u64, env: &mut Env) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        operation.phase = OperationPhase::Ending;
        let (unit, settles) = (operation.unit, operation.goal != Goal::Fetch && !operation.unwritten);
        if settles {
            for row in std::mem::take(&mut operation.made_right) {
                env.recorder.right_rows.insert(unit, row);
            }
            env.losses.settle(unit, env.recorder, &self.cache);
            env.record();
        }
        self.finish(key, env)
    }

    /// Ends an operation, as soon as the superblocks name the members that have failed.
    fn finish(&mut self, key: u64, env: &mut Env) -> Option<u64> {
        if env.recorder.owes() && !env.recorder.broken {
            self.held_back.push(key);
            return None;
        }
        self.end(key, env)
    }

    /// More of a row is missing than the parity makes up for. Those who want to read it get an error; those who write it lose
    /// the rest of it.
    fn cannot_compute(
        &mut self,
        key: u64,
        row: usize,
        view: &StripeView,
        clients: &mut Clients,
        env: &mut Env,
    ) -> Option<u64> {
        let operation = self.operations.get_mut(key);
        let (unit, goal) = (operation.unit, operation.goal);
        env.statistics.lost_rows += 1;
        match goal {
            Goal::Fetch => {
                env.losses.cannot_read(unit, row, unknown(view, row));
                clients.fail_fetch(unit, row, &mut self.cache, env);
            }
            Goal::Destage if env.losses.lose_row(unit, row, view, env.recorder) => {
                // Zeroes are written in the place of what is lost.
                for column in 0..env.layout.shape.data {
                    if env.recorder.lost().contains_key(&env.recorder.lost_block(unit, row, column)) {
                        self.cache.void(unit, row, column);
                    }
                }
                return self.plan_and_read(key, clients, env);
            }
            Goal::Destage => env.recorder.broken = true,
        }
        self.not_written(key, env)
    }

    /// An operation is going to write to a unit: that begins to be recorded while it reads.
    fn announce(&self, unit: u64, clients: &Clients, env: &mut Env) {
        // Dirty blocks may stay in non-volatile RAM for long.
        let together = !env.config.non_volatile || clients.wait_for_flush();
        env.recorder.announce(unit, self.cache.dirty(), together);
        env.record();
    }

    /// Operations may write to a unit; otherwise it is being recorded that they will.
    fn may_write(&self, unit: u64, clients: &Clients, env: &mut Env) -> bool {
        let late = env.config.canary.is(ArrayCanary::LateIntent) && env.recorder.recorded().active;
        self.announce(unit, clients, env);
        env.recorder.may_write(unit) || late
    }

    /// An operation is over, and its unit free.
    fn end(&mut self, key: u64, env: &mut Env) -> Option<u64> {
        let operation = self.operations.remove(key);
        let unit = operation.unit;
        let entry = self.cache.unit(unit);
        (entry.exclusive, entry.singly) = (false, false);
        match operation.goal {
            Goal::Fetch => {
                entry.fetch = None;
                env.statistics.fetches += 1;
            }
            Goal::Destage if !operation.unwritten => {
                if env.config.canary.is(ArrayCanary::LateWrite) {
                    self.cache.take_all_along(unit);
                }
                self.cache.destaged(unit);
            }
            Goal::Destage => {}
        }
        if operation.goal == Goal::Destage {
            self.cache.set_leaving(unit, false);
            self.destaging.end(operation.blocks);
            env.statistics.destages += 1;
        }
        if let Some(record) = operation.record.filter(|_| !operation.unwritten) {
            if let Some(journal) = &mut env.recorder.journal {
                journal.over(record);
            }
            env.write_record(&mut self.operations);
        }
        Some(unit)
    }
}
