//! The paper's driver as it was (Nightingale, Hu, Yang 1999, sections 3.1 to 3.6): fixed segments that are written whole, a list of free
//! segments, last-write-first, and a log write as soon as the one before it has ended. It has no recovery, as theirs had none, so it is a
//! subject of the studies and not a cache for data.
//!
//! | where the paper is silent                                | here                                                   |
//! |----------------------------------------------------------|--------------------------------------------------------|
//! | which free segment is next                               | the one that has been free for longest                 |
//! | no segment is free, and a request needs one              | it waits, and the destager works in the foreground     |
//! | consecutive slots whose blocks are consecutive, destaged | one write                                              |
//! | writes that the file system calls synchronous            | to the log (section 3.6: metadata), unless asked for   |
//! | a flush                                                  | is answered at once: their hosts sent none             |

use std::collections::{BTreeMap, VecDeque};

use dcd_engine::destage::when::{Choice, PolicyView, WhenPolicy};
use dcd_engine::log_cache::{HowPolicy, LogCacheConfig, WhatPolicy};
use dcd_engine::{
    ActivateError, AnyStatus, Buf, Control, Cx, Durability, ErrorKind, Event, Extent, Geometry, Io, IoError,
    IoResult, Layer, Lba, Nanos, OpId, Port, Ports, Report, Request, RequestId, SECTOR_BYTES,
};
use serde_json::json;

const LOG: Port = Port(0);
const DATA: Port = Port(1);

/// Section 3.1: a slot is 1 KB, and a segment 128 KB and a header of two blocks.
const SLOT_SECTORS: u64 = 2;
const SLOT_BYTES: usize = (SLOT_SECTORS * SECTOR_BYTES) as usize;
const SLOTS: usize = 128;
const HEADER_BYTES: usize = 2 * SECTOR_BYTES as usize;
const SEGMENT_BYTES: usize = HEADER_BYTES + SLOTS * SLOT_BYTES;
const SEGMENT_SECTORS: u64 = SEGMENT_BYTES as u64 / SECTOR_BYTES;

/// A slot of a segment, in RAM or in the log: the paper's unified address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotAddress {
    segment: usize,
    slot: usize,
}

impl SlotAddress {
    fn plus(self, slots: usize) -> SlotAddress {
        SlotAddress { slot: self.slot + slots, ..self }
    }

    fn place(self) -> Lba {
        let header = HEADER_BYTES as u64 / SECTOR_BYTES;
        Lba(self.segment as u64 * SEGMENT_SECTORS + header + self.slot as u64 * SLOT_SECTORS)
    }
}

/// Consecutive slots with consecutive blocks of 1 KB.
#[derive(Clone, Copy, Debug)]
struct SlotRun {
    block: u64,
    from: SlotAddress,
    slots: usize,
}

/// The paper's in-memory segment header, with the segment buffer that it is paired with.
#[derive(Default)]
struct SegmentHeader {
    /// The block in each slot that was filled; none if it is invalid.
    blocks: Vec<Option<u64>>,
    valid: usize,
    buffer: Option<Buf>,
    /// Reads under way that the segment must not be reused under.
    pins: usize,
    /// Requests whose first block is in it, since it was taken.
    requests: u64,
}

/// An operation below.
enum ProtoOp {
    LogWrite(usize),
    /// Request of a client, and the segment that a read of the log pins.
    Client(RequestId, Option<usize>),
    Load(SlotRun),
    Move(SlotRun),
}

/// The aim of a batch of the destager.
enum Aim {
    Segment(usize),
    /// A read of blocks that are in several places (section 3.5.2): they are destaged, and then it goes to the data disk.
    Scattered(Request),
}

/// Destaging under way: one operation at a time.
struct Batch {
    aim: Aim,
    loaded: Option<(SlotRun, Buf)>,
}

#[derive(Default)]
struct ProtoCounts {
    read_hits: u64,
    log_writes: u64,
    /// The most requests that one of them carried.
    log_write_requests_max: u64,
    destage_writes: u64,
    destaged_sectors: u64,
    /// Time in which the destager had an operation below.
    destage_busy: Nanos,
}

