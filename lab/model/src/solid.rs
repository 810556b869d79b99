//! Devices without heads: SSDs, and the volumes of clouds.
//!
//! A request takes a latency, and waits for every *limit* that it falls under: a rate with a burst (a token bucket). Limits
//! are all that a volume of a cloud has. The cliff of an SSD behind its fast cells is a limit, too: a burst as large as
//! they are, and the rate of the slow ones, at which the drive empties the fast ones. Collection makes random writes count
//! several times there: those that do not go on where one of the last few writes ended. A read waits for the program that
//! runs on its channel. Answers to writes are lost in a power cut up to a flush if the drive has a volatile buffer:
//! it is a ring, and only a flush empties it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use dcd_engine::{
    ActivateError, AnyStatus, Control, Cx, Durability, Event, Extent, Geometry, Io, IoResult, Layer, Lba,
    Nanos, OpId, Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use serde::{Deserialize, Serialize};

use crate::behind::Behind;
use crate::controller::{Access, Served, Service};
use crate::disk::used_geometry;
use crate::queue::{DiskWork, Pending};
use crate::statistics::Statistics;

const BELOW: Port = Port(0);
/// Sequential streams of writes that a drive tells from random writes.
const STREAMS: usize = 8;
/// Writes move whole pages of this size.
const PAGE_SECTORS: u64 = 8;

/// Requests that fall under a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limited {
    #[default]
    All,
    Reads,
    Writes,
    /// Writes, with what collection adds to them.
    Programs,
}

/// A token bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub of: Limited,
    /// Time of a sector, or of an operation.
    pub picos: u64,
    /// Sectors that count as one operation; none if sectors are counted.
    pub operation_sectors: Option<u64>,
    /// Time that an empty bucket takes to fill.
    pub burst: Nanos,
}

/// A data sheet of a device without heads, checked and ready for use.
#[derive(Clone, Debug, Default)]
pub struct Solid {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) sectors: u64,
    pub(crate) queue_depth: usize,
    pub(crate) read: Nanos,
    pub(crate) write: Nanos,
    pub(crate) flush: Nanos,
    pub(crate) channels: usize,
    pub(crate) program: Nanos,
    pub(crate) program_sectors: u64,
    /// Thousandths of what a random write programs for each byte.
    pub(crate) amplification: u64,
    /// Sectors of answered writes that a power cut may take; 0 with power-loss protection.
    pub(crate) volatile_sectors: u64,
    pub(crate) limits: Vec<Limit>,
    pub(crate) endurance_bytes: Option<u64>,
}

