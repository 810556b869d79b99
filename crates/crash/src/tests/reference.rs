//! A write cache that is right by being simple: what the explorer is tried on, with bugs to plant.
//!
//! Port 0 is a journal, port 1 the data. New sectors stay in RAM (`fresh`) until a *commit* writes all of them as one
//! record with FUA; then they are `logged`. When the journal has no room, a *checkpoint* writes everything logged back,
//! flushes the data disk, and only then starts the journal again with a new epoch, in the superblock copy that is not live.
//! One record or checkpoint runs at a time. Recovery takes records of the live epoch in order up to the first that is bad,
//! and ends with a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dcd_engine::log_cache::Promise;
use dcd_engine::{
    ActivateError, BlockDevice, Buf, Control, Cx, Discards, Durability, Event, Extent, Geometry, Io,
    IoResult, Layer, Lba, Nanos, OpId, Port, PortDevice, Ports, Report, RequestId, SECTOR_BYTES,
};

use dcd_engine::StackBuilder;

use crate::explore::{ORDERED_SLACK, Rig, disk, prefill};
use crate::{SimRng, mix};

const LOG: Port = Port(0);
const DATA: Port = Port(1);
const SECTOR: usize = SECTOR_BYTES as usize;
const RECORDS_START: u64 = 2;
const MAGIC: u64 = 0x6463_6420_7265_6631;
const HEADER_WORDS: usize = 5;

/// Bugs to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceBug {
    /// Takes records of older epochs for its own.
    IgnoreEpochs,
    /// Starts the journal again before the data disk is flushed.
    NoDataFlush,
    /// Recovery writes records back that may not be durable yet.
    NoLogFlush,
    /// Takes a record without looking at its checksum.
    NoChecksum,
    /// Answers before the commit.
    EarlyAnswer,
    /// Commits each sector by itself: a prefix of sectors, but not of writes.
    SplitWrites,
}

type Bytes = Arc<[u8]>;
type Sectors = BTreeMap<u64, Bytes>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Committing,
    WritingHome,
    FlushingHome,
    Restarting,
}

#[derive(Debug)]
enum Pending {
    Step,
    Read { id: RequestId, at: Lba, over: Sectors },
}

/// See the module's documentation.
pub struct Reference {
    promise: Promise,
    delay_max: Nanos,
    bug: Option<ReferenceBug>,
    log_sectors: u64,
    data: Option<Geometry>,
    epoch: u64,
    seq: u64,
    head: u64,
    fresh: Sectors,
    committing: Sectors,
    logged: Sectors,
    phase: Phase,
    steps_in_flight: usize,
    /// Requests that wait for the next commit, and those that the running one answers.
    waiting: Vec<(RequestId, Buf)>,
    answered_by_commit: Vec<(RequestId, Buf)>,
    wants_checkpoint: bool,
    wants_stop: bool,
    drains: bool,
    fresh_since: Option<Nanos>,
    pending: BTreeMap<u64, Pending>,
    next_op: u64,
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
}

fn superblock(epoch: u64) -> Buf {
    let mut buf = Buf::zeroed(SECTOR);
    let bytes = buf.bytes_mut();
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    let check = u64::from(crc32c::crc32c(&bytes[..16]));
    bytes[16..24].copy_from_slice(&check.to_le_bytes());
    buf
}

fn header_sectors(entries: usize) -> u64 {
    ((HEADER_WORDS + entries) * 8).div_ceil(SECTOR) as u64
}

/// Makes both superblocks of an empty journal.
pub fn format_reference(log: &mut dyn BlockDevice) {
    log.write(Lba(0), superblock(1)).expect("a good disk");
    log.write(Lba(1), superblock(0)).expect("a good disk");
    log.flush().expect("a good disk");
}

impl Reference {
    pub fn new(promise: Promise, delay_max: Nanos, bug: Option<ReferenceBug>) -> Reference {
        Reference {
            promise,
            delay_max,
            bug,
            log_sectors: 0,
            data: None,
            epoch: 0,
            seq: 0,
            head: RECORDS_START,
            fresh: Sectors::new(),
            committing: Sectors::new(),
            logged: Sectors::new(),
            phase: Phase::Idle,
            steps_in_flight: 0,
            waiting: Vec::new(),
            answered_by_commit: Vec::new(),
            wants_checkpoint: false,
            wants_stop: false,
            drains: false,
            fresh_since: None,
            pending: BTreeMap::new(),
            next_op: 0,
        }
    }

