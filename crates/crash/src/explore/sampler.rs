//! Cuts: disks as a crash leaves them, made at chosen moments while a driver runs.

use dcd_engine::Nanos;

use crate::{CutStyle, MemDisk, Moment, SimRng};

/// Disks as they are found after a crash.
pub(super) struct Cut {
    pub disks: Vec<MemDisk>,
    pub at: Nanos,
    pub killed: bool,
    /// So were all that its recovery has not ended: the disks still have everything that was answered.
    pub only_killed: bool,
    /// True if a disk may have kept a write but lost an earlier one.
    pub holes: bool,
    pub how: String,
}

/// Cuts the disks while a driver runs.
pub(super) struct Sampler {
    pub rng: SimRng,
    /// Chances in a thousand for a step with a write or a flush, and for any other step.
    pub at_writes: u64,
    pub elsewhere: u64,
    pub left: u32,
    pub cuts: Vec<Cut>,
}

impl Sampler {
    pub fn look(&mut self, moment: &Moment, disks: &[MemDisk]) {
        let chance = if moment.writes + moment.flushes > 0 { self.at_writes } else { self.elsewhere };
        if self.left == 0 || chance == 0 || !self.rng.chance(chance) {
            return;
        }
        self.left -= 1;
        let cut = cut(disks, moment.now, &mut self.rng);
        self.cuts.push(cut);
    }
}

pub(super) fn cut(disks: &[MemDisk], at: Nanos, rng: &mut SimRng) -> Cut {
    if rng.chance(120) {
        let disks = disks.iter().map(|disk| disk.killed(rng)).collect();
        return Cut {
            disks,
            at,
            killed: true,
            only_killed: true,
            holes: false,
            how: "process killed".into(),
        };
    }
    let mut how = String::from("power cut:");
    let mut holes = false;
    let mut one = |disk: &MemDisk, rng: &mut SimRng| {
        let style = rng.pick(&CutStyle::ALL);
        how.push_str(&format!(" {style:?}"));
        holes |= style == CutStyle::OneLost;
        disk.power_cut(style, rng)
    };
    let disks = disks.iter().map(|disk| one(disk, rng)).collect();
    Cut { disks, at, killed: false, only_killed: false, holes, how }
}