/// See the module's documentation.
pub(crate) struct Prototype {
    config: LogCacheConfig,
    /// Writes that the file system calls synchronous go to the data disk.
    sync_to_data: bool,
    geometry: Geometry,
    segments: Vec<SegmentHeader>,
    free: VecDeque<usize>,
    /// By the time when they were written.
    dirty: Vec<usize>,
    table: BTreeMap<u64, SlotAddress>,
    /// The segment that takes writes, and the time of its first.
    current: Option<(usize, Nanos)>,
    /// Full, and not written yet.
    full: VecDeque<usize>,
    writing: Option<usize>,
    batch: Option<Batch>,
    /// Requests that wait for a buffer, a segment or the destager, in their order.
    waiting: VecDeque<Request>,
    /// Requests that are not answered.
    unanswered: u64,
    last_activity: Nanos,
    draining: bool,
    ops: BTreeMap<u64, ProtoOp>,
    next_op: u64,
    /// Begin of the destager's operation that is below.
    destage_since: Nanos,
    counts: ProtoCounts,
    /// Requests have bytes, and not only lengths.
    has_bytes: bool,
}

fn blocks_of(extent: Extent) -> std::ops::Range<u64> {
    let whole = extent.is_multiple_of(SLOT_SECTORS);
    assert!(whole, "all requests are multiples of 1 KB (section 3.3), but not {extent}");
    extent.start.0 / SLOT_SECTORS..extent.end().0 / SLOT_SECTORS
}

impl Prototype {
    pub fn new(config: LogCacheConfig, sync_to_data: bool) -> Prototype {
        Prototype {
            config,
            sync_to_data,
            geometry: Geometry::plain(0),
            segments: Vec::new(),
            free: VecDeque::new(),
            dirty: Vec::new(),
            table: BTreeMap::new(),
            current: None,
            full: VecDeque::new(),
            writing: None,
            batch: None,
            waiting: VecDeque::new(),
            unanswered: 0,
            last_activity: Nanos::ZERO,
            draining: false,
            ops: BTreeMap::new(),
            next_op: 0,
            destage_since: Nanos::ZERO,
            counts: ProtoCounts::default(),
            has_bytes: false,
        }
    }

    fn submit(&mut self, cx: &mut Cx, port: Port, op: ProtoOp, io: Io) {
        if matches!(op, ProtoOp::Load(_) | ProtoOp::Move(_)) {
            self.destage_since = cx.now;
        }
        self.ops.insert(self.next_op, op);
        cx.submit(port, OpId(self.next_op), io);
        self.next_op += 1;
    }

    fn answer(&mut self, cx: &mut Cx, id: RequestId, result: IoResult) {
        self.unanswered -= 1;
        self.last_activity = cx.now;
        cx.reply(id, result);
    }

    /// Segments with a buffer.
    fn buffered(&self) -> usize {
        self.full.len() + usize::from(self.current.is_some()) + usize::from(self.writing.is_some())
    }

    /// Moves a segment without valid data to the list of free ones.
    fn release(&mut self, segment: usize) {
        let header = &mut self.segments[segment];
        if header.valid == 0 && header.pins == 0 && header.buffer.is_none() {
            header.blocks.clear();
            self.dirty.retain(|other| *other != segment);
            self.free.push_back(segment);
        }
    }

    fn unpin(&mut self, segment: usize) {
        self.segments[segment].pins -= 1;
        self.release(segment);
    }

    fn invalidate(&mut self, block: u64) {
        if let Some(SlotAddress { segment, slot }) = self.table.remove(&block) {
            let header = &mut self.segments[segment];
            header.blocks[slot] = None;
            header.valid -= 1;
            self.release(segment);
        }
    }

    /// True while clients have operations at the data disk, which could overtake the destager's.
    fn is_data_disk_busy(&self) -> bool {
        self.ops.values().any(|op| matches!(op, ProtoOp::Client(_, None)))
    }

    /// Memory for bytes, without any where requests have none.
    fn memory(&self, bytes: usize) -> Buf {
        if self.has_bytes { Buf::zeroed(bytes) } else { Buf::blank(bytes) }
    }

    /// Lets the requests that wait begin, in their order, until one of them has to go on waiting.
    fn admit(&mut self, cx: &mut Cx) {
        while let Some(request) = self.waiting.pop_front() {
            if let Err(request) = self.begin(request, cx) {
                self.waiting.push_front(request);
                return;
            }
        }
    }

