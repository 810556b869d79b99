//! Explores starts after a power cut that made sectors in flight unreadable. Such a start is refused, as the sectors may have held
//! acknowledged data. After the damage is accepted, nothing that was acknowledged may be missing.

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::Promise;
use dcd_engine::log_cache::recover::RecoverError;
use dcd_engine::{ActivateError, Lba, Nanos};

use super::rot::look_at_all;
use super::{Driver, MemDisk, Oracle, Outcome, Run};
use crate::Seen;

impl Run {
    /// True if every good copy of the log has sectors that cannot be read.
    pub(super) fn are_torn(&self, disks: &[MemDisk]) -> bool {
        self.rig.tears.as_ref().is_some_and(|tears| (tears.are_torn)(disks))
    }

    pub(super) fn accept_torn(
        &mut self,
        disks: &[MemDisk],
        refused: &ActivateError,
        oracle: &Oracle,
        at: Nanos,
    ) -> Outcome {
        let tears = self.rig.tears.as_ref().expect("sectors are torn");
        let is_damage = matches!(refused.downcast_ref(), Some(LogError::Recover(RecoverError::Damage(_))));
        if !is_damage {
            return Err(format!("recovery refuses: {refused}"));
        }
        *self.counts.kinds.entry("starts refused for torn sectors".into()).or_default() += 1;
        let mut driver = Driver::new(disks.iter().map(|disk| disk.killed(&mut self.rng)).collect());
        let mut stack = (tears.build_accepting)(&driver.geometries());
        let activated = stack.activate(&mut driver);
        activated.map_err(|e| format!("recovery refuses although damage is accepted: {e}"))?;
        let found = look_at_all(&mut driver, &mut stack, oracle);
        let mut oracle = oracle.clone();
        for (lba, _) in found.iter().enumerate().filter(|(_, seen)| **seen == Seen::Unreadable) {
            let at = Lba(lba as u64);
            if !oracle.is_uncertain(at) {
                return Err(format!("the crash took data: {at} cannot be read, and was acknowledged"));
            }
            oracle.lost(at);
        }
        // With unreadable sectors, the device matches no earlier instant, so `ordered` cannot be judged.
        if self.rig.promise == Promise::Ordered { Ok(()) } else { oracle.judge(at, &found) }
    }
}
