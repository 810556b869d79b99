//! Two machines that take a log over from each other. Each has one of its two legs, and both reach the data disk.
//!
//! A crash may be the moment from which on the other machine serves: it has its own leg and the data disk. The first machine may still
//! run: with its leg alone, without the data disk, under the epoch that the other machine has, too. Its leg comes back later.

use std::cell::Cell;
use std::rc::Rc;

use dcd_engine::log_cache::format::{LogSuperblock, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_SECTORS};
use dcd_engine::log_cache::{LogError, offline::live_superblock};
use dcd_engine::mirror::{CONTENT_SECTOR, MirrorError};
use dcd_engine::{Buf, Durability, ErrorKind, Io, Lba, RequestId, SECTOR_BYTES};

use super::{Cut, ExplorerRun, RunResult};
use crate::explore::MayLose;
use crate::{DiskFaults, DriverProgress, FaultOn, FaultRule, MemDisk, stamp};

/// Chances in a thousand at a crash.
const TAKES_OVER: u64 = 350;
const COMES_BACK: u64 = 400;
/// Chance in a thousand that the first machine goes on alone.
const GOES_ON: u64 = 600;
/// Maximum number of events that the first machine still handles.
const GOES_ON_EVENTS_MAX: u64 = 2000;

/// The machine that runs the next stack.
#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub machine: u64,
    pub takes_over: bool,
}

impl Who {
    /// The machine that begins.
    pub const FIRST: Who = Who { machine: 1, takes_over: false };

    const fn other(self) -> u64 {
        3 - self.machine
    }
}

/// The legs are the first two devices, and the data disk is the last.
pub struct Machines {
    /// Machine for which [`Rig::build`](crate::explore::Rig::build) makes the next stack.
    pub who: Rc<Cell<Who>>,
    /// Returns the legs whose loss leaves the other leg with all acknowledged data.
    pub may_lose: MayLose,
}

/// Machine that serves an activation, and the leg of the other machine.
#[derive(Clone)]
pub(super) struct Here {
    who: Who,
    /// The other machine's leg, as that machine left it.
    away: Option<(usize, Rc<MemDisk>)>,
}

impl Here {
    pub const FIRST: Here = Here { who: Who::FIRST, away: None };

    /// The log is this machine's from now on.
    pub const fn has_started(&mut self) {
        self.who.takes_over = false;
    }
}

impl ExplorerRun {
    pub(super) fn tell_who(&self) {
        if let Some(machines) = &self.rig.machines {
            machines.who.set(self.here.who);
        }
    }

    /// Perhaps lets the other machine take over, or its leg come back.
    pub(super) fn see_to_machines(&mut self, cut: &mut Cut) -> RunResult {
        if self.rig.machines.is_none() {
            return Ok(());
        }
        // Until the other machine has started, the data that the first machine wrote alone is the valid data.
        let has_started = !self.here.who.takes_over;
        if self.here.away.is_some() && has_started && self.rng.chance(COMES_BACK) {
            return self.leg_comes_back(cut);
        }
        if self.rng.chance(TAKES_OVER) { self.take_over(cut) } else { Ok(()) }
    }

    fn copies(&mut self, disks: &[MemDisk]) -> Vec<MemDisk> {
        disks.iter().map(|disk| disk.killed(&mut self.rng)).collect()
    }

