//! Rescues crashed states offline, on copies: all that was acknowledged has to be on the data disk afterwards, also where the power fails
//! during the rescue and it is run again. The log then serves the same content.

use std::cell::Cell;

use dcd_engine::log_cache::offline::{JoinedDisks, RescueOptions, RescueReport, rescue};
use dcd_engine::mirror::{Mirror, MirrorConfig};
use dcd_engine::{
    BlockDevice, Buf, Control, ErrorKind, Geometry, Io, IoError, IoResult, LayerIndex, Lba, SECTOR_BYTES,
    Stack, StackBuilder, Target,
};

use super::{Cut, ExplorerRun, MemDisk, MemDriver, Oracle, RunResult, look_at_disk};
use crate::dealt;

use crate::{CutStyle, SeenContent, SimRng, stamp};

/// Crashed states that are rescued, per mille.
const RESCUED: u64 = 30;

/// A rig whose log can be rescued offline: the last disks are the data disks, and the others have the log.
#[derive(Clone, Debug)]
pub struct Rescued {
    pub data_disks: usize,
    /// The mirror, if the log has legs.
    pub legs: Option<MirrorConfig>,
    /// Planted bugs: the log is not flushed; the data disk is not.
    pub log_is_never_flushed: bool,
    pub data_is_never_flushed: bool,
}

/// Adds a mirror over devices.
pub(crate) fn add_mirror(builder: &mut StackBuilder, config: &MirrorConfig, legs: &[Geometry]) -> Target {
    let ports: Vec<Target> = legs.iter().map(|leg| builder.device(*leg)).collect();
    builder.layer("legs", Box::new(Mirror::new(config.clone())), &ports)
}

/// The legs of a log as one device.
struct JoinedLegs {
    driver: MemDriver,
    stack: Stack,
}

impl JoinedLegs {
    fn activate(config: &MirrorConfig, legs: Vec<MemDisk>) -> Result<JoinedLegs, (Vec<MemDisk>, String)> {
        let mut driver = MemDriver::new(legs);
        let mut builder = StackBuilder::new();
        let root = add_mirror(&mut builder, config, &driver.geometries());
        let mut stack = builder.finish(root);
        match stack.activate(&mut driver) {
            Ok(()) => Ok(JoinedLegs { driver, stack }),
            Err(refused) => Err((driver.into_devices(), refused.to_string())),
        }
    }
}

impl BlockDevice for JoinedLegs {
    fn geometry(&self) -> Geometry {
        self.stack.geometry(self.stack.root())
    }

    fn run(&mut self, io: Io) -> IoResult {
        let root = self.stack.root();
        self.stack.run_blocking(&mut self.driver, root, io)
    }

    fn distrust_copy(&mut self, copy: u8) {
        self.driver.control(&mut self.stack, LayerIndex(0), Control::DistrustCopy(copy));
    }
}

/// A disk whose power fails after a number of operations, which it shares with others.
struct Powered<'a> {
    disk: &'a mut dyn BlockDevice,
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

    fn distrust_copy(&mut self, copy: u8) {
        self.disk.distrust_copy(copy);
    }
}

impl Rescued {
    /// Rescues with power for some operations; returns how many are left.
    fn rescue(&self, disks: &mut Vec<MemDisk>, power: u64) -> (Result<RescueReport, String>, u64) {
        let left = Cell::new(power);
        let mut data = disks.split_off(disks.len() - self.data_disks);
        let mut run = |log: &mut dyn BlockDevice| {
            let mut log = Powered { disk: log, left: &left, skips_flush: self.log_is_never_flushed };
            let powered = |disk| Powered { disk, left: &left, skips_flush: self.data_is_never_flushed };
            let data = data.iter_mut().map(|disk| powered(disk as &mut dyn BlockDevice));
            let mut data = JoinedDisks::new(data.collect());
            rescue(&mut log, &mut data, RescueOptions::default(), &mut |_| {})
                .map_err(|error| error.to_string())
        };
        let report = match &self.legs {
            None => run(&mut disks[0]),
            Some(config) => match JoinedLegs::activate(config, std::mem::take(disks)) {
                Ok(mut legs) => {
                    let report = run(&mut legs);
                    *disks = legs.driver.into_devices();
                    report
                }
                Err((legs, refused)) => {
                    *disks = legs;
                    Err(refused)
                }
            },
        };
        disks.extend(data);
        (report, left.get())
    }