    fn submit(&mut self, cx: &mut Cx, port: Port, pending: Pending, io: Io) {
        self.next_op += 1;
        self.steps_in_flight += usize::from(matches!(pending, Pending::Step));
        self.pending.insert(self.next_op, pending);
        cx.submit(port, OpId(self.next_op), io);
    }

    fn put(&mut self, now: Nanos, extent: Extent, bytes: Option<&[u8]>) {
        for index in 0..extent.sectors {
            let at = index as usize * SECTOR;
            let sector =
                bytes.map_or_else(|| Arc::from([0; SECTOR]), |bytes| Arc::from(&bytes[at..at + SECTOR]));
            self.fresh.insert(extent.start.0 + index, sector);
        }
        self.fresh_since.get_or_insert(now);
    }

    fn newest(&self, extent: Extent) -> Sectors {
        let range = extent.start.0..extent.end().0;
        let mut newest = Sectors::new();
        for layer in [&self.logged, &self.committing, &self.fresh] {
            newest.extend(layer.range(range.clone()).map(|(lba, bytes)| (*lba, Arc::clone(bytes))));
        }
        newest
    }

    fn request(&mut self, id: RequestId, io: Io, cx: &mut Cx) {
        let durable = match &io {
            Io::Read { at, buf } | Io::ReadCopy { at, buf, .. } => {
                let over = self.newest(Extent::new(*at, buf.len() as u64 / SECTOR_BYTES));
                let pending = Pending::Read { id, at: *at, over };
                return self.submit(cx, DATA, pending, io);
            }
            Io::Flush => true,
            Io::Write { at, buf, durability } | Io::WriteCopy { at, buf, durability, .. } => {
                self.put(cx.now, Extent::new(*at, buf.len() as u64 / SECTOR_BYTES), Some(buf.bytes()));
                *durability == Durability::Durable
            }
            Io::WriteZeroes { extent, durability, .. } => {
                self.put(cx.now, *extent, None);
                *durability == Durability::Durable
            }
            Io::Discard { extent } => {
                self.put(cx.now, *extent, None);
                false
            }
        };
        let waits = match self.promise {
            Promise::Flush => durable,
            Promise::Ordered => false,
            Promise::Always => true,
        };
        if waits && self.bug != Some(ReferenceBug::EarlyAnswer) {
            self.waiting.push((id, io.take_buf()));
        } else {
            cx.reply(id, IoResult::ok(io.take_buf()));
        }
    }

    /// Begins the next thing, if nothing runs.
    fn advance(&mut self, cx: &mut Cx) {
        if self.phase != Phase::Idle {
            return;
        }
        let due = self.commit_due().is_some_and(|due| due <= cx.now);
        let commits =
            due || !self.waiting.is_empty() || ((self.wants_stop || self.drains) && !self.fresh.is_empty());
        let mut count = self.fresh.len();
        if self.bug == Some(ReferenceBug::SplitWrites) {
            count = count.min(1);
        }
        let room = self.head + header_sectors(count) + count as u64 <= self.log_sectors;
        if self.wants_checkpoint || (commits && !room) {
            self.wants_checkpoint = false;
            self.write_home(cx);
        } else if commits {
            self.commit(count, cx);
        } else if std::mem::take(&mut self.wants_stop) {
            cx.report(Report::Stopped);
        } else if self.drains && !self.logged.is_empty() {
            self.write_home(cx);
        } else if std::mem::take(&mut self.drains) {
            cx.report(Report::Drained);
        }
    }

    fn commit_due(&self) -> Option<Nanos> {
        let since = self.fresh_since?;
        let full = self.fresh.len() as u64 > self.log_sectors / 4;
        match self.promise {
            _ if full => Some(since),
            Promise::Ordered => Some(since + Nanos(self.delay_max.0 / 2)),
            Promise::Flush | Promise::Always => None,
        }
    }

