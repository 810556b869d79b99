//! Data disks that come and go while the cache serves the others.
//!
//! | an addition | ends when |
//! |---|---|
//! | reading: the disk is flushed, and the lines for its fingerprint are read | all of them are known |
//! | marking: the superblock's table has the disk; its clients are refused | two superblocks with it are durable: then it is served |
//!
//! | a removal | ends when |
//! |---|---|
//! | leaving: its clients are refused, and its data is written back | nothing of it is dirty, and a flush of it has covered all writes |
//! | forgetting: its clean copies leave the lookup table, in parts | the table has none |
//! | sealing | all records so far are durable: no later record gets the number of one of this disk |
//! | marking: its place in the superblock's table is free | two superblocks that say so are durable: then the disk is plain |
//!
//! Two superblocks, as each of the two copies may be lost. Records of a disk that has left stay in the log. A start does not take them for
//! those of the next disk in the place, as the table says from which record on the place is that of the next one.

use std::collections::BTreeMap;

use super::data_disk::{DataDisk, DiskStanding};
use super::destager::{Destager, Destagers};
use super::disks::AddressSpace;
use super::env::{Env, Op, View, data_port};
use super::error::LogError;
use super::fingerprint::{CoveredLines, LineContent};
use super::format::{LogState, OtherDisk};
use super::offline::admit_disk;
use super::table::TablePart;
use super::through::WritesState;
use super::{LogCacheConfig, LogCanary, WriteRoute};
use crate::layer::{
    BlockDevice, DiskChangeError, DiskCommand, ErrorKind, Geometry, Io, IoResult, OpId, Report,
};
use crate::{Buf, Extent, IoError, Nanos, SECTOR_BYTES};

/// Superblocks that have to say what has changed.
const MARKS: u64 = 2;

/// A disk that is being added.
struct NewDisk {
    disk: usize,
    data_uuid: [u8; 16],
    data: FoundData,
    is_flushed: bool,
    is_waiting: bool,
    failed: Option<IoError>,
}

#[derive(Default)]
enum ChangePhase {
    #[default]
    Rest,
    Reading(Box<NewDisk>),
    Leaving(usize),
    Forgetting(usize, TablePart),
    /// The disk, and the number after that of its last record.
    Sealing(usize, u64),
    /// The disk, and the generation of the superblock that ends the change.
    Marking(usize, u64),
}

/// See the module's documentation. One disk changes at a time.
#[derive(Default)]
pub struct DiskChange {
    phase: ChangePhase,
}

impl DiskChange {
    /// Begins an addition or a removal. [`Report::Disk`] is the answer.
    pub fn begin(&mut self, command: DiskCommand, env: &mut Env) {
        let begun = match command {
            DiskCommand::Add { disk, data_uuid, geometry } => self.add(disk, data_uuid, geometry, env),
            DiskCommand::Remove { disk } => self.remove(disk, env),
        };
        if let Err(why) = begun {
            env.cx.report(Report::Disk(Err(why)));
        }
    }

    fn add(
        &mut self,
        disk: usize,
        data_uuid: [u8; 16],
        geometry: Geometry,
        env: &Env,
    ) -> Result<(), DiskChangeError> {
        self.admit(env)?;
        let refused = |why: LogError| DiskChangeError::Refused(why.to_string());
        let place = admit_disk(env.log.superblock(), &geometry, data_uuid).map_err(refused)?;
        if place != disk {
            let why = format!("the next disk of the log gets place {place}, and not {disk}");
            return Err(DiskChangeError::Refused(why));
        }
        refuse_for_one(env)?;
        let data = FoundData { geometry, read: BTreeMap::new(), wanted: None };
        let new = NewDisk { disk, data_uuid, data, is_flushed: false, is_waiting: false, failed: None };
        self.phase = ChangePhase::Reading(Box::new(new));
        Ok(())
    }

