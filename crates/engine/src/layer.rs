//! The layer: a synchronous state machine with requests and completions in, commands and replies out.
//!
//! A layer does no I/O, reads no clock, starts no thread, and never blocks. Time is an argument. The one exception to
//! "never blocks" is [`Layer::activate`], which runs once before any request, on devices that answer synchronously.

use std::any::Any;
use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::log_cache::LogCacheConfig;
use crate::raid::RaidConfig;
use crate::{Buf, Extent, Lba, Nanos};

/// The time that a write may stay in a volatile cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Durability {
    /// Until the next flush.
    Volatile,
    /// Not at all: the completion says that the data is on the medium (FUA).
    Durable,
}

/// An I/O operation. Buffers travel with it and come back in the [`IoResult`].
#[derive(Debug)]
pub enum Io {
    /// Fills `buf` from the sectors at `at`; `buf.len()` is the length.
    Read {
        at: Lba,
        buf: Buf,
    },
    /// Reads one particular copy of the data, as another copy may be wrong. Only layers with [`Geometry::copies`] get it.
    ReadCopy {
        at: Lba,
        buf: Buf,
        copy: u8,
    },
    Write {
        at: Lba,
        buf: Buf,
        durability: Durability,
    },
    /// Writes one copy, numbered as in [`Io::ReadCopy`]. The copy that the bytes were read from must not be written over: it may be the
    /// only good one.
    WriteCopy {
        at: Lba,
        buf: Buf,
        durability: Durability,
        copy: u8,
    },
    /// Makes every write that completed before this was submitted durable.
    Flush,
    /// The sectors are not needed any more; [`Geometry::discards`] says what they hold afterwards.
    Discard {
        extent: Extent,
    },
    /// The sectors read as zeroes afterwards. `unmap`: the space may be given back.
    WriteZeroes {
        extent: Extent,
        unmap: bool,
        durability: Durability,
    },
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoKind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl IoKind {
    pub const fn name(self) -> &'static str {
        match self {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Flush => "flush",
            IoKind::Discard => "discard",
            IoKind::WriteZeroes => "write-zeroes",
        }
    }
}

impl Io {
    /// The sectors that the operation touches; none for a flush.
    #[inline]
    pub fn extent(&self) -> Option<Extent> {
        let of = |at: Lba, buf: &Buf| Extent::new(at, buf.len() as u64 / crate::SECTOR_BYTES);
        match self {
            Io::Read { at, buf }
            | Io::ReadCopy { at, buf, .. }
            | Io::Write { at, buf, .. }
            | Io::WriteCopy { at, buf, .. } => Some(of(*at, buf)),
            Io::Flush => None,
            Io::Discard { extent } | Io::WriteZeroes { extent, .. } => Some(*extent),
        }
    }

    /// The first sector that the operation touches, to be moved; none for a flush.
    pub const fn start_mut(&mut self) -> Option<&mut Lba> {
        match self {
            Io::Read { at, .. }
            | Io::ReadCopy { at, .. }
            | Io::Write { at, .. }
            | Io::WriteCopy { at, .. } => Some(at),
            Io::Flush => None,
            Io::Discard { extent } | Io::WriteZeroes { extent, .. } => Some(&mut extent.start),
        }
    }

    pub const fn kind(&self) -> IoKind {
        match self {
            Io::Read { .. } | Io::ReadCopy { .. } => IoKind::Read,
            Io::Write { .. } | Io::WriteCopy { .. } => IoKind::Write,
            Io::Flush => IoKind::Flush,
            Io::Discard { .. } => IoKind::Discard,
            Io::WriteZeroes { .. } => IoKind::WriteZeroes,
        }
    }

    pub const fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// True for everything that changes data.
    pub const fn modifies(&self) -> bool {
        matches!(self, Io::Write { .. } | Io::WriteCopy { .. } | Io::Discard { .. } | Io::WriteZeroes { .. })
    }

    /// Takes the buffer out, to send it back with a result.
    pub fn take_buf(self) -> Buf {
        match self {
            Io::Read { buf, .. }
            | Io::ReadCopy { buf, .. }
            | Io::Write { buf, .. }
            | Io::WriteCopy { buf, .. } => buf,
            Io::Flush | Io::Discard { .. } | Io::WriteZeroes { .. } => Buf::none(),
        }
    }
}

