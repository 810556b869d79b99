//! Carrying out an operation on a unit.

use super::{BLOCK, Bytes, Goal, Operation, OperationPhase, Reads, Work};
use crate::Buf;
use crate::layer::{Durability, Io, IoResult, Outbox};
use crate::raid::array::Array;
use crate::raid::compute::{self, Computed};
use crate::raid::config::Canary;
use crate::raid::matrix::{Access, Grid, Ops, Status};
use crate::raid::members::Flight;
use crate::raid::plan::{Cycle, Plan, Purpose, Run, StripeView, TooManyMissing, plan};
use crate::raid::prefetch::lacks;

impl Array {
    /// Locks a unit for an operation, and begins it.
    pub fn start(&mut self, unit: u64, goal: Goal, out: &mut Outbox) {
        let entry = self.cache.unit(unit);
        assert!(!entry.exclusive && entry.readers == 0, "a lock is shared or exclusive");
        (entry.exclusive, entry.wanted) = (true, false);
        let mut blocks = 0;
        if goal == Goal::Destage {
            blocks = entry.dirty_blocks();
            self.destaging.begin(unit, blocks);
            self.cache.set_leaving(unit, true);
        }
        let operation = Operation {
            prefetched: self.take_prefetched(unit),
            unit,
            goal,
            blocks,
            phase: OperationPhase::Reading,
            work: None,
            writes: Vec::new(),
            left: 0,
            failed_reads: false,
            unwritten: false,
            record: None,
            made_right: Vec::new(),
        };
        let key = self.operations.insert(operation);
        self.plan_and_read(key, out);
    }

    pub fn view(&self, unit: u64) -> StripeView {
        let shape = self.layout.shape;
        let access = Grid::new(self.layout.rows, shape.columns());
        let mut view = StripeView { shape, z: self.cache.z(unit), access };
        let entry = self.cache.get(unit).expect("it is locked");
        for column in 0..shape.columns() {
            let failed = self.recorder.has_failed_at(self.layout.member(unit, column), unit);
            // Nothing is computed of parity that a crash may have left half-written, nor of what is lost.
            let unsynced = column >= shape.data && self.recorder.is_unsynced(unit);
            for row in 0..self.layout.rows {
                let in_doubt = unsynced && !self.recorder.right_rows.contains(unit, row)
                    || self.recorder.is_unsettled(unit, row, column);
                view.access[(row, column)] = match failed {
                    true => Access::Failed,
                    false if in_doubt || entry.bad.contains(&(row, column)) => Access::Unreadable,
                    false => Access::Whole,
                };
            }
        }
        view
    }

