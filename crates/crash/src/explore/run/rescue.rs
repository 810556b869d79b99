//! Rescues crashed states offline, on copies: all that was acknowledged has to be on the data disk afterwards, also where the power fails
//! during the rescue and it is run again. The log then serves the same content.

use std::cell::Cell;

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::offline::{RescueOptions, RescueReport, rescue};
use dcd_engine::{BlockDevice, Buf, ErrorKind, Geometry, Io, IoError, IoResult, Lba, SECTOR_BYTES};

use super::{Cut, MemDisk, Oracle, Outcome, Run, stamp};
use crate::{CutStyle, Seen, SimRng};

/// Crashed states that are rescued, per mille.
const RESCUED: u64 = 60;

/// Disks of a rig whose log can be rescued offline.
#[derive(Clone, Copy, Debug)]
pub struct Rescued {
    pub log: usize,
    pub data: usize,
    /// A planted bug: this disk is not flushed.
    pub never_flushed: Option<usize>,
}

/// A disk whose power fails after a number of operations, which it shares with others.
struct Powered<'a> {
    disk: &'a mut MemDisk,
    left: &'a Cell<u64>,
    skips_flush: bool,
}

impl BlockDevice for Powered<'_> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        let Some(left) = self.left.get().checked_sub(1) else {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::PowerCut));
        };
        self.left.set(left);
        match io {
            Io::Flush if self.skips_flush => IoResult::ok(Buf::none()),
            io => self.disk.run(io),
        }
    }
}

impl Rescued {
    /// Rescues with power for some operations; returns how many are left.
    fn rescue(self, disks: &mut [MemDisk], power: u64) -> (Result<RescueReport, LogError>, u64) {
        let left = Cell::new(power);
        let [log, data] = disks.get_disjoint_mut([self.log, self.data]).expect("they are two disks");
        let skips_flush = |disk| self.never_flushed == Some(disk);
        let mut log = Powered { disk: log, left: &left, skips_flush: skips_flush(self.log) };
        let mut data = Powered { disk: data, left: &left, skips_flush: skips_flush(self.data) };
        let report = rescue(&mut log, &mut data, RescueOptions::default(), &mut |_| {});
        (report, left.get())
    }

    /// Rescues all, and returns the disks after a power cut, and the operations it took.
    fn rescue_all(self, mut disks: Vec<MemDisk>, rng: &mut SimRng) -> Outcome<(Vec<MemDisk>, u64)> {
        let (report, left) = self.rescue(&mut disks, u64::MAX);
        let report = report.map_err(|error| format!("a rescue is refused: {error}"))?;
        if !report.is_complete() {
            return Err(format!("a rescue on good devices is not complete: {report:?}"));
        }
        Ok((cut_power(&disks, rng), u64::MAX - left))
    }
}

fn cut_power(disks: &[MemDisk], rng: &mut SimRng) -> Vec<MemDisk> {
    disks.iter().map(|disk| disk.power_cut(rng.pick(&CutStyle::ALL), rng)).collect()
}

impl Run {
    /// Rescues some crashed states. What is drawn for that does not change the rest of the run.
    pub(super) fn judge_rescue(&mut self, cut: &Cut, oracle: &Oracle) -> Outcome {
        let Some(rescued) = self.rig.rescued else { return Ok(()) };
        let rng = self.rng.clone();
        let outcome = if self.rng.chance(RESCUED) { self.rescue_twice(rescued, cut, oracle) } else { Ok(()) };
        self.rng = rng;
        outcome
    }

    fn rescue_twice(&mut self, rescued: Rescued, cut: &Cut, oracle: &Oracle) -> Outcome {
        let copy = |rng: &mut SimRng| cut.disks.iter().map(|disk| disk.killed(rng)).collect::<Vec<_>>();
        let disks = copy(&mut self.rng);
        let (disks, operations) = rescued.rescue_all(disks, &mut self.rng)?;
        self.judge_rescued(rescued, disks, cut, oracle, "rescued")?;
        let mut disks = copy(&mut self.rng);
        let (report, _) = rescued.rescue(&mut disks, self.rng.below(operations));
        let disks = cut_power(&disks, &mut self.rng);
        self.tell(|| format!("-- the power fails during a rescue: {report:?}"));
        let (disks, _) = rescued.rescue_all(disks, &mut self.rng)?;
        self.judge_rescued(rescued, disks, cut, oracle, "rescued after a rescue that was cut")
    }

    /// Judges the data disk alone, and then what a start serves.
    fn judge_rescued(
        &mut self,
        rescued: Rescued,
        disks: Vec<MemDisk>,
        cut: &Cut,
        oracle: &Oracle,
        how: &str,
    ) -> Outcome {
        *self.counts.kinds.entry(how.into()).or_default() += 1;
        let mut bytes = vec![0; (oracle.sectors() * SECTOR_BYTES) as usize];
        disks[rescued.data].current().read(Lba(0), &mut bytes);
        let sectors = bytes.chunks_exact(SECTOR_BYTES as usize).enumerate();
        let found: Vec<Seen> =
            sectors.map(|(index, bytes)| stamp::look(bytes, Lba(index as u64), oracle.seed())).collect();
        oracle.judge(cut.at, &found).map_err(|what| format!("{how}: {what}"))?;
        let (mut driver, mut stack) = self.start(disks)?;
        stack.activate(&mut driver).map_err(|error| format!("{how}: a start is refused: {error}"))?;
        let served = self.read_all(&mut driver, &mut stack, oracle)?;
        match oracle.are_same(&served, &found) {
            true => Ok(()),
            false => Err(format!("{how}: a start serves something else than the data disk has")),
        }
    }
}