    /// Begins a request, or gives it back if it has to wait.
    fn begin(&mut self, request: Request, cx: &mut Cx) -> Result<(), Request> {
        match request.io {
            Io::Write { .. } => self.write(request, cx),
            Io::Read { .. } => self.read(request, cx),
            Io::Flush => {
                self.answer(cx, request.id, IoResult::ok(Buf::none()));
                Ok(())
            }
            io => {
                let refused = IoResult::err(io.take_buf(), IoError::new(ErrorKind::Unsupported));
                self.answer(cx, request.id, refused);
                Ok(())
            }
        }
    }

    fn write(&mut self, request: Request, cx: &mut Cx) -> Result<(), Request> {
        let Request { id, io: Io::Write { at, buf, durability }, disk } = request else {
            unreachable!("a write")
        };
        let blocks = blocks_of(Extent::new(at, buf.len() as u64 / SECTOR_BYTES));
        let back = |buf| Err(Request { id, disk, io: Io::Write { at, buf, durability } });
        let is_sync = self.sync_to_data && durability == Durability::Durable;
        if buf.len() as u64 >= self.config.bypass_bytes || is_sync {
            if self.batch.is_some() {
                return back(buf);
            }
            blocks.for_each(|block| self.invalidate(block));
            self.submit(cx, DATA, ProtoOp::Client(id, None), Io::Write { at, buf, durability });
            return Ok(());
        }
        if !self.has_room(buf.len() / SLOT_BYTES) {
            return back(buf);
        }
        for (index, block) in blocks.enumerate() {
            let segment = self.put(block, &buf, index * SLOT_BYTES, cx.now);
            self.segments[segment].requests += u64::from(index == 0);
        }
        self.answer(cx, id, IoResult::ok(buf));
        Ok(())
    }

    /// True if there are slots enough in the current segment and another pair of a buffer and a segment.
    fn has_room(&self, slots: usize) -> bool {
        let here = self.current.map_or(0, |(segment, _)| SLOTS - self.segments[segment].blocks.len());
        slots <= here || (self.buffered() < self.config.segment_buffers && !self.free.is_empty())
    }

    /// Appends a block to the current segment, and returns it; with compaction a block that this segment already has is
    /// overwritten.
    fn put(&mut self, block: u64, source: &Buf, at: usize, now: Nanos) -> usize {
        let old = self.table.get(&block).copied();
        let here =
            |address: &SlotAddress| self.current.is_some_and(|(segment, _)| segment == address.segment);
        let address = match old.filter(here).filter(|_| self.config.compact) {
            Some(address) => address,
            None => {
                self.invalidate(block);
                let (segment, _) = self.current.unwrap_or_else(|| {
                    self.has_bytes |= !source.is_blank();
                    let segment = self.free.pop_front().expect("there is room");
                    self.segments[segment].buffer = Some(self.memory(SEGMENT_BYTES));
                    self.segments[segment].requests = 0;
                    (segment, now)
                });
                self.current.get_or_insert((segment, now));
                let header = &mut self.segments[segment];
                header.blocks.push(Some(block));
                header.valid += 1;
                SlotAddress { segment, slot: header.blocks.len() - 1 }
            }
        };
        self.table.insert(block, address);
        let header = &mut self.segments[address.segment];
        let buffer = header.buffer.as_mut().expect("the current segment has a buffer");
        buffer.copy_from(HEADER_BYTES + address.slot * SLOT_BYTES, source, at, SLOT_BYTES);
        if header.blocks.len() == SLOTS {
            self.full.push_back(address.segment);
            self.current = None;
        }
        address.segment
    }

