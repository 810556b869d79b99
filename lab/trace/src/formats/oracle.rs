//! libCacheSim's oracleGeneral: little-endian records of 24 bytes, no header: time in seconds, object, size in bytes, and the number
//! of the record that has the object next, or -1. It says neither what is read and what written, nor what an object is. LCS, which
//! replaces it, has a header with a version, which decides the fields of a record: version 1 is the same, later ones have operations.

use std::io::{BufRead, Read};

use dcd_engine::{Nanos, SECTOR_BYTES};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TraceError;
use crate::format::{Format, Input, Likeness, ReadTrace};
use crate::records::{RecordReader, Records};
use dcd_stack::{DeviceId, Record, RecordOp};

const SECOND_NS: u64 = 1_000_000_000;
/// Fewer records say too little to recognise a format without a magic number.
const RECORDS_MIN: usize = 4;
/// No trace is so long; text, taken for a number, is larger.
const NEXT_MAX: i64 = 1 << 40;

pub const FORMAT: Format = Format {
    name: "oracle-general",
    about: "libCacheSim oracleGeneral (read only); all is taken for reads",
    recognise: |head| if is_one(head.bytes) { Likeness::LIKELY } else { Likeness::NONE },
    read: lcs::<24>,
    write: None,
    time_unit: Nanos(SECOND_NS),
    has_responses: false,
    has_discards_and_flushes: false,
    has_fua: false,
    guess: None,
};

pub const LCS: Format = Format {
    name: "lcs",
    about: "libCacheSim LCS, versions 1 to 8 (read only)",
    recognise: |head| Likeness::certain_if(head.bytes.starts_with(LCS_MAGIC)),
    read: open_lcs,
    ..FORMAT
};

const LCS_MAGIC: &[u8; 8] = &0x1234_5678_9abc_def0u64.to_le_bytes();
const LCS_HEADER_BYTES: usize = 8192;
/// Numbers of the operations of a key-value cache, and of a disk.
const LCS_READS: [u8; 3] = [1, 2, 12];
const LCS_WRITES: [u8; 9] = [3, 4, 5, 6, 7, 8, 10, 11, 13];
const LCS_UPDATE: u8 = 14;
const LCS_DELETE: u8 = 9;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Access {
    seconds: U32,
    object: U64,
    _bytes: U32,
    next: I64,
}

const ACCESS_BYTES: usize = size_of::<Access>();

fn accesses(bytes: &[u8]) -> Vec<Access> {
    let one = |raw: &[u8]| Access::read_from_bytes(raw).expect("it has the length");
    bytes.chunks_exact(ACCESS_BYTES).map(one).collect()
}

/// Times do not fall, and where a next access is near it is to the same object; it counts from 0 or from 1.
fn is_one(bytes: &[u8]) -> bool {
    let all = accesses(bytes);
    let in_order = all.windows(2).all(|two| two[0].seconds <= two[1].seconds);
    let never = |next: i64| next == -1 || next == i64::MAX;
    let holds = |base: usize| {
        all.iter().enumerate().all(|(index, access)| match access.next.get() {
            next if never(next) => true,
            next if next > NEXT_MAX => false,
            next => usize::try_from(next).ok().and_then(|next| next.checked_sub(base)).is_some_and(|next| {
                next > index && all.get(next).is_none_or(|then| then.object == access.object)
            }),
        })
    };
    all.len() >= RECORDS_MIN && in_order && (holds(0) || holds(1))
}

/// Unit of the objects' numbers: sectors are not all multiples of 512.
fn object_bytes(mut objects: impl ExactSizeIterator<Item = u64>) -> u64 {
    let offsets = objects.len() >= RECORDS_MIN && objects.all(|object| object % SECTOR_BYTES == 0);
    if offsets { 1 } else { SECTOR_BYTES }
}