/// The kind of an error, in the terms that a front-end can pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The medium could not read or write (EIO).
    Medium,
    /// No space on a sparse or thin device (ENOSPC).
    NoSpace,
    /// Past the end of the device.
    OutOfRange,
    /// The device is read only.
    ReadOnly,
    /// Not aligned, empty, or otherwise malformed (EINVAL).
    Invalid,
    /// The device cannot do this (ENOTSUP).
    Unsupported,
    /// Acknowledged data cannot be read back intact: checksum mismatch or a dead log (EIO).
    Lost,
    /// The server is stopping (ESHUTDOWN).
    Shutdown,
    /// Power is off: only simulated devices say so.
    PowerCut,
}

impl ErrorKind {
    /// Name of the kind in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            ErrorKind::Medium => "medium",
            ErrorKind::NoSpace => "no-space",
            ErrorKind::OutOfRange => "out-of-range",
            ErrorKind::ReadOnly => "read-only",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Lost => "lost",
            ErrorKind::Shutdown => "shutdown",
            ErrorKind::PowerCut => "power-cut",
        }
    }
}

/// Error of an operation, with its place if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct IoError {
    pub kind: ErrorKind,
    pub extent: Option<Extent>,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            ErrorKind::Medium => "I/O error on the medium",
            ErrorKind::NoSpace => "no space left on the device",
            ErrorKind::OutOfRange => "past the end of the device",
            ErrorKind::ReadOnly => "the device is read only",
            ErrorKind::Invalid => "malformed request",
            ErrorKind::Unsupported => "the device cannot do this",
            ErrorKind::Lost => "acknowledged data cannot be read back",
            ErrorKind::Shutdown => "the server is stopping",
            ErrorKind::PowerCut => "the power is off",
        };
        match self.extent {
            Some(extent) => write!(f, "{text} at {extent}"),
            None => f.write_str(text),
        }
    }
}

impl IoError {
    pub const fn new(kind: ErrorKind) -> IoError {
        IoError { kind, extent: None }
    }

    pub const fn at(kind: ErrorKind, extent: Extent) -> IoError {
        IoError { kind, extent: Some(extent) }
    }
}

/// Result of an [`Io`]: its buffer and its status.
#[derive(Debug)]
pub struct IoResult {
    pub buf: Buf,
    pub status: Result<(), IoError>,
}

impl IoResult {
    pub const fn ok(buf: Buf) -> IoResult {
        IoResult { buf, status: Ok(()) }
    }

    pub const fn err(buf: Buf, error: IoError) -> IoResult {
        IoResult { buf, status: Err(error) }
    }
}

/// Names a request for as long as it is unanswered; chosen by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a command for as long as it is not completed; chosen by the layer that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// A connection from a layer to a layer or device below: the log cache has its log on port 0 and its data disk on port 1; several data
/// disks are on the ports from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub usize);

#[derive(Debug)]
pub struct Request {
    pub id: RequestId,
    /// Disk of the layer that the request is for: 0, unless the layer has several.
    pub disk: usize,
    pub io: Io,
}

/// The place of a device in an array, as the stack file lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seat {
    /// At this place among the spares. For a mirror: its number of legs with this one.
    Spare(usize),
    /// In the place of the member of this role.
    Member(usize),
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Seat::Spare(place) => write!(f, "spare {place}"),
            Seat::Member(role) => write!(f, "member {role}"),
        }
    }
}

/// A command of an administrator to an array; each is answered by one [`Report::Array`], in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayCommand {
    /// Stop using the member of this role, as if it had failed.
    Fail { role: usize },
    /// Compare the parity of the whole array with its data; `repair`: rewrite blocks that do not match. Answered when it begins.
    Scrub { repair: bool },
    /// End a scrub early.
    ScrubStop,
    /// Rebuild failed members on the spares present. Answered when it begins.
    Rebuild,
    /// Make the device on a new port a spare. In the seat of a member, it gets that role and no other. Answered when it begins. `id`: a
    /// random number.
    Add { port: Port, geometry: Geometry, seat: Seat, id: u64 },
    /// Stop using the device on a port permanently: it has failed, or is a spare. Once answered, no operation is under way there.
    Remove { port: Port },
    /// Let go of the device of a leg that has failed. The leg stays known as failed until another one is added.
    Close { port: Port },
    /// Remove the failed legs of a log whose devices are missing.
    Forget,
}

