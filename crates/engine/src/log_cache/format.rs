//! The bytes on the log device. docs/format.md is their description; this file is their only implementation.
//!
//! Block 0 and block 2 (of 4096 bytes) hold the two copies of the [`LogSuperblock`]; segments of a fixed length follow
//! from byte 16384 on. A segment holds records; a record is one header block and its payload.

use smallvec::SmallVec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::disks::{AddressSpace, DISKS_MAX, PART_SECTORS};
use super::fingerprint::{
    FINGERPRINT_END_BLOCKS, Fingerprint, LineSum, SAMPLES_MAX, SAMPLES_OF_DISK_MAX, SectorSums, ends, middle,
};
use super::spindle::{Spindle, SpindleBytes};
use crate::destage::contiguity::{Contiguity, ContiguityBytes};
use crate::{Extent, LINE_SECTORS, Lba, SECTOR_BYTES};

/// The version of the superblock, and with it of everything on the log device. A later version is refused by name.
pub const FORMAT_VERSION: u16 = 5;
/// The version of a log with several data disks, all of whose records are for the disks that it has.
const FORMAT_VERSION_OF_FIXED: u16 = 4;
/// The version of a log with one data disk. A program of this version would take all records for those of the first disk.
const FORMAT_VERSION_OF_ONE: u16 = 3;
/// Oldest version that is read. Version 1 has no clean copies, and up to version 2 the records of a segment lie in the order of their
/// numbers: a program of such a version would end the log too early.
pub const FORMAT_VERSION_MIN: u16 = 1;
/// The version in a record's header.
pub const RECORD_VERSION: u16 = 1;
/// Limit of the log's size: 128 TiB.
pub const LOG_SECTORS_MAX: u64 = 1 << 38;
/// Limit of a superblock's counters. A quarter of the number space is left, so that no sum on a counter can overflow.
const COUNTER_MAX: u64 = u64::MAX / 4 * 3;
/// Value of `kept_seq` where no copy in the log counts, nor any record that is destaged by then.
pub const NO_COPIES: u64 = u64::MAX;
/// Limit of a record's counters: an activation that began below `COUNTER_MAX` never reaches it.
pub const RECORD_COUNTER_MAX: u64 = u64::MAX / 8 * 7;
/// "DCDCACHE" in ASCII.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"DCDCACHE";
/// "dcdR" in ASCII.
pub const RECORD_MAGIC: [u8; 4] = *b"dcdR";
pub const SUPERBLOCK_BYTES: usize = 4096;
/// First sectors of the two copies of the superblock; apart, so that one torn write of 4 KiB cannot touch both.
pub const SUPERBLOCK_SECTORS: [Lba; 2] = [Lba(0), Lba(16)];
/// First sector of the first segment.
pub const FIRST_SEGMENT_SECTOR: u64 = 32;
/// Segments from 16 KiB (tests) to 16 MiB.
pub const SEGMENT_BYTES_MIN: u32 = 16 << 10;
pub const SEGMENT_BYTES_MAX: u32 = 16 << 20;
/// Minimum number of segments: a ring needs a head, a tail and space between them.
pub const SEGMENTS_MIN: u32 = 4;
/// Maximum number of segments, as one event may look at each. Logs that were formatted with more are still served.
pub const SEGMENTS_MAX: u32 = 1 << 16;
pub const FINGERPRINT_BLOCKS: usize = 2 * FINGERPRINT_END_BLOCKS;
/// Set if the fingerprint's sums are no CRCs, and it is exact after a clean stop.
const FLAG_EXACT: u32 = 1;
/// Set if the block after the superblock has the checksums of sectors at the ends.
const FLAG_SECTOR_SUMS: u32 = 2;
/// Set if clients outlive the server, where the memory has a number: older programs, which do not find that memory, take all to do so.
const FLAG_RELIED_ON: u32 = 4;
/// The bits of the flags from here on are the number of the memory.
const MEMORY_NUMBER_SHIFT: u32 = 3;

/// State in which the cache was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// Not served; the log may hold dirty data, all of it below `durable_seq`.
    Stopped = 1,
    /// Served, or crashed while it was.
    Active = 2,
    /// Drained and detached: the data disk is plain, the log holds nothing.
    Detached = 3,
    /// The data disk was served without the cache: the data in the log is permanently out of date.
    GivenUp = 4,
}

impl LogState {
    /// True if no cache may be served with such a log again.
    pub const fn is_out_of_use(self) -> bool {
        matches!(self, LogState::Detached | LogState::GivenUp)
    }
}

/// A covered line between the ends of the data disk; line 0 if there is none.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SampleBytes {
    pub line: U64,
    pub sum: U32,
    pub sectors: SectorSums,
}

/// Copy of the superblock, as stored on the log device, with the next block.
///
/// With one data disk, the next block has the checksums of the sectors of each line at the ends. They count only if their checksum is
/// `sector_sums_crc`; the superblock is valid without them. With several data disks, the block is a table of those after the first, and the
/// superblock is not valid without it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SuperblockArea {
    pub superblock: LogSuperblockBytes,
    pub behind: [u8; SUPERBLOCK_BYTES],
}

/// The start of the table of data disks. [`DiskBytes`] follow for each, and behind all of them the samples of each.
const DISKS_HEADER_BYTES: usize = 16;

/// A data disk after the first, in the table.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskBytes {
    data_uuid: [u8; 16],
    sectors: U64,
    /// Not in a table of [`FORMAT_VERSION_OF_FIXED`].
    from_seq: U64,
}

/// Size of a disk in a table of [`FORMAT_VERSION_OF_FIXED`].
const FIXED_DISK_BYTES: usize = size_of::<DiskBytes>() - size_of::<U64>();

/// Bits of a sample's line: the sample is used, and the sum of the line is known.
const SAMPLE_USED: u64 = 1 << 63;
const SAMPLE_KNOWN: u64 = 1 << 62;

/// A data disk after the first, or a place that a disk has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherDisk {
    pub data_uuid: [u8; 16],
    /// 0: the place is free.
    pub sectors: u64,
    /// The first record that may be for the disk. In earlier records, its addresses are those of a disk that had the place before.
    pub from_seq: u64,
    pub fingerprint: Fingerprint,
}

impl OtherDisk {
    /// The place of a disk that was removed. Records before `from_seq` may have been for that disk.
    pub fn free(from_seq: u64) -> OtherDisk {
        OtherDisk { data_uuid: [0; 16], sectors: 0, from_seq, fingerprint: Fingerprint::default() }
    }

    pub const fn is_free(&self) -> bool {
        self.sectors == 0
    }

    /// Maximum number of lines in the fingerprint of each, if there are so many.
    pub fn lines_max(disks: usize) -> usize {
        OtherDisk::lines_in(disks, size_of::<DiskBytes>())
    }

    /// Maximum number of lines of each, if each takes so many bytes besides.
    fn lines_in(disks: usize, disk_bytes: usize) -> usize {
        let bytes = (SUPERBLOCK_BYTES - DISKS_HEADER_BYTES) / disks.max(1) - disk_bytes;
        (bytes / size_of::<SampleBytes>()).min(SAMPLES_OF_DISK_MAX)
    }
}