    fn remove(&mut self, disk: usize, env: &mut Env) -> Result<(), DiskChangeError> {
        self.admit(env)?;
        if disk == 0 || disk >= env.data.space().count() || env.data[disk].standing != DiskStanding::Served {
            let why = "the log has no such data disk, or it is the first, which stays".to_owned();
            return Err(DiskChangeError::Refused(why));
        }
        env.data[disk].standing = DiskStanding::Leaving;
        self.phase = ChangePhase::Leaving(disk);
        Ok(())
    }

    fn admit(&self, env: &Env) -> Result<(), DiskChangeError> {
        match self.phase {
            _ if !env.life.serves() => Err(DiskChangeError::Stopping),
            _ if env.log.has_failed() => Err(DiskChangeError::LogFailed),
            // Its blocks cannot be written back, and what the log keeps of it must stay as it is.
            _ if env.config.missing != 0 => Err(DiskChangeError::Refused(
                "a data disk is missing: reconnect it and start the server again, then add or remove disks"
                    .to_owned(),
            )),
            ChangePhase::Rest => Ok(()),
            _ => Err(DiskChangeError::Refused("another disk is being added or removed".to_owned())),
        }
    }

    /// Goes on with the change as far as possible; runs after every event.
    pub fn step(&mut self, destagers: &mut Destagers, env: &mut Env) {
        if matches!(self.phase, ChangePhase::Rest) {
            return;
        }
        if !env.life.serves() {
            return self.end(Err(DiskChangeError::Stopping), env);
        }
        if env.log.has_failed() {
            return self.end(Err(DiskChangeError::LogFailed), env);
        }
        match std::mem::take(&mut self.phase) {
            ChangePhase::Rest => {}
            ChangePhase::Reading(mut new) => match new.step(env) {
                None => self.phase = ChangePhase::Reading(new),
                Some(Ok(lines)) => match refuse_for_one(env) {
                    Ok(()) => self.mark_new(*new, lines, destagers, env),
                    // The settings have changed.
                    Err(why) => self.end(Err(why), env),
                },
                Some(Err(error)) => self.end(Err(DiskChangeError::Io(error)), env),
            },
            ChangePhase::Leaving(disk) => {
                self.phase = ChangePhase::Leaving(disk);
                match leave(disk, destagers, env) {
                    Ok(false) => {}
                    Ok(true) => self.forget(disk, TablePart::first(env.config.scan_slots), env),
                    Err(why) => self.end(Err(why), env),
                }
            }
            ChangePhase::Forgetting(disk, part) => self.forget(disk, part, env),
            ChangePhase::Sealing(disk, from_seq) => self.seal(disk, from_seq, env),
            ChangePhase::Marking(disk, last) => self.mark(disk, last, env),
        }
    }

    /// Puts a new disk into the table, and makes all parts know it.
    fn mark_new(&mut self, new: NewDisk, lines: CoveredLines, destagers: &mut Destagers, env: &mut Env) {
        let NewDisk { disk, data_uuid, data: FoundData { geometry, .. }, .. } = new;
        let (sectors, fingerprint) = (geometry.sectors, lines.fingerprint());
        let before = env.log.superblock().other_disks.get(disk - 1);
        let from_seq = before.map_or(0, |free| free.from_seq);
        env.log.set_disk(disk, OtherDisk { data_uuid, sectors, from_seq, fingerprint });
        let is_early = env.config.canary.is(LogCanary::EarlyDisk);
        let mut data = DataDisk::new(geometry, lines.moved(AddressSpace::start(disk)));
        data.standing = if is_early { DiskStanding::Served } else { DiskStanding::Joining };
        env.data.set(disk, sectors, data);
        env.index.set_disk(disk, sectors);
        env.queue.set_disk(disk);
        let config = LogCacheConfig {
            destage_memory: env.config.destage_memory / env.data.space().count(),
            ..env.config.clone()
        };
        let at = (disk, &geometry);
        let destager = Destager::new(&config, env.log.superblock(), None, env.log.geometry(), at);
        destagers.set(disk, sectors, destager);
        if is_early {
            return env.cx.report(Report::Disk(Ok(())));
        }
        self.begin_marking(disk, env);
    }