/// A command of an administrator to a log cache that goes on serving its other data disks; each is answered by one [`Report::Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskCommand {
    /// Adds the disk that the port of this place leads to: a new place, or one that is free.
    Add { disk: usize, data_uuid: [u8; 16], geometry: Geometry },
    /// Writes everything back to a disk that has no clients any more, and makes its place free.
    Remove { disk: usize },
}

/// Reason for not adding or removing a data disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskChangeError {
    #[error("{0}")]
    Refused(String),
    #[error("the server is stopping")]
    Stopping,
    #[error("the log device has failed")]
    LogFailed,
    #[error("the data disk: {0}")]
    Io(IoError),
    #[error("{0} blocks of 4 KiB for the disk cannot be read from the log")]
    LostBlocks(usize),
}

/// Reason for refusing a command of an administrator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("there is no member {role}: they are 0 to {}", .members - 1)]
    NoMember { role: usize, members: usize },
    #[error("the array takes no writes")]
    NoWrites,
    #[error("a mirrored log has no such command: its legs can only be added and removed")]
    OfMirror,
    #[error("the device is no leg of this log")]
    NoLeg,
    #[error("the device is the only leg that has all that was acknowledged")]
    LastLeg,
    #[error("the device is a leg in use")]
    LegInUse,
    #[error("the labels of the other legs cannot be written: {0}")]
    Labels(IoError),
    #[error("the log already has {0} legs, the maximum")]
    TooManyLegs(usize),
    #[error("the device cannot be written")]
    ReadOnly,
    #[error("the device has {sectors} sectors, but needs {needed}")]
    TooSmall { sectors: u64, needed: u64 },
    #[error("the device has logical blocks of {block_bytes} bytes, but its clients rely on {promised}")]
    Blocks { block_bytes: u32, promised: u32 },
    #[error("the id {0:#x} is in use, or reserved")]
    Id(u64),
    #[error("member {0} has not failed, or already has a new device")]
    NotFailed(usize),
    #[error("the failed device of member {0} is still in use")]
    StillThere(usize),
    #[error("the array knows only {known} spares")]
    BehindSpares { known: usize },
    #[error("spare {0} already exists")]
    SpareThere(usize),
    #[error("{0} is being made a spare")]
    Joining(Seat),
    #[error("the device is the journal, and in use")]
    Journal,
    #[error("the device is member {role}, and {}", if *.filled { "is being filled" } else { "in use" })]
    InUse { role: usize, filled: bool },
    #[error("commands to member {0} have not returned yet, or its failure is not recorded yet")]
    Held(usize),
    #[error("member {0} has already failed")]
    HasFailed(usize),
    #[error("the parity is not computed yet, so the data of the member would be lost")]
    Resyncing,
    #[error("member {0} cannot be spared: others have failed, and the array would lose its data")]
    NotSpared(usize),
    #[error("no member has failed")]
    NothingFailed,
    #[error("there is no spare")]
    NoSpare,
    #[error("the parity is not right everywhere, so the data of the member cannot be computed")]
    InDoubt,
    #[error("a member is missing, and a scrub compares all members")]
    MemberMissing,
    #[error("a member is read only, so a scrub could not repair it")]
    MemberReadOnly,
    #[error("no scrub is running")]
    NoScrub,
}

/// New settings of a running layer. It takes those that can change while it serves, and leaves the others as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerSettings {
    LogCache(LogCacheConfig),
    Raid(RaidConfig),
}

