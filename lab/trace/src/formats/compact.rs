//! Our own compact binary format, described in docs/traces.md: blocks of records with a checksum each, times and
//! addresses as differences, numbers as varints. Six to twelve bytes a record.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use dcd_engine::Nanos;

use crate::error::{TraceError, Unit};
use crate::format::{Format, Input, Likeness, ReadTrace, WriteTrace};
use crate::record::{DeviceId, Op, Record};

const MAGIC: &[u8; 8] = b"DCDTRACE";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 16;
/// Count of payload bytes, count of records, CRC32C of both and the payload.
const BLOCK_HEADER_BYTES: usize = 12;
/// A block is written when it has this many bytes: large enough that its header costs nothing.
const BLOCK_BYTES: usize = 64 << 10;
/// The largest block that is believed: the last record may pass the limit by its length.
const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + RECORD_BYTES_MAX;
/// Tag, and five varints of ten bytes at most.
const RECORD_BYTES_MAX: usize = 51;

const OP_MASK: u8 = 0b11;
const SAME_DEVICE: u8 = 1 << 2;
const SAME_LENGTH: u8 = 1 << 3;
const FOLLOWS: u8 = 1 << 4;
const EARLIER: u8 = 1 << 5;
const HAS_RESPONSE: u8 = 1 << 6;

const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Discard, Op::Flush];