fn open_lcs(mut input: Input) -> Result<Box<dyn ReadTrace>, TraceError> {
    let mut header = [0; LCS_HEADER_BYTES];
    let name = input.name.clone();
    input.bytes.read_exact(&mut header).map_err(|e| TraceError::io(&name, e))?;
    let version = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
    if !header.starts_with(LCS_MAGIC) || !header.ends_with(LCS_MAGIC) {
        return Err(TraceError::Unreadable {
            file: name,
            what: "the header of an LCS trace is damaged".to_owned(),
        });
    }
    match version {
        1 => lcs::<24>(input),
        2 => lcs::<28>(input),
        3 => lcs::<36>(input),
        4 => lcs::<40>(input),
        5 => lcs::<44>(input),
        6 => lcs::<52>(input),
        7 => lcs::<68>(input),
        8 => lcs::<100>(input),
        _ => {
            let what = format!("its LCS version is {version}; 1 to 8 are known");
            Err(TraceError::Unreadable { file: name, what })
        }
    }
}

fn lcs<const BYTES: usize>(mut input: Input) -> Result<Box<dyn ReadTrace>, TraceError> {
    let head = input.bytes.fill_buf().map_err(|e| TraceError::io(&input.name, e))?;
    let unit_bytes = object_bytes(head.chunks_exact(BYTES).map(|raw| number(raw, 4, 8)));
    Ok(Box::new(RecordReader::new(input, Lcs::<BYTES> { unit_bytes, deleted: 0 })))
}

