//! A data disk that comes and goes beside the client: an administrator adds it to the log that runs, writes to it, removes it, and gives it
//! other content before it comes again, to the same place.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use dcd_engine::log_cache::Promise;
use dcd_engine::log_cache::offline::read_superblock;
use dcd_engine::{
    BlockDevice, Buf, Control, DeviceIndex, DiskCommand, Durability, Io, IoResult, LayerIndex, Lba, Port,
    Report, RequestId, SECTOR_BYTES, Stack, Target,
};

use crate::{MemDisk, MemDriver, SimRng};

/// Sectors of the disk.
pub const GUEST_SECTORS: u64 = 6144;
/// Blocks of it that are written, and the distance between their starts. The first line is one that the fingerprint covers.
const BLOCKS: u64 = 32;
const DISTANCE: u64 = 23 * BLOCK_SECTORS;
const BLOCK_SECTORS: u64 = 8;
/// Requests of the administrator have numbers from here on.
const FIRST_ID: u64 = 1 << 40;
/// Requests in flight.
const REQUESTS_MAX: usize = 4;
/// Chances in a thousand after a step: of a change of the disk, of a request, of a flush in place of a write.
const CHANGES: u64 = 25;
const ASKS: u64 = 250;
const FLUSHES: u64 = 200;

/// The place of the disk in the stack.
#[derive(Clone)]
pub struct GuestPlace {
    /// The last device of the stack.
    pub device: usize,
    /// Number of the disk in the log.
    pub disk: usize,
    /// True if the log of the stack that is built next has it.
    pub is_there: Rc<Cell<bool>>,
}

impl GuestPlace {
    /// Looks whether the log has the disk: the stack file of the next start then names it.
    pub fn look(&self, disks: &mut [MemDisk]) {
        let found = read_superblock(&mut disks[0]);
        self.is_there.set(found.is_ok_and(|superblock| superblock.space().count() > self.disk));
    }

    fn cache(stack: &Stack) -> LayerIndex {
        stack
            .layers()
            .find(|(_, name)| *name == "cache")
            .map(|(layer, _)| layer)
            .expect("there is a log cache")
    }

    fn target(&self, stack: &Stack) -> Target {
        Target::Disk(GuestPlace::cache(stack), self.disk)
    }

    /// The versions of the sectors, as a client of the disk reads them, or as they are on the plain disk.
    pub fn read(
        &self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        life: u64,
        is_there: bool,
    ) -> Result<Vec<u64>, String> {
        let mut found = Vec::new();
        let bytes = (BLOCK_SECTORS * SECTOR_BYTES) as usize;
        for block in 0..BLOCKS {
            let at = Lba(block * DISTANCE);
            let read = if is_there {
                let target = self.target(stack);
                let result = stack.run_blocking(driver, target, Io::Read { at, buf: Buf::zeroed(bytes) });
                result.status.map_err(|error| format!("a read of the guest failed: {error}"))?;
                result.buf.bytes().to_vec()
            } else {
                let mut read = vec![0; bytes];
                driver.devices()[self.device].current().read(at, &mut read);
                read
            };
            for (sector, bytes) in (block * BLOCK_SECTORS..).zip(read.chunks_exact(SECTOR_BYTES as usize)) {
                let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                let version = word(16);
                if bytes != sector_of(life, sector, version) {
                    return Err(format!(
                        "sector {sector} of the guest in its life {life} has life {}, sector {}, version {version}",
                        word(0),
                        word(8)
                    ));
                }
                found.push(version);
            }
        }
        Ok(found)
    }
}

/// Content of a sector.
fn sector_of(life: u64, sector: u64, version: u64) -> Vec<u8> {
    [life, sector, version, !version].map(u64::to_le_bytes).concat().repeat(SECTOR_BYTES as usize / 32)
}

