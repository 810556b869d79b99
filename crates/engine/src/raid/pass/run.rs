//! Running a pass: windows, their pace, and checkpoints.

use std::ops::Range;

use super::{ACTIVE, ACTIVE_WINDOW_BYTES, CHECKPOINT_TIME, Checkpoint, DEPTH, Pass, PassKind};
use crate::layer::{CommandError, Io, Outbox};
use crate::raid::array::Array;
use crate::raid::members::Flight;
use crate::raid::status::Return;
use crate::raid::superblock::Rebuild;
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

impl Array {
    /// Begins a scrub, or goes on with the one that was stopped.
    pub fn scrub(&mut self, repair: bool) -> Result<(), CommandError> {
        if self.recorder.failed() != 0 {
            return Err(CommandError::MemberMissing);
        }
        if self.recorder.read_only {
            return Err(CommandError::MemberReadOnly);
        }
        let kind = PassKind::Scrub { repair };
        self.passes.paused = false;
        if self.passes.parked.as_ref().is_none_or(|pass| pass.kind != kind)
            && self.passes.current.as_ref().is_none_or(|pass| pass.kind != kind)
        {
            self.passes.parked = Some(Pass::new(kind, std::iter::once(0..self.layout.units())));
        }
        Ok(())
    }

    /// Stops a scrub; the next one goes on where it was.
    pub fn stop_scrub(&mut self) -> Result<(), CommandError> {
        let scrubs = |pass: &Option<Pass>| {
            pass.as_ref().is_some_and(|pass| matches!(pass.kind, PassKind::Scrub { .. }))
        };
        if self.passes.paused || !(scrubs(&self.passes.current) || scrubs(&self.passes.parked)) {
            return Err(CommandError::NoScrub);
        }
        self.passes.paused = true;
        Ok(())
    }

    /// The current pass is to begin no more windows.
    fn is_held_up(&self) -> bool {
        let Some(pass) = &self.passes.current else { return true };
        match pass.kind {
            PassKind::Resync => false,
            // Before the superblocks say who has the role, nothing is written there.
            PassKind::Rebuild { .. } => !self.recorder.knows_rebuild(),
            PassKind::Scrub { .. } => {
                self.passes.paused || self.recorder.failed() != 0 || self.passes.parked.is_some()
            }
        }
    }

    /// The reason for the current pass no longer holds.
    pub fn is_void(&self) -> bool {
        self.passes.current.as_ref().is_some_and(|pass| {
            pass.void
                || match pass.kind {
                    PassKind::Resync => self.recorder.failed() != 0,
                    PassKind::Rebuild { role } => {
                        self.recorder.rebuilding().is_none_or(|rebuild| rebuild.role != role)
                    }
                    PassKind::Scrub { .. } => false,
                }
        })
    }

    /// Ends a pass that is void, as soon as nothing of it is under way.
    fn end_void_pass(&mut self) {
        if !self.is_void() {
            return;
        }
        let resting = self.passes.windows.is_empty();
        let Some(pass) = &mut self.passes.current else { return };
        pass.todo.clear();
        pass.void = true;
        if resting && pass.checkpoint.is_none_or(|checkpoint| checkpoint.left == 0) {
            self.passes.current = None;
        }
    }

    /// Lets the pass that is most urgent be the current one.
    fn choose_pass(&mut self) {
        let scrubs = |pass: &Pass| matches!(pass.kind, PassKind::Scrub { .. }) && pass.checkpoint.is_none();
        if self.passes.windows.is_empty()
            && self.is_held_up()
            && self.passes.current.as_ref().is_some_and(scrubs)
        {
            let pass = self.passes.current.take();
            // One of another kind that has been asked for meanwhile takes its place.
            self.passes.parked = self.passes.parked.take().or(pass);
        }
        if self.passes.current.is_some() {
            return;
        }
        if let Some(rebuild) = self.recorder.rebuilding() {
            let units = self.units_to_rebuild(&rebuild);
            let mut pass = units.map(|units| Pass::new(PassKind::Rebuild { role: rebuild.role }, units));
            if let Some(pass) = pass.as_mut().filter(|_| !self.recorder.is_returning()) {
                // It goes on where it was, and its percentage is that of the member.
                pass.units = self.layout.units();
            }
            self.passes.current = pass;
        } else if !self.passes.paused && self.recorder.failed() == 0 {
            self.passes.current = self.passes.parked.take();
        }
        if let Some(pass) = &mut self.passes.current {
            pass.began = None;
        }
    }