/// A little-endian number in a record.
fn number(raw: &[u8], at: usize, bytes: usize) -> u64 {
    raw[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

struct Lcs<const BYTES: usize> {
    /// Unit of an object's number: 1 where the numbers are byte offsets.
    unit_bytes: u64,
    deleted: u64,
}

impl<const BYTES: usize> Records for Lcs<BYTES> {
    type Raw = [u8; BYTES];

    fn parse(&mut self, raw: &[u8; BYTES]) -> Result<Option<Record>, String> {
        // From version 3 on a size has eight bytes.
        let size_bytes = if BYTES < 36 { 4 } else { 8 };
        let op = match BYTES {
            24 => RecordOp::Read,
            _ => match raw[12 + size_bytes] {
                code if LCS_READS.contains(&code) => RecordOp::Read,
                code if LCS_WRITES.contains(&code) || code == LCS_UPDATE => RecordOp::Write,
                LCS_DELETE => {
                    self.deleted += 1;
                    return Ok(None);
                }
                other => return Err(format!("the operation {other} is neither a read nor a write")),
            },
        };
        let (seconds, object) = (number(raw, 0, 4), number(raw, 4, 8));
        let start = object.checked_mul(self.unit_bytes);
        let start = start.ok_or_else(|| format!("the object {object} is no place on a disk"))?;
        let at = Nanos(seconds * SECOND_NS);
        Ok(Some(Record::of_bytes(at, DeviceId(0), op, start, number(raw, 12, size_bytes))?))
    }

    fn note(&self) -> Option<String> {
        let places = self.places();
        let assumed = match BYTES {
            24 => format!(
                "the format does not say what is read and what written: all was taken for reads, and objects for {places}"
            ),
            _ => format!("objects were taken for {places}"),
        };
        let deleted = crate::text::counted(self.deleted, "deletions were left out");
        Some(std::iter::once(assumed).chain(deleted).collect::<Vec<_>>().join("; "))
    }
}

impl<const BYTES: usize> Lcs<BYTES> {
    const fn places(&self) -> &'static str {
        if self.unit_bytes == 1 { "byte offsets" } else { "sectors of 512 bytes" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, read_reader};

    fn bytes(accesses: &[(u32, u64, u32, i64)]) -> Vec<u8> {
        let one = |&(seconds, object, bytes, next): &(u32, u64, u32, i64)| {
            [&seconds.to_le_bytes()[..], &object.to_le_bytes(), &bytes.to_le_bytes(), &next.to_le_bytes()]
                .concat()
        };
        accesses.iter().flat_map(one).collect()
    }

    #[test]
    fn it_is_recognised_by_its_next_accesses_and_says_what_it_guesses() {
        let accesses =
            [(5, 40_409_911, 6656, 2), (5, 7, 512, -1), (6, 40_409_911, 6656, i64::MAX), (9, 1, 512, -1)];
        assert_eq!(crate::recognise("test", &bytes(&accesses)).unwrap().name, "oracle-general");
        let mut reader = (FORMAT.read)(input("test", bytes(&accesses))).unwrap();
        let records = read_reader(&mut *reader).unwrap();
        assert_eq!(
            records[0],
            Record::new(Nanos::from_secs(5), DeviceId(0), RecordOp::Read, 40_409_911, 13).unwrap()
        );
        assert_eq!(records.len(), 4);
        assert!(reader.note().unwrap().contains("all was taken for reads"));
        let mut wrong = accesses;
        wrong[0].3 = 1;
        assert!(crate::recognise("test", &bytes(&wrong)).is_err());
        assert!(!is_one(&b"0123456789abcdefghijklmn".repeat(RECORDS_MIN)), "text is none");
        let offsets = accesses.map(|(seconds, object, bytes, next)| (seconds, object * 512, bytes, next));
        let mut reader = (FORMAT.read)(input("test", bytes(&offsets))).unwrap();
        assert_eq!(read_reader(&mut *reader).unwrap(), records);
        assert!(reader.note().unwrap().contains("byte offsets"));
    }

    /// A trace of a version whose records have `fields` after the size.
    fn lcs_bytes(version: u64, size_bytes: usize, fields: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; LCS_HEADER_BYTES];
        bytes[..8].copy_from_slice(LCS_MAGIC);
        bytes[8..16].copy_from_slice(&version.to_le_bytes());
        bytes[LCS_HEADER_BYTES - 8..].copy_from_slice(LCS_MAGIC);
        for object in [40_409_911u64, 7, 8, 9] {
            bytes.extend(5u32.to_le_bytes());
            bytes.extend(object.to_le_bytes());
            bytes.extend(&6656u64.to_le_bytes()[..size_bytes]);
            bytes.extend(fields);
        }
        bytes
    }

    #[test]
    fn versions_of_lcs_have_records_of_their_own() {
        let fields = |op: u8, count: usize| [&[op, 0, 0, 0], &vec![0xff; count][..]].concat();
        let versions = [
            (1, 4, vec![0xff; 8], RecordOp::Read),
            (2, 4, fields(13, 8), RecordOp::Write),
            (2, 4, fields(12, 8), RecordOp::Read),
            (3, 8, fields(3, 12), RecordOp::Write),
            (4, 8, fields(1, 16), RecordOp::Read),
            (8, 8, fields(13, 76), RecordOp::Write),
        ];
        for (version, size_bytes, fields, op) in versions {
            let bytes = lcs_bytes(version, size_bytes, &fields);
            assert_eq!(crate::recognise("test", &bytes).unwrap().name, "lcs");
            let mut reader = (LCS.read)(input("test", bytes)).unwrap();
            let records = read_reader(&mut *reader).unwrap();
            let first = Record::new(Nanos::from_secs(5), DeviceId(0), op, 40_409_911, 13).unwrap();
            assert_eq!((records[0], records.len()), (first, 4), "{version}");
            assert!(reader.note().unwrap().contains("sectors of 512 bytes"));
        }
        let newer = (LCS.read)(input("test", lcs_bytes(9, 8, &[]))).err().unwrap().to_string();
        assert!(newer.contains("its LCS version is 9"), "{newer}");
        let mut deleted = (LCS.read)(input("test", lcs_bytes(2, 4, &fields(9, 8)))).unwrap();
        assert_eq!(read_reader(&mut *deleted).unwrap(), []);
        assert!(deleted.note().unwrap().contains("4 deletions"), "{:?}", deleted.note());
    }

    #[test]
    fn a_compressed_one_is_read_as_it_is_published() {
        let accesses =
            [(5, 40_409_911, 6656, 2), (5, 7, 512, -1), (6, 40_409_911, 6656, -1), (9, 1, 512, -1)];
        let read = |bytes: Vec<u8>| {
            let bytes = Box::new(std::io::Cursor::new(bytes));
            let mut opened =
                crate::open_input("test".to_owned(), bytes, &crate::Reading::default(), None).unwrap();
            assert_eq!(opened.format.name, "oracle-general");
            read_reader(&mut *opened.reader).unwrap()
        };
        let plain = bytes(&accesses);
        let compressed = zstd::encode_all(&plain[..], 0).unwrap();
        assert_eq!(read(compressed), read(plain));
    }
}