/// A command of an administrator to a layer. A layer that does not know a control ignores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    Settings(Box<LayerSettings>),
    /// Hold destaging back, or no longer. Dirty data is destaged all the same while the log is over its high mark, a request waits for
    /// space, or a drain was asked for.
    HoldDestage(bool),
    /// Destage all dirty data, now and at full speed. Answered by [`Report::Drained`].
    Drain,
    /// Stop draining; destaged data stays clean.
    DrainCancel,
    /// Take no more requests, make everything acknowledged durable, mark the layer cleanly stopped.
    /// Answered by [`Report::Stopped`].
    Stop,
    /// The host has recorded [`Report::LogFailed`] where a restart will see it.
    LogFailureRecorded,
    /// Start the counters and histograms again.
    ResetStatistics,
    Array(ArrayCommand),
    /// To a log cache.
    Disk(DiskCommand),
    /// From the layer above, past those that pass its requests on: this copy, numbered as in [`Io::ReadCopy`], has lost writes that it had reported as durable. It is refilled
    /// from another one, unless it is the only one. Later requests are answered only once that is recorded.
    DistrustCopy(u8),
}

/// Reason for a failed stop or drain of a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    #[error("the log's superblock could not be written: {0}")]
    Superblock(IoError),
    #[error(
        "the log device failed, and {0} blocks of 4 KiB could not be read from it; everything else is on the data disk"
    )]
    LogFailed(usize),
    #[error(
        "{0} blocks of 4 KiB cannot be read from the log device; everything else is on the data disk. They are errors until they are \
         written again"
    )]
    LostBlocks(usize),
    #[error(
        "the log device failed, and {0} bytes for data disks that are missing may be only there: keep that log. Reconnect these disks, and \
         \"dcd rescue STACK --disk NAME\" writes back what it has for each of them alone"
    )]
    LogFailedWithout(u64),
    #[error(
        "a data disk does not answer. What the log has for it is retained: nothing is lost, and the next start recovers as after a crash"
    )]
    Hangs,
    #[error("the journal has failed, and this array takes no writes without one")]
    Journal,
    #[error("more members have failed than the parity can replace")]
    Members,
    #[error(transparent)]
    Io(#[from] IoError),
}

/// A message of a layer to its host, on its own or as the answer to a [`Control`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    Drained,
    Stopped,
    /// Stopping or draining failed.
    Failed(Unfinished),
    /// The log device failed. Nothing that is written from now on may be acknowledged before the host says
    /// [`Control::LogFailureRecorded`], as a later start must not replay this log over newer data.
    LogFailed,
    /// From now on every write is on the data disk before it is answered, and the log may be lost: see `log_cache::Writes`.
    WritesThrough,
    /// An event that the administrator is told of immediately; the layer's status describes it.
    Notice,
    /// The answer to a [`Control::Array`]: the command is done or has begun, or the reason why it cannot be.
    Array(Result<(), CommandError>),
    /// The answer to a [`Control::Disk`]: a start finds the log with the disk, or without it; or the reason why not.
    Disk(Result<(), DiskChangeError>),
}

/// An event for a layer; each is consumed once.
#[derive(Debug)]
pub enum Event {
    Request(Request),
    Completed {
        op: OpId,
        result: IoResult,
    },
    /// The deadline of [`Layer::next_deadline`] has come or passed.
    Wake,
    Control(Control),
}

/// A command of a layer.
#[derive(Debug)]
pub enum Command {
    Submit { port: Port, op: OpId, io: Io },
    Reply { id: RequestId, result: IoResult },
    Report(Report),
}

/// The context of an event: its instant, and the commands that it leads to, in the order in which they are to be carried out.
#[derive(Debug, Default)]
pub struct Cx {
    pub now: Nanos,
    pub commands: Vec<Command>,
}

impl Cx {
    /// Sets the instant of the next event.
    pub fn at(&mut self, now: Nanos) -> &mut Cx {
        self.now = now;
        self
    }

    #[inline]
    pub fn submit(&mut self, port: Port, op: OpId, io: Io) {
        self.commands.push(Command::Submit { port, op, io });
    }

    #[inline]
    pub fn reply(&mut self, id: RequestId, result: IoResult) {
        self.commands.push(Command::Reply { id, result });
    }

    pub fn report(&mut self, report: Report) {
        self.commands.push(Command::Report(report));
    }
}