    fn plan_and_read(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        let (unit, goal) = (operation.unit, operation.goal);
        (operation.phase, operation.failed_reads) = (OperationPhase::Reading, false);
        let view = self.view(unit);
        let entry = self.cache.get(unit).expect("it is locked");
        let purpose = match goal {
            Goal::Fetch => Purpose::Fetch(entry.fetch.clone().expect("somebody waits for it")),
            Goal::Destage if !self.recorder.is_unsynced(unit) => Purpose::Destage,
            Goal::Destage => {
                let right = |row: &usize| self.recorder.right_rows.contains(unit, *row);
                Purpose::Resync((0..self.layout.rows).filter(right).collect())
            }
        };
        let singly = entry.singly;
        let plan = match plan(&view, &purpose, self.config.contiguity.as_ref()) {
            Ok(plan) => plan,
            Err(TooManyMissing { row }) => return self.cannot_compute(key, row, &view, out),
        };
        if goal == Goal::Destage {
            self.pin(unit, &view, &plan);
        }
        let prefetched = std::mem::take(&mut self.operations.get_mut(key).prefetched);
        let wanted: Vec<Run> = plan.reads.iter().filter_map(|run| lacks(run, &prefetched)).collect();
        let mut runs: Vec<(Run, Option<Buf>)> =
            prefetched.into_iter().map(|(run, buf)| (run, Some(buf))).collect();
        let here = runs.len();
        for run in wanted {
            let step = if singly { 1 } else { run.rows.len() };
            for first in run.rows.step_by(step) {
                runs.push((Run { column: run.column, rows: first..first + step }, None));
            }
        }
        let mut index = Grid::new(view.rows(), view.shape.columns());
        for (number, (run, _)) in runs.iter().enumerate() {
            run.rows.clone().for_each(|row| index[(row, run.column)] = number as u32 + 1);
        }
        let wanted: Vec<Run> = runs[here..].iter().map(|(run, _)| run.clone()).collect();
        let operation = self.operations.get_mut(key);
        operation.left = wanted.len() as u32;
        operation.work = Some(Work { view, plan, reads: Reads { runs, index } });
        if wanted.is_empty() {
            return self.compute(key, out);
        }
        for (number, run) in (here..).zip(wanted) {
            let buf = self.cache.buffer(run.rows.len() * BLOCK);
            let at = self.layout.member_lba(unit, run.rows.start);
            self.statistics.destage_reads += 1;
            self.statistics.destage_read_blocks += run.rows.len() as u64;
            let member = self.layout.member(unit, run.column);
            self.members.submit(
                member,
                Flight::OperationRead { key, run: number },
                Io::Read { at, buf },
                out,
            );
        }
        if goal == Goal::Destage && !self.recorder.broken {
            self.announce(unit, out);
        }
    }

    /// Pins the blocks that a plan counts on: no client may write them before the parity is computed. A dirty block may change: its new
    /// content counts then.
    fn pin(&mut self, unit: u64, view: &StripeView, plan: &Plan) {
        self.cache.pin(unit, |place| match view.z[place] {
            Status::Dirty | Status::Partial => false,
            Status::Empty => plan.matrix[place] != Ops::NONE,
            Status::Clean => true,
        });
    }

    /// A read of an operation has returned.
    pub fn operation_read(&mut self, key: u64, run: usize, result: IoResult, out: &mut Outbox) {
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
        let operation = self.operations.get_mut(key);
        match (operation.left, operation.failed_reads) {
            (0, true) => self.plan_and_read(key, out),
            (0, false) => self.compute(key, out),
            _ => {}
        }
    }

    /// Between the reads and the writes: what was read is in the cache afterwards, the parity is computed.
    fn compute(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        let (unit, work) = (operation.unit, operation.work.take().expect("it has read for a plan"));
        self.cache.materialise(unit);
        let carries_bytes = self.cache.carries_bytes();
        let mut recovered = Computed::default();
        if carries_bytes {
            let blocks = Bytes { cache: &self.cache, unit, reads: &work.reads };
            recovered = compute::recovered(&work.plan, &work.view, &blocks);
        }
        self.fill(unit, &work, &recovered);
        let mut parity = Computed::default();
        if carries_bytes {
            let blocks = Bytes { cache: &self.cache, unit, reads: &work.reads };
            parity = compute::parity_out(&work.plan, &work.view, &blocks, &recovered);
        }
        let mut writes = Vec::with_capacity(work.plan.writes.len());
        for run in &work.plan.writes {
            let mut buf = self.cache.buffer(run.rows.len() * BLOCK);
            for (index, row) in run.rows.clone().enumerate() {
                let at = index * BLOCK;
                if run.column < work.view.shape.data {
                    self.cache.copy_out(unit, row, run.column, &mut buf, at);
                } else if carries_bytes {
                    let computed = parity.get(row, run.column);
                    let block = computed.unwrap_or_else(|| work.reads.block(row, run.column));
                    buf.bytes_mut()[at..at + BLOCK].copy_from_slice(block);
                }
            }
            writes.push((run.clone(), buf));
        }
        let unsynced = self.recorder.is_unsynced(unit);
        let operation = self.operations.get_mut(key);
        if unsynced && operation.goal == Goal::Destage {
            let whole =
                |row: &usize| matches!(work.plan.cycles[*row], Cycle::ReconstructWrite | Cycle::Recover);
            operation.made_right = (0..work.view.rows()).filter(whole).collect();
        }
        operation.writes = writes;
        if operation.writes.is_empty() {
            return self.end(key, out);
        }
        operation.phase = OperationPhase::Held;
        if operation.goal == Goal::Destage {
            self.cache.take_along(unit, |place| work.view.z[place].is_dirty());
            self.go_on_with(unit, out);
        }
        self.go_on(key, out);
    }