impl Solid {
    /// Bytes that may be written in its life, where the data sheet has them.
    pub fn endurance_bytes(&self) -> Option<u64> {
        self.endurance_bytes
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct SolidDisk {
    solid: Solid,
    size: Option<u64>,
    geometry: Option<Geometry>,
    /// Requests by their end, and of one end in their order.
    serving: BTreeMap<(Nanos, u64), Pending>,
    arrivals: u64,
    /// Ends of the last commands, as many as the device has at a time.
    places: BinaryHeap<Reverse<Nanos>>,
    /// Time at which the bucket of each limit is full.
    full_at: Vec<Nanos>,
    /// Ends of the last programs, by channel.
    programs: Vec<Nanos>,
    next_channel: usize,
    /// Sectors, in thousandths, that do not fill a program yet; and of all programs.
    gathered: u64,
    programmed: u64,
    streams: VecDeque<Lba>,
    /// The ranges in the volatile buffer, the oldest first.
    held: VecDeque<Extent>,
    behind: Behind,
    flushing: Vec<RequestId>,
    statistics: Statistics,
}

impl SolidDisk {
    /// A device of which `size` bytes are used; if absent, all that is below.
    pub fn new(solid: Solid, size: Option<u64>) -> SolidDisk {
        SolidDisk {
            full_at: vec![Nanos::ZERO; solid.limits.len()],
            programs: vec![Nanos::ZERO; solid.channels],
            solid,
            size,
            ..SolidDisk::default()
        }
    }

    fn delays(&self, io: &Io) -> bool {
        self.solid.volatile_sectors > 0 && matches!(io, Io::Write { durability: Durability::Volatile, .. })
    }

    fn accept(&mut self, request: Request, cx: &mut Cx) {
        if let Err(error) = self.geometry().validate(&request.io) {
            return cx.reply(request.id, IoResult::err(request.io.take_buf(), error));
        }
        let begin = match self.places.len() < self.solid.queue_depth {
            true => cx.now,
            false => cx.now.max(self.places.pop().expect("a queue has places").0),
        };
        let end = self.end_of(begin, &request.io);
        self.places.push(Reverse(end));
        let access = match request.io {
            Io::Read { .. } | Io::ReadCopy { .. } => Access::Read,
            Io::WriteZeroes { .. } => Access::WriteZeroes,
            _ => Access::Write,
        };
        let work = match request.io.extent() {
            Some(extent) => DiskWork::Transfer { access, extent, spot: None },
            None => DiskWork::Flush,
        };
        let served = if self.delays(&request.io) { Served::Cache } else { Served::Medium };
        let pending = Pending { request, work, arrival: cx.now, known: cx.now };
        self.statistics.served(begin, &Service { served, ..Service::without_data(end) }, &pending);
        self.statistics.side_by_side(end.since(begin), self.solid.queue_depth as u64);
        self.arrivals += 1;
        self.serving.insert((end, self.arrivals), pending);
        self.statistics.queued(self.serving.len());
    }

    /// Returns the end of a request that the device begins to serve at a time.
    fn end_of(&mut self, begin: Nanos, io: &Io) -> Nanos {
        let Some(extent) = io.extent() else {
            let nothing = self.solid.volatile_sectors > 0 && self.held.is_empty();
            return begin + if nothing { self.solid.write } else { self.solid.flush };
        };
        match io {
            Io::Read { .. } | Io::ReadCopy { .. } => {
                let paid = self.pay(begin, false, extent.sectors, 1000);
                let channel = extent.start.0 / self.solid.program_sectors % self.programs.len() as u64;
                // A read comes before the programs that wait.
                let program = self.programs[channel as usize].since(begin).min(self.solid.program);
                paid.max(begin + program) + self.solid.read
            }
            Io::WriteZeroes { .. } => self.pay(begin, true, 0, 1000) + self.solid.write,
            _ => {
                let sectors = extent.sectors.next_multiple_of(PAGE_SECTORS);
                let thousandths = if self.goes_on(extent) { 1000 } else { self.solid.amplification };
                let paid = self.pay(begin, true, sectors, thousandths);
                self.program(paid, sectors * thousandths);
                let durable = self.solid.volatile_sectors > 0 && !self.delays(io);
                paid + self.solid.write + if durable { self.solid.flush } else { Nanos::ZERO }
            }
        }
    }

    /// Returns the time at which all limits let a request pass.
    fn pay(&mut self, at: Nanos, writes: bool, sectors: u64, thousandths: u64) -> Nanos {
        let mut paid = at;
        for (limit, full_at) in self.solid.limits.iter().zip(&mut self.full_at) {
            let thousandths = match (limit.of, writes) {
                (Limited::Reads, true) | (Limited::Writes | Limited::Programs, false) => continue,
                (Limited::Programs, true) => thousandths,
                _ => 1000,
            };
            let units = limit.operation_sectors.map_or(sectors, |most| sectors.div_ceil(most).max(1));
            let picos = u128::from(units) * u128::from(limit.picos) * u128::from(thousandths);
            *full_at = (*full_at).max(at) + Nanos((picos / 1_000_000) as u64);
            paid = paid.max(Nanos(full_at.0.saturating_sub(limit.burst.0)));
        }
        paid
    }

    /// True for a write that goes on where one of the last ended.
    fn goes_on(&mut self, extent: Extent) -> bool {
        let stream = self.streams.iter().position(|end| *end == extent.start);
        if let Some(oldest) = stream.or((self.streams.len() == STREAMS).then_some(0)) {
            self.streams.remove(oldest);
        }
        self.streams.push_back(extent.end());
        stream.is_some()
    }

    fn program(&mut self, at: Nanos, sector_thousandths: u64) {
        self.programmed += sector_thousandths;
        self.gathered += sector_thousandths;
        while self.gathered >= self.solid.program_sectors * 1000 {
            self.gathered -= self.solid.program_sectors * 1000;
            let end = &mut self.programs[self.next_channel];
            *end = (*end).max(at) + self.solid.program;
            self.next_channel = (self.next_channel + 1) % self.solid.channels;
        }
    }

    fn end_service(&mut self, pending: Pending, cx: &mut Cx) {
        let Request { id, io, .. } = pending.request;
        if let (true, Io::Write { at, buf, .. }, Some(extent)) = (self.delays(&io), &io, io.extent()) {
            self.behind.hold(*at, buf);
            self.held.push_back(extent);
            let most = self.solid.volatile_sectors;
            while self.behind.held_sectors() > most || self.held.len() as u64 > most {
                let oldest = self.held.pop_front().expect("what is held has a range");
                self.behind.destaged(oldest, cx);
            }
            return cx.reply(id, IoResult::ok(io.take_buf()));
        }
        match (pending.work, io.extent()) {
            (DiskWork::Transfer { access: Access::Read, .. }, _) => {}
            (_, Some(extent)) => self.behind.destaged(extent, cx),
            (_, None) => {
                self.held.clear();
                self.behind.destaged(Extent::new(Lba(0), self.geometry().sectors), cx);
                self.flushing.push(id);
            }
        }
        self.statistics.below_changes(cx.now, true);
        self.behind.hand_down(OpId(id.0), io, cx);
    }

    fn completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        let flush = self.flushing.iter().position(|id| id.0 == op.0);
        flush.map(|index| self.flushing.swap_remove(index));
        if let Some(result) = self.behind.completed(op, flush.is_some(), result, cx) {
            self.statistics.below_changes(cx.now, false);
            cx.reply(RequestId(op.0), result);
        }
    }
}

impl Layer for SolidDisk {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        while let Some(first) = self.serving.first_entry().filter(|first| first.key().0 <= cx.now) {
            self.statistics.late(cx.now.since(first.key().0));
            let pending = first.remove();
            self.end_service(pending, cx);
        }
        match event {
            Event::Request(request) => self.accept(request, cx),
            Event::Completed { op, result } => self.completed(op, result, cx),
            Event::Control(Control::ResetStatistics) => {
                self.programmed = 0;
                self.statistics.reset(cx.now);
            }
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.serving.first_key_value().map(|((end, _), _)| *end)
    }

    fn has_work(&self, _now: Nanos) -> bool {
        !self.serving.is_empty()
    }

    fn check(&self) {
        assert!(
            self.behind.held_sectors() <= self.solid.volatile_sectors,
            "more is held than the buffer has"
        );
        assert!(self.places.len() <= self.solid.queue_depth);
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let blocks = (SECTOR_BYTES as u32, (PAGE_SECTORS * SECTOR_BYTES) as u32);
        let drive = (&*self.solid.name, self.solid.sectors);
        let geometry = used_geometry(drive, blocks, self.size, below.geometry(BELOW))?;
        let volatile_cache = geometry.volatile_cache || self.solid.volatile_sectors > 0;
        self.geometry = Some(Geometry { volatile_cache, ..geometry });
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let mut status = self.statistics.to_json();
        status["drive"] = self.solid.name.as_str().into();
        status["unwritten_sectors"] = self.behind.held_sectors().into();
        status["queued"] = self.serving.len().into();
        status["programmed_bytes"] = (self.programmed * SECTOR_BYTES / 1000).into();
        status["endurance_bytes"] = self.solid.endurance_bytes.into();
        Box::new(status)
    }
}