    fn read(&mut self, request: Request, cx: &mut Cx) -> Result<(), Request> {
        let extent = request.io.extent().expect("a read has an extent");
        let blocks = blocks_of(extent);
        let cached = self.table.range(blocks.clone()).count() as u64;
        if cached == 0 {
            self.submit(cx, DATA, ProtoOp::Client(request.id, None), request.io);
            return Ok(());
        }
        let is_all = cached == blocks.end - blocks.start;
        let first = self.run_from(blocks.start, blocks.end);
        let in_ram = |address: &SlotAddress| self.segments[address.segment].buffer.is_some();
        if is_all && self.table.range(blocks.clone()).all(|(_, address)| in_ram(address)) {
            let mut buf = request.io.take_buf();
            for (index, (_, address)) in self.table.range(blocks).enumerate() {
                let source = self.segments[address.segment].buffer.as_ref().expect("it is in RAM");
                let from = HEADER_BYTES + address.slot * SLOT_BYTES;
                buf.copy_from(index * SLOT_BYTES, source, from, SLOT_BYTES);
            }
            self.counts.read_hits += 1;
            self.answer(cx, request.id, IoResult::ok(buf));
        } else if let Some(run) =
            first.filter(|run| is_all && run.slots as u64 == cached && !in_ram(&run.from))
        {
            self.counts.read_hits += 1;
            self.segments[run.from.segment].pins += 1;
            let io = Io::Read { at: run.from.place(), buf: request.io.take_buf() };
            self.submit(cx, LOG, ProtoOp::Client(request.id, Some(run.from.segment)), io);
        } else if self.batch.is_none() && !self.is_data_disk_busy() {
            self.counts.read_hits += 1;
            self.batch = Some(Batch { aim: Aim::Scattered(request), loaded: None });
            self.destage(cx);
        } else {
            return Err(request);
        }
        Ok(())
    }

    /// The first run of slots with blocks of a range.
    fn run_from(&self, first: u64, end: u64) -> Option<SlotRun> {
        let (&block, &from) = self.table.range(first..end).next()?;
        let goes_on = |slots: &usize| {
            block + (*slots as u64) < end
                && self.table.get(&(block + *slots as u64)) == Some(&from.plus(*slots))
        };
        let slots = (1..SLOTS).take_while(goes_on).count() + 1;
        Some(SlotRun { block, from, slots })
    }

    /// The next run of a segment to destage.
    fn next_of(&self, segment: usize) -> Option<SlotRun> {
        let mut valid = self.segments[segment].blocks.iter().flatten();
        let first = match self.config.how {
            HowPolicy::AsItComes => valid.next(),
            _ => valid.min(),
        };
        self.run_from(*first?, u64::MAX)
    }

    /// Goes on with the batch: loads, writes, or ends it.
    fn destage(&mut self, cx: &mut Cx) {
        let Some(batch) = &self.batch else { return };
        let next = match &batch.aim {
            Aim::Segment(segment) => self.next_of(*segment),
            Aim::Scattered(request) => {
                let blocks = blocks_of(request.io.extent().expect("a read has an extent"));
                self.run_from(blocks.start, blocks.end)
            }
        };
        let Some(run) = next else {
            self.end_batch(cx);
            return;
        };
        let bytes = run.slots * SLOT_BYTES;
        let offset = |first: usize| (run.from.slot - first) * SLOT_BYTES;
        let (source, at) = match (&self.segments[run.from.segment].buffer, &batch.loaded) {
            (Some(buffer), _) => (buffer, HEADER_BYTES + offset(0)),
            (None, Some((loaded, buf)))
                if loaded.from.segment == run.from.segment && covers(loaded, &run) =>
            {
                (buf, offset(loaded.from.slot))
            }
            _ => {
                self.load(run, cx);
                return;
            }
        };
        let mut buf = self.memory(bytes);
        buf.copy_from(0, source, at, bytes);
        self.counts.destage_writes += 1;
        self.counts.destaged_sectors += run.slots as u64 * SLOT_SECTORS;
        let io = Io::Write { at: Lba(run.block * SLOT_SECTORS), buf, durability: Durability::Volatile };
        self.submit(cx, DATA, ProtoOp::Move(run), io);
    }

    /// Reads what is destaged from the log: of a segment all of its valid slots at once.
    fn load(&mut self, run: SlotRun, cx: &mut Cx) {
        self.unload();
        let segment = run.from.segment;
        let is_segment = matches!(self.batch, Some(Batch { aim: Aim::Segment(_), .. }));
        let blocks = &self.segments[segment].blocks;
        let span = match (blocks.iter().position(Option::is_some), blocks.iter().rposition(Option::is_some)) {
            (Some(first), Some(last)) if is_segment => {
                SlotRun { from: SlotAddress { segment, slot: first }, slots: last + 1 - first, ..run }
            }
            _ => run,
        };
        self.segments[segment].pins += 1;
        let buf = self.memory(span.slots * SLOT_BYTES);
        self.submit(cx, LOG, ProtoOp::Load(span), Io::Read { at: span.from.place(), buf });
    }

