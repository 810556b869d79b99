//! Explores starts that are refused until damage is accepted: after a power cut that made sectors in flight unreadable, and after the loss of
//! memory that outlived a process. Then nothing may be missing that was acknowledged, or that a power cut would have left.

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::Promise;
use dcd_engine::log_cache::recover::RecoverError;
use dcd_engine::{ActivateError, Lba, Nanos, Stack};

use super::rot::look_at_all;
use super::{Cut, ExplorerRun, MemDisk, MemDriver, Oracle, RunResult};
use crate::SeenContent;

/// Chance in a thousand that memory is lost with its process.
const MEMORY_LOST: u64 = 100;

impl ExplorerRun {
    /// True if every good copy of the log has sectors that cannot be read.
    pub(super) fn are_torn(&self, disks: &[MemDisk]) -> bool {
        self.rig.are_torn.as_ref().is_some_and(|are_torn| are_torn(disks))
    }

    pub(super) fn accept_torn(
        &mut self,
        disks: &[MemDisk],
        refused: &ActivateError,
        oracle: &Oracle,
        at: Nanos,
    ) -> RunResult {
        let is_damage = matches!(refused.downcast_ref(), Some(LogError::Recover(RecoverError::Damage(_))));
        if !is_damage {
            return Err(format!("recovery refuses: {refused}"));
        }
        *self.counts.kinds.entry("starts refused for torn sectors".into()).or_default() += 1;
        let (mut driver, mut stack) = self.start_accepting(disks)?;
        let found = look_at_all(&mut driver, &mut stack, oracle);
        let mut oracle = oracle.clone();
        for (lba, _) in found.iter().enumerate().filter(|(_, seen)| **seen == SeenContent::Unreadable) {
            let at = Lba(lba as u64);
            if !oracle.is_uncertain(at) {
                return Err(format!("the crash took data: {at} cannot be read, and was acknowledged"));
            }
            oracle.lost(at);
        }
        // With unreadable sectors, the device matches no earlier instant, so `ordered` cannot be judged.
        if self.rig.promise == Promise::Ordered { Ok(()) } else { oracle.judge(at, &found) }
    }

    fn start_accepting(&mut self, disks: &[MemDisk]) -> RunResult<(MemDriver, Stack)> {
        let build = self.rig.build_accepting.as_ref().expect("a log can be damaged");
        let mut driver = MemDriver::new(disks.iter().map(|disk| disk.killed(&mut self.rng)).collect());
        let mut stack = build(&driver.geometries());
        let activated = stack.activate(&mut driver);
        activated.map_err(|e| format!("recovery refuses although damage is accepted: {e}"))?;
        Ok((driver, stack))
    }

    /// Loses the memory with the process, while the machine runs on. The next start must refuse, unless nothing is missing then.
    pub(super) fn lose_memory(&mut self, cut: &mut Cut) -> bool {
        let is_lost = self.rig.memory.is_some() && cut.killed && self.rng.chance(MEMORY_LOST);
        if is_lost {
            cut.left.content.clear();
            cut.how.push_str(", the memory is lost");
        }
        is_lost
    }

    /// Accepts the loss of memory: what is served then is what a power cut may leave.
    pub(super) fn accept_loss(
        &mut self,
        disks: &[MemDisk],
        refused: &ActivateError,
        oracle: &Oracle,
        at: Nanos,
    ) -> RunResult {
        if !matches!(refused.downcast_ref(), Some(LogError::MemoryMissed(_))) {
            return Err(format!("recovery refuses: {refused}"));
        }
        *self.counts.kinds.entry("starts refused for lost memory".into()).or_default() += 1;
        let (mut driver, mut stack) = self.start_accepting(disks)?;
        let found = self.read_all(&mut driver, &mut stack, oracle)?;
        oracle.judge(at, &found)
    }
}
