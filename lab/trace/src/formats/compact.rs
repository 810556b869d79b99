//! Our own compact binary format, described in docs/format.md: blocks of records with a checksum each, times and
//! addresses as differences, numbers as varints. Six to twelve bytes a record.

use std::io::Read;

use dcd_engine::Nanos;

use dcd_stack::compact::{
    BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, Before, EARLIER, FOLLOWS, FUA, HAS_RESPONSE, HEADER_BYTES, MAGIC,
    OP_MASK, OPS, SAME_DEVICE, SAME_LENGTH, VERSION, Writer,
};

use crate::error::{TraceError, Unit};
use crate::format::{Format, Input, Likeness, ReadTrace, WriteTrace};
use dcd_stack::{DeviceId, Record, RecordOp};

pub const FORMAT: Format = Format {
    name: "dcd",
    about: "our own compact binary",
    recognise: |head| Likeness::certain_if(head.bytes.starts_with(MAGIC)),
    read: |input| Ok(Box::new(Reader::open(input)?)),
    write: Some(|out| Box::new(Writer::new(out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: true,
    guess: None,
};

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

impl WriteTrace for Writer {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.write(record).map_err(|e| TraceError::io("output", e))
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        self.finish().map_err(|e| TraceError::io("output", e))
    }
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
        let record = if op == RecordOp::Flush {
            Record::flush(at, device)
        } else {
            let step = if has(FOLLOWS) { 0 } else { unzigzag(self.varint()?) };
            let start = before.end.checked_add_signed(step)?;
            let sectors = if has(SAME_LENGTH) { before.sectors } else { self.varint()? };
            Record::new(at, device, op, start, sectors).ok()?
        };
        let response = if has(HAS_RESPONSE) { Some(Nanos(self.varint()?)) } else { None };
        let record = record.answered_after(response).with_fua(has(FUA));
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
            Record::new(Nanos(5), DeviceId(0), RecordOp::Write, 8, 8).unwrap(),
            Record::new(Nanos(7), DeviceId(0), RecordOp::Read, 16, 8)
                .unwrap()
                .answered_after(Some(Nanos(300))),
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