    /// Puts what was found out into the cache: r, what was recovered, and what partial blocks lack.
    fn fill(&mut self, unit: u64, work: &Work, recovered: &Computed) {
        for row in 0..work.view.rows() {
            for column in 0..work.view.shape.data {
                let ops = work.plan.matrix[(row, column)];
                let fills = match work.view.z[(row, column)] {
                    Status::Empty => ops.has(Ops::R.with(Ops::RECOVER)),
                    Status::Partial => ops.reads() || ops.has(Ops::RECOVER),
                    Status::Clean | Status::Dirty => false,
                };
                if fills {
                    let computed = recovered.get(row, column);
                    let known = ops.has(Ops::RECOVER);
                    let block = match computed {
                        Some(block) => block,
                        None if known => &[],
                        None => work.reads.block(row, column),
                    };
                    self.cache.fill(unit, row, column, block);
                }
            }
        }
    }

    /// Begins the writes of an operation, as soon as it may.
    pub fn go_on(&mut self, key: u64, out: &mut Outbox) {
        let Operation { phase, unit, .. } = *self.operations.get_mut(key);
        match phase {
            OperationPhase::Held if self.recorder.broken => self.not_written(key, out),
            OperationPhase::Held if !self.may_write(unit, out) => self.held_back.push(key),
            OperationPhase::Held
                if self.recorder.journal.is_some() && !self.config.canary.is(Canary::SkipJournal) =>
            {
                self.operations.get_mut(key).phase = OperationPhase::Journaling;
                if let Some(journal) = &mut self.recorder.journal {
                    journal.queue(key);
                }
                self.write_record(out);
            }
            OperationPhase::Held => self.write_members(key, out),
            OperationPhase::Ending if self.recorder.owes() && !self.recorder.broken => {
                self.held_back.push(key)
            }
            OperationPhase::Ending => self.end(key, out),
            OperationPhase::Reading | OperationPhase::Journaling | OperationPhase::Writing => {
                unreachable!("nothing holds it back")
            }
        }
    }

    /// Sends an operation's writes. A member that has failed since it was planned gets none: the parity has it all.
    pub fn write_members(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        operation.phase = OperationPhase::Writing;
        let unit = operation.unit;
        let writes = std::mem::take(&mut operation.writes);
        let (layout, mut sent) = (self.layout, 0);
        for (run, buf) in writes {
            let member = layout.member(unit, run.column);
            if self.recorder.has_failed_at(member, unit) {
                continue;
            }
            let at = layout.member_lba(unit, run.rows.start);
            self.statistics.destage_writes += 1;
            self.statistics.destage_written_blocks += run.rows.len() as u64;
            let io = Io::Write { at, buf, durability: Durability::Durable };
            self.members.submit(member, Flight::OperationWrite { key, run }, io, out);
            sent += 1;
        }
        self.operations.get_mut(key).left = sent;
        if sent == 0 {
            self.written(key, out);
        }
    }

    /// A write of an operation has returned.
    pub fn operation_write(&mut self, key: u64, run: &Run, is_ok: bool, made_up_for: bool, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        operation.unwritten |= !made_up_for;
        operation.left -= 1;
        let (unit, left) = (operation.unit, operation.left);
        if is_ok {
            let bad = &mut self.cache.unit(unit).bad;
            let before = bad.len();
            bad.retain(|(row, column)| *column != run.column || !run.rows.contains(row));
            self.statistics.sectors_repaired += (before - bad.len()) as u64;
        }
        if left == 0 {
            self.written(key, out);
        }
    }