    /// Rescues all, and returns the disks after a power cut, and the operations it took.
    fn rescue_all(&self, mut disks: Vec<MemDisk>, rng: &mut SimRng) -> RunResult<(Vec<MemDisk>, u64)> {
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

impl ExplorerRun {
    /// Rescues some crashed states. What is drawn for that does not change the rest of the run.
    pub(super) fn judge_rescue(&mut self, cut: &Cut, oracle: &Oracle) -> RunResult {
        let Some(rescued) = self.rig.rescued.clone() else { return Ok(()) };
        let rng = self.rng.clone();
        let outcome =
            if self.rng.chance(RESCUED) { self.rescue_twice(&rescued, cut, oracle) } else { Ok(()) };
        self.rng = rng;
        outcome
    }

    fn rescue_twice(&mut self, rescued: &Rescued, cut: &Cut, oracle: &Oracle) -> RunResult {
        if self.are_torn(&cut.disks) {
            return Ok(());
        }
        let copy = |rng: &mut SimRng| cut.disks.iter().map(|disk| disk.killed(rng)).collect::<Vec<_>>();
        let disks = copy(&mut self.rng);
        let (disks, operations) = rescued.rescue_all(disks, &mut self.rng)?;
        self.judge_rescued(disks, cut, oracle, "rescued")?;
        let mut disks = copy(&mut self.rng);
        let (report, _) = rescued.rescue(&mut disks, self.rng.below(operations));
        let disks = cut_power(&disks, &mut self.rng);
        self.tell(|| format!("-- the power fails during a rescue: {report:?}"));
        if self.are_torn(&disks) {
            return Ok(());
        }
        let (disks, _) = rescued.rescue_all(disks, &mut self.rng)?;
        self.judge_rescued(disks, cut, oracle, "rescued after a rescue that was cut")
    }

    /// Judges the data disk alone, and then what a start serves.
    fn judge_rescued(&mut self, disks: Vec<MemDisk>, cut: &Cut, oracle: &Oracle, how: &str) -> RunResult {
        *self.counts.kinds.entry(how.into()).or_default() += 1;
        let data_disks = self.rig.rescued.as_ref().map_or(1, |rescued| rescued.data_disks);
        let found = look_at_disks(&disks[disks.len() - data_disks..], oracle);
        oracle.judge(cut.at, &found).map_err(|what| format!("{how}: {what}"))?;
        if self.are_torn(&disks) {
            return Ok(());
        }
        let (mut driver, mut stack) = self.start(disks)?;
        stack.activate(&mut driver).map_err(|error| format!("{how}: a start is refused: {error}"))?;
        let served = self.read_all(&mut driver, &mut stack, oracle)?;
        match oracle.are_same(&served, &found) {
            true => Ok(()),
            false => Err(format!("{how}: a start serves something else than the data disk has")),
        }
    }
}

/// Looks at the content of data disks to which the chunks of one device are dealt.
fn look_at_disks(disks: &[MemDisk], oracle: &Oracle) -> Vec<SeenContent> {
    if let [one] = disks {
        return look_at_disk(one, Lba(0), oracle);
    }
    let look = |at: u64| {
        let (disk, place) = dealt::place_of(Lba(at), disks.len());
        let mut sector = vec![0; SECTOR_BYTES as usize];
        disks[disk].current().read(place, &mut sector);
        stamp::look(&sector, Lba(at), oracle.seed())
    };
    (0..oracle.sectors()).map(look).collect()
}
