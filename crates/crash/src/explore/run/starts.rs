//! Starts of a run: what an administrator does before them, with members that are blank, have failed, or are missing.

use dcd_engine::Stack;
use dcd_engine::raid::{ArraySuperblockError, AssembleError};

use super::{ExplorerRun, MemDriver, RunResult};
use crate::explore::administrator::{
    add_offline, blank_members, failed_member, late_member, may_add_offline, replaced_members,
};
use crate::{MemDisk, SimMemory};

impl ExplorerRun {
    pub(super) fn start(&mut self, mut disks: Vec<MemDisk>) -> RunResult<(MemDriver, Stack)> {
        self.missing = self.see_to_members(&mut disks)?;
        self.log_is_spare.set(false);
        self.tell_who();
        self.hand_over_memory();
        if let Some(guest) = &self.rig.guest {
            guest.look(&mut disks);
        }
        let mut driver = MemDriver::new(disks);
        let mut stack = match &self.rig.hot_add {
            Some(hot_add) => (hot_add.build_without)(&driver.geometries(), &self.missing),
            None => match (&self.away, &self.rig.build_missing) {
                (Some(away), Some(build)) => build(&driver.geometries(), away.disk),
                _ => (self.rig.build)(&driver.geometries()),
            },
        };
        if self.checks {
            stack.enable_checks();
        }
        if self.tells {
            driver.tell_story();
        }
        Ok((driver, stack))
    }

    /// Hands the memory of the last process to the next stack, which gets as much as it wants, or less, or none.
    fn hand_over_memory(&mut self) {
        let Some(next) = &self.rig.memory else { return };
        let small = self.rng.range(1, 40) << 9;
        let bytes_max = match self.rng.below(10) {
            0 | 1 => 0,
            2 | 3 => small as usize,
            _ => usize::MAX,
        };
        let memory = SimMemory::new(self.left.clone(), bytes_max);
        next.replace(memory.clone());
        self.memory = Some(memory);
    }

    /// Adds members before a start, and returns those that are missing at this start.
    fn see_to_members(&mut self, disks: &mut [MemDisk]) -> RunResult<Vec<usize>> {
        let mut missing: Vec<usize> = self.see_to_blank_member(disks)?.into_iter().collect();
        let Some(hot_add) = &self.rig.hot_add else { return Ok(missing) };
        // Two may have been added at a time.
        for role in blank_members(hot_add, disks) {
            missing.extend((!missing.contains(&role)).then_some(role));
        }
        for role in replaced_members(hot_add, disks) {
            *self.counts.kinds.entry("members left out whose spares are lost".into()).or_default() += 1;
            missing.extend((!missing.contains(&role)).then_some(role));
        }
        if !missing.is_empty() {
            return Ok(missing);
        }
        if let Some(role) = failed_member(hot_add, disks, &mut self.rng) {
            add_offline(hot_add, disks, role, &mut self.rng)?;
            *self.counts.kinds.entry("failed members added before a start".into()).or_default() += 1;
            self.tell(|| format!("-- member {role} has failed, and is added"));
            return Ok(missing);
        }
        let may_lose = self.rig.losses.as_ref().map_or_else(Vec::new, |losses| (losses.may_lose)(disks));
        let late = late_member(hot_add, disks, &may_lose, &mut self.rng);
        if let Some(role) = late {
            *self.counts.kinds.entry("starts without a member that comes back".into()).or_default() += 1;
            self.tell(|| format!("-- member {role} is missing"));
        }
        Ok(late.into_iter().collect())
    }

    /// A crash while a disk was being added may leave it without a superblock. A start names the disk and changes nothing. The
    /// disk is then added once more, or left out and returned.
    fn see_to_blank_member(&mut self, disks: &mut [MemDisk]) -> RunResult<Option<usize>> {
        let Some(hot_add) = &self.rig.hot_add else { return Ok(None) };
        let blank = blank_members(hot_add, disks);
        let Some(&role) = blank.first() else { return Ok(None) };
        *self.counts.kinds.entry("starts that name a blank member".into()).or_default() += 1;
        let mut driver = MemDriver::new(disks.iter().map(|disk| disk.killed(&mut self.rng)).collect());
        let mut stack = (self.rig.build)(&driver.geometries());
        let refused = match stack.activate(&mut driver) {
            Ok(()) => return Err(format!("a start with the blank member {role} is not refused")),
            Err(refused) => refused,
        };
        let wrong: &[_] = match refused.error.downcast_ref() {
            Some(AssembleError::Unknown { wrong, .. }) => wrong,
            _ => &[],
        };
        let is_blank = |error: &ArraySuperblockError| {
            matches!(error, ArraySuperblockError::NoMagic | ArraySuperblockError::Checksum)
        };
        let names = |role: &usize| wrong.iter().any(|(error, roles)| is_blank(error) && roles.contains(role));
        if !blank.iter().all(names) {
            return Err(format!("a start with the blank members {blank:?} does not name them: {refused}"));
        }
        let offline = self.rng.chance(500) && blank.len() == 1 && may_add_offline(hot_add, disks, role);
        self.tell(|| format!("-- {refused}: {}", if offline { "it is added" } else { "it is left out" }));
        if !offline {
            return Ok(Some(role));
        }
        let hot_add = self.rig.hot_add.as_ref().expect("it was there");
        add_offline(hot_add, disks, role, &mut self.rng).map(|()| None)
    }
}