    /// Ends an operation without a write: dirty blocks stay dirty.
    pub fn not_written(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        operation.unwritten = true;
        let unit = operation.unit;
        self.recorder.right_rows.forget_unit(unit);
        self.end(key, out);
    }

    fn written(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        operation.phase = OperationPhase::Ending;
        let (unit, settles) = (operation.unit, operation.goal != Goal::Fetch && !operation.unwritten);
        if settles {
            for row in std::mem::take(&mut operation.made_right) {
                self.recorder.right_rows.insert(unit, row);
            }
            self.losses.settle(unit, &mut self.recorder, &self.cache);
            self.record(out);
        }
        self.go_on(key, out);
    }

    /// More of a row is missing than the parity makes up for. Those who want to read it get an error; those who write it lose
    /// the rest of it.
    fn cannot_compute(&mut self, key: u64, row: usize, view: &StripeView, out: &mut Outbox) {
        let operation = self.operations.get_mut(key);
        let (unit, goal) = (operation.unit, operation.goal);
        match goal {
            Goal::Fetch => self.fail_fetch(unit, row, view, out),
            Goal::Destage => {
                self.statistics.lost_rows += 1;
                if self.losses.lose_row(unit, row, view, &mut self.recorder) {
                    self.void_row(unit, row);
                    return self.plan_and_read(key, out);
                }
                self.recorder.broken = true;
            }
        }
        self.not_written(key, out);
    }

    /// Puts zeroes in the place of what is lost of a row, to be written with the rest.
    fn void_row(&mut self, unit: u64, row: usize) {
        for column in 0..self.layout.shape.data {
            if self.recorder.lost().contains_key(&self.recorder.lost_block(unit, row, column)) {
                self.cache.void(unit, row, column);
            }
        }
    }

    /// An operation is going to write to a unit: that begins to be recorded while it reads.
    fn announce(&mut self, unit: u64, out: &mut Outbox) {
        // Dirty blocks may stay in non-volatile RAM for long.
        let all = !self.config.non_volatile || self.clients.wait_for_flush() || self.recorder.marks_tracts();
        self.recorder.announce(unit, all.then(|| self.cache.dirty()));
        self.record(out);
    }

    /// Operations may write to a unit; otherwise it is being recorded that they will.
    fn may_write(&mut self, unit: u64, out: &mut Outbox) -> bool {
        let late = self.config.canary.is(Canary::LateIntent) && self.recorder.recorded().active;
        self.announce(unit, out);
        self.recorder.may_write(unit) || late
    }

    /// An operation is over, and its unit free.
    fn end(&mut self, key: u64, out: &mut Outbox) {
        let operation = self.operations.remove(key);
        let unit = operation.unit;
        let entry = self.cache.unit(unit);
        (entry.exclusive, entry.singly) = (false, false);
        match operation.goal {
            Goal::Fetch => {
                entry.fetch = None;
                self.statistics.fetches += 1;
            }
            Goal::Destage if !operation.unwritten => {
                if self.config.canary.is(Canary::LateWrite) {
                    self.cache.take_all_along(unit);
                }
                self.cache.destaged(unit);
            }
            Goal::Destage => {}
        }
        if operation.goal == Goal::Destage {
            self.cache.set_leaving(unit, false);
            self.destaging.end(operation.blocks);
            self.statistics.destages += 1;
        }
        if let Some(record) = operation.record.filter(|_| !operation.unwritten) {
            if let Some(journal) = &mut self.recorder.journal {
                journal.over(record);
            }
            self.write_record(out);
        }
        self.unlocked(unit, out);
        self.cache.trim();
    }
}
