//! Lives without one of several data disks: it is missing at a start, and comes back unchanged. Nothing that was promised of it may be lost
//! meanwhile, and nothing may be sent to it.

use dcd_engine::log_cache::Promise;
use dcd_engine::{Lba, Pump};

use super::{Cut, ExplorerRun, RunResult};
use crate::dealt;
use crate::{CutStyle, MemDisk, Oracle, SeenContent, SimRng, mix};

/// Chance in a thousand that a disk goes away in a crash.
const GOES_AWAY: u64 = 400;

/// A data disk that is missing in the present activation.
pub(super) struct AwayDisk {
    pub disk: usize,
    /// The content of the whole device at the crash: that of the disk stays so.
    found: Vec<SeenContent>,
}

impl AwayDisk {
    /// Returns what sectors have that lie on the disk; none if they lie on others.
    pub fn content(&self, start: Lba, sectors: u64, disks: usize) -> Option<&[SeenContent]> {
        let is_on_it = dealt::place_of(start, disks).0 == self.disk;
        is_on_it.then(|| &self.found[start.0 as usize..(start.0 + sectors) as usize])
    }
}

impl ExplorerRun {
    /// Chooses a disk that is missing at a start after this crash. Its power goes, too.
    pub(super) fn draw_away(&mut self, cut: &mut Cut) -> Option<usize> {
        self.rig.build_missing.as_ref()?;
        // A stream of its own, so that the other numbers of a seed do not change.
        let mut rng = SimRng::new(mix(self.seed, self.counts.states ^ 0xa3a7));
        if cut.only_killed && self.rig.outlives_server || !rng.chance(GOES_AWAY) {
            return None;
        }
        let disk = rng.below(self.rig.dealt as u64) as usize;
        if cut.killed {
            let style = rng.pick(&CutStyle::ALL);
            cut.disks[1 + disk] = cut.disks[1 + disk].power_cut(style, &mut rng);
            cut.how.push_str(&format!(", and data disk {disk} loses power: {style:?}"));
        }
        Some(disk)
    }

    /// Starts without a disk after a crash, of which a start with all disks has `found` this. Continues in one of several ways, with further
    /// crashes, after which the disk is back.
    pub(super) fn live_without(
        &mut self,
        (disk, disks): (usize, Vec<MemDisk>),
        cut: &Cut,
        oracle: &Oracle,
        found: Vec<SeenContent>,
        depth: u32,
    ) -> RunResult {
        *self.counts.kinds.entry("starts without a data disk".into()).or_default() += 1;
        self.tell(|| format!("-- data disk {disk} is missing"));
        self.away = Some(AwayDisk { disk, found: found.clone() });
        let (mut driver, mut stack) = self.start(disks)?;
        driver.hash_no_payloads();
        let sampler = self.sampler(&mut driver, 350, 20, 2);
        let activated = stack.activate(&mut driver);
        self.tell_driver(&mut driver);
        activated.map_err(|e| format!("a start without data disk {disk} is refused: {e}"))?;
        for nested in &mut sampler.borrow_mut().cuts {
            nested.at = cut.at;
            nested.only_killed &= cut.only_killed;
        }
        self.try_cuts(&mut driver, &sampler, oracle, depth, "recovering without a disk")?;
        let again = self.read_all(&mut driver, &mut stack, oracle)?;
        if !oracle.are_same(&again, &found) {
            return Err(format!("a start without data disk {disk} finds something else on the others"));
        }
        let mut next = oracle.clone();
        match cut.killed && self.rig.promise != Promise::Ordered {
            true => next.killed(&found),
            false => next.recovered(&found),
        }
        self.live_on(&mut driver, &mut stack, next, found, depth, cut.holes)?;
        self.add_paths(&stack, driver.now());
        Ok(())
    }
}