    /// Forgets the clean copies of a disk in one part of the table, or begins to make its records durable.
    fn forget(&mut self, disk: usize, part: TablePart, env: &mut Env) {
        let is_early = env.config.canary.is(LogCanary::EarlyLeave);
        let next = if is_early { None } else { env.index.forget_disk(disk, part) };
        match next {
            Some(next) => self.phase = ChangePhase::Forgetting(disk, next),
            None => {
                env.log.hurry();
                self.seal(disk, env.log.next_seq(), env);
            }
        }
    }

    /// Makes the place of a disk free, once the records before this one are durable.
    fn seal(&mut self, disk: usize, from_seq: u64, env: &mut Env) {
        if env.log.safe_seq() + 1 < from_seq {
            self.phase = ChangePhase::Sealing(disk, from_seq);
            return;
        }
        env.log.set_disk(disk, OtherDisk::free(from_seq));
        if !env.config.canary.is(LogCanary::EarlyLeave) {
            env.index.set_disk(disk, 0);
            env.data.set(disk, 0, DataDisk::none());
        }
        self.begin_marking(disk, env);
    }

    fn begin_marking(&mut self, disk: usize, env: &mut Env) {
        // A superblock that is under way may not have it.
        let last = env.log.superblock().generation + MARKS;
        self.mark(disk, last, env);
    }

    /// Writes the next superblock, or ends the change after the last one.
    fn mark(&mut self, disk: usize, last: u64, env: &mut Env) {
        if env.log.is_releasing() || env.log.superblock().generation < last {
            self.phase = ChangePhase::Marking(disk, last);
            if !env.log.is_releasing() {
                let from = env.view().walk_start();
                env.write_superblock(LogState::Active, from);
            }
            return;
        }
        let data = &mut env.data[disk];
        if data.standing == DiskStanding::Joining {
            data.standing = DiskStanding::Served;
        }
        env.cx.report(Report::Disk(Ok(())));
    }

    /// Takes the end of an operation on a disk that is being added.
    pub fn completed(&mut self, result: IoResult) {
        if let ChangePhase::Reading(new) = &mut self.phase {
            new.completed(result);
        }
    }

    /// Ends the change early. A disk that was to leave stays.
    fn end(&mut self, result: Result<(), DiskChangeError>, env: &mut Env) {
        if let ChangePhase::Leaving(disk) | ChangePhase::Forgetting(disk, _) | ChangePhase::Sealing(disk, _) =
            self.phase
        {
            env.data[disk].standing = DiskStanding::Served;
        }
        self.phase = ChangePhase::Rest;
        env.cx.report(Report::Disk(result));
    }

    pub const fn deadline(&self, view: &View) -> Option<Nanos> {
        if matches!(self.phase, ChangePhase::Forgetting(..)) { Some(view.now) } else { None }
    }
}

/// Refuses a second disk while the log has settings for one.
fn refuse_for_one(env: &Env) -> Result<(), DiskChangeError> {
    let is_through =
        env.config.writes == WriteRoute::Through || env.log.through().state() != WritesState::Back;
    let what = match () {
        () if env.data.space().served() > 1 => return Ok(()),
        () if env.config.ordered_destage => "ordered-destage",
        () if env.config.contiguity.is_some() => "the gaps that were measured for its disk",
        () if is_through => "writes = \"through\"",
        () => return Ok(()),
    };
    let why = format!("{what} is for a log with one data disk, and this one is served with it");
    Err(DiskChangeError::Refused(why))
}