    /// The units that the member that is being rebuilt lacks; none as long as that is not known.
    fn units_to_rebuild(&self, rebuild: &Rebuild) -> Option<Vec<Range<u64>>> {
        let left = rebuild.sectors / self.layout.column_sectors()..self.layout.units();
        if !self.recorder.is_returning() {
            return Some(vec![left]);
        }
        let lacks = self.recorder.lacks()?;
        let units = lacks.iter().map(|tract| self.recorder.tracts.units(tract));
        Some(units.map(|units| units.start.max(left.start)..units.end.min(left.end)).collect())
    }

    /// Begins windows, as many as there may be now; ends the pass after the last one.
    pub fn go_on_passing(&mut self, now: Nanos, out: &mut Outbox) {
        self.end_void_pass();
        if self.recorder.broken || self.is_stopped() || self.recorder.read_only || self.config.pass_rate == 0
        {
            return;
        }
        self.choose_pass();
        self.go_on_with_checkpoint(now, out);
        while !self.is_held_up() && self.may_begin_window(now) {
            let units = self.window_units(now);
            let left = self.passes.units_left();
            let Some(pass) = &mut self.passes.current else { return };
            let Some(units) = pass.take(units) else { return };
            if pass.began.is_none() {
                (pass.began, pass.next_checkpoint) = (Some((now, left)), now + CHECKPOINT_TIME);
            }
            self.pace(now, &units);
            self.begin_window(units, out);
        }
    }

    /// A pass goes on.
    pub fn passes_on(&self) -> bool {
        let may = !self.is_stopped() && !self.recorder.read_only && self.config.pass_rate > 0;
        may && !self.is_held_up()
    }

    fn is_active(&self, now: Nanos) -> bool {
        self.clients.foreground() > 0
            || self.destaging.running() > 0
            || now < self.clients.last_activity() + ACTIVE
    }

    fn column_bytes(&self) -> u64 {
        self.layout.rows as u64 * LINE_BYTES
    }

    /// The units of the next window.
    fn window_units(&self, now: Nanos) -> u64 {
        let share = self.config.pass_bytes / (DEPTH * self.members.count() as u64);
        let bytes = if self.is_active(now) { share.min(ACTIVE_WINDOW_BYTES) } else { share };
        (bytes / self.column_bytes()).max(1)
    }

    fn may_begin_window(&mut self, now: Nanos) -> bool {
        let begun = self.passes.windows.len() as u64;
        if !self.is_active(now) {
            let window_bytes = self.column_bytes() * self.members.count() as u64;
            return begun < (self.config.pass_bytes / window_bytes).clamp(1, DEPTH);
        }
        if begun == 0 && now < self.passes.next_at {
            let rest = self.clients.last_activity() + ACTIVE;
            self.wake_at(if rest > now { self.passes.next_at.min(rest) } else { self.passes.next_at });
            return false;
        }
        begun == 0
    }

    /// The next window has to wait so long that the rate is kept.
    fn pace(&mut self, now: Nanos, units: &Range<u64>) {
        let bytes = (units.end - units.start) * self.column_bytes();
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(self.config.pass_rate);
        self.passes.next_at =
            now.max(self.passes.next_at).saturating_add(Nanos(takes.min(u128::from(u64::MAX)) as u64));
    }

    /// A window has been over so many units.
    pub fn passed(&mut self, units: u64) {
        let position = self.passes.position();
        match self.passes.kind() {
            _ if self.is_void() => {}
            PassKind::Resync => self.statistics.resynced_units += units,
            PassKind::Rebuild { .. } => self.recorder.rebuilt(self.sectors_below(position)),
            PassKind::Scrub { .. } => {}
        }
    }

    /// The sectors of a member below a unit.
    fn sectors_below(&self, unit: Option<u64>) -> u64 {
        unit.map_or(self.recorder.recorded().member_sectors, |unit| unit * self.layout.column_sectors())
    }

