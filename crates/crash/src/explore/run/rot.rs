//! Damages a block of the log while the log is not served: a flipped bit, a lost write, or two blocks in each other's places.
//!
//! The client has flushed, the log has been at rest for more than a second, and then the power goes or the server is killed. The
//! medium then holds all acknowledged data. So a start must refuse the log, or serve every sector as it was last written, or
//! fail exactly the sectors that lay in the damaged blocks.

use super::{ExplorerRun, MemDisk, MemDriver, Oracle, RunResult, Stack, stamp};
use crate::{CutStyle, DriverProgress, Image, SeenContent, SimClient, SimRng};
use dcd_engine::log_cache::REST;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::{Buf, Io, Lba, Nanos, Pump, SECTOR_BYTES};

/// Damages that are tried on one state of the log.
const DAMAGES: u32 = 40;
/// Two log blocks of 4 KiB touch at most so many sectors of entries of at most a line each.
const LOST_SECTORS_MAX: usize = 2 * 8 * 8;
/// Sectors of one read request, to begin with.
const READ_SECTORS: u64 = 64;

/// The log of a rig whose blocks are damaged: the first sectors of its first disk.
#[derive(Clone, Copy, Debug)]
pub struct LogArea {
    pub sectors: u64,
    pub block_sectors: u64,
}

#[derive(Debug)]
enum RotDamage {
    Flip {
        at: Lba,
        bit: u64,
    },
    Swap {
        one: Lba,
        other: Lba,
    },
    /// A lost write: the block has its earlier content, or none.
    Lose {
        at: Lba,
        before: bool,
    },
}

impl LogArea {
    fn block(self, rng: &mut SimRng, from: u64) -> Lba {
        Lba(from + rng.below((self.sectors - from) / self.block_sectors) * self.block_sectors)
    }

    fn draw(self, rng: &mut SimRng) -> RotDamage {
        match rng.below(3) {
            0 => RotDamage::Flip { at: Lba(rng.below(self.sectors)), bit: rng.below(8 * SECTOR_BYTES) },
            1 => RotDamage::Swap {
                one: self.block(rng, FIRST_SEGMENT_SECTOR),
                other: self.block(rng, FIRST_SEGMENT_SECTOR),
            },
            _ => RotDamage::Lose { at: self.block(rng, 0), before: rng.chance(700) },
        }
    }

    fn strike(self, disk: &mut MemDisk, damage: &RotDamage, before: &Image) {
        let read = |image: &Image, at: Lba| {
            let mut bytes = vec![0; (self.block_sectors * SECTOR_BYTES) as usize];
            image.read(at, &mut bytes);
            bytes
        };
        match *damage {
            RotDamage::Flip { at, bit } => disk.flip_bit(at, bit),
            RotDamage::Swap { one, other } => {
                let (first, second) = (read(disk.current(), one), read(disk.current(), other));
                disk.put(one, &second);
                disk.put(other, &first);
            }
            RotDamage::Lose { at, before: true } => disk.put(at, &read(before, at)),
            RotDamage::Lose { at, before: false } => {
                disk.put(at, &vec![0; (self.block_sectors * SECTOR_BYTES) as usize]);
            }
        }
    }
}

impl ExplorerRun {
    /// Continues with a second client, so that the log holds older and newer content; then rests, and damages the log.
    pub(super) fn rot(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        oracle: Oracle,
        log: LogArea,
    ) -> RunResult {
        let before = driver.devices()[0].current().clone();
        let character = self.character.expect("the first client had one");
        let sampler = self.sampler(driver, 0, 0, 0);
        let mut client = SimClient::new(character, oracle, self.rng.fork());
        self.serve(driver, stack, &mut client, &sampler, 0)?;
        let mut oracle = client.oracle;
        let mark = oracle.flush_begins();
        let root = stack.root();
        stack.run_blocking(driver, root, Io::Flush).status.map_err(|e| format!("a flush failed: {e}"))?;
        oracle.flush_ends(mark, true);
        driver.set_alarm(driver.now() + REST + Nanos::from_millis(500), 0);
        while !matches!(driver.step(stack), DriverProgress::Alarm(_)) {}
        self.tell_driver(driver);
        let at = driver.now();
        let killed = self.rng.chance(500);
        let style = self.rng.pick(&CutStyle::ALL);
        let rng = &mut self.rng;
        let disks: Vec<MemDisk> = driver
            .devices()
            .iter()
            .map(|disk| if killed { disk.killed(rng) } else { disk.power_cut(style, rng) })
            .collect();
        for _ in 0..DAMAGES {
            if self.states_left == 0 {
                break;
            }
            let mut disks: Vec<MemDisk> = disks.iter().map(|disk| disk.killed(&mut self.rng)).collect();
            let damage = log.draw(&mut self.rng);
            log.strike(&mut disks[0], &damage, &before);
            self.counts.states += 1;
            self.states_left -= 1;
            let (told, state) = (self.story.len(), self.counts.states);
            self.tell(|| format!("-- state {state}: {damage:?} at rest, killed: {killed}"));
            let outcome =
                self.start_rotten(disks, &oracle, at).map_err(|what| format!("{what}, after {damage:?}"))?;
            *self.counts.kinds.entry(outcome.into()).or_default() += 1;
            self.story.truncate(told);
        }
        Ok(())
    }

    fn start_rotten(&mut self, disks: Vec<MemDisk>, oracle: &Oracle, at: Nanos) -> RunResult<&'static str> {
        let (mut driver, mut stack) = self.start(disks)?;
        driver.hash_no_payloads();
        let activated = stack.activate(&mut driver);
        self.tell_driver(&mut driver);
        if activated.is_err() {
            return Ok("refused");
        }
        let found = look_at_all(&mut driver, &mut stack, oracle);
        let lost = found.iter().filter(|seen| **seen == SeenContent::Unreadable).count();
        if lost > LOST_SECTORS_MAX {
            return Err(format!("{lost} sectors cannot be read, more than lay in the damaged blocks"));
        }
        let mut oracle = oracle.clone();
        let lbas = found.iter().enumerate().filter(|(_, seen)| **seen == SeenContent::Unreadable);
        lbas.for_each(|(lba, _)| oracle.lost(Lba(lba as u64)));
        oracle.judge(at, &found)?;
        Ok(if lost == 0 { "served whole" } else { "served with errors" })
    }
}

/// Reads the whole device, sector by sector where that is needed to see which cannot be read.
pub(crate) fn look_at_all(driver: &mut MemDriver, stack: &mut Stack, oracle: &Oracle) -> Vec<SeenContent> {
    let total = oracle.sectors();
    let mut found = Vec::with_capacity(total as usize);
    let mut read = |at: u64, sectors: u64, found: &mut Vec<SeenContent>| {
        let buf = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
        let root = stack.root();
        let result = stack.run_blocking(driver, root, Io::Read { at: Lba(at), buf });
        let bytes = result.buf.bytes().chunks_exact(SECTOR_BYTES as usize).enumerate();
        if result.status.is_ok() {
            found.extend(bytes.map(|(i, bytes)| stamp::look(bytes, Lba(at + i as u64), oracle.seed())));
        }
        result.status.is_ok()
    };
    for start in (0..total).step_by(READ_SECTORS as usize) {
        let sectors = READ_SECTORS.min(total - start);
        if read(start, sectors, &mut found) {
            continue;
        }
        for lba in start..start + sectors {
            if !read(lba, 1, &mut found) {
                found.push(SeenContent::Unreadable);
            }
        }
    }
    found
}
