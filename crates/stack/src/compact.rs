//! Writes the compact binary format of traces (docs/format.md): blocks of records with a checksum each, times and
//! addresses as differences, numbers as varints. Six to twelve bytes a record. The reader is in lab/trace.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use crate::record::{Record, RecordOp};

pub const MAGIC: &[u8; 8] = b"DCDTRACE";
pub const VERSION: u16 = 1;
pub const HEADER_BYTES: usize = 16;
/// Count of payload bytes, count of records, CRC32C of both and the payload.
pub const BLOCK_HEADER_BYTES: usize = 12;
/// Size at which a block is written: large enough that its header costs nothing.
pub const BLOCK_BYTES: usize = 64 << 10;
/// The largest valid block: the last record may pass the limit by its length.
pub const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + RECORD_BYTES_MAX;
/// Tag, and five varints of ten bytes at most.
pub const RECORD_BYTES_MAX: usize = 51;

pub const OP_MASK: u8 = 0b11;
pub const SAME_DEVICE: u8 = 1 << 2;
pub const SAME_LENGTH: u8 = 1 << 3;
pub const FOLLOWS: u8 = 1 << 4;
pub const EARLIER: u8 = 1 << 5;
pub const HAS_RESPONSE: u8 = 1 << 6;
pub const FUA: u8 = 1 << 7;

pub const OPS: [RecordOp; 4] = [RecordOp::Read, RecordOp::Write, RecordOp::Discard, RecordOp::Flush];

/// Record that the next one is encoded against. Each block starts anew, so that a damaged block loses only its own records.
#[derive(Clone, Copy, Default)]
pub struct Before {
    pub at: u64,
    pub device: u32,
    pub end: u64,
    pub sectors: u64,
}

impl Before {
    pub fn after(self, record: &Record) -> Before {
        let (at, device) = (record.at.0, record.device.0);
        match record.op {
            RecordOp::Flush => Before { at, device, ..self },
            _ => Before { at, device, end: record.extent.end().0, sectors: record.extent.sectors },
        }
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

const fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Takes the records of a trace one by one.
pub struct Writer {
    out: Box<dyn Write>,
    begun: bool,
    block: Vec<u8>,
    records: u32,
    total: u64,
    before: Before,
}

impl Writer {
    pub fn new(out: Box<dyn Write>) -> Writer {
        let block = Vec::with_capacity(BLOCK_BYTES_MAX);
        Writer { out, begun: false, block, records: 0, total: 0, before: Before::default() }
    }

    fn encode(&mut self, record: &Record) {
        let before = self.before;
        let flush = record.op == RecordOp::Flush;
        let op = OPS.iter().position(|&op| op == record.op).expect("every operation is in the table") as u8;
        let mut tag = op;
        let mut flag = |it_is: bool, bit: u8| tag |= if it_is { bit } else { 0 };
        flag(record.device.0 == before.device, SAME_DEVICE);
        flag(record.extent.sectors == before.sectors, SAME_LENGTH);
        flag(record.extent.start.0 == before.end, FOLLOWS);
        flag(record.at.0 < before.at, EARLIER);
        flag(record.response.is_some(), HAS_RESPONSE);
        flag(record.fua, FUA);
        self.block.push(tag);
        put(&mut self.block, record.at.0.abs_diff(before.at));
        if tag & SAME_DEVICE == 0 {
            put(&mut self.block, record.device.0.into());
        }
        if !flush && tag & FOLLOWS == 0 {
            // Both are below 2^54.
            put(&mut self.block, zigzag(record.extent.start.0 as i64 - before.end as i64));
        }
        if !flush && tag & SAME_LENGTH == 0 {
            put(&mut self.block, record.extent.sectors);
        }
        if let Some(response) = record.response {
            put(&mut self.block, response.0);
        }
        self.before = before.after(record);
        self.records += 1;
        self.total += 1;
    }

    fn write_block(&mut self) -> std::io::Result<()> {
        if !self.begun {
            self.begun = true;
            let mut header = [0; HEADER_BYTES];
            header[..8].copy_from_slice(MAGIC);
            header[8..10].copy_from_slice(&VERSION.to_le_bytes());
            self.out.write_all(&header)?;
        }
        let mut header = [0; BLOCK_HEADER_BYTES];
        header[..4].copy_from_slice(&(self.block.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.records.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..8]), &self.block);
        header[8..].copy_from_slice(&crc.to_le_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        self.records = 0;
        self.before = Before::default();
        Ok(())
    }

    pub fn write(&mut self, record: &Record) -> std::io::Result<()> {
        self.encode(record);
        if self.block.len() < BLOCK_BYTES { Ok(()) } else { self.write_block() }
    }

    /// Writes out the records so far, so that they survive a kill of the program.
    pub fn checkpoint(&mut self) -> std::io::Result<()> {
        if self.records == 0 { Ok(()) } else { self.write_block() }
    }

    /// Ends the trace with a block without records that holds their total number. A trace without this block was cut off.
    pub fn finish(&mut self) -> std::io::Result<()> {
        if self.records > 0 {
            self.write_block()?;
        }
        put(&mut self.block, self.total);
        self.write_block()?;
        self.out.flush()
    }
}

/// Ends a trace after a failed write, as on a full disk: cuts off an incomplete block, and writes the end mark after the last whole
/// block. Returns the number of records kept. Without space for the end mark, readers see a trace that was cut off.
pub fn end_after_failure(file: &mut File) -> std::io::Result<u64> {
    let fill = |file: &mut File, buffer: &mut [u8]| match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    };
    file.rewind()?;
    let (mut header, mut total, mut end) = ([0; HEADER_BYTES], 0, 0);
    let mut block = Vec::with_capacity(BLOCK_BYTES_MAX);
    let mut is_whole = fill(file, &mut header)? && header.starts_with(MAGIC);
    while is_whole {
        end = file.stream_position()?;
        let mut header = [0; BLOCK_HEADER_BYTES];
        if !fill(file, &mut header)? {
            break;
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (bytes, records, crc) = (word(0) as usize, word(4), word(8));
        block.resize(bytes.min(BLOCK_BYTES_MAX), 0);
        is_whole = records > 0
            && bytes <= BLOCK_BYTES_MAX
            && fill(file, &mut block)?
            && crc32c::crc32c_append(crc32c::crc32c(&header[..8]), &block) == crc;
        total += if is_whole { u64::from(records) } else { 0 };
    }
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let mut writer = Writer::new(Box::new(file.try_clone()?));
    (writer.begun, writer.total) = (end > 0, total);
    // The end mark fits if the file system has freed the space that was cut off.
    let _ = writer.finish();
    Ok(total)
}
