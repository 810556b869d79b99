//! HP SRT, as the traces of HP-UX disks of 1992 have it: a text header that a form feed ends, then big-endian records of 14
//! words. Block numbers are in 256-byte sectors. A device is one disk; its partitions are not told apart. Read only.

use std::io::{BufRead, Read};

use dcd_engine::Nanos;

use crate::error::TraceError;
use crate::format::{Format, Input, Likeness};
use crate::records::{RecordReader, Records};
use dcd_stack::{DeviceId, Record, RecordOp};

const HEADER_END: u8 = 0x0c;
/// Maximum size of a header. Known ones have 2204 bytes; a larger one is no header.
const HEADER_BYTES_MAX: u64 = 64 << 10;
const WORDS: usize = 14;
const RECORD_BYTES: usize = 4 * WORDS;
/// Version 4, a short I/O.
const ID: u32 = 0x0004_0001;
const BLOCK_BYTES: u64 = 256;
const READ: u32 = 1;
const MICROSECOND_NS: u64 = 1_000;
const SECOND_NS: u64 = 1_000_000_000;

pub const FORMAT: Format = Format {
    name: "srt",
    about: "HP SRT (the HP-UX disks of 1992; read only)",
    recognise: |head| {
        let after = head.bytes.iter().position(|&b| b == HEADER_END).map(|end| &head.bytes[end + 1..]);
        let first = |bytes: &[u8]| bytes.get(..8) == Some(&[0, 0, 0, RECORD_BYTES as u8, 0, 4, 0, 1]);
        Likeness::certain_if(after.is_some_and(first))
    },
    read: |input| Ok(Box::new(open(input)?)),
    write: None,
    time_unit: Nanos(MICROSECOND_NS),
    has_responses: true,
    has_discards_and_flushes: false,
    has_fua: false,
    guess: None,
};

/// Skips the header.
fn open(mut input: Input) -> Result<RecordReader<Srt>, TraceError> {
    let mut header = Vec::new();
    let read = Read::take(&mut input.bytes, HEADER_BYTES_MAX).read_until(HEADER_END, &mut header);
    read.map_err(|e| TraceError::io(&input.name, e))?;
    if header.last() != Some(&HEADER_END) {
        let what = "no form feed ends the text header, as that of an SRT trace is ended".to_owned();
        return Err(TraceError::Unreadable { file: input.name, what });
    }
    Ok(RecordReader::new(input, Srt))
}

struct Srt;

fn record(raw: &[u8; RECORD_BYTES]) -> Result<Record, String> {
    let word = |index: usize| u32::from_be_bytes(raw[4 * index..4 * index + 4].try_into().expect("a word"));
    if word(0) as usize != RECORD_BYTES || word(1) != ID {
        return Err(format!("its length and kind are {} and {:#x}, not 56 and {ID:#x}", word(0), word(1)));
    }
    let at = u64::from(word(2)) * SECOND_NS + u64::from(word(3)) * MICROSECOND_NS;
    let (start, stop) = (u64::from(word(4)), u64::from(word(5)));
    let response = stop.checked_sub(start).ok_or("it stops before it starts")?;
    let (bytes, block) = (u64::from(word(6)), u64::from(word(7)));
    let disk = DeviceId(word(8) >> 8 & 0xff);
    let op = if word(11) & READ == 0 { RecordOp::Write } else { RecordOp::Read };
    let record = Record::of_bytes(Nanos(at), disk, op, block * BLOCK_BYTES, bytes)?;
    Ok(record.answered_after(Some(Nanos(response * MICROSECOND_NS))))
}

impl Records for Srt {
    type Raw = [u8; RECORD_BYTES];

    fn parse(&mut self, raw: &[u8; RECORD_BYTES]) -> Result<Option<Record>, String> {
        record(raw).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read;
    use dcd_engine::{Extent, Lba};

    #[test]
    fn a_record_of_256_byte_sectors() {
        let words: [u32; WORDS] =
            [56, ID, 1, 22_479, 12, 10_038, 4096, 1040, 0x0801_0107, 0, 0, 0x0100_0001, 0, 1];
        let mut bytes = b"a header\n\x0c".to_vec();
        bytes.extend(words.iter().flat_map(|w| w.to_be_bytes()));
        let records = read(&FORMAT, &bytes).unwrap();
        assert_eq!((records[0].at, records[0].device), (Nanos(1_022_479_000), DeviceId(1)));
        assert_eq!((records[0].op, records[0].extent), (RecordOp::Read, Extent::new(Lba(520), 8)));
        assert_eq!(records[0].response, Some(Nanos::from_micros(10_026)));
    }
}