    fn unload(&mut self) {
        if let Some((run, _)) = self.batch.as_mut().and_then(|batch| batch.loaded.take()) {
            self.unpin(run.from.segment);
        }
    }

    fn end_batch(&mut self, cx: &mut Cx) {
        self.unload();
        if let Some(Batch { aim: Aim::Scattered(Request { id, io, .. }), .. }) = self.batch.take() {
            self.submit(cx, DATA, ProtoOp::Client(id, None), io);
        }
    }

    fn choice(&self, now: Nanos) -> Choice {
        // Without a free segment the client at the front waits for the destager.
        if self.draining || (self.free.is_empty() && !self.waiting.is_empty()) {
            return Choice::Run;
        }
        WhenPolicy::Idle.choose(&PolicyView {
            now,
            utilisation: self.dirty.len() as f64 / self.segments.len() as f64,
            foreground: self.unanswered,
            last_activity: self.last_activity,
            running: self.batch.is_some(),
            in_flight: 0,
            depth: 1,
            high_mark: f64::INFINITY,
            low_mark: 0.0,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        })
    }

    /// The segment that is destaged next.
    fn pick(&self) -> Option<usize> {
        let mut valid = self.dirty.iter().copied().filter(|segment| self.segments[*segment].valid > 0);
        match self.config.what {
            WhatPolicy::LeastValidFirst => valid.min_by_key(|segment| self.segments[*segment].valid),
            _ => valid.next_back(),
        }
    }

    /// The time when the current segment is written though it is not full.
    fn log_write_at(&self) -> Option<Nanos> {
        let (_, since) = self.current.filter(|_| self.writing.is_none())?;
        let is_urgent = self.draining || !self.waiting.is_empty();
        Some(if is_urgent { since } else { since.saturating_add(self.config.delay_max) })
    }

    fn write_log(&mut self, cx: &mut Cx) {
        if self.writing.is_some() {
            return;
        }
        if self.full.is_empty() && self.log_write_at().is_some_and(|at| at <= cx.now) {
            self.full.extend(self.current.take().map(|(segment, _)| segment));
        }
        let Some(segment) = self.full.pop_front() else { return };
        self.writing = Some(segment);
        let buffer = self.segments[segment].buffer.as_mut().expect("it is not written yet");
        buffer.share();
        let io = Io::Write {
            at: Lba(segment as u64 * SEGMENT_SECTORS),
            buf: buffer.window(0, SEGMENT_BYTES),
            durability: Durability::Volatile,
        };
        self.counts.log_writes += 1;
        let carried = self.segments[segment].requests;
        self.counts.log_write_requests_max = self.counts.log_write_requests_max.max(carried);
        self.submit(cx, LOG, ProtoOp::LogWrite(segment), io);
    }

    /// Begins all that can begin.
    fn go_on(&mut self, cx: &mut Cx) {
        self.admit(cx);
        self.write_log(cx);
        if self.batch.is_none()
            && !self.is_data_disk_busy()
            && self.choice(cx.now) == Choice::Run
            && let Some(segment) = self.pick()
        {
            self.batch = Some(Batch { aim: Aim::Segment(segment), loaded: None });
            self.destage(cx);
        }
        if self.draining && self.batch.is_none() && self.dirty.is_empty() && self.buffered() == 0 {
            self.draining = false;
            cx.report(Report::Drained);
        }
    }

    fn completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        let op = self.ops.remove(&op.0).expect("an operation ends once");
        if matches!(op, ProtoOp::Load(_) | ProtoOp::Move(_)) {
            self.counts.destage_busy += cx.now.since(self.destage_since);
        }
        match op {
            ProtoOp::Client(id, pinned) => {
                self.answer(cx, id, result);
                if let Some(segment) = pinned {
                    self.unpin(segment);
                }
                return;
            }
            ProtoOp::LogWrite(segment) => {
                self.writing = None;
                self.segments[segment].buffer = None;
                self.dirty.push(segment);
                self.release(segment);
                return;
            }
            ProtoOp::Load(span) => {
                self.batch.as_mut().expect("a batch loads").loaded = Some((span, result.buf));
            }
            ProtoOp::Move(run) => {
                for index in 0..run.slots {
                    let block = run.block + index as u64;
                    if self.table.get(&block) == Some(&run.from.plus(index)) {
                        self.invalidate(block);
                    }
                }
            }
        }
        // A request suspends the destager, which begins anew in the next idle period.
        let is_background = matches!(self.batch, Some(Batch { aim: Aim::Segment(_), .. }));
        if is_background && self.choice(cx.now) != Choice::Run {
            self.end_batch(cx);
        } else {
            self.destage(cx);
        }
    }
}