pub const SUPERBLOCK_AREA_BYTES: usize = size_of::<SuperblockArea>();
const _: () = assert!(SUPERBLOCK_AREA_BYTES == 2 * SUPERBLOCK_BYTES);

/// Copy of the superblock without the next block.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogSuperblockBytes {
    pub magic: [u8; 8],
    pub version: U16,
    pub state: U16,
    /// CRC32C of the whole block with this field zero.
    pub crc: U32,
    pub generation: U64,
    pub cache_uuid: [u8; 16],
    pub data_uuid: [u8; 16],
    pub log_sectors: U64,
    pub data_sectors: U64,
    pub segment_bytes: U32,
    pub segments: U32,
    pub log_block_bytes: U32,
    pub memory: U32,
    pub epoch: U64,
    pub epoch_start_seq: U64,
    pub tail_seq: U64,
    pub tail_sector: U64,
    pub durable_seq: U64,
    pub flush_epoch: U64,
    pub fingerprint_known: [u8; FINGERPRINT_BLOCKS / 8],
    pub fingerprint: [U32; FINGERPRINT_BLOCKS],
    pub live_seq: U64,
    pub calibrated: U32,
    pub calibration: ContiguityBytes,
    pub fingerprint_flags: U32,
    pub sector_sums_crc: U32,
    pub samples_known: U64,
    pub samples: [SampleBytes; SAMPLES_MAX],
    pub spindle: SpindleBytes,
    pub kept_seq: U64,
    pub live_sector: U64,
    pub machine: U64,
    pub summaries_epoch: U64,
}

const _: () = assert!(size_of::<LogSuperblockBytes>() == SUPERBLOCK_BYTES);

/// Reason why a block is not a usable superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogSuperblockError {
    #[error("no dcd superblock")]
    NoMagic,
    #[error(
        "format version {0}, but this program knows version {FORMAT_VERSION}: use the release that wrote it"
    )]
    Version(u16),
    #[error("the superblock's checksum does not match: it is torn or damaged")]
    Checksum,
    #[error("the superblock's field \"{0}\" is out of range")]
    Field(&'static str),
}

/// The superblock in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSuperblock {
    pub state: LogState,
    /// Counts the writes of the superblock; the copy with the higher count is live. Copy `generation % 2` holds it.
    pub generation: u64,
    pub cache_uuid: [u8; 16],
    pub data_uuid: [u8; 16],
    pub log_sectors: u64,
    pub data_sectors: u64,
    /// The data disks after the first.
    pub other_disks: Vec<OtherDisk>,
    pub segment_bytes: u32,
    pub segments: u32,
    /// Bytes of a record header, and the alignment of records: 512 or 4096.
    pub log_block_bytes: u32,
    /// The activation that is running, or ran last. Strictly increasing.
    pub epoch: u64,
    /// The first sequence number of activation `epoch`: records from here on must be of this epoch.
    pub epoch_start_seq: u64,
    /// The oldest record that may be needed, and the sector where the search for it begins.
    pub tail_seq: u64,
    pub tail_sector: u64,
    /// Every record before this sequence number was durable when the superblock was written: a bad record is damage.
    pub durable_seq: u64,
    pub flush_epoch: u64,
    /// Records before this one are destaged; not used if `tail_seq` is as late. Ordered destage must never repeat an epoch once a later
    /// one is being destaged, but the tail only moves by whole segments.
    pub live_seq: u64,
    /// Sector where the search for record `live_seq` begins; 0: not known. Records before `live_seq` are walked for clean copies alone.
    pub live_sector: u64,
    /// First activation whose summaries are believed; 0: none, as set by older programs.
    pub summaries_epoch: u64,
    /// Checksums of some lines of the data disk.
    pub fingerprint: Fingerprint,
    /// Gaps that destaging fills by default: the result of the stride benchmark of the data disk.
    pub calibration: Option<Contiguity>,
    /// Measurements of the log's disk, made by format.
    pub spindle: Spindle,
    /// Clean copies in records before this one do not count: a lost record may have invalidated them. [`NO_COPIES`]: none counts.
    pub kept_seq: u64,
    /// The machine that serves the log, or served it last; 0: not known.
    pub machine: u64,
    /// Memory that holds answered writes which the log may lack; none if there is none.
    pub memory: Option<MemoryMark>,
}

/// Mark of a log whose server answers from memory that outlives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMark {
    /// Tells the memory of this activation from that of a copy of the log; 0 in logs of older programs.
    pub number: u32,
    /// 31 bits that identify the boot; 0: the log lacks nothing of the memory, which may not be there.
    boot: u32,
    /// Clients outlive the server: they may still rely on every answer.
    pub is_relied_on: bool,
}

impl MemoryMark {
    /// Maximum of `number`.
    pub const NUMBER_MAX: u32 = u32::MAX >> MEMORY_NUMBER_SHIFT;

    /// Names memory that is not in use.
    pub const fn new(number: u32) -> MemoryMark {
        MemoryMark { number, boot: 0, is_relied_on: false }
    }

    /// Marks the memory as in use from now on.
    pub fn in_use(self, boot: &[u8; 16], is_relied_on: bool) -> MemoryMark {
        MemoryMark { number: self.number, boot: (crc32c::crc32c(boot) >> 1).max(1), is_relied_on }
    }

    /// Marks the memory as needless: it is removed next.
    pub const fn out_of_use(self) -> MemoryMark {
        MemoryMark::new(self.number)
    }

    pub const fn is_in_use(&self) -> bool {
        self.boot != 0
    }

    /// True for memory in use of this boot: it must be there as long as the machine runs.
    pub fn is_of(&self, boot: &[u8; 16]) -> bool {
        self.boot == self.in_use(boot, false).boot
    }

    fn decode(bytes: &LogSuperblockBytes) -> Option<MemoryMark> {
        let (word, flags) = (bytes.memory.get(), bytes.fingerprint_flags.get());
        let number = flags >> MEMORY_NUMBER_SHIFT;
        let is_relied_on = if number == 0 { word & 1 == 1 } else { flags & FLAG_RELIED_ON != 0 };
        (word != 0 || number != 0).then_some(MemoryMark { number, boot: word >> 1, is_relied_on })
    }

    fn encode(&self, bytes: &mut LogSuperblockBytes) {
        let is_refused = if self.number == 0 { self.is_relied_on } else { self.boot != 0 };
        bytes.memory = (self.boot << 1 | u32::from(is_refused)).into();
        if self.number != 0 {
            let flags =
                (self.number << MEMORY_NUMBER_SHIFT) | (u32::from(self.is_relied_on) * FLAG_RELIED_ON);
            bytes.fingerprint_flags = (bytes.fingerprint_flags.get() | flags).into();
        }
    }
}

