//! libCacheSim's oracleGeneral: little-endian records of 24 bytes, no header: time in seconds, object, size in bytes, and the number
//! of the record that has the object next, or -1. It says neither what is read and what written, nor what an object is.

use std::io::BufRead;

use dcd_engine::{Nanos, SECTOR_BYTES};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TraceError;
use crate::format::{Format, Input, Likeness};
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
    read: |input| Ok(Box::new(open(input)?)),
    write: None,
    time_unit: Nanos(SECOND_NS),
    has_responses: false,
    has_discards_and_flushes: false,
    has_fua: false,
    guess: None,
};

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Access {
    seconds: U32,
    object: U64,
    bytes: U32,
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

struct Oracle {
    /// Unit of an object's number: 1 where the numbers are byte offsets.
    unit_bytes: u64,
}

fn open(mut input: Input) -> Result<RecordReader<Oracle>, TraceError> {
    let head = input.bytes.fill_buf().map_err(|e| TraceError::io(&input.name, e))?;
    let all = accesses(head);
    // Sectors are not all multiples of 512.
    let offsets =
        all.len() >= RECORDS_MIN && all.iter().all(|access| access.object.get() % SECTOR_BYTES == 0);
    Ok(RecordReader::new(input, Oracle { unit_bytes: if offsets { 1 } else { SECTOR_BYTES } }))
}

impl Records for Oracle {
    type Raw = Access;

    fn parse(&mut self, access: &Access) -> Result<Option<Record>, String> {
        let at = Nanos(u64::from(access.seconds.get()) * SECOND_NS);
        let object = access.object.get();
        let start = object
            .checked_mul(self.unit_bytes)
            .ok_or_else(|| format!("the object {object} is no place on a disk"))?;
        Ok(Some(Record::of_bytes(at, DeviceId(0), RecordOp::Read, start, access.bytes.get().into())?))
    }

    fn note(&self) -> Option<String> {
        let places = if self.unit_bytes == 1 { "byte offsets" } else { "sectors of 512 bytes" };
        Some(format!(
            "the format does not say what is read and what written: all was taken for reads, and objects for {places}"
        ))
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

    #[test]
    fn a_compressed_one_is_read_as_it_is_published() {
        let accesses =
            [(5, 40_409_911, 6656, 2), (5, 7, 512, -1), (6, 40_409_911, 6656, -1), (9, 1, 512, -1)];
        let read = |bytes: Vec<u8>| {
            let bytes = Box::new(std::io::Cursor::new(bytes));
            let mut opened = crate::open_input("test".to_owned(), bytes, None, None).unwrap();
            assert_eq!(opened.format.name, "oracle-general");
            read_reader(&mut *opened.reader).unwrap()
        };
        let plain = bytes(&accesses);
        let compressed = zstd::encode_all(&plain[..], 0).unwrap();
        assert_eq!(read(compressed), read(plain));
    }
}