/// Effect of a discard on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discards {
    /// The device refuses discards.
    No,
    /// The sectors may hold anything until they are written again, as on any Linux block device.
    Advisory,
    /// The sectors read as zeroes.
    Zero,
}

/// The properties of a device or a layer, from above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// The smallest unit that can be written, in bytes: 512 or 4096. Requests must be multiples of it.
    pub logical_block_bytes: u32,
    /// The smallest unit that the medium writes without reading first, in bytes.
    pub physical_block_bytes: u32,
    /// Completed writes may be lost in a power cut until a flush.
    pub volatile_cache: bool,
    pub discards: Discards,
    /// Zeroes can be written without sending them, at less cost than writing them.
    pub fast_zeroes: bool,
    /// Seeks cost time: a spinning disk.
    pub rotational: bool,
    pub read_only: bool,
    /// The stripes of an array; none for a disk.
    pub stripes: Option<Stripes>,
    /// Number of copies of all data, if [`Io::ReadCopy`] can read each; otherwise 1.
    pub copies: u8,
    /// The holes of the device can be found without reading it: a sparse file.
    pub holes: bool,
    /// A plain SSD: what is discarded there stays this device's own. False where it may go to others: for files, virtual disks and devices on
    /// devices.
    pub ssd: bool,
    /// The disk that the device is on, if it may be on one with others: a failed flush concerns all of them.
    pub disk: Option<u64>,
}

/// Content of sectors, as far as it is known without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorState {
    /// Any content; also where the content is not known.
    Data,
    /// Zeroes, with space for data.
    Zeroes,
    /// Zeroes, without space of their own.
    Hole,
}

/// Source of the state of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapSource {
    Known(SectorState),
    /// The layer or device behind this port, from this sector on.
    Below(Port, Lba),
}

/// State of the first sectors of an extent, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPart {
    pub sectors: u64,
    pub source: MapSource,
}

/// The stripes of an array: writing a whole stripe needs no reads for its parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stripes {
    /// Sectors of data in a stripe.
    pub sectors: u64,
    /// The sector at which the first whole stripe begins.
    pub first: u64,
}

impl Stripes {
    /// The stripe around a sector; `None` for a sector before the first whole stripe. It may reach past the end of the device.
    pub const fn around(&self, sector: Lba) -> Option<Extent> {
        match sector.0.checked_sub(self.first) {
            Some(behind) => {
                let start = self.first + behind / self.sectors * self.sectors;
                Some(Extent::new(Lba(start), self.sectors))
            }
            None => None,
        }
    }

    /// Returns the stripes as seen from a slice that begins at this sector.
    pub const fn behind(&self, sector: u64) -> Stripes {
        let within = (sector % self.sectors + self.sectors - self.first) % self.sectors;
        Stripes { sectors: self.sectors, first: (self.sectors - within) % self.sectors }
    }
}

impl Geometry {
    /// A plain device of a size: 512-byte blocks, a volatile cache, nothing else.
    pub const fn plain(sectors: u64) -> Geometry {
        Geometry {
            sectors,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            volatile_cache: true,
            discards: Discards::No,
            fast_zeroes: false,
            rotational: false,
            read_only: false,
            stripes: None,
            copies: 1,
            holes: false,
            ssd: false,
            disk: None,
        }
    }

    /// Sectors of a logical block.
    pub const fn block_sectors(&self) -> u64 {
        self.logical_block_bytes as u64 / crate::SECTOR_BYTES
    }

    /// The extent, grown to whole logical blocks.
    pub fn whole_blocks(&self, extent: Extent) -> Extent {
        let block = self.block_sectors();
        let start = extent.start.0 / block * block;
        Extent::new(Lba(start), extent.end().0.next_multiple_of(block) - start)
    }