impl LogSuperblock {
    pub fn encode(&self) -> SuperblockArea {
        let mut area = SuperblockArea::new_zeroed();
        self.encode_fingerprint(&mut area);
        let is_of_one = self.other_disks.is_empty();
        if !is_of_one {
            self.encode_disks(&mut area);
        }
        let bytes = &mut area.superblock;
        bytes.magic = SUPERBLOCK_MAGIC;
        bytes.version = if is_of_one { FORMAT_VERSION_OF_ONE } else { FORMAT_VERSION }.into();
        bytes.state = (self.state as u16).into();
        bytes.generation = self.generation.into();
        bytes.cache_uuid = self.cache_uuid;
        bytes.data_uuid = self.data_uuid;
        bytes.log_sectors = self.log_sectors.into();
        bytes.data_sectors = self.data_sectors.into();
        bytes.segment_bytes = self.segment_bytes.into();
        bytes.segments = self.segments.into();
        bytes.log_block_bytes = self.log_block_bytes.into();
        bytes.epoch = self.epoch.into();
        bytes.epoch_start_seq = self.epoch_start_seq.into();
        bytes.tail_seq = self.tail_seq.into();
        bytes.tail_sector = self.tail_sector.into();
        bytes.durable_seq = self.durable_seq.into();
        bytes.flush_epoch = self.flush_epoch.into();
        bytes.live_seq = self.live_seq.into();
        bytes.kept_seq = self.kept_seq.into();
        bytes.live_sector = self.live_sector.into();
        bytes.summaries_epoch = self.summaries_epoch.into();
        if let Some(calibration) = &self.calibration {
            bytes.calibrated = 1.into();
            bytes.calibration = ContiguityBytes::new(calibration);
        }
        bytes.spindle = SpindleBytes::new(&self.spindle);
        bytes.machine = self.machine.into();
        if let Some(memory) = &self.memory {
            memory.encode(bytes);
        }
        bytes.crc = crc32c::crc32c(bytes.as_bytes()).into();
        area
    }

    /// Encodes the table of data disks.
    fn encode_disks(&self, area: &mut SuperblockArea) {
        let (count, lines) = (self.other_disks.len(), OtherDisk::lines_max(self.other_disks.len()));
        let (header, rest) = area.behind.split_at_mut(DISKS_HEADER_BYTES);
        header[..4].copy_from_slice(&(count as u32).to_le_bytes());
        let (disks, samples) = rest.split_at_mut(count * size_of::<DiskBytes>());
        let disks = disks.chunks_exact_mut(size_of::<DiskBytes>());
        for ((disk, bytes), samples) in
            self.other_disks.iter().zip(disks).zip(samples.chunks_exact_mut(lines * size_of::<SampleBytes>()))
        {
            let fields = DiskBytes {
                data_uuid: disk.data_uuid,
                sectors: disk.sectors.into(),
                from_seq: disk.from_seq.into(),
            };
            bytes.copy_from_slice(fields.as_bytes());
            let samples = samples.chunks_exact_mut(size_of::<SampleBytes>());
            for (sum, bytes) in disk.fingerprint.lines.iter().zip(samples) {
                let known = if sum.sum.is_some() { SAMPLE_KNOWN } else { 0 };
                let fields = SampleBytes {
                    line: (sum.line | SAMPLE_USED | known).into(),
                    sum: sum.sum.unwrap_or_default().into(),
                    sectors: sum.sectors.unwrap_or_default(),
                };
                bytes.copy_from_slice(fields.as_bytes());
            }
        }
        area.superblock.sector_sums_crc = crc32c::crc32c(&area.behind).into();
    }

    fn encode_fingerprint(&self, area: &mut SuperblockArea) {
        let bytes = &mut area.superblock;
        let is_of_one = self.other_disks.is_empty();
        let sector_sums = area.behind.as_chunks_mut::<{ size_of::<SectorSums>() }>().0;
        let (mut flags, mut samples) = (if self.fingerprint.is_exact { FLAG_EXACT } else { 0 }, 0);
        for sum in &self.fingerprint.lines {
            let word = sum.sum.unwrap_or_default().into();
            if let Some(index) = fingerprint_index(self.data_sectors, sum.line) {
                bytes.fingerprint_known[index / 8] |= u8::from(sum.sum.is_some()) << (index % 8);
                bytes.fingerprint[index] = word;
                if let Some(sectors) = sum.sectors.filter(|_| is_of_one) {
                    flags |= FLAG_SECTOR_SUMS;
                    sector_sums[index] = sectors;
                }
            } else {
                bytes.samples_known =
                    (bytes.samples_known.get() | u64::from(sum.sum.is_some()) << samples).into();
                let sectors = sum.sectors.unwrap_or_default();
                bytes.samples[samples] = SampleBytes { line: sum.line.into(), sum: word, sectors };
                samples += 1;
            }
        }
        if flags & FLAG_SECTOR_SUMS != 0 {
            bytes.sector_sums_crc = crc32c::crc32c(&area.behind).into();
        }
        bytes.fingerprint_flags = flags.into();
    }