    fn commit(&mut self, count: usize, cx: &mut Cx) {
        let rest = self.fresh.keys().nth(count).copied();
        let rest = rest.map(|lba| self.fresh.split_off(&lba)).unwrap_or_default();
        self.committing = std::mem::replace(&mut self.fresh, rest);
        self.answered_by_commit = std::mem::take(&mut self.waiting);
        if self.fresh.is_empty() {
            self.fresh_since = None;
        }
        self.phase = Phase::Committing;
        let headers = header_sectors(count) as usize * SECTOR;
        let mut buf = Buf::zeroed(headers + count * SECTOR);
        let bytes = buf.bytes_mut();
        let head = [MAGIC, self.epoch, self.seq, count as u64, 0];
        let all = head.iter().chain(self.committing.keys());
        for (word, place) in all.zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (sector, place) in self.committing.values().zip(bytes[headers..].chunks_exact_mut(SECTOR)) {
            place.copy_from_slice(sector);
        }
        let check = u64::from(crc32c::crc32c(bytes));
        bytes[32..40].copy_from_slice(&check.to_le_bytes());
        let at = Lba(self.head);
        self.head += (buf.len() / SECTOR) as u64;
        self.seq += 1;
        self.submit(cx, LOG, Pending::Step, Io::Write { at, buf, durability: Durability::Durable });
    }

    fn write_home(&mut self, cx: &mut Cx) {
        self.phase = Phase::WritingHome;
        let sectors: Vec<(u64, Bytes)> = self.logged.iter().map(|(lba, b)| (*lba, Arc::clone(b))).collect();
        for (lba, bytes) in sectors {
            let io = Io::Write { at: Lba(lba), buf: Buf::copy_of(&bytes), durability: Durability::Volatile };
            self.submit(cx, DATA, Pending::Step, io);
        }
        if self.steps_in_flight == 0 {
            self.home_written(cx);
        }
    }

    fn home_written(&mut self, cx: &mut Cx) {
        if self.bug == Some(ReferenceBug::NoDataFlush) {
            return self.restart(cx);
        }
        self.phase = Phase::FlushingHome;
        self.submit(cx, DATA, Pending::Step, Io::Flush);
    }

    fn restart(&mut self, cx: &mut Cx) {
        self.phase = Phase::Restarting;
        let (at, buf) = self.next_superblock();
        self.submit(cx, LOG, Pending::Step, Io::Write { at, buf, durability: Durability::Durable });
    }

    fn next_superblock(&mut self) -> (Lba, Buf) {
        self.epoch += 1;
        (self.seq, self.head) = (0, RECORDS_START);
        (Lba((self.epoch + 1) % 2), superblock(self.epoch))
    }

    fn step_ended(&mut self, cx: &mut Cx) {
        self.steps_in_flight -= 1;
        if self.steps_in_flight > 0 {
            return;
        }
        match self.phase {
            Phase::Idle => panic!("a step ends only in a phase"),
            Phase::Committing => {
                self.logged.append(&mut self.committing);
                for (id, buf) in self.answered_by_commit.drain(..) {
                    cx.reply(id, IoResult::ok(buf));
                }
                self.phase = Phase::Idle;
            }
            Phase::WritingHome => self.home_written(cx),
            Phase::FlushingHome => self.restart(cx),
            Phase::Restarting => {
                self.logged.clear();
                self.phase = Phase::Idle;
            }
        }
    }

    fn live_epoch(log: &mut dyn BlockDevice) -> Option<u64> {
        let live = |at| {
            let buf = log.read(Lba(at), SECTOR).ok()?;
            let words = words(&buf.bytes()[..24]);
            let good = words[0] == MAGIC && words[2] == u64::from(crc32c::crc32c(&buf.bytes()[..16]));
            good.then_some(words[1])
        };
        let copies: BTreeSet<u64> = [0, 1].into_iter().filter_map(live).collect();
        copies.last().copied()
    }

