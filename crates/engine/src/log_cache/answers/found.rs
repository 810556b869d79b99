//! Memory of the last process: decodes it, and writes to the log what that lacks.

use zerocopy::FromBytes;

use super::super::LogCanary;
use super::super::error::LogError;
use super::super::format::{
    Entries, EntryBytes, Header, LogSuperblock, decode_entry, decode_header, encode_header, entries_max,
};
use super::super::recover::Walked;
use super::{
    END_AT, FRAME_BYTES, FrameBytes, FrameKind, HEAD_BYTES, HeadBytes, MAGIC, MemoryPlace, START_AT, VERSION,
};
use crate::{BlockDevice, Buf, Lba, Planted, SECTOR_BYTES};

/// Reason for not taking in memory of the last process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    #[error("it is gone")]
    Gone,
    #[error("it is not whole")]
    NotWhole,
    #[error("it is of another program version")]
    Version,
    #[error("it is of another cache")]
    Cache,
    #[error("it is of a copy of this cache")]
    Copy,
    #[error("it is of an earlier boot")]
    Boot,
    #[error("it is of activation {found}, and the log was last served by activation {log}")]
    Epoch { found: u64, log: u64 },
    #[error("it begins with record {first}, but the log ends before record {next}")]
    Gap { first: u64, next: u64 },
}

/// Findings in memory of the last process.
#[derive(Debug, Default)]
pub struct Taken {
    /// Records that the log lacked, and the number of the next one.
    pub records: u64,
    pub end: u64,
    /// Reason why the memory was not used: answered writes may be lost.
    pub ignored: Option<Ignored>,
    /// The machine has run since, so the memory was lost, and clients that outlived the server may rely on what it held.
    pub is_missed: bool,
}

/// A record of the last process, with its header block.
pub struct AnswerRecord {
    pub seq: u64,
    /// The newest record before it that is not here as a whole: without that one in the log, this one does not count.
    behind: u64,
    sector: u64,
    pub image: Buf,
}

/// Decodes memory of the last process: the records that the log may lack, oldest first. Empty if nothing in it can be missing.
pub fn found(
    bytes: &[u8],
    boot: [u8; 16],
    superblock: &LogSuperblock,
    walked: &Walked,
    canary: Planted<LogCanary>,
) -> Result<Vec<AnswerRecord>, Ignored> {
    let Some(mark) = superblock.memory else { return Ok(Vec::new()) };
    let Ok((head, _)) = HeadBytes::read_from_prefix(bytes) else { return Err(Ignored::NotWhole) };
    if bytes.len() < HEAD_BYTES {
        return Err(Ignored::NotWhole);
    }
    if head.magic.get() == 0 {
        return if mark.is_of(&boot) { Err(Ignored::NotWhole) } else { Ok(Vec::new()) };
    }
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (start, end) = (number(START_AT), number(END_AT));
    if head.magic.get() != MAGIC || head.crc.get() != head.sum() {
        return Err(Ignored::NotWhole);
    }
    if head.version.get() != VERSION {
        return Err(Ignored::Version);
    }
    let (epoch, log) = (head.epoch.get(), walked.epoch_max);
    if head.cache_uuid != superblock.cache_uuid {
        return Err(Ignored::Cache);
    }
    let any = canary.is_any(|canary| matches!(canary, LogCanary::ForeignAnswers | LogCanary::OldAnswers));
    if head.number.get() != mark.number && !any {
        return Err(Ignored::Copy);
    }
    if start == end && epoch == log {
        return Ok(Vec::new());
    }
    if head.boot != boot && !any {
        return Err(Ignored::Boot);
    }
    let capacity = u64::from(head.capacity.get());
    let ring = bytes[HEAD_BYTES..].get(..usize::try_from(capacity).unwrap_or(usize::MAX));
    let ring = ring.filter(|_| start < end && end - start <= capacity).ok_or(Ignored::NotWhole)?;
    let reader = RingReader { ring, position: start, end, superblock, epoch: if any { log } else { epoch } };
    let records = reader.records().ok_or(Ignored::NotWhole)?;
    if epoch != log && !any {
        return Err(Ignored::Epoch { found: epoch, log });
    }
    let Some(first) = records.first().map(|first| first.seq) else { return Ok(Vec::new()) };
    let next = walked.next_seq + walked.records_dropped;
    match first > next && records[0].behind < next && !canary.is(LogCanary::OldAnswers) {
        true => Err(Ignored::Gap { first, next }),
        false => Ok(records),
    }
}

/// Writes to the log the answered writes that are only in memory of the last process, and makes them durable. No record behind one that
/// is missing was answered.
pub fn take_in(
    log: &mut dyn BlockDevice,
    memory: &mut dyn MemoryPlace,
    superblock: &LogSuperblock,
    walked: &Walked,
    canary: Planted<LogCanary>,
) -> Result<Taken, LogError> {
    let Some(named) = superblock.memory else { return Ok(Taken::default()) };
    let mark = Some(named).filter(|mark| mark.is_of(&memory.boot()));
    let other = match canary.is(LogCanary::ForeignAnswers) {
        true => memory.find(&superblock.cache_uuid, named.number - 1)?,
        false => None,
    };
    let named_memory = memory.find(&superblock.cache_uuid, named.number)?;
    let found = match other.or(named_memory) {
        Some(bytes) => found(&bytes, memory.boot(), superblock, walked, canary),
        None if mark.is_some() && !canary.is(LogCanary::UnmissedAnswers) => Err(Ignored::Gone),
        None => Ok(Vec::new()),
    };
    let records = match found {
        Ok(records) => records,
        Err(ignored) => {
            let is_missed = mark.is_some_and(|mark| mark.is_relied_on);
            return Ok(Taken { ignored: Some(ignored), is_missed, ..Taken::default() });
        }
    };
    let end = walked.next_seq + walked.records_dropped;
    let mut next = end;
    for record in records {
        if !canary.is(LogCanary::OldAnswers) {
            if record.seq < next {
                continue;
            }
            if record.seq > next || record.behind >= end {
                break;
            }
        }
        log.write(Lba(record.sector), record.image)
            .map_err(LogError::io("writing answered writes to the log"))?;
        next = record.seq + 1;
    }
    if next > end {
        log.flush().map_err(LogError::io("flushing answered writes to the log"))?;
    }
    Ok(Taken { records: next.saturating_sub(end), end: next, ..Taken::default() })
}