    /// Decodes one copy, with the next block if it could be read; checks every field, as the device may hold anything.
    pub fn decode(block: &[u8]) -> Result<LogSuperblock, LogSuperblockError> {
        let (bytes, behind) =
            LogSuperblockBytes::read_from_prefix(block).map_err(|_| LogSuperblockError::NoMagic)?;
        if bytes.magic != SUPERBLOCK_MAGIC {
            return Err(LogSuperblockError::NoMagic);
        }
        let mut unsigned = bytes.clone();
        unsigned.crc = 0.into();
        if crc32c::crc32c(unsigned.as_bytes()) != bytes.crc.get() {
            return Err(LogSuperblockError::Checksum);
        }
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&bytes.version.get()) {
            return Err(LogSuperblockError::Version(bytes.version.get()));
        }
        let state = match bytes.state.get() {
            1 => LogState::Stopped,
            2 => LogState::Active,
            3 => LogState::Detached,
            4 => LogState::GivenUp,
            _ => return Err(LogSuperblockError::Field("state")),
        };
        let calibration = match bytes.calibrated.get() {
            0 => None,
            1 => Some(bytes.calibration.contiguity().ok_or(LogSuperblockError::Field("calibration"))?),
            _ => return Err(LogSuperblockError::Field("calibration")),
        };
        let spindle = bytes.spindle.spindle().ok_or(LogSuperblockError::Field("spindle"))?;
        let mut superblock = LogSuperblock {
            state,
            generation: bytes.generation.get(),
            cache_uuid: bytes.cache_uuid,
            data_uuid: bytes.data_uuid,
            log_sectors: bytes.log_sectors.get(),
            data_sectors: bytes.data_sectors.get(),
            other_disks: match bytes.version.get() {
                ..=FORMAT_VERSION_OF_ONE => Vec::new(),
                version => decode_disks(&bytes, behind, version)?,
            },
            segment_bytes: bytes.segment_bytes.get(),
            segments: bytes.segments.get(),
            log_block_bytes: bytes.log_block_bytes.get(),
            epoch: bytes.epoch.get(),
            epoch_start_seq: bytes.epoch_start_seq.get(),
            tail_seq: bytes.tail_seq.get(),
            tail_sector: bytes.tail_sector.get(),
            durable_seq: bytes.durable_seq.get(),
            flush_epoch: bytes.flush_epoch.get(),
            live_seq: bytes.live_seq.get(),
            summaries_epoch: bytes.summaries_epoch.get(),
            fingerprint: Fingerprint::default(),
            calibration,
            spindle,
            kept_seq: bytes.kept_seq.get(),
            live_sector: bytes.live_sector.get(),
            machine: bytes.machine.get(),
            memory: MemoryMark::decode(&bytes),
        };
        superblock.validate()?;
        superblock.fingerprint = decode_fingerprint(&bytes, behind)?;
        Ok(superblock)
    }

    fn validate(&self) -> Result<(), LogSuperblockError> {
        let field = |ok: bool, name| if ok { Ok(()) } else { Err(LogSuperblockError::Field(name)) };
        let segment = self.segment_bytes;
        field(matches!(self.log_block_bytes, 512 | 4096), "log block bytes")?;
        field(
            (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment) && segment.is_power_of_two(),
            "segment bytes",
        )?;
        field(self.segments >= SEGMENTS_MIN, "segments")?;
        field(self.end_sector() <= self.log_sectors && self.log_sectors < LOG_SECTORS_MAX, "log sectors")?;
        field(self.data_sectors > 0 && self.data_sectors < 1 << 43, "data sectors")?;
        let mut others = self.other_disks.iter();
        let all_fit = self.data_sectors <= PART_SECTORS && others.all(|disk| disk.sectors <= PART_SECTORS);
        field(self.other_disks.is_empty() || all_fit, "data disks")?;
        field((FIRST_SEGMENT_SECTOR..self.end_sector()).contains(&self.tail_sector), "tail sector")?;
        let in_ring = (FIRST_SEGMENT_SECTOR..self.end_sector()).contains(&self.live_sector);
        field(self.live_sector == 0 || in_ring, "live sector")?;
        field(self.tail_seq >= 1 && self.tail_seq <= self.durable_seq, "tail sequence number")?;
        field(self.live_seq <= self.durable_seq, "live sequence number")?;
        let is_known = self.kept_seq <= self.durable_seq || self.kept_seq == NO_COPIES;
        field(is_known, "kept sequence number")?;
        field(self.epoch_start_seq >= 1 && self.epoch_start_seq <= self.durable_seq, "epoch start")?;
        let counters = [self.durable_seq, self.epoch, self.generation, self.flush_epoch];
        field(counters.iter().all(|counter| *counter < COUNTER_MAX), "counters")?;
        Ok(())
    }

    /// Lets an empty log continue with this record at this sector, without its clean copies, so that its segments may be overwritten.
    pub fn begin_at(&mut self, seq: u64, sector: u64) {
        let sector = if sector < self.end_sector() { sector } else { FIRST_SEGMENT_SECTOR };
        (self.tail_seq, self.tail_sector) = (seq, sector);
        (self.live_seq, self.live_sector, self.kept_seq) = (seq, 0, seq);
        (self.durable_seq, self.epoch_start_seq, self.summaries_epoch) = (seq, seq, 0);
        self.end_records_at(seq);
    }

    /// Notes that `seq` is the number of the next record. Records that a crash took may have had later ones.
    pub fn end_records_at(&mut self, seq: u64) {
        self.other_disks.iter_mut().for_each(|disk| disk.from_seq = disk.from_seq.min(seq));
    }

    /// Begins the log behind all its records: they are not read again, and need not be readable.
    pub fn forget_records(&mut self) {
        let seq = self.durable_seq.max(self.tail_seq);
        self.epoch += 1;
        (self.epoch_start_seq, self.tail_seq, self.durable_seq) = (seq, seq, seq);
        self.end_records_at(seq);
    }

    /// Returns the machine, other than this one, that may still serve the log: it has not recorded a stop.
    pub const fn other_machine(&self, this: u64) -> Option<u64> {
        match (self.state, self.machine) {
            (LogState::Active, other) if other != 0 && other != this => Some(other),
            _ => None,
        }
    }

    /// The disk after the first whose part of the addresses has this one; none for an address of the first disk, or beyond all.
    fn other_at(&self, at: Lba) -> Option<&OtherDisk> {
        self.other_disks.get((at.0 / PART_SECTORS).checked_sub(1)? as usize)
    }

    /// True if an extent in record `seq` is of a data disk that the log has no more.
    pub fn has_left(&self, extent: Extent, seq: u64) -> bool {
        self.other_at(extent.start).is_some_and(|disk| seq < disk.from_seq)
    }

    /// True if an extent in record `seq` lies within one data disk.
    fn holds(&self, extent: Extent, seq: u64) -> bool {
        let disk = if self.other_disks.is_empty() { 0 } else { (extent.start.0 / PART_SECTORS) as usize };
        let sectors = match disk {
            0 => Some(self.data_sectors),
            _ if self.has_left(extent, seq) => Some(PART_SECTORS),
            _ => self.other_disks.get(disk - 1).map(|disk| disk.sectors),
        };
        sectors.is_some_and(|sectors| extent.end() - AddressSpace::start(disk) <= sectors)
    }

    /// The addresses of the data disks, without free places behind the last disk.
    pub fn space(&self) -> AddressSpace {
        let last = self.other_disks.iter().rposition(|disk| !disk.is_free());
        let others = self.other_disks[..last.map_or(0, |last| last + 1)].iter().map(|disk| disk.sectors);
        AddressSpace::new(std::iter::once(self.data_sectors).chain(others).collect())
    }

    /// Forgets free places behind the last disk whose records no walk finds any more: no superblock names a record before this one again.
    pub fn forget_free_places(&mut self, first_seq: u64) {
        while self.other_disks.pop_if(|last| last.is_free() && last.from_seq <= first_seq).is_some() {}
    }

    /// True if a data disk has this place.
    pub fn has_disk(&self, disk: usize) -> bool {
        disk == 0 || self.other_disks.get(disk - 1).is_some_and(|other| !other.is_free())
    }

    /// The UUID of a data disk; zeroes for a place that is free.
    pub fn uuid_of(&self, disk: usize) -> [u8; 16] {
        if disk == 0 { self.data_uuid } else { self.other_disks[disk - 1].data_uuid }
    }

    /// The fingerprint of a data disk.
    pub fn fingerprint_of(&self, disk: usize) -> &Fingerprint {
        if disk == 0 { &self.fingerprint } else { &self.other_disks[disk - 1].fingerprint }
    }

    pub fn set_fingerprints(&mut self, fingerprints: impl Iterator<Item = Fingerprint>) {
        for (disk, fingerprint) in fingerprints.enumerate() {
            match disk {
                0 => self.fingerprint = fingerprint,
                _ => {
                    if let Some(other) = self.other_disks.get_mut(disk - 1).filter(|other| !other.is_free()) {
                        other.fingerprint = fingerprint;
                    }
                }
            }
        }
    }

    pub const fn segment_sectors(&self) -> u64 {
        self.segment_bytes as u64 / SECTOR_BYTES
    }

    pub const fn log_block_sectors(&self) -> u64 {
        self.log_block_bytes as u64 / SECTOR_BYTES
    }

    /// The first sector of a segment.
    pub const fn segment_start(&self, segment: u32) -> u64 {
        FIRST_SEGMENT_SECTOR + segment as u64 * self.segment_sectors()
    }

    /// The segment that a sector lies in.
    pub const fn segment_of(&self, sector: u64) -> u32 {
        ((sector - FIRST_SEGMENT_SECTOR) / self.segment_sectors()) as u32
    }

    /// The end of the last segment.
    pub const fn end_sector(&self) -> u64 {
        FIRST_SEGMENT_SECTOR + self.segments as u64 * self.segment_sectors()
    }
}