fn block_of(life: u64, block: u64, version: u64) -> Vec<u8> {
    let sectors = block * BLOCK_SECTORS..(block + 1) * BLOCK_SECTORS;
    sectors.flat_map(|sector| sector_of(life, sector, version)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestStanding {
    Out,
    /// The log was told to take it.
    Coming,
    In,
    /// The log was told to remove it.
    Going,
}

/// Knowledge of the disk's content: of each sector, the versions that may be found.
#[derive(Clone, Debug)]
pub struct GuestContent {
    standing: GuestStanding,
    /// Number of its content: each addition has another one.
    life: u64,
    written: Vec<u64>,
    durable: Vec<u64>,
}

impl Default for GuestContent {
    /// The content of a disk that was never added.
    fn default() -> GuestContent {
        let sectors = (BLOCKS * BLOCK_SECTORS) as usize;
        GuestContent {
            standing: GuestStanding::Out,
            life: 0,
            written: vec![0; sectors],
            durable: vec![0; sectors],
        }
    }
}

impl GuestContent {
    /// Number of the content that the disk has now; 0 before the first addition.
    pub const fn life(&self) -> u64 {
        self.life
    }

    /// Puts the content of another life on the plain disk.
    fn put(&mut self, disk: &mut MemDisk) {
        self.life += 1;
        self.written.fill(0);
        self.durable.fill(0);
        for block in 0..BLOCKS {
            disk.put(Lba(block * DISTANCE), &block_of(self.life, block, 0));
        }
    }

    /// Judges what was found after a crash. `is_there`: the log has the disk.
    pub fn judge(&self, is_there: bool, found: &[u64]) -> Result<(), String> {
        match (self.standing, is_there) {
            (GuestStanding::In, false) => return Err("a disk that was added is not in the log".to_owned()),
            (GuestStanding::Out, true) => return Err("a disk that was removed is in the log".to_owned()),
            _ => {}
        }
        for (sector, version) in found.iter().enumerate() {
            // A disk that the log has no more has everything.
            let (durable, written) = (self.durable[sector], self.written[sector]);
            let least = if is_there { durable } else { written };
            if !(least..=written).contains(version) {
                let standing = self.standing;
                return Err(format!(
                    "sector {sector} of the guest ({standing:?}, in the log: {is_there}) has version {version}, and may have {least} to \
                     {written}"
                ));
            }
        }
        Ok(())
    }

    /// Goes on from what was found. `killed`: what is not flushed may still be lost.
    pub fn found(&mut self, is_there: bool, found: &[u64], killed: bool) {
        self.standing = if is_there { GuestStanding::In } else { GuestStanding::Out };
        self.written.copy_from_slice(found);
        if !killed || !is_there {
            self.durable.copy_from_slice(found);
        }
    }

    /// Notes a clean stop.
    pub fn stopped(&mut self) {
        if self.standing == GuestStanding::In {
            self.durable.copy_from_slice(&self.written);
        }
    }
}

enum AskedOfGuest {
    Write {
        block: u64,
        version: u64,
    },
    /// The versions that had been answered when the flush was sent.
    Flush(Vec<u64>),
}

/// See the module's documentation.
pub(super) struct Guest {
    rng: SimRng,
    place: GuestPlace,
    promise: Promise,
    requests: BTreeMap<RequestId, AskedOfGuest>,
    next_id: u64,
    /// Versions of each sector whose writes were answered.
    answered: Vec<u64>,
    /// Floors that count from the next step on: a cut of this step was before the answers.
    floors: Vec<(usize, u64)>,
    /// Numbers of additions and removals.
    pub added: u64,
    pub removed: u64,
}

impl Guest {
    pub fn new(rng: SimRng, place: GuestPlace, promise: Promise, content: &GuestContent) -> Guest {
        Guest {
            rng,
            place,
            promise,
            requests: BTreeMap::new(),
            next_id: FIRST_ID,
            answered: content.written.clone(),
            floors: Vec::new(),
            added: 0,
            removed: 0,
        }
    }

    /// True for a request of the administrator.
    pub const fn is_own(id: RequestId) -> bool {
        id.0 >= FIRST_ID
    }

    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// True while the log owes an answer.
    pub fn waits(&self, content: &GuestContent) -> bool {
        self.in_flight() > 0 || matches!(content.standing, GuestStanding::Coming | GuestStanding::Going)
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// If a request has failed.
    pub fn take(&mut self, id: RequestId, result: &IoResult) -> Result<(), String> {
        let asked = self.requests.remove(&id).expect("it was asked");
        result.status.map_err(|error| format!("a request to the guest failed: {error}"))?;
        match asked {
            AskedOfGuest::Write { block, version } => {
                for sector in sectors(block) {
                    self.answered[sector] = version;
                    if self.promise == Promise::Always {
                        self.floors.push((sector, version));
                    }
                }
            }
            AskedOfGuest::Flush(versions) if self.promise != Promise::Ordered => {
                self.floors.extend(versions.into_iter().enumerate());
            }
            AskedOfGuest::Flush(_) => {}
        }
        Ok(())
    }

    /// Applies the answers of the last step, and perhaps takes the next one.
    ///
    /// # Errors
    /// If a change is refused.
    pub fn act(
        &mut self,
        driver: &mut MemDriver,
        stack: &mut Stack,
        content: &mut GuestContent,
        may_ask: bool,
    ) -> Result<(), String> {
        for (sector, version) in self.floors.drain(..) {
            content.durable[sector] = content.durable[sector].max(version);
        }
        while let Some((_, report)) = driver.take_report() {
            if let Report::Disk(answer) = report {
                answer.map_err(|why| format!("a change of the guest is refused: {why}"))?;
                self.changed(content);
            }
        }
        if !may_ask {
            return Ok(());
        }
        match content.standing {
            GuestStanding::Out if self.rng.chance(CHANGES) => self.add(driver, stack, content),
            GuestStanding::In if self.requests.is_empty() && self.rng.chance(CHANGES) => {
                content.standing = GuestStanding::Going;
                let command = DiskCommand::Remove { disk: self.place.disk };
                driver.note(|| "the guest is to leave".to_owned());
                driver.control(stack, GuestPlace::cache(stack), Control::Disk(command));
            }
            GuestStanding::In if self.requests.len() < REQUESTS_MAX && self.rng.chance(ASKS) => {
                self.ask(driver, stack, content);
            }
            _ => {}
        }
        Ok(())
    }

    fn changed(&mut self, content: &mut GuestContent) {
        match content.standing {
            GuestStanding::Coming => {
                content.standing = GuestStanding::In;
                self.added += 1;
            }
            GuestStanding::Going => {
                content.standing = GuestStanding::Out;
                self.removed += 1;
            }
            GuestStanding::Out | GuestStanding::In => unreachable!("nothing was asked"),
        }
    }

    fn add(&mut self, driver: &mut MemDriver, stack: &mut Stack, content: &mut GuestContent) {
        let GuestPlace { device, disk, .. } = self.place;
        content.put(&mut driver.devices_mut()[device]);
        content.standing = GuestStanding::Coming;
        self.answered.fill(0);
        let cache = GuestPlace::cache(stack);
        stack.connect(cache, Port(1 + disk), DeviceIndex(device));
        let geometry = driver.devices()[device].geometry();
        let data_uuid = u128::from(self.rng.next_u64()).to_le_bytes();
        driver.note(|| format!("the guest comes, in its life {}", content.life));
        let command = DiskCommand::Add { disk, data_uuid, geometry };
        driver.control(stack, cache, Control::Disk(command));
    }

    fn ask(&mut self, driver: &mut MemDriver, stack: &mut Stack, content: &mut GuestContent) {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let target = self.place.target(stack);
        if self.rng.chance(FLUSHES) {
            self.requests.insert(id, AskedOfGuest::Flush(self.answered.clone()));
            driver.request_at(stack, target, id, Io::Flush);
            return;
        }
        let block = self.rng.below(BLOCKS);
        let is_busy = |asked: &AskedOfGuest| matches!(asked, AskedOfGuest::Write { block: other, .. } if *other == block);
        if self.requests.values().any(is_busy) {
            return;
        }
        let version = sectors(block).map(|sector| content.written[sector]).max().unwrap_or(0) + 1;
        content.written[sectors(block)].fill(version);
        let buf = Buf::copy_of(&block_of(content.life, block, version));
        self.requests.insert(id, AskedOfGuest::Write { block, version });
        let at = Lba(block * DISTANCE);
        driver.request_at(stack, target, id, Io::Write { at, buf, durability: Durability::Volatile });
    }
}

fn sectors(block: u64) -> std::ops::Range<usize> {
    (block * BLOCK_SECTORS) as usize..((block + 1) * BLOCK_SECTORS) as usize
}