    /// Refuses an operation that no device of this geometry can do.
    ///
    /// # Errors
    /// A write to a read-only device; an empty or unaligned extent, or one past the end; a discard that does not work.
    pub fn validate(&self, io: &Io) -> Result<(), IoError> {
        let Some(extent) = io.extent() else { return Ok(()) };
        let whole = match io {
            Io::Read { buf, .. }
            | Io::ReadCopy { buf, .. }
            | Io::Write { buf, .. }
            | Io::WriteCopy { buf, .. } => (buf.len() as u64).is_multiple_of(crate::SECTOR_BYTES),
            _ => true,
        };
        let kind = if self.read_only && io.modifies() {
            ErrorKind::ReadOnly
        } else if !whole || extent.sectors == 0 || !extent.is_multiple_of(self.block_sectors()) {
            ErrorKind::Invalid
        } else if !extent.is_within(self.sectors) {
            ErrorKind::OutOfRange
        } else if matches!(io, Io::Discard { .. }) && self.discards == Discards::No {
            ErrorKind::Unsupported
        } else {
            return Ok(());
        };
        Err(IoError::at(kind, extent))
    }
}

/// A synchronous device: for work that runs alone (format, recovery, check, dump, rescue).
pub trait BlockDevice {
    fn geometry(&self) -> Geometry;

    /// Carries out one operation and waits for its end.
    fn run(&mut self, io: Io) -> IoResult;

    /// Carries out operations side by side if the device can, and waits for all of them. The results are in the order of `ios`.
    fn run_all(&mut self, ios: Vec<Io>) -> Vec<IoResult> {
        ios.into_iter().map(|io| self.run(io)).collect()
    }

    /// The time, if the device has a clock. Without one nothing can be measured.
    fn now(&self) -> Option<Nanos> {
        None
    }

    /// Sizes of the disks that the device joins; one for every other device.
    fn disk_sectors(&self) -> Vec<u64> {
        vec![self.geometry().sectors]
    }

    fn read(&mut self, at: Lba, bytes: usize) -> Result<Buf, IoError> {
        let result = self.run(Io::Read { at, buf: Buf::zeroed(bytes) });
        result.status.map(|()| result.buf)
    }

    /// Reads one copy of a device that has several; see [`Geometry::copies`].
    fn read_copy(&mut self, at: Lba, bytes: usize, copy: u8) -> Result<Buf, IoError> {
        let result = self.run(self.copy_read(at, bytes, copy));
        result.status.map(|()| result.buf)
    }

    /// The operation that reads one copy.
    fn copy_read(&self, at: Lba, bytes: usize, copy: u8) -> Io {
        let buf = Buf::zeroed(bytes);
        if self.geometry().copies == 1 { Io::Read { at, buf } } else { Io::ReadCopy { at, buf, copy } }
    }

    fn write(&mut self, at: Lba, buf: Buf) -> Result<(), IoError> {
        self.run(Io::Write { at, buf, durability: Durability::Volatile }).status
    }

    /// Writes one copy, of a device that has several.
    fn write_copy(&mut self, at: Lba, buf: Buf, copy: u8) -> Result<(), IoError> {
        self.run(Io::WriteCopy { at, buf, durability: Durability::Volatile, copy }).status
    }

    /// Reports that one copy, of a device that has several, has lost data reported as durable. See [`Control::DistrustCopy`].
    fn distrust_copy(&mut self, _copy: u8) {}

    fn flush(&mut self) -> Result<(), IoError> {
        self.run(Io::Flush).status
    }
}

/// The layers and devices below a layer, while it is activated.
pub trait Ports {
    fn geometry(&self, port: Port) -> Geometry;
    fn run(&mut self, port: Port, io: Io) -> IoResult;

    /// See [`BlockDevice::run_all`].
    fn run_all(&mut self, port: Port, ios: Vec<Io>) -> Vec<IoResult> {
        ios.into_iter().map(|io| self.run(port, io)).collect()
    }

    /// See [`BlockDevice::distrust_copy`].
    fn distrust_copy(&mut self, _port: Port, _copy: u8) {}
}

/// A port of [`Ports`] as a [`BlockDevice`].
pub struct PortDevice<'a> {
    pub ports: &'a mut dyn Ports,
    pub port: Port,
}