/// Decodes the table of data disks.
fn decode_disks(
    bytes: &LogSuperblockBytes,
    behind: &[u8],
    version: u16,
) -> Result<Vec<OtherDisk>, LogSuperblockError> {
    if behind.len() != SUPERBLOCK_BYTES || crc32c::crc32c(behind) != bytes.sector_sums_crc.get() {
        return Err(LogSuperblockError::Checksum);
    }
    let (header, rest) = behind.split_at(DISKS_HEADER_BYTES);
    let count = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if !(1..DISKS_MAX).contains(&count) {
        return Err(LogSuperblockError::Field("data disks"));
    }
    let disk_bytes =
        if version == FORMAT_VERSION_OF_FIXED { FIXED_DISK_BYTES } else { size_of::<DiskBytes>() };
    let (disks, samples) = rest.split_at(count * disk_bytes);
    let samples = samples.chunks_exact(OtherDisk::lines_in(count, disk_bytes) * size_of::<SampleBytes>());
    let disks = disks.chunks_exact(disk_bytes).zip(samples);
    let is_exact = bytes.fingerprint_flags.get() & FLAG_EXACT != 0;
    disks.map(|(disk, samples)| decode_disk(disk, samples, is_exact)).collect()
}

fn decode_disk(disk: &[u8], samples: &[u8], is_exact: bool) -> Result<OtherDisk, LogSuperblockError> {
    let field = LogSuperblockError::Field("data disks");
    let mut fields = DiskBytes::new_zeroed();
    fields.as_mut_bytes()[..disk.len()].copy_from_slice(disk);
    let DiskBytes { data_uuid, sectors, from_seq } = fields;
    let mut lines = Vec::new();
    for bytes in samples.chunks_exact(size_of::<SampleBytes>()) {
        let sample = SampleBytes::read_from_bytes(bytes).map_err(|_| field.clone())?;
        let word = sample.line.get();
        if word & SAMPLE_USED == 0 {
            continue;
        }
        let line = word & !(SAMPLE_USED | SAMPLE_KNOWN);
        let sum = (word & SAMPLE_KNOWN != 0).then(|| sample.sum.get());
        lines.push(LineSum { line, sum, sectors: Some(sample.sectors) });
    }
    let rises = lines.windows(2).all(|pair| pair[0].line < pair[1].line);
    if !rises || lines.last().is_some_and(|sum| sum.line >= sectors.get() / LINE_SECTORS) {
        return Err(field);
    }
    let fingerprint = Fingerprint { lines, is_exact };
    Ok(OtherDisk { data_uuid, sectors: sectors.get(), from_seq: from_seq.get(), fingerprint })
}

fn decode_fingerprint(bytes: &LogSuperblockBytes, behind: &[u8]) -> Result<Fingerprint, LogSuperblockError> {
    let data_sectors = bytes.data_sectors.get();
    let flags = bytes.fingerprint_flags.get();
    let sums = behind.as_chunks::<{ size_of::<SectorSums>() }>().0;
    let are_whole = flags & FLAG_SECTOR_SUMS != 0
        && sums.len() == FINGERPRINT_BLOCKS
        && crc32c::crc32c(behind) == bytes.sector_sums_crc.get();
    let mut lines: Vec<LineSum> = Vec::with_capacity(FINGERPRINT_BLOCKS + SAMPLES_MAX);
    for line in ends(data_sectors) {
        let index = fingerprint_index(data_sectors, line).expect("it is in the first or last MiB");
        let is_known = bytes.fingerprint_known[index / 8] & (1 << (index % 8)) != 0;
        let crc = is_known.then(|| bytes.fingerprint[index].get());
        lines.push(LineSum { line, sum: crc, sectors: are_whole.then(|| sums[index]) });
    }
    for (index, sample) in bytes.samples.iter().enumerate().filter(|(_, sample)| sample.line.get() != 0) {
        if !middle(data_sectors).contains(&sample.line.get()) {
            return Err(LogSuperblockError::Field("samples"));
        }
        let crc = (bytes.samples_known.get() & 1 << index != 0).then(|| sample.sum.get());
        lines.push(LineSum { line: sample.line.get(), sum: crc, sectors: Some(sample.sectors) });
    }
    lines.sort_by_key(|sum| sum.line);
    if lines.windows(2).any(|pair| pair[0].line == pair[1].line) {
        return Err(LogSuperblockError::Field("samples"));
    }
    Ok(Fingerprint { lines, is_exact: flags & FLAG_EXACT != 0 })
}

/// Index in the fingerprint of a line (4 KiB block) of the data disk, if the line is in the first or last MiB. On a disk under 2 MiB the
/// first part has precedence.
pub fn fingerprint_index(data_sectors: u64, line: u64) -> Option<usize> {
    let lines = data_sectors / LINE_SECTORS;
    let ends = FINGERPRINT_END_BLOCKS as u64;
    if line >= lines {
        None
    } else if line < ends {
        Some(line as usize)
    } else if line + ends >= lines {
        Some((line + 2 * ends - lines) as usize)
    } else {
        None
    }
}

/// Kind of an entry: what it says about its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The sectors hold the next part of the payload. At most one line, never across two lines.
    Data = 1,
    /// The sectors are not needed any more, and read as zeroes.
    Discard = 2,
    /// The sectors read as zeroes.
    Zeroes = 3,
    /// The sectors read as zeroes, and the space may be given back.
    ZeroesUnmap = 4,
    /// Older records no longer count for the sectors: the data disk has the newest copy.
    Invalidate = 5,
    /// Like `Invalidate`, and the sectors hold the next part of the payload: a durable copy of the data disk's content. Within one line.
    Clean = 6,
    /// Never stored: the place of an entry whose data disk was removed from the log. The log has its payload, if it has one.
    Left = 0,
}

impl EntryKind {
    pub const fn from_u8(kind: u8) -> Option<EntryKind> {
        Some(match kind {
            1 => EntryKind::Data,
            2 => EntryKind::Discard,
            3 => EntryKind::Zeroes,
            4 => EntryKind::ZeroesUnmap,
            5 => EntryKind::Invalidate,
            6 => EntryKind::Clean,
            _ => return None,
        })
    }

    pub const fn has_payload(self) -> bool {
        matches!(self, EntryKind::Data | EntryKind::Clean | EntryKind::Left)
    }
}

/// An entry of a record header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct EntryBytes {
    /// The kind in the highest 8 bits, the LBA below.
    pub kind_and_lba: U64,
    pub sectors: U32,
    /// CRC32C of the sectors' payload; 0 if there is none.
    pub crc: U32,
}

/// The fixed part of a record header; entries follow, and the rest of the header block is zero.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    pub magic: [u8; 4],
    pub version: U16,
    pub flags: U16,
    /// CRC32C of the whole header block with this field zero.
    pub crc: U32,
    pub entry_count: U32,
    pub cache_uuid: [u8; 16],
    pub epoch: U64,
    pub seq: U64,
    /// The sector of the log device that the header was written to, so that a misdirected record is not believed.
    pub sector: U64,
    pub oldest_live_seq: U64,
    pub durable_seq: U64,
    pub flush_epoch: U64,
    /// Sectors of the record, header included.
    pub sectors: U32,
    pub reserved: [u8; 12],
}

