//! A data disk of several that hangs or fails its writes while a client is served, until it is well again or the power goes.

use std::collections::BTreeMap;

use dcd_engine::{ErrorKind, Io, Nanos, Pump, RequestId};

use crate::{DiskFaults, FaultOn, FaultRule, MemDriver, SimRng, dealt};

/// Chance in a thousand that trouble begins, after each step.
const BEGINS: u64 = 30;
/// A write to another disk is answered within this time.
const ANSWERED_WITHIN: Nanos = Nanos::from_secs(60);

/// See the module's documentation.
pub(super) struct DiskTrouble {
    rng: SimRng,
    disks: usize,
    /// The disk in trouble, since when, and until when.
    present: Option<(usize, Nanos, Nanos)>,
    /// Writes that wait, with their disks and the times when they were asked for.
    waiting: BTreeMap<RequestId, (usize, Nanos)>,
    pub hung: u64,
    pub failed: u64,
}

impl DiskTrouble {
    pub const fn new(rng: SimRng, disks: usize) -> DiskTrouble {
        DiskTrouble { rng, disks, present: None, waiting: BTreeMap::new(), hung: 0, failed: 0 }
    }

    pub fn asked(&mut self, id: RequestId, io: &Io, now: Nanos) {
        if let Some(extent) = io.extent().filter(|_| io.modifies()) {
            self.waiting.insert(id, (dealt::place_of(extent.start, self.disks).0, now));
        }
    }

    pub fn answered(&mut self, id: RequestId) {
        self.waiting.remove(&id);
    }

    /// Lets trouble begin or end.
    ///
    /// # Errors
    /// If a write to another disk waits for the one in trouble.
    pub fn act(&mut self, driver: &mut MemDriver) -> Result<(), String> {
        let now = driver.now();
        match self.present {
            Some((_, _, until)) if until <= now => self.end(driver),
            Some((bad, since, _)) => {
                let held_up = |(disk, asked): &(usize, Nanos)| {
                    *disk != bad && now.since((*asked).max(since)) > ANSWERED_WITHIN
                };
                if let Some((id, (disk, asked))) = self.waiting.iter().find(|(_, write)| held_up(write)) {
                    return Err(format!(
                        "at {now}, write r{} to disk {disk}, of {asked}, still waits, while only disk {bad} is in trouble",
                        id.0
                    ));
                }
            }
            None if self.rng.chance(BEGINS) => self.begin(driver, now),
            None => {}
        }
        Ok(())
    }

    fn begin(&mut self, driver: &mut MemDriver, now: Nanos) {
        let disk = self.rng.below(self.disks as u64) as usize;
        let until = now + Nanos::from_secs(self.rng.pick(&[20, 200, 3000]));
        let faults = if self.rng.chance(700) {
            self.hung += 1;
            DiskFaults::hung(until, self.rng.chance(300))
        } else {
            self.failed += 1;
            DiskFaults::new(FaultRule::for_ever(FaultOn::Change, 0, ErrorKind::Medium))
        };
        driver.note(|| format!("data disk {disk} is in trouble until {until}: {faults:?}"));
        driver.devices_mut()[1 + disk].set_faults(faults);
        self.present = Some((disk, now, until));
    }

    /// Makes the disk well. What hangs ends at its time.
    pub fn end(&mut self, driver: &mut MemDriver) {
        if let Some((disk, ..)) = self.present.take() {
            driver.note(|| format!("data disk {disk} is well again"));
            driver.devices_mut()[1 + disk].set_faults(DiskFaults::default());
        }
    }
}