struct RingReader<'a> {
    ring: &'a [u8],
    position: u64,
    end: u64,
    superblock: &'a LogSuperblock,
    epoch: u64,
}

/// A record that is being put together.
struct PartialRecord {
    header: Header,
    behind: u64,
    payload: Vec<u8>,
}

impl RingReader<'_> {
    /// Reads all records; none if a frame is bad.
    fn records(mut self) -> Option<Vec<AnswerRecord>> {
        let mut records: Vec<AnswerRecord> = Vec::new();
        let mut open: Option<PartialRecord> = None;
        while self.position < self.end {
            let position = self.position;
            let frame = FrameBytes::read_from_bytes(&self.take(FRAME_BYTES)?).ok()?;
            if frame.crc.get() != frame.sum() || frame.position.get() != position {
                return None;
            }
            let words = frame.words.map(|word| word.get());
            match FrameKind::from_u32(frame.kind.get())? {
                FrameKind::Record => {
                    self.end_record(open.take(), &mut records)?;
                    let [seq, sector, oldest_live_seq, durable_seq, flush_epoch, behind] = words;
                    if records.last().is_some_and(|last| seq <= last.seq) {
                        return None;
                    }
                    let header = Header {
                        epoch: self.epoch,
                        seq,
                        sector,
                        oldest_live_seq,
                        durable_seq,
                        flush_epoch,
                        sectors: 0,
                        continues: false,
                        entries: Entries::new(),
                    };
                    open = Some(PartialRecord { header, behind, payload: Vec::new() });
                }
                kind @ (FrameKind::Entry | FrameKind::Replace) => {
                    self.entry(open.as_mut()?, words, kind == FrameKind::Replace)?;
                }
                FrameKind::Sealed => {
                    let open = open.as_mut()?;
                    (open.header.oldest_live_seq, open.header.durable_seq) = (words[0], words[1]);
                    open.header.continues = words[2] != 0;
                }
            }
        }
        self.end_record(open, &mut records)?;
        Some(records)
    }

    fn entry(&mut self, open: &mut PartialRecord, words: [u64; 6], replaces: bool) -> Option<()> {
        let [kind_and_lba, sectors, crc, ..] = words;
        let (sectors, crc) = (u32::try_from(sectors).ok()?, u32::try_from(crc).ok()?);
        let bytes =
            EntryBytes { kind_and_lba: kind_and_lba.into(), sectors: sectors.into(), crc: crc.into() };
        let entry = decode_entry(bytes, self.superblock, open.header.seq)?;
        let payload = self.take((entry.payload_sectors() * SECTOR_BYTES) as usize)?;
        if entry.kind.has_payload() && crc32c::crc32c(&payload) != entry.crc {
            return None;
        }
        let entries = &mut open.header.entries;
        if !replaces {
            open.payload.extend_from_slice(&payload);
            entries.push(entry);
            return Some(());
        }
        let index =
            entries.iter().rposition(|older| older.extent == entry.extent && older.kind == entry.kind)?;
        let at =
            entries[..index].iter().map(|older| older.payload_sectors() * SECTOR_BYTES).sum::<u64>() as usize;
        open.payload[at..at + payload.len()].copy_from_slice(&payload);
        entries[index].crc = entry.crc;
        Some(())
    }

    /// Makes the image of a record, as the buffer would have been written. Refuses one that is no record of this log.
    fn end_record(&self, open: Option<PartialRecord>, records: &mut Vec<AnswerRecord>) -> Option<()> {
        let Some(PartialRecord { mut header, behind, payload }) = open else { return Some(()) };
        let superblock = self.superblock;
        let block = superblock.log_block_bytes as usize;
        let is_in_ring = (superblock.segment_start(0)..superblock.end_sector()).contains(&header.sector);
        let bytes = block + payload.len().next_multiple_of(block);
        if !is_in_ring
            || header.entries.len() > entries_max(superblock.log_block_bytes)
            || bytes > superblock.segment_bytes as usize
        {
            return None;
        }
        header.sectors = (bytes as u64 / SECTOR_BYTES) as u32;
        let mut image = Buf::zeroed(bytes);
        encode_header(&mut image.bytes_mut()[..block], superblock.cache_uuid, &header);
        image.bytes_mut()[block..block + payload.len()].copy_from_slice(&payload);
        decode_header(&image.bytes()[..block], superblock, header.sector)?;
        records.push(AnswerRecord { seq: header.seq, behind, sector: header.sector, image });
        Some(())
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if self.end - self.position < bytes as u64 {
            return None;
        }
        let at = (self.position % self.ring.len() as u64) as usize;
        let before = bytes.min(self.ring.len() - at);
        self.position += bytes as u64;
        Some([&self.ring[at..at + before], &self.ring[..bytes - before]].concat())
    }
}
