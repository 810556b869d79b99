//! Cuts: disks as a crash leaves them, made at chosen moments while a driver runs.

use std::cell::Cell;
use std::rc::Rc;

use dcd_engine::Nanos;

use crate::{CutStyle, LeftMemory, MemDisk, Moment, SimMemory, SimRng};

/// Chance in a thousand that a crash is the death of the process: without memory that outlives it, and with it.
const KILLS: u64 = 120;
const KILLS_WITH_MEMORY: u64 = 600;
/// Chance in a thousand that memory survives a power cut, as that of another boot.
const OTHER_BOOT: u64 = 500;
/// Chance in a thousand that the start after that does not reach it.
const HIDDEN: u64 = 300;

pub(super) const BETWEEN_STORES: &str = "process killed between two stores";

/// Disks as they are found after a crash.
pub(super) struct Cut {
    pub disks: Vec<MemDisk>,
    /// Memory that outlived the process.
    pub left: LeftMemory,
    pub at: Nanos,
    pub killed: bool,
    /// So were all that its recovery has not ended: the disks still have everything that was answered.
    pub only_killed: bool,
    /// True if a disk may have kept a write but lost an earlier one.
    pub holes: bool,
    /// The cache had said that the log may be lost.
    pub log_is_spare: bool,
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
    /// The cache has said that the log may be lost.
    pub log_is_spare: Rc<Cell<bool>>,
    /// Memory of the process that runs.
    pub memory: Option<SimMemory>,
    /// The disks before the event that is being handled.
    pub before: Option<Vec<MemDisk>>,
    /// Deaths between two stores to memory: nothing that the event led to has been carried out.
    pub between: Vec<Cut>,
}

impl Sampler {
    pub fn look(&mut self, moment: &Moment, disks: &[MemDisk]) {
        self.look_before(moment.now, disks);
        let chance = if moment.writes + moment.flushes > 0 { self.at_writes } else { self.elsewhere };
        if self.left == 0 || chance == 0 || !self.rng.chance(chance) {
            return;
        }
        self.left -= 1;
        let cut = cut(disks, self.memory.as_ref(), moment.now, &mut self.rng);
        self.cuts.push(Cut { log_is_spare: self.log_is_spare.get(), ..cut });
    }

    /// Kills the process during the event before, and perhaps prepares to kill it during the next one.
    pub fn look_before(&mut self, now: Nanos, disks: &[MemDisk]) {
        let Some(memory) = &self.memory else { return };
        if let Some(before) = self.before.take()
            && self.left > 0
            && let Some(left) = memory.cut(&mut self.rng)
        {
            self.left -= 1;
            let cut = killed(before, left, now, BETWEEN_STORES);
            self.between.push(Cut { log_is_spare: self.log_is_spare.get(), ..cut });
        }
        if self.left > 0 && self.at_writes > 0 && self.rng.chance((self.at_writes / 4).max(5)) {
            self.before = Some(disks.iter().map(|disk| disk.killed(&mut self.rng)).collect());
            memory.arm();
        }
    }
}

fn killed(disks: Vec<MemDisk>, left: LeftMemory, at: Nanos, how: &str) -> Cut {
    Cut {
        disks,
        left,
        at,
        killed: true,
        only_killed: true,
        holes: false,
        log_is_spare: false,
        how: how.into(),
    }
}

pub(super) fn cut(disks: &[MemDisk], memory: Option<&SimMemory>, at: Nanos, rng: &mut SimRng) -> Cut {
    let mut left = memory.map(SimMemory::left).unwrap_or_default();
    if rng.chance(if memory.is_some() { KILLS_WITH_MEMORY } else { KILLS }) {
        let disks = disks.iter().map(|disk| disk.killed(rng)).collect();
        return killed(disks, left, at, "process killed");
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
    left.boot += 1;
    if memory.is_some() {
        if !rng.chance(OTHER_BOOT) {
            left.content.clear();
        }
        left.hidden = rng.chance(HIDDEN);
    }
    Cut { disks, left, at, killed: false, only_killed: false, holes, log_is_spare: false, how }
}