    fn take_over(&mut self, cut: &mut Cut) -> RunResult {
        let machines = self.rig.machines.as_ref().expect("there are two");
        let may_lose = (machines.may_lose)(&cut.disks);
        let alive: Vec<usize> = may_lose.into_iter().filter(|leg| !cut.disks[*leg].faults().dead).collect();
        if alive.is_empty() {
            return Ok(());
        }
        let leg = self.rng.pick(&alive);
        let left = if self.rng.chance(GOES_ON) { self.goes_on(cut, leg)? } else { None };
        let left = left.unwrap_or_else(|| cut.disks[leg].killed(&mut self.rng));
        cut.disks[leg].set_faults(DiskFaults::dead());
        let machine = self.here.who.other();
        self.here = Here { who: Who { machine, takes_over: false }, away: Some((leg, Rc::new(left))) };
        cut.how.push_str(&format!(", machine {machine} takes over without leg {leg}"));
        *self.counts.kinds.entry("taken over".into()).or_default() += 1;
        let must_ask =
            live_of(&cut.disks[1 - leg]).is_some_and(|found| found.other_machine(machine).is_some());
        let disks = self.copies(&cut.disks);
        let (mut driver, mut stack) = self.start(disks)?;
        let activated = stack.activate(&mut driver);
        self.here.who.takes_over = true;
        match activated.map_err(|refused| refused.error) {
            Err(error) if must_ask && matches!(error.downcast_ref(), Some(LogError::OtherMachine { .. })) => {
                *self.counts.kinds.entry("starts refused to the other machine".into()).or_default() += 1;
                Ok(())
            }
            Ok(()) if must_ask => Err(format!(
                "machine {machine} starts what another one may be serving, and was not told to take over"
            )),
            Ok(()) => Ok(()),
            Err(error) => Err(format!("machine {machine} is refused: {error}")),
        }
    }

    /// Lets the first machine, which is still running, go on with its leg, while the other leg is away and the data disk refuses writes.
    /// The machine's clients write something else. Returns the leg as the machine leaves it; none where the machine does not go on.
    fn goes_on(&mut self, cut: &Cut, leg: usize) -> RunResult<Option<MemDisk>> {
        let mut disks = self.copies(&cut.disks);
        disks[1 - leg].set_faults(DiskFaults::dead());
        let refuses_writes = FaultRule::for_ever(FaultOn::Write, 0, ErrorKind::Medium);
        disks.last_mut().expect("the data disk").set_faults(DiskFaults::new(refuses_writes));
        let (mut driver, mut stack) = self.start(disks)?;
        if stack.activate(&mut driver).is_err() {
            return Ok(None);
        }
        *self.counts.kinds.entry("first machines that go on alone".into()).or_default() += 1;
        let root = stack.root();
        let lines = stack.geometry(root).sectors / 8;
        let foreign = self.rng.next_u64();
        for id in 0..self.rng.range(1, 12) {
            let at = Lba(self.rng.below(lines) * 8);
            let mut bytes = vec![0; 8 * SECTOR_BYTES as usize];
            stamp::stamp(&mut bytes, at, 1, foreign);
            let write = Io::Write { at, buf: Buf::copy_of(&bytes), durability: Durability::Durable };
            driver.request(&mut stack, RequestId(id), write);
        }
        let events_max = driver.events() + GOES_ON_EVENTS_MAX;
        while driver.events() < events_max && driver.step(&mut stack) != DriverProgress::Idle {}
        Ok(Some(driver.devices()[leg].killed(&mut self.rng)))
    }

    /// Brings back the leg of the other machine. If that machine went on alone, the legs are refused together, and its leg is left out.
    fn leg_comes_back(&mut self, cut: &mut Cut) -> RunResult {
        let (leg, disk) = self.here.away.take().expect("one is away");
        cut.disks[leg] = disk.killed(&mut self.rng);
        cut.how.push_str(&format!(", leg {leg} of the other machine is back"));
        *self.counts.kinds.entry("legs of the other machine seen again".into()).or_default() += 1;
        let disks = self.copies(&cut.disks);
        let (mut driver, mut stack) = self.start(disks)?;
        match stack.activate(&mut driver).map_err(|refused| refused.error) {
            // Accepted: its content is read and judged later.
            Ok(()) => Ok(()),
            Err(error) if matches!(error.downcast_ref(), Some(MirrorError::Apart(..))) => {
                *self.counts.kinds.entry("legs refused that were used apart".into()).or_default() += 1;
                cut.disks[leg].set_faults(DiskFaults::dead());
                Ok(())
            }
            Err(error) => Err(format!("a start with leg {leg} of the other machine is refused: {error}")),
        }
    }
}

/// Returns the superblock that counts in the log on a leg.
fn live_of(leg: &MemDisk) -> Option<LogSuperblock> {
    let copies = SUPERBLOCK_SECTORS.map(|at| {
        let mut area = vec![0; SUPERBLOCK_AREA_BYTES];
        leg.current().read(Lba(CONTENT_SECTOR + at.0), &mut area);
        LogSuperblock::decode(&area)
    });
    live_superblock(&copies).ok()
}