fn covers(loaded: &SlotRun, run: &SlotRun) -> bool {
    loaded.from.slot <= run.from.slot && run.from.slot + run.slots <= loaded.from.slot + loaded.slots
}

impl Layer for Prototype {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        match event {
            Event::Request(request) => {
                self.unanswered += 1;
                self.last_activity = cx.now;
                self.waiting.push_back(request);
            }
            Event::Completed { op, result } => self.completed(op, result, cx),
            Event::Control(Control::Drain) => self.draining = true,
            Event::Control(Control::ResetStatistics) => self.counts = ProtoCounts::default(),
            Event::Control(_) | Event::Wake => {}
        }
        self.go_on(cx);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let destage = match self.choice(Nanos::ZERO) {
            Choice::At(at) if self.batch.is_none() && !self.dirty.is_empty() => Some(at),
            _ => None,
        };
        self.log_write_at().into_iter().chain(destage).min()
    }

    fn check(&self) {
        let valid: usize = self.segments.iter().map(|segment| segment.valid).sum();
        assert_eq!(valid, self.table.len(), "each valid slot is in the table");
        let listed = self.free.len() + self.dirty.len() + self.buffered();
        assert_eq!(listed, self.segments.len(), "each segment is free, dirty or in RAM");
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = below.geometry(DATA);
        let count = (below.geometry(LOG).sectors / SEGMENT_SECTORS) as usize;
        self.segments.resize_with(count, SegmentHeader::default);
        self.free.extend(0..count);
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let counts = &self.counts;
        Box::new(json!({ "statistics": {
            "read_hits": counts.read_hits,
            "log_writes": counts.log_writes,
            "log_bytes": counts.log_writes * SEGMENT_BYTES as u64,
            "log_write_requests_max": counts.log_write_requests_max,
            "destage_writes": counts.destage_writes,
            "destaged_sectors": counts.destaged_sectors,
            "destage_busy_ms": counts.destage_busy.as_millis_f64(),
        } }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use dcd_crash::{DriverProgress, Latency, MemDisk, SimRng, VirtualDriver};
    use dcd_engine::{LayerIndex, Pump, Stack, StackBuilder};

    use super::*;

    const DATA_BLOCKS: u64 = 320;
    /// Operations end in any order.
    const LATENCY: Latency = Latency::Uniform { min: Nanos::from_micros(10), max: Nanos::from_millis(5) };

    /// A driver on a log of few segments, so that it has to destage while requests wait.
    fn start(segments: u64, change: fn(&mut LogCacheConfig)) -> (Stack, VirtualDriver<MemDisk>) {
        let disks = [segments * SEGMENT_SECTORS, DATA_BLOCKS * SLOT_SECTORS]
            .map(|sectors| MemDisk::new(Geometry::plain(sectors), LATENCY, 1));
        let driver = VirtualDriver::new(disks.into());
        let mut builder = StackBuilder::new();
        let below: Vec<_> = driver.geometries().into_iter().map(|of| builder.device(of)).collect();
        let mut config = crate::configurations::paper().config;
        config.idle_empty = Nanos::from_millis(20);
        change(&mut config);
        let root = builder.layer("cache", Box::new(Prototype::new(config, false)), &below);
        (builder.finish(root), driver)
    }

    fn reply(stack: &mut Stack, driver: &mut VirtualDriver<MemDisk>) -> (RequestId, IoResult) {
        loop {
            if let Some(reply) = driver.take_reply() {
                return reply;
            }
            assert_ne!(driver.step(stack), DriverProgress::Idle, "a request is never answered");
        }
    }

    /// Clients that each work on a part of the disk read what they wrote, wherever the driver has it.
    fn reads_what_was_written(segments: u64, change: fn(&mut LogCacheConfig)) {
        const CLIENTS: u64 = 4;
        let (mut stack, mut driver) = start(segments, change);
        stack.activate(&mut driver).expect("it starts");
        let mut random = SimRng::new(segments);
        let mut content = vec![0u8; DATA_BLOCKS as usize];
        let mut out: HashMap<RequestId, Vec<u8>> = HashMap::new();
        let mut free: Vec<u64> = (0..CLIENTS).collect();
        let part = DATA_BLOCKS / CLIENTS;
        for step in 0..6000 {
            let client = free.swap_remove(random.below(free.len() as u64) as usize);
            let len = if random.below(20) == 0 { 64 } else { 1 + random.below(12) };
            let first = client * part + random.below(part - len);
            let at = Lba(first * SLOT_SECTORS);
            let mut bytes = vec![0; len as usize * SLOT_BYTES];
            let id = RequestId(step * CLIENTS + client);
            let range = first as usize..(first + len) as usize;
            if random.below(2) == 0 {
                content[range.clone()].fill(1 + (step % 255) as u8);
                bytes.fill(1 + (step % 255) as u8);
                let io = Io::Write { at, buf: Buf::copy_of(&bytes), durability: Durability::Volatile };
                driver.request(&mut stack, id, io);
                out.insert(id, Vec::new());
            } else {
                driver.request(&mut stack, id, Io::Read { at, buf: Buf::zeroed(bytes.len()) });
                out.insert(id, content[range].to_vec());
            }
            if free.is_empty() {
                let (id, result) = reply(&mut stack, &mut driver);
                result.status.expect("the disks have no errors");
                for (block, wanted) in out.remove(&id).expect("it was sent").into_iter().enumerate() {
                    let got = &result.buf.bytes()[block * SLOT_BYTES..(block + 1) * SLOT_BYTES];
                    assert!(
                        got.iter().all(|byte| *byte == wanted),
                        "step {step}: {} is not {wanted}",
                        got[0]
                    );
                }
                free.push(id.0 % CLIENTS);
            }
            if random.below(10) == 0 {
                // So long that it destages, and often so short that it has not done with it.
                driver.set_alarm(driver.now() + Nanos::from_millis(random.below(100)), 0);
                while driver.step(&mut stack) != DriverProgress::Alarm(0) {}
            }
        }
    }

    #[test]
    fn the_papers_driver_reads_what_was_written() {
        reads_what_was_written(5, |_| {});
        reads_what_was_written(40, |config| config.delay_max = Nanos::from_millis(50));
        let future = |config: &mut LogCacheConfig| {
            (config.what, config.how) = (WhatPolicy::LeastValidFirst, HowPolicy::Sorted);
            config.compact = true;
        };
        reads_what_was_written(9, future);
    }

    /// Section 3.6: no write of a buffer waits for it to be full, and each takes a whole segment.
    #[test]
    fn the_next_log_write_begins_when_the_last_has_ended() {
        let (mut stack, mut driver) = start(8, |_| {});
        stack.activate(&mut driver).expect("it starts");
        let write = |at: u64, blocks: usize| Io::Write {
            at: Lba(at * SLOT_SECTORS),
            buf: Buf::blank(blocks * SLOT_BYTES),
            durability: Durability::Volatile,
        };
        for id in 0..3 {
            driver.request(&mut stack, RequestId(id), write(id * 8, 8));
            reply(&mut stack, &mut driver);
        }
        let counted = |stack: &Stack| {
            let status = stack.layer(LayerIndex(0)).status(Nanos::ZERO).to_json();
            ["log_writes", "log_bytes"].map(|name| status["statistics"][name].as_u64().expect("a count"))
        };
        assert_eq!(driver.now(), Nanos::ZERO, "nobody waited");
        // Longer than two operations take, shorter than the driver waits before it destages.
        driver.set_alarm(Nanos::from_millis(11), 0);
        while driver.step(&mut stack) != DriverProgress::Alarm(0) {}
        assert_eq!(counted(&stack), [2, 2 * SEGMENT_BYTES as u64], "the first alone, then both others");
        let status = stack.layer(LayerIndex(0)).status(Nanos::ZERO).to_json();
        assert_eq!(status["statistics"]["log_write_requests_max"], 2);
        assert_eq!(status["statistics"]["destage_busy_ms"], 0.0);
        driver.request(&mut stack, RequestId(9), write(100, 64));
        reply(&mut stack, &mut driver);
        assert_eq!(counted(&stack)[0], 2, "64 KB go to the data disk");
    }
}