pub const HEADER_FIXED_BYTES: usize = 96;
pub const ENTRY_BYTES: usize = 16;
const _: () = assert!(size_of::<HeaderBytes>() == HEADER_FIXED_BYTES);
const _: () = assert!(size_of::<EntryBytes>() == ENTRY_BYTES);

/// The request in this record continues in the next one; without that record it does not count.
pub const FLAG_CONTINUES: u16 = 1;

/// Maximum number of entries in a header block.
pub const fn entries_max(log_block_bytes: u32) -> usize {
    (log_block_bytes as usize - HEADER_FIXED_BYTES) / ENTRY_BYTES
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: EntryKind,
    pub extent: Extent,
    pub crc: u32,
}

impl Entry {
    pub const fn payload_sectors(&self) -> u64 {
        if self.kind.has_payload() { self.extent.sectors } else { 0 }
    }
}

/// Entries of a record. Synchronous writes nearly always have one, so a record of one entry allocates no memory.
pub type Entries = SmallVec<[Entry; 1]>;

/// A record header in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub epoch: u64,
    pub seq: u64,
    /// First sector of the record on the log device.
    pub sector: u64,
    /// Records before this one are destaged and covered by a flush of the data disk.
    pub oldest_live_seq: u64,
    /// Records before this number were durable in the log when the record was sealed.
    pub durable_seq: u64,
    /// Number of flushes that the client had sent: for ordered destage.
    pub flush_epoch: u64,
    /// Sectors of the record, header included.
    pub sectors: u32,
    pub continues: bool,
    pub entries: Entries,
}

impl Header {
    /// Replaces the entries whose data disk was removed from the log by their places.
    pub fn leave_out_removed(&mut self, superblock: &LogSuperblock) {
        let seq = self.seq;
        for entry in self.entries.iter_mut().filter(|entry| superblock.has_left(entry.extent, seq)) {
            entry.extent.sectors = entry.payload_sectors();
            entry.kind = EntryKind::Left;
        }
    }
}