impl BlockDevice for PortDevice<'_> {
    fn geometry(&self) -> Geometry {
        self.ports.geometry(self.port)
    }

    fn run(&mut self, io: Io) -> IoResult {
        self.ports.run(self.port, io)
    }

    fn run_all(&mut self, ios: Vec<Io>) -> Vec<IoResult> {
        self.ports.run_all(self.port, ios)
    }

    fn distrust_copy(&mut self, copy: u8) {
        self.ports.distrust_copy(self.port, copy);
    }
}

/// Reason for refusing to start a layer: the problem and its place. Each kind of layer has a type of its own for that.
pub type ActivateError = Box<dyn Error + Send + Sync>;

/// The state of a layer, for people and monitors. Each kind of layer has a type of its own for it.
pub trait AnyStatus: Any {
    fn to_json(&self) -> Value;
}

impl<S: Any + Serialize> AnyStatus for S {
    fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a status is plain data")
    }
}

impl dyn AnyStatus {
    pub fn get<S: Any>(&self) -> Option<&S> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A synchronous state machine over the layers and devices below it.
pub trait Layer {
    /// Consumes one event, and pushes every command that it leads to.
    fn handle(&mut self, event: Event, cx: &mut Cx);

    /// The time at which the layer wants the next [`Event::Wake`], if ever. May be in the past: then immediately.
    fn next_deadline(&self) -> Option<Nanos>;

    /// Panics if an invariant does not hold; run after every event under simulation.
    fn check(&self) {}

    /// Returns the geometry from above. Valid after [`Layer::activate`].
    fn geometry(&self) -> Geometry;

    /// Number of disks that the layer is, from above.
    fn disks(&self) -> usize {
        1
    }

    /// Returns the geometry of one disk, of a layer that has several.
    fn disk_geometry(&self, _disk: usize) -> Geometry {
        self.geometry()
    }

    /// Notes that a disk below has come, or that its place has become free; for a layer that is each of several disks.
    fn take_disk(&mut self, _disk: usize, _geometry: Geometry) {}

    /// The port that has the layer's copies, if the layer passes requests for one copy on. See [`Geometry::copies`].
    fn copies_from(&self) -> Option<Port> {
        None
    }

    /// Runs once, before the first event, when everything below is active: reads superblocks, recovers.
    fn activate(&mut self, _below: &mut dyn Ports) -> Result<(), ActivateError> {
        Ok(())
    }

    /// Describes the first sectors of an extent that is not empty, without reading them. The cost of a call is bounded, however long the
    /// extent is. Writes that are not answered may count or not.
    fn map(&self, extent: Extent) -> MapPart {
        MapPart { sectors: extent.sectors, source: MapSource::Known(SectorState::Data) }
    }

    /// Like [`Layer::map`], for one disk of a layer that has several.
    fn disk_map(&self, _disk: usize, extent: Extent) -> MapPart {
        self.map(extent)
    }

    /// Returns `()` if the layer has nothing to tell, or has not started.
    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        Box::new(())
    }

    /// True while the layer has work that needs no further event from above: requests to answer, a stop or a drain to end, destaging that
    /// its policy wants, a pass.
    fn has_work(&self, _now: Nanos) -> bool {
        false
    }

    /// Asserts that a layer with work left continues: it has operations below (`in_flight`), or a deadline. For drivers and tests in
    /// virtual time, after everything that the layer sent has been carried out or is on its way.
    ///
    /// # Panics
    /// If nothing would ever wake the layer.
    fn check_progress(&self, now: Nanos, in_flight: bool) {
        let goes_on = in_flight || self.next_deadline().is_some() || !self.has_work(now);
        assert!(goes_on, "work is left, nothing is in flight, and no deadline is set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_an_array_knows_where_its_stripes_are() {
        for first in [0, 8, 40] {
            let stripes = Stripes { sectors: 48, first };
            for cut in (0..150).step_by(8) {
                let seen = stripes.behind(cut);
                assert!(seen.first < 48);
                for sector in first + cut..first + cut + 100 {
                    let whole = stripes.around(Lba(sector)).expect("behind the first");
                    let from = seen.around(Lba(sector - cut));
                    let expected = whole.start.0.checked_sub(cut).map(|start| Extent::new(Lba(start), 48));
                    assert_eq!(from, expected, "first {first}, cut {cut}, sector {sector}");
                }
            }
        }
    }
}