    /// Now and then, and at the end, it is recorded how far a pass has come.
    fn go_on_with_checkpoint(&mut self, now: Nanos, out: &mut Outbox) {
        let position = self.passes.position();
        let Some(pass) = &mut self.passes.current else { return };
        match pass.checkpoint {
            Some(Checkpoint { left: 0, position }) => self.end_checkpoint(now, position, out),
            Some(_) => {}
            None if pass.void => {}
            None => match position {
                None => self.begin_checkpoint(now, u64::MAX, out),
                Some(position) if now >= pass.next_checkpoint => self.begin_checkpoint(now, position, out),
                Some(_) => {}
            },
        }
    }

    /// Records at a stop how far a pass has come. True when nothing is left to record. Nothing of the pass is under way.
    pub fn has_noted_pass(&mut self, now: Nanos, out: &mut Outbox) -> bool {
        self.go_on_with_checkpoint(now, out);
        let position = self.passes.position();
        let Some(pass) = &mut self.passes.current else { return true };
        if pass.checkpoint.is_some() {
            return false;
        }
        if self.recorder.broken || pass.void || pass.began.is_none() {
            return true;
        }
        // Only once.
        pass.began = None;
        self.begin_checkpoint(now, position.unwrap_or(u64::MAX), out);
        self.passes.current.as_ref().is_none_or(|pass| pass.checkpoint.is_none())
    }

    fn begin_checkpoint(&mut self, now: Nanos, position: u64, out: &mut Outbox) {
        let Some(pass) = &self.passes.current else { return };
        let (kind, wrote) = (pass.kind, pass.findings.repaired > 0);
        let flushes = |role: &usize| match kind {
            PassKind::Rebuild { role: new } => new == *role,
            // A parity that fits may do so only in the caches of members, where a killed server has left it.
            PassKind::Resync => (wrote || self.members.unflushed) && self.recorder.is_in_use(*role),
            PassKind::Scrub { .. } => wrote && self.recorder.is_in_use(*role),
        };
        let roles: Vec<usize> = (0..self.members.count()).filter(flushes).collect();
        if let Some(pass) = &mut self.passes.current {
            pass.checkpoint = Some(Checkpoint { position, left: roles.len() as u32 });
        }
        for role in &roles {
            self.members.submit(*role, Flight::PassFlush, Io::Flush, out);
        }
        if roles.is_empty() {
            self.end_checkpoint(now, position, out);
        }
    }

    /// A member has flushed what a pass has written, or has failed.
    pub fn pass_flushed(&mut self) {
        if let Some(Checkpoint { left, .. }) =
            self.passes.current.as_mut().and_then(|pass| pass.checkpoint.as_mut())
        {
            *left -= 1;
        }
    }

    fn end_checkpoint(&mut self, now: Nanos, position: u64, out: &mut Outbox) {
        let Some(pass) = &mut self.passes.current else { return };
        (pass.checkpoint, pass.next_checkpoint) = (None, now + CHECKPOINT_TIME);
        let (kind, findings, over) = (pass.kind, pass.findings, position == u64::MAX);
        let filled_bytes = pass.units * self.layout.rows as u64 * LINE_BYTES;
        let returning = over && self.recorder.is_returning();
        match kind {
            PassKind::Resync => {
                let regions = self.recorder.regions;
                let right =
                    |region: &u64| regions.units(*region).end <= position && !pass.wrong.contains(region);
                let right: Vec<u64> = self.recorder.in_doubt().iter().filter(right).collect();
                for region in right {
                    self.recorder.synced(region);
                }
            }
            PassKind::Rebuild { .. } => {
                self.recorder.checkpoint(self.sectors_below((!over).then_some(position)))
            }
            PassKind::Scrub { .. } => {}
        }
        if over {
            self.passes.current = None;
            match kind {
                PassKind::Resync => {}
                PassKind::Rebuild { role } => {
                    let member_bytes = self.recorder.recorded().member_sectors * SECTOR_BYTES;
                    let done = returning.then_some(Return { role, filled_bytes, member_bytes });
                    (self.passes.last_rebuild, self.passes.last_return) = (Some(findings), done);
                }
                PassKind::Scrub { .. } => self.passes.last_scrub = Some(findings),
            }
        }
        self.record(out);
    }
}
