//! Summaries: the contents of a segment's headers, repeated at the start of the next segment.
//!
//! A start reads summaries in place of the headers: a hundredth of the log. A summary is in the write of the first records of its
//! segment, so it costs no operation, and the records after it are never durable without it.
//!
//! A summary repeats headers and decides nothing. A segment without an intact summary is read by its headers. A start that finds damage
//! begins again without summaries (`recover::summaries` tells which of them are believed).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::format::{
    ENTRY_BYTES, Entries, EntryBytes, FLAG_CONTINUES, Header, LogSuperblock, RECORD_COUNTER_MAX,
    decode_entry, encode_entry,
};
use super::spindle::Spindle;
use crate::{Extent, Geometry, Lba, SECTOR_BYTES};

/// "dcdS" in ASCII.
pub const SUMMARY_MAGIC: [u8; 4] = *b"dcdS";
const SUMMARY_VERSION: u16 = 1;
/// Maximum part of a segment that a summary takes; a segment with too many records for it has none.
pub const SUMMARY_PART: u32 = 8;
/// Smallest segment with a summary on a rotational log: 4 MiB pass under the heads of a current disk in the time of two seeks.
const SPINNING_BYTES_MIN: u32 = 4 << 20;

/// Fixed part of a summary; the records of the segment before follow, each with its entries.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SummaryBytes {
    pub magic: [u8; 4],
    pub version: U16,
    /// Segment buffers of the program that wrote the summary.
    pub segment_buffers: U16,
    /// CRC32C of the fixed part with this field zero.
    pub crc: U32,
    /// CRC32C of the body, after the fixed part.
    pub body_crc: U32,
    pub body_bytes: U32,
    pub records: U32,
    pub cache_uuid: [u8; 16],
    pub epoch: U64,
    /// Sector of the summary on the log device.
    pub sector: U64,
    pub first_seq: U64,
    /// Records before this one were durable when the summary was made.
    pub durable_seq: U64,
    /// The highest value in a header of the segment.
    pub oldest_live_seq: U64,
}

pub const SUMMARY_FIXED_BYTES: usize = 80;
const _: () = assert!(size_of::<SummaryBytes>() == SUMMARY_FIXED_BYTES);

/// A record in a summary; its entries follow. Its sequence number is one more than that of the record before.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SummaryRecordBytes {
    /// Offset of the record, in sectors from the start of its segment.
    pub offset: U32,
    pub entry_count: U16,
    /// Flags of the record's header.
    pub flags: U16,
    pub flush_epoch: U64,
}

const RECORD_BYTES: usize = 16;
const _: () = assert!(size_of::<SummaryRecordBytes>() == RECORD_BYTES);

/// Gathers a segment's summary while its records are written.
#[derive(Default)]
pub struct Gathered {
    /// The number of the segment.
    segment: u64,
    first_seq: u64,
    records: u32,
    oldest_live_seq: u64,
    body: Vec<u8>,
}

impl Gathered {
    /// Notes that a record was sealed, `offset` sectors after the start of this segment.
    pub fn note(&mut self, segment: u64, offset: u64, header: &Header) {
        if self.records == 0 || self.segment != segment {
            (self.segment, self.first_seq) = (segment, header.seq);
            (self.records, self.oldest_live_seq) = (0, 0);
            self.body.clear();
        }
        assert_eq!(header.seq, self.first_seq + u64::from(self.records), "in the order of their numbers");
        self.records += 1;
        self.oldest_live_seq = self.oldest_live_seq.max(header.oldest_live_seq);
        let record = SummaryRecordBytes {
            offset: (offset as u32).into(),
            entry_count: (header.entries.len() as u16).into(),
            flags: (if header.continues { FLAG_CONTINUES } else { 0 }).into(),
            flush_epoch: header.flush_epoch.into(),
        };
        self.body.extend_from_slice(record.as_bytes());
        for entry in &header.entries {
            self.body.extend_from_slice(encode_entry(entry).as_bytes());
        }
    }

    /// Encodes the summary of a segment for the start of the next one, padded to whole blocks; empty if there are no records, or too
    /// many.
    pub fn encode(
        &self,
        segment: u64,
        superblock: &LogSuperblock,
        sector: u64,
        durable_seq: u64,
        segment_buffers: usize,
    ) -> Vec<u8> {
        let block = superblock.log_block_bytes as usize;
        let bytes = (SUMMARY_FIXED_BYTES + self.body.len()).next_multiple_of(block);
        if self.records == 0 || self.segment != segment || bytes > bytes_max(superblock) {
            return Vec::new();
        }
        let mut fixed = SummaryBytes {
            magic: SUMMARY_MAGIC,
            version: SUMMARY_VERSION.into(),
            segment_buffers: (segment_buffers as u16).into(),
            crc: 0.into(),
            body_crc: crc32c::crc32c(&self.body).into(),
            body_bytes: (self.body.len() as u32).into(),
            records: self.records.into(),
            cache_uuid: superblock.cache_uuid,
            epoch: superblock.epoch.into(),
            sector: sector.into(),
            first_seq: self.first_seq.into(),
            durable_seq: durable_seq.into(),
            oldest_live_seq: self.oldest_live_seq.into(),
        };
        fixed.crc = crc32c::crc32c(fixed.as_bytes()).into();
        let mut all = Vec::with_capacity(bytes);
        all.extend_from_slice(fixed.as_bytes());
        all.extend_from_slice(&self.body);
        all.resize(bytes, 0);
        all
    }
}