/// Goes on with the end of a disk: true when the disk durably has all its data.
fn leave(disk: usize, destagers: &Destagers, env: &mut Env) -> Result<bool, DiskChangeError> {
    let (data, index) = (&env.data[disk], &env.index);
    if let Some(error) = data.error() {
        return Err(DiskChangeError::Io(error));
    }
    if destagers[disk].is_after_failure() {
        let error = env.statistics.last_error.unwrap_or(IoError::new(ErrorKind::Medium));
        return Err(DiskChangeError::Io(error));
    }
    let lost = index.lost.in_extent(env.data.space().extent(disk));
    if lost > 0 {
        return Err(DiskChangeError::LostBlocks(lost));
    }
    let is_quiet = env.queue.foreground_on(disk) == 0 && data.nothing_bypasses();
    if is_quiet && env.config.canary.is(LogCanary::EarlyLeave) {
        return Ok(true);
    }
    if !is_quiet || index.is_dirty_on(disk) || !destagers[disk].is_idle() || data.is_flying() {
        return Ok(false);
    }
    // Writes that were sent to it may be in its volatile cache.
    if data.is_owed() || data.fingerprint.needs_flush() {
        env.flush_data(disk);
        return Ok(false);
    }
    Ok(true)
}

impl NewDisk {
    /// Sends the next operation to the disk; returns the lines of its fingerprint when they are known.
    fn step(&mut self, env: &mut Env) -> Option<Result<CoveredLines, IoError>> {
        // A flush of all places, before a stop, may wait in the one that was free.
        let is_place_busy = self.disk < env.data.space().count() && env.queue.foreground_on(self.disk) > 0;
        // A request that is split has begun with the room that the log has for one disk: with two, clients leave more of it.
        let is_split = env.log.chain().is_some();
        if self.is_waiting || is_place_busy || is_split && self.is_flushed {
            return None;
        }
        if let Some(error) = self.failed {
            return Some(Err(error));
        }
        let io = if self.is_flushed {
            let superblock = env.log.superblock();
            let lines_max = OtherDisk::lines_max(superblock.other_disks.len().max(self.disk));
            let (sectors, uuid) = (self.data.geometry.sectors, superblock.cache_uuid);
            self.data.wanted = None;
            let lines = CoveredLines::few(LineContent::default(), &mut self.data, sectors, &uuid, lines_max);
            let Some(extent) = self.data.wanted else { return Some(lines) };
            Io::Read { at: extent.start, buf: Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize) }
        } else {
            // Data that the fingerprint covers must not be lost with the disk's cache.
            Io::Flush
        };
        self.is_waiting = true;
        let key = env.ops.insert(Op::NewDisk);
        env.cx.submit(data_port(self.disk), OpId(key), io);
        None
    }

    fn completed(&mut self, result: IoResult) {
        self.is_waiting = false;
        let result = result.status.map(|()| result.buf);
        match self.data.wanted.take() {
            Some(extent) => _ = self.data.read.insert((extent.start.0, extent.sectors), result),
            None => (self.is_flushed, self.failed) = (true, result.err()),
        }
    }
}

/// The parts of a disk that were read. A computation that reads is begun again with all that was read so far, until it wants no more.
struct FoundData {
    geometry: Geometry,
    /// By the first sector, and the number of sectors.
    read: BTreeMap<(u64, u64), Result<Buf, IoError>>,
    wanted: Option<Extent>,
}

impl BlockDevice for FoundData {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        let Io::Read { at, buf } = io else {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::Unsupported));
        };
        let sectors = buf.len() as u64 / SECTOR_BYTES;
        match self.read.get(&(at.0, sectors)) {
            Some(Ok(read)) if read.is_blank() => IoResult::ok(Buf::blank(read.len())),
            Some(Ok(read)) => IoResult::ok(Buf::copy_of(read.bytes())),
            Some(Err(error)) => IoResult::err(buf, *error),
            None => {
                self.wanted = Some(Extent::new(at, sectors));
                // No other error of a read ends the computation.
                IoResult::err(buf, IoError::new(ErrorKind::Shutdown))
            }
        }
    }
}