pub const FORMAT: Format = Format {
    name: "dcd",
    about: "our own compact binary (docs/traces.md)",
    recognise: |head| Likeness::certain_if(head.bytes.starts_with(MAGIC)),
    read: |input| Ok(Box::new(Reader::open(input)?)),
    write: Some(|out| Box::new(Writer::new(out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    guess: None,
};

/// What a record is a difference to. Each block starts anew, so that a damaged one costs only itself.
#[derive(Clone, Copy, Default)]
struct Before {
    at: u64,
    device: u32,
    end: u64,
    sectors: u64,
}

impl Before {
    fn after(self, record: &Record) -> Before {
        let (at, device) = (record.at.0, record.device.0);
        match record.op {
            Op::Flush => Before { at, device, ..self },
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

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

struct Writer {
    out: Box<dyn Write>,
    begun: bool,
    block: Vec<u8>,
    records: u32,
    total: u64,
    before: Before,
}

impl Writer {
    fn new(out: Box<dyn Write>) -> Writer {
        let block = Vec::with_capacity(BLOCK_BYTES_MAX);
        Writer { out, begun: false, block, records: 0, total: 0, before: Before::default() }
    }

    fn encode(&mut self, record: &Record) {
        let before = self.before;
        let flush = record.op == Op::Flush;
        let op = OPS.iter().position(|&op| op == record.op).expect("every operation is in the table") as u8;
        let mut tag = op;
        let mut flag = |it_is: bool, bit: u8| tag |= if it_is { bit } else { 0 };
        flag(record.device.0 == before.device, SAME_DEVICE);
        flag(record.extent.sectors == before.sectors, SAME_LENGTH);
        flag(record.extent.start.0 == before.end, FOLLOWS);
        flag(record.at.0 < before.at, EARLIER);
        flag(record.response.is_some(), HAS_RESPONSE);
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

    fn end(&mut self) -> std::io::Result<()> {
        if self.records > 0 {
            self.write_block()?;
        }
        put(&mut self.block, self.total);
        self.write_block()?;
        self.out.flush()
    }
}

impl WriteTrace for Writer {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.encode(record);
        if self.block.len() < BLOCK_BYTES {
            return Ok(());
        }
        self.write_block().map_err(|e| TraceError::io("output", e))
    }

    fn checkpoint(&mut self) -> Result<(), TraceError> {
        match self.records {
            0 => Ok(()),
            _ => self.write_block().map_err(|e| TraceError::io("output", e)),
        }
    }

    /// The end is a block of no records that holds their total: without it the trace was cut off.
    fn finish(&mut self) -> Result<(), TraceError> {
        self.end().map_err(|e| TraceError::io("output", e))
    }
}

/// Ends a trace whose writing has failed, as on a full disk: cuts off what is no whole block, and writes the end mark behind the last
/// one. Returns the records that are in it. Where there is no room for the end mark, the trace stays one that was cut off.
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
    // It fits where the file system has freed what was cut off.
    let _ = writer.end();
    Ok(total)
}

struct Reader {
    input: Input,
    block: Vec<u8>,
    at: usize,
    left: u32,
    number: u64,
    total: u64,
    /// Records that damaged blocks had are not in `total`.
    damaged: bool,
    before: Before,
    ended: bool,
}

impl Reader {
    fn open(mut input: Input) -> Result<Reader, TraceError> {
        let mut header = [0; HEADER_BYTES];
        let read = input.bytes.read_exact(&mut header);
        read.map_err(|e| TraceError::io(&input.name, e))?;
        let version = u16::from_le_bytes([header[8], header[9]]);
        if !header.starts_with(MAGIC) || version != VERSION {
            let what = format!("this is no dcd trace of version {VERSION} (found version {version})");
            return Err(TraceError::Unreadable { file: input.name, what });
        }
        Ok(Reader {
            input,
            block: Vec::new(),
            at: 0,
            left: 0,
            number: 0,
            total: 0,
            damaged: false,
            before: Before::default(),
            ended: false,
        })
    }

    /// A damaged block is one malformed record: the next one can be read.
    fn malformed(&mut self, what: &str) -> TraceError {
        self.left = 0;
        self.damaged = true;
        TraceError::Malformed {
            file: self.input.name.clone(),
            unit: Unit::Block,
            number: self.number,
            what: what.to_owned(),
        }
    }

    fn cut_off(&mut self) -> TraceError {
        self.ended = true;
        self.malformed("the trace ends without its end mark: it was cut off, or its recording was")
    }

    /// Reads the next block; false at the end of the trace.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        self.number += 1;
        let mut header = [0; BLOCK_HEADER_BYTES];
        if !self.fill(&mut header)? {
            return Err(self.cut_off());
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (bytes, records, crc) = (word(0) as usize, word(4), word(8));
        if bytes > BLOCK_BYTES_MAX {
            // Its length is not to be believed, so the next block cannot be found.
            self.ended = true;
            return Err(self.malformed("the header of the block is damaged; what follows is lost"));
        }
        let mut block = std::mem::take(&mut self.block);
        block.resize(bytes, 0);
        let whole = self.fill(&mut block)?;
        self.block = block;
        if !whole {
            return Err(self.cut_off());
        }
        if crc32c::crc32c_append(crc32c::crc32c(&header[..8]), &self.block) != crc {
            return Err(self.malformed("the checksum of the block is wrong"));
        }
        (self.at, self.left, self.before) = (0, records, Before::default());
        if records > 0 {
            return Ok(true);
        }
        self.ended = true;
        let total = self.varint();
        if total != Some(self.total) && !self.damaged {
            return Err(self.malformed("the end mark counts other records than there are"));
        }
        Ok(false)
    }

    /// Fills the buffer, or says that the input ended before.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, TraceError> {
        match self.input.bytes.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(e) => Err(TraceError::io(&self.input.name, e)),
        }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.block.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn decode(&mut self) -> Option<Record> {
        let tag = *self.block.get(self.at)?;
        self.at += 1;
        let before = self.before;
        let has = |bit: u8| tag & bit != 0;
        let op = OPS[usize::from(tag & OP_MASK)];
        let step = self.varint()?;
        let at = if has(EARLIER) { before.at.checked_sub(step)? } else { before.at.checked_add(step)? };
        let device = if has(SAME_DEVICE) { before.device } else { u32::try_from(self.varint()?).ok()? };
        let (at, device) = (Nanos(at), DeviceId(device));
        let record = if op == Op::Flush {
            Record::flush(at, device)
        } else {
            let step = if has(FOLLOWS) { 0 } else { unzigzag(self.varint()?) };
            let start = before.end.checked_add_signed(step)?;
            let sectors = if has(SAME_LENGTH) { before.sectors } else { self.varint()? };
            Record::new(at, device, op, start, sectors).ok()?
        };
        let response = if has(HAS_RESPONSE) { Some(Nanos(self.varint()?)) } else { None };
        let record = record.answered_after(response);
        self.before = before.after(&record);
        Some(record)
    }
}

impl ReadTrace for Reader {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        while self.left == 0 {
            if self.ended || !self.next_block()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        let Some(record) = self.decode() else {
            return Err(self.malformed("a record is no record, although the checksum is right"));
        };
        self.total += 1;
        if self.left == 0 && self.at != self.block.len() {
            return Err(self.malformed("there is more in the block than its records"));
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{any_records, read, read_all, written};

    #[test]
    fn bytes_are_as_documented() {
        let records = [
            Record::new(Nanos(5), DeviceId(0), Op::Write, 8, 8).unwrap(),
            Record::new(Nanos(7), DeviceId(0), Op::Read, 16, 8).unwrap().answered_after(Some(Nanos(300))),
        ];
        let bytes = written(&FORMAT, &records);
        assert_eq!(&bytes[..16], b"DCDTRACE\x01\0\0\0\0\0\0\0");
        assert_eq!(&bytes[16..24], &[8, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&bytes[28..36], &[0b101, 5, 16, 8, 0b101_1100, 2, 0xac, 2]);
        assert_eq!(&bytes[36..44], &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..], [2]);
        assert_eq!(read(&FORMAT, &bytes).unwrap(), records);
    }

    #[test]
    fn a_damaged_block_costs_itself_and_a_missing_end_is_told() {
        let records = any_records(40_000, true);
        let bytes = written(&FORMAT, &records);
        let mut damaged = bytes.clone();
        damaged[1000] ^= 1;
        let (good, errors) = read_all(&FORMAT, &damaged);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(good.len() > records.len() / 2 && good.len() < records.len());
        assert_eq!(good[..], records[records.len() - good.len()..]);
        let (good, errors) = read_all(&FORMAT, &bytes[..bytes.len() - 13]);
        assert_eq!((good.len(), errors.len()), (records.len(), 1));
        assert!(errors[0].to_string().contains("cut off"), "{}", errors[0]);
    }
}