/// True when summaries are written and read. On a rotational disk with short segments, seeking for summaries takes longer than reading
/// the segments from end to end.
pub const fn are_used(superblock: &LogSuperblock, log: &Geometry) -> bool {
    let seeks = log.rotational && !matches!(superblock.spindle, Spindle::NotShown);
    !seeks || superblock.segment_bytes >= SPINNING_BYTES_MIN
}

/// Maximum size of a summary, in bytes: whole blocks.
pub const fn bytes_max(superblock: &LogSuperblock) -> usize {
    let part = (superblock.segment_bytes / SUMMARY_PART) as usize;
    part / superblock.log_block_bytes as usize * superblock.log_block_bytes as usize
}

/// Fixed part of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The segment that is summarised.
    pub segment: u32,
    /// First sector of the summary.
    pub sector: u64,
    pub epoch: u64,
    pub first_seq: u64,
    pub records: u32,
    pub durable_seq: u64,
    pub oldest_live_seq: u64,
    pub segment_buffers: u16,
    body_crc: u32,
    body_bytes: u32,
}

impl Summary {
    /// Reads the fixed part from the first block of the segment after `segment`; every field is checked.
    pub fn decode(block: &[u8], superblock: &LogSuperblock, segment: u32, sector: u64) -> Option<Summary> {
        let (fixed, _) = SummaryBytes::read_from_prefix(block).ok()?;
        let mut unsigned = fixed.clone();
        unsigned.crc = 0.into();
        let end = fixed.first_seq.get().checked_add(u64::from(fixed.records.get()))?;
        let counters = [fixed.first_seq, fixed.epoch, fixed.durable_seq, fixed.oldest_live_seq];
        let is_good = fixed.magic == SUMMARY_MAGIC
            && fixed.version.get() == SUMMARY_VERSION
            && fixed.cache_uuid == superblock.cache_uuid
            && fixed.sector.get() == sector
            && crc32c::crc32c(unsigned.as_bytes()) == fixed.crc.get()
            && fixed.records.get() > 0
            && counters.iter().all(|counter| counter.get() < RECORD_COUNTER_MAX)
            && fixed.durable_seq.get() <= end
            && fixed.oldest_live_seq.get() < end
            && fixed.body_bytes.get() as usize + SUMMARY_FIXED_BYTES <= bytes_max(superblock);
        is_good.then(|| Summary {
            segment,
            sector,
            epoch: fixed.epoch.get(),
            first_seq: fixed.first_seq.get(),
            records: fixed.records.get(),
            durable_seq: fixed.durable_seq.get(),
            oldest_live_seq: fixed.oldest_live_seq.get(),
            segment_buffers: fixed.segment_buffers.get(),
            body_crc: fixed.body_crc.get(),
            body_bytes: fixed.body_bytes.get(),
        })
    }

    /// Sequence number after that of the last record.
    pub fn end_seq(&self) -> u64 {
        self.first_seq + u64::from(self.records)
    }

    /// Size of the whole summary, in bytes.
    pub const fn bytes(&self) -> usize {
        SUMMARY_FIXED_BYTES + self.body_bytes as usize
    }

    /// The sectors of the whole summary.
    pub const fn extent(&self) -> Extent {
        Extent::new(Lba(self.sector), (self.bytes() as u64).div_ceil(SECTOR_BYTES))
    }

    /// Decodes the headers from all the bytes of the summary. `None` if any of them is invalid.
    pub fn headers(&self, bytes: &[u8], superblock: &LogSuperblock) -> Option<Vec<Header>> {
        let mut rest = bytes.get(SUMMARY_FIXED_BYTES..self.bytes())?;
        if crc32c::crc32c(rest) != self.body_crc {
            return None;
        }
        let mut headers = Vec::with_capacity(rest.len() / (RECORD_BYTES + ENTRY_BYTES));
        for seq in self.first_seq..self.end_seq() {
            let header;
            (header, rest) = self.header(seq, rest, superblock)?;
            headers.push(header);
        }
        let mut places: Vec<_> = headers.iter().map(|h| h.sector..h.sector + u64::from(h.sectors)).collect();
        places.sort_by_key(|place| place.start);
        let overlap = places.windows(2).any(|pair| pair[1].start < pair[0].end);
        (rest.is_empty() && !overlap).then_some(headers)
    }

    fn header<'a>(&self, seq: u64, rest: &'a [u8], superblock: &LogSuperblock) -> Option<(Header, &'a [u8])> {
        let (record, mut rest) = SummaryRecordBytes::read_from_prefix(rest).ok()?;
        let block = superblock.log_block_sectors();
        let mut entries = Entries::with_capacity(usize::from(record.entry_count.get()));
        let mut payload = 0;
        for _ in 0..record.entry_count.get() {
            let entry;
            (entry, rest) = EntryBytes::read_from_prefix(rest).ok()?;
            let entry = decode_entry(entry, superblock, seq)?;
            payload += entry.payload_sectors();
            entries.push(entry);
        }
        let offset = u64::from(record.offset.get());
        let sectors = block + payload.next_multiple_of(block);
        let is_counted = record.flush_epoch.get() < RECORD_COUNTER_MAX;
        let fits = offset + sectors <= superblock.segment_sectors();
        let header = Header {
            epoch: self.epoch,
            seq,
            sector: superblock.segment_start(self.segment) + offset,
            oldest_live_seq: self.oldest_live_seq.min(seq),
            durable_seq: self.durable_seq.min(seq),
            flush_epoch: record.flush_epoch.get(),
            sectors: u32::try_from(sectors).ok()?,
            continues: record.flags.get() & FLAG_CONTINUES != 0,
            entries,
        };
        (fits && is_counted).then_some((header, rest))
    }
}