    /// Takes the record at the head, if it is good.
    fn replay(&mut self, log: &mut dyn BlockDevice) -> bool {
        if self.head >= self.log_sectors {
            return false;
        }
        let Ok(first) = log.read(Lba(self.head), SECTOR) else { return false };
        let head = words(&first.bytes()[..HEADER_WORDS * 8]);
        let epoch =
            head[1] == self.epoch || (self.bug == Some(ReferenceBug::IgnoreEpochs) && head[1] <= self.epoch);
        let count = head[3] as usize;
        if head[0] != MAGIC || !epoch || head[2] != self.seq || head[3] > self.log_sectors {
            return false;
        }
        let sectors = header_sectors(count) + count as u64;
        if self.head + sectors > self.log_sectors {
            return false;
        }
        let Ok(record) = log.read(Lba(self.head), sectors as usize * SECTOR) else { return false };
        let mut bytes = record.bytes().to_vec();
        bytes[32..40].fill(0);
        if u64::from(crc32c::crc32c(&bytes)) != head[4] && self.bug != Some(ReferenceBug::NoChecksum) {
            return false;
        }
        let places = words(&bytes[HEADER_WORDS * 8..(HEADER_WORDS + count) * 8]);
        let payload = bytes[header_sectors(count) as usize * SECTOR..].chunks_exact(SECTOR);
        self.logged.extend(places.into_iter().zip(payload.map(Arc::from)));
        (self.head, self.seq) = (self.head + sectors, self.seq + 1);
        true
    }
}

impl Layer for Reference {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => self.request(request.id, request.io, cx),
            Event::Completed { op, mut result } => {
                match self.pending.remove(&op.0).expect("a known operation") {
                    Pending::Read { id, at, over } => {
                        for (lba, bytes) in over {
                            let place = (lba - at.0) as usize * SECTOR;
                            result.buf.bytes_mut()[place..place + SECTOR].copy_from_slice(&bytes);
                        }
                        cx.reply(id, result);
                    }
                    Pending::Step => {
                        result.status.expect("it has no answer to errors");
                        self.step_ended(cx);
                    }
                }
            }
            Event::Control(Control::Drain) => self.drains = true,
            Event::Control(Control::Stop) => self.wants_stop = true,
            Event::Wake | Event::Control(_) => {}
        }
        self.advance(cx);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        if self.phase == Phase::Idle { self.commit_due() } else { None }
    }

    fn geometry(&self) -> Geometry {
        Geometry { discards: Discards::Zero, ..self.data.expect("active") }
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.log_sectors = below.geometry(LOG).sectors;
        self.data = Some(below.geometry(DATA));
        let mut log = PortDevice { ports: below, port: LOG };
        let epoch = Reference::live_epoch(&mut log);
        self.epoch = epoch.ok_or("no superblock: format the journal")?;
        while self.replay(&mut log) {}
        // After a kill without a power cut, what was read may still be in the journal disk's cache only.
        if self.bug != Some(ReferenceBug::NoLogFlush) {
            log.flush()?;
        }
        let mut data = PortDevice { ports: below, port: DATA };
        for (lba, bytes) in std::mem::take(&mut self.logged) {
            data.write(Lba(lba), Buf::copy_of(&bytes))?;
        }
        data.flush()?;
        let (at, buf) = self.next_superblock();
        let mut log = PortDevice { ports: below, port: LOG };
        log.write(at, buf)?;
        Ok(log.flush()?)
    }
}

const REFERENCE_SECTORS: u64 = 1024;

/// The reference cache over two disks.
pub fn reference_rig(seed: u64, promise: Promise, bug: Option<ReferenceBug>) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x7e57));
    // One commit may hold every sector of the data, and must fit.
    let log_sectors = rng.range(REFERENCE_SECTORS + 50, 2 * REFERENCE_SECTORS);
    let mut log = disk(&mut rng, Geometry::plain(log_sectors));
    format_reference(&mut log);
    let mut data = disk(&mut rng, Geometry::plain(REFERENCE_SECTORS));
    let base = prefill(&mut data, REFERENCE_SECTORS, seed);
    let delay_max = Nanos::from_millis(rng.range(1, 50));
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let ports: Vec<_> = geometries.iter().map(|geometry| builder.device(*geometry)).collect();
        let cache = Reference::new(promise, delay_max, bug);
        let root = builder.layer("reference", Box::new(cache), &ports);
        builder.finish(root)
    };
    Rig {
        promise,
        delay_max: delay_max + ORDERED_SLACK,
        overlaps: true,
        ..Rig::plain(
            vec![log, data],
            base,
            Box::new(build),
            format!(
                "reference cache, {promise:?}, journal of {log_sectors} sectors, delay {delay_max}, bug {bug:?}"
            ),
        )
    }
}

#[path = "reference_tests.rs"]
mod tests;