/// Writes a record header into its block, `block.len()` being the log block.
pub fn encode_header(block: &mut [u8], cache_uuid: [u8; 16], header: &Header) {
    assert!(header.entries.len() <= entries_max(block.len() as u32), "a record's entries fit its header");
    block.fill(0);
    let fixed = HeaderBytes {
        magic: RECORD_MAGIC,
        version: RECORD_VERSION.into(),
        flags: (if header.continues { FLAG_CONTINUES } else { 0 }).into(),
        crc: 0.into(),
        entry_count: (header.entries.len() as u32).into(),
        cache_uuid,
        epoch: header.epoch.into(),
        seq: header.seq.into(),
        sector: header.sector.into(),
        oldest_live_seq: header.oldest_live_seq.into(),
        durable_seq: header.durable_seq.into(),
        flush_epoch: header.flush_epoch.into(),
        sectors: header.sectors.into(),
        reserved: [0; 12],
    };
    block[..HEADER_FIXED_BYTES].copy_from_slice(fixed.as_bytes());
    for (entry, target) in
        header.entries.iter().zip(block[HEADER_FIXED_BYTES..].chunks_exact_mut(ENTRY_BYTES))
    {
        target.copy_from_slice(encode_entry(entry).as_bytes());
    }
    let crc = crc32c::crc32c(block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes a record header, and checks all that can be checked without the payload: magic, version, checksum, cache, position, lengths.
/// `None` if it is not an intact header of this cache at this place.
pub fn decode_header(block: &[u8], superblock: &LogSuperblock, sector: u64) -> Option<Header> {
    let (fixed, rest) = HeaderBytes::read_from_prefix(block).ok()?;
    if fixed.magic != RECORD_MAGIC
        || fixed.version.get() != RECORD_VERSION
        || fixed.cache_uuid != superblock.cache_uuid
        || fixed.sector.get() != sector
    {
        return None;
    }
    let crc = crc32c::crc32c(&block[..8]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    if crc32c::crc32c_append(crc, &block[12..]) != fixed.crc.get() {
        return None;
    }
    let count = fixed.entry_count.get() as usize;
    if count > entries_max(superblock.log_block_bytes) {
        return None;
    }
    let mut entries = Entries::with_capacity(count);
    let mut payload_sectors = 0;
    for bytes in rest.chunks_exact(ENTRY_BYTES).take(count) {
        let entry = decode_entry(EntryBytes::read_from_bytes(bytes).ok()?, superblock, fixed.seq.get())?;
        payload_sectors += entry.payload_sectors();
        entries.push(entry);
    }
    let block_sectors = superblock.log_block_sectors();
    let sectors = u64::from(fixed.sectors.get());
    let segment_end = superblock.segment_start(superblock.segment_of(sector)) + superblock.segment_sectors();
    let whole = block_sectors + payload_sectors.next_multiple_of(block_sectors) == sectors;
    let counters = [fixed.epoch, fixed.seq, fixed.oldest_live_seq, fixed.durable_seq, fixed.flush_epoch];
    if !whole || sector + sectors > segment_end || counters.iter().any(|it| it.get() >= RECORD_COUNTER_MAX) {
        return None;
    }
    Some(Header {
        epoch: fixed.epoch.get(),
        seq: fixed.seq.get(),
        sector,
        oldest_live_seq: fixed.oldest_live_seq.get(),
        durable_seq: fixed.durable_seq.get(),
        flush_epoch: fixed.flush_epoch.get(),
        sectors: sectors as u32,
        continues: fixed.flags.get() & FLAG_CONTINUES != 0,
        entries,
    })
}

/// True if a block begins almost like a header of this log at this place: it may have rotted.
pub fn is_like_a_header(block: &[u8], superblock: &LogSuperblock, sector: u64) -> bool {
    let Ok((found, _)) = HeaderBytes::read_from_prefix(block) else { return false };
    let sector = U64::from(sector);
    let pairs = [
        (found.magic.as_slice(), RECORD_MAGIC.as_slice()),
        (&found.cache_uuid, &superblock.cache_uuid),
        (found.sector.as_bytes(), sector.as_bytes()),
    ];
    let same = |(a, b): (&[u8], &[u8])| a.iter().zip(b).filter(|(a, b)| a == b).count();
    pairs.into_iter().map(same).sum::<usize>() >= 20
}

/// Encodes an entry as stored in a header.
pub fn encode_entry(entry: &Entry) -> EntryBytes {
    EntryBytes {
        kind_and_lba: ((entry.kind as u64) << 56 | entry.extent.start.0).into(),
        sectors: (entry.extent.sectors as u32).into(),
        crc: entry.crc.into(),
    }
}

/// Decodes an entry of record `seq`; `None` if it is not valid.
pub fn decode_entry(bytes: EntryBytes, superblock: &LogSuperblock, seq: u64) -> Option<Entry> {
    let kind = EntryKind::from_u8((bytes.kind_and_lba.get() >> 56) as u8)?;
    let extent = Extent::new(Lba(bytes.kind_and_lba.get() & ((1 << 56) - 1)), u64::from(bytes.sectors.get()));
    let first_line = extent.start.0 / LINE_SECTORS;
    let in_line = extent.sectors > 0 && (extent.end().0 - 1) / LINE_SECTORS == first_line;
    let fits = extent.sectors > 0 && superblock.holds(extent, seq) && (!kind.has_payload() || in_line);
    fits.then_some(Entry { kind, extent, crc: bytes.crc.get() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;
    use crate::destage::contiguity::Strides;
    use crate::log_cache::spindle::Spin;

    /// Returns a fingerprint of both ends and of `SAMPLES_MAX` lines between them.
    fn fingerprint() -> Fingerprint {
        let samples = (0..SAMPLES_MAX as u64).map(|n| 300 + n * n);
        let mut lines: Vec<u64> = ends(1 << 20).chain(samples).collect();
        lines.sort_unstable();
        let sum = |line: u64| LineSum {
            line,
            sum: (!line.is_multiple_of(3)).then_some(line as u32 * 77),
            sectors: Some([line as u8; 8]),
        };
        Fingerprint { lines: lines.into_iter().map(sum).collect(), is_exact: true }
    }

    pub fn superblock() -> LogSuperblock {
        LogSuperblock {
            state: LogState::Stopped,
            generation: 7,
            cache_uuid: [1; 16],
            data_uuid: [2; 16],
            log_sectors: 32 + 8 * 128,
            data_sectors: 1 << 20,
            other_disks: Vec::new(),
            segment_bytes: 64 << 10,
            segments: 8,
            log_block_bytes: 512,
            epoch: 3,
            epoch_start_seq: 5,
            tail_seq: 4,
            tail_sector: 32,
            durable_seq: 6,
            flush_epoch: 9,
            live_seq: 1,
            summaries_epoch: 2,
            fingerprint: fingerprint(),
            calibration: Some(Contiguity {
                read: Strides { max: 7, except: (0..64).map(|n| (n, n + 3)).collect() },
                write: Strides { max: 12, except: vec![(3, 4)] },
            }),
            spindle: Spindle::Spins(Spin {
                revolution: Nanos::from_micros(8333),
                lead: Nanos::from_micros(300),
                tracks: [200, 190, 180, 170],
                write_cache: true,
            }),
            kept_seq: 2,
            machine: 0x77,
            memory: Some(MemoryMark::new(0).in_use(&[3; 16], true)),
            live_sector: 32,
        }
    }

    /// An older program does not find memory with a number: it takes its clients to outlive the server, and refuses the log.
    #[test]
    fn memory_with_a_number_is_missed_by_an_older_program() {
        for number in [1, 77, MemoryMark::NUMBER_MAX] {
            let named = MemoryMark::new(number);
            for memory in [named, named.in_use(&[3; 16], true), named.in_use(&[3; 16], false)] {
                let superblock = LogSuperblock { memory: Some(memory), ..superblock() };
                let bytes = superblock.encode();
                assert_eq!(LogSuperblock::decode(bytes.as_bytes()), Ok(superblock));
                let word = bytes.superblock.memory.get();
                assert_eq!((word != 0, word & 1 == 1), (memory != named, memory != named));
            }
        }
    }

    #[test]
    fn rule_05_a_superblock_comes_back_and_every_flipped_bit_is_noticed() {
        let original = superblock();
        let bytes = original.encode();
        assert_eq!(LogSuperblock::decode(bytes.as_bytes()).unwrap(), original);
        let mut block = bytes.as_bytes().to_vec();
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(LogSuperblock::decode(&block).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn of_disks(count: usize) -> LogSuperblock {
        let sectors = 1 << 20;
        let disk = |disk: u64| {
            let lines = (0..OtherDisk::lines_max(count) as u64).map(|line| LineSum {
                line: line * 7 + disk,
                sum: (line % 3 > 0).then_some((line * disk) as u32),
                sectors: Some([line as u8; 8]),
            });
            let fingerprint = Fingerprint { lines: lines.collect(), is_exact: true };
            OtherDisk { data_uuid: [100 + disk as u8; 16], sectors, from_seq: disk * 2, fingerprint }
        };
        LogSuperblock { other_disks: (0..count as u64).map(disk).collect(), ..superblock() }
    }

    /// The block behind has the table: without it, the superblock is not valid.
    #[test]
    fn rule_05_the_table_of_disks_comes_back_and_every_flipped_bit_is_noticed() {
        for count in [1, 2, 7, 63] {
            let mut original = of_disks(count);
            let bytes = original.encode();
            let decoded = LogSuperblock::decode(bytes.as_bytes()).unwrap();
            // The sums of the sectors at the ends of the first disk have no room.
            original.fingerprint.lines.iter_mut().for_each(|sum| {
                sum.sectors = sum.sectors.filter(|_| fingerprint_index(1 << 20, sum.line).is_none());
            });
            assert_eq!(decoded, original, "{count}");
            assert!(LogSuperblock::decode(&bytes.as_bytes()[..SUPERBLOCK_BYTES]).is_err());
            let mut area = bytes.as_bytes().to_vec();
            for bit in (0..SUPERBLOCK_AREA_BYTES * 8).step_by(3) {
                area[bit / 8] ^= 1 << (bit % 8);
                assert!(LogSuperblock::decode(&area).is_err(), "bit {bit}");
                area[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// Programs that know one data disk read such a log, and refuse one of several by its version.
    #[test]
    fn only_a_log_of_several_disks_has_the_new_version() {
        let version = |superblock: &LogSuperblock| superblock.encode().superblock.version.get();
        assert_eq!((version(&superblock()), version(&of_disks(1)), version(&of_disks(9))), (3, 5, 5));
    }

    #[test]
    fn the_bytes_of_a_log_of_several_disks_stay_as_they_are() {
        let golden = |name| format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        let path = golden("superblock-of-3-disks-5");
        let bytes = of_disks(2).encode();
        if std::env::var_os("DCD_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, bytes.as_bytes()).expect("written");
        }
        assert_eq!(std::fs::read(&path).expect("it is beside the tests"), bytes.as_bytes());
        // In version 4 no disk had left.
        let before = std::fs::read(golden("superblock-of-3-disks")).expect("it is beside the tests");
        let mut decoded = LogSuperblock::decode(bytes.as_bytes()).expect("it is good");
        decoded.other_disks.iter_mut().for_each(|disk| disk.from_seq = 0);
        assert_eq!(LogSuperblock::decode(&before), Ok(decoded));
    }

    /// Records of a disk that has left are no damage, and count for no other disk in its place.
    #[test]
    fn entries_of_a_disk_that_has_left_are_known_by_their_record() {
        let mut superblock = of_disks(2);
        superblock.other_disks[0].from_seq = 12;
        let entry = |disk: usize, sectors| Entry {
            kind: EntryKind::Discard,
            extent: Extent::new(AddressSpace::start(disk), sectors),
            crc: 0,
        };
        let found = |entry: &Entry, seq| decode_entry(encode_entry(entry), &superblock, seq).is_some();
        let larger = superblock.other_disks[0].sectors + 8;
        assert!(found(&entry(1, larger), 11) && !found(&entry(1, larger), 12) && found(&entry(1, 8), 12));
        assert!(!found(&entry(2, larger), 5) && !found(&entry(3, 8), 11), "another disk");
        let mut header = Header {
            epoch: 3,
            seq: 11,
            sector: 40,
            oldest_live_seq: 4,
            durable_seq: 6,
            flush_epoch: 2,
            sectors: 1,
            continues: false,
            entries: smallvec::smallvec![entry(1, larger), entry(2, 8)],
        };
        header.leave_out_removed(&superblock);
        assert_eq!([0, 1].map(|at: usize| header.entries[at].kind), [EntryKind::Left, EntryKind::Discard]);
        assert_eq!(header.entries[0].payload_sectors(), 0);
        superblock.other_disks[1] = OtherDisk::free(9);
        assert_eq!(superblock.space().count(), 2);
        superblock.forget_free_places(8);
        assert_eq!(superblock.other_disks.len(), 2, "the log may have records of the last disk");
        superblock.forget_free_places(9);
        assert_eq!(superblock.other_disks.len(), 1);
    }

    #[test]
    fn tables_of_disks_that_cannot_be_are_refused() {
        type Change = fn(&mut LogSuperblock);
        let changes: [Change; 4] = [
            |s| s.other_disks[0].sectors = 0,
            |s| s.other_disks[0].sectors = PART_SECTORS + 1,
            |s| (s.data_sectors, s.fingerprint) = (PART_SECTORS + 1, Fingerprint::default()),
            |s| s.other_disks[1].fingerprint.lines[1].line = 0,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut superblock = of_disks(2);
            change(&mut superblock);
            let decoded = LogSuperblock::decode(superblock.encode().as_bytes());
            assert_eq!(decoded, Err(LogSuperblockError::Field("data disks")), "{index}");
        }
    }

    /// Logs from before there was a calibration, or checksums of sectors and lines between the ends, have zeroes there.
    #[test]
    fn a_superblock_without_a_calibration_and_sums_is_zero_behind_the_live_sequence_number() {
        let sums = ends(1 << 20).map(|line| LineSum { line, sum: Some(5), sectors: None }).collect();
        let fingerprint = Fingerprint { lines: sums, is_exact: false };
        let superblock = LogSuperblock {
            kept_seq: 0,
            live_sector: 0,
            machine: 0,
            memory: None,
            summaries_epoch: 0,
            ..superblock()
        };
        let (spindle, calibration) = (Spindle::NotMeasured, None);
        let plain = LogSuperblock { calibration, spindle, fingerprint, ..superblock };
        let bytes = plain.encode();
        assert!(bytes.as_bytes()[2256..].iter().all(|byte| *byte == 0));
        for length in [SUPERBLOCK_BYTES, SUPERBLOCK_AREA_BYTES] {
            assert_eq!(LogSuperblock::decode(&bytes.as_bytes()[..length]).unwrap(), plain);
        }
    }

    #[test]
    fn without_the_block_behind_it_or_with_another_one_a_superblock_is_as_good() {
        let bytes = superblock().encode();
        let mut torn = bytes.as_bytes().to_vec();
        torn[SUPERBLOCK_BYTES + 70] ^= 1;
        let mut expected = superblock();
        for sum in expected.fingerprint.lines.iter_mut() {
            let is_end = fingerprint_index(1 << 20, sum.line).is_some();
            sum.sectors = sum.sectors.filter(|_| !is_end);
        }
        assert_eq!(LogSuperblock::decode(&torn), Ok(expected.clone()));
        assert_eq!(LogSuperblock::decode(&torn[..SUPERBLOCK_BYTES]), Ok(expected));
    }

    #[test]
    fn a_calibration_out_of_range_is_refused() {
        let corrupted = |at: usize, value: u32| {
            let mut block = superblock().encode().superblock.as_bytes().to_vec();
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
            block[12..16].fill(0);
            let crc = crc32c::crc32c(&block);
            block[12..16].copy_from_slice(&crc.to_le_bytes());
            LogSuperblock::decode(&block)
        };
        // The flag, and how many ranges there are for reads and for writes.
        for (at, good, bad) in [(2256, 1, 2), (2264, 64, 65), (2784, 1, u32::MAX)] {
            let good = corrupted(at, good).map(|found| found.calibration);
            assert_eq!(good, Ok(superblock().calibration));
            assert_eq!(corrupted(at, bad), Err(LogSuperblockError::Field("calibration")), "byte {at}");
        }
    }

    #[test]
    fn hostile_fields_are_refused() {
        type Corrupt = fn(&mut LogSuperblock);
        let cases: [(&str, Corrupt); 12] = [
            ("live sector", |s| s.live_sector = 31),
            ("kept sequence number", |s| s.kept_seq = 7),
            ("samples", |s| s.fingerprint.lines[257].line = 300),
            ("samples", |s| s.fingerprint.lines[256].line = 1 << 40),
            ("segment bytes", |s| s.segment_bytes = 3),
            ("segments", |s| s.segments = 0),
            ("log sectors", |s| s.segments = u32::MAX),
            ("log block bytes", |s| s.log_block_bytes = 0),
            ("tail sector", |s| s.tail_sector = u64::MAX),
            ("tail sequence number", |s| s.tail_seq = 0),
            ("counters", |s| s.durable_seq = u64::MAX),
            ("data sectors", |s| (s.data_sectors, s.fingerprint) = (0, Fingerprint::default())),
        ];
        for (name, corrupt) in cases {
            let mut bad = superblock();
            corrupt(&mut bad);
            assert_eq!(LogSuperblock::decode(bad.encode().as_bytes()), Err(LogSuperblockError::Field(name)));
        }
    }

    #[test]
    fn rule_05_a_header_comes_back_and_every_flipped_bit_is_noticed() {
        let superblock = superblock();
        let data =
            |lba, sectors| Entry { kind: EntryKind::Data, extent: Extent::new(Lba(lba), sectors), crc: 5 };
        let header = Header {
            epoch: 3,
            seq: 11,
            sector: 40,
            oldest_live_seq: 4,
            durable_seq: 6,
            flush_epoch: 2,
            sectors: 1 + 8 + 3,
            continues: true,
            entries: smallvec::smallvec![data(16, 8), data(5, 3)],
        };
        let mut block = vec![0xaa; 512];
        encode_header(&mut block, superblock.cache_uuid, &header);
        assert_eq!(decode_header(&block, &superblock, 40), Some(header));
        assert_eq!(decode_header(&block, &superblock, 41), None, "misdirected");
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&block, &superblock, 40), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_fingerprint_covers_both_ends() {
        let lines = 10_000;
        let sectors = lines * LINE_SECTORS;
        assert_eq!(fingerprint_index(sectors, 0), Some(0));
        assert_eq!(fingerprint_index(sectors, 255), Some(255));
        assert_eq!(fingerprint_index(sectors, 256), None);
        assert_eq!(fingerprint_index(sectors, lines - 256), Some(256));
        assert_eq!(fingerprint_index(sectors, lines - 1), Some(511));
        assert_eq!(fingerprint_index(sectors, lines), None);
    }
}
