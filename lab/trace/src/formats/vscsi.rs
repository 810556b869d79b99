//! VMware vscsi binary: little-endian records of 32 bytes (version 1) or 40 (version 2, with response times), no header. Which
//! it is is seen by the version in two records. Commands that neither read nor write are no requests.

use std::io::Write;

use dcd_engine::Nanos;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::TraceError;
use crate::format::{Format, Head, Input, Likeness, WriteTrace};
use crate::records::{RecordReader, Records};
use crate::text::{RESPONSE_UNKNOWN, counted, known_response};
use dcd_stack::{DeviceId, Record, RecordOp};

const MICROSECOND_NS: u64 = 1_000;
const READS: [u16; 4] = [0x08, 0x28, 0x88, 0xa8];
const WRITES: [u16; 4] = [0x0a, 0x2a, 0x8a, 0xaa];
const READ_10: u16 = 0x28;
const WRITE_10: u16 = 0x2a;

pub const V1: Format = Format {
    name: "vscsi",
    about: "VMware vscsi version 1",
    recognise: |head| recognise::<First>(head),
    read: |input| Ok(Box::new(reader::<First>(input))),
    write: Some(|out| Box::new(Writer::<First>::new(out))),
    time_unit: Nanos(MICROSECOND_NS),
    has_responses: false,
    has_discards_and_flushes: false,
    has_fua: false,
    guess: None,
};

pub const V2: Format = Format {
    name: "vscsi2",
    about: "VMware vscsi version 2",
    recognise: |head| recognise::<Second>(head),
    read: |input| Ok(Box::new(reader::<Second>(input))),
    write: Some(|out| Box::new(Writer::<Second>::new(out))),
    has_responses: true,
    ..V1
};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct First {
    number: U32,
    bytes: U32,
    segments: U32,
    command: U16,
    version: U16,
    start: U64,
    micros: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Second {
    command: U16,
    version: U16,
    number: U32,
    bytes: U32,
    segments: U32,
    start: U64,
    micros: U64,
    response: U64,
}

/// Fields that both versions have.
#[derive(Clone, Copy)]
struct Command {
    version: u16,
    number: u32,
    command: u16,
    bytes: u32,
    start: u64,
    micros: u64,
    response: Option<u64>,
}

trait Version: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    const NUMBER: u16;
    const NAME: &'static str;
    fn command(&self) -> Command;
    fn make(command: Command) -> Self;
}

impl Version for First {
    const NUMBER: u16 = 1;
    const NAME: &'static str = "vscsi";

    fn command(&self) -> Command {
        Command {
            version: self.version.get() >> 8,
            number: self.number.get(),
            command: self.command.get(),
            bytes: self.bytes.get(),
            start: self.start.get(),
            micros: self.micros.get(),
            response: None,
        }
    }

    fn make(c: Command) -> First {
        First {
            number: c.number.into(),
            bytes: c.bytes.into(),
            segments: 1.into(),
            command: c.command.into(),
            version: (c.version << 8).into(),
            start: c.start.into(),
            micros: c.micros.into(),
        }
    }
}

impl Version for Second {
    const NUMBER: u16 = 2;
    const NAME: &'static str = "vscsi2";

    fn command(&self) -> Command {
        Command {
            version: self.version.get() >> 8,
            number: self.number.get(),
            command: self.command.get(),
            bytes: self.bytes.get(),
            start: self.start.get(),
            micros: self.micros.get(),
            response: Some(self.response.get()),
        }
    }

    fn make(c: Command) -> Second {
        Second {
            command: c.command.into(),
            version: (c.version << 8).into(),
            number: c.number.into(),
            bytes: c.bytes.into(),
            segments: 1.into(),
            start: c.start.into(),
            micros: c.micros.into(),
            response: c.response.unwrap_or(0).into(),
        }
    }
}

/// Number of records in which the version has to be right: a host begins with inquiries, whose length is no multiple of a sector.
const RECORDS_TRIED: usize = 64;

fn recognise<V: Version>(head: &Head<'_>) -> Likeness {
    let bytes = size_of::<V>();
    let of_version = |raw: &[u8]| {
        V::read_from_bytes(raw).is_ok_and(|v| {
            let command = v.command();
            let moves = READS.contains(&command.command) || WRITES.contains(&command.command);
            command.version == V::NUMBER && command.command < 0x100 && (!moves || command.bytes % 512 == 0)
        })
    };
    let tried = head.bytes.chunks_exact(bytes).take(RECORDS_TRIED);
    Likeness::certain_if(head.bytes.len() >= bytes && tried.clone().all(of_version))
}

struct Vscsi<V> {
    other: u64,
    /// Requests whose response time is not known.
    unknown: u64,
    version: std::marker::PhantomData<V>,
}

fn reader<V: Version>(input: Input) -> RecordReader<Vscsi<V>> {
    RecordReader::new(input, Vscsi { other: 0, unknown: 0, version: std::marker::PhantomData })
}

impl<V: Version> Records for Vscsi<V> {
    type Raw = V;

    fn parse(&mut self, raw: &V) -> Result<Option<Record>, String> {
        let command = raw.command();
        if command.version != V::NUMBER {
            return Err(format!("its version is {} and not {}", command.version, V::NUMBER));
        }
        let op = match command.command {
            code if READS.contains(&code) => RecordOp::Read,
            code if WRITES.contains(&code) => RecordOp::Write,
            _ => {
                self.other += 1;
                return Ok(None);
            }
        };
        let ns = |micros: u64| micros.checked_mul(MICROSECOND_NS).map(Nanos);
        let at = ns(command.micros).ok_or("its time is too large")?;
        let response = command.response.map(|r| ns(r).ok_or("its response time is too large")).transpose()?;
        let sectors = u64::from(command.bytes).div_ceil(dcd_engine::SECTOR_BYTES);
        let record = Record::new(at, DeviceId(0), op, command.start, sectors)?;
        let known = response.and_then(|response| known_response(response, &mut self.unknown));
        Ok(Some(record.answered_after(known)))
    }

    fn note(&self) -> Option<String> {
        let other = counted(self.other, "commands neither read nor write");
        let notes: Vec<String> = other.into_iter().chain(counted(self.unknown, RESPONSE_UNKNOWN)).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

struct Writer<V> {
    out: Box<dyn Write>,
    number: u32,
    version: std::marker::PhantomData<V>,
}

impl<V: Version> Writer<V> {
    const fn new(out: Box<dyn Write>) -> Writer<V> {
        Writer { out, number: 0, version: std::marker::PhantomData }
    }
}

impl<V: Version> WriteTrace for Writer<V> {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.number = self.number.wrapping_add(1);
        let refuse = |what, advice| TraceError::Inexpressible {
            format: V::NAME,
            number: self.number.into(),
            what,
            advice,
        };
        if let Some(refused) = crate::text::only_reads_and_writes(record) {
            return Err(refuse(refused.what, refused.advice));
        }
        let bytes = u32::try_from(record.bytes())
            .map_err(|_| refuse(format!("a request of {} bytes", record.bytes()), "Write the format dcd"))?;
        let raw = V::make(Command {
            version: V::NUMBER,
            number: self.number,
            command: if record.op == RecordOp::Read { READ_10 } else { WRITE_10 },
            bytes,
            start: record.extent.start.0,
            micros: record.at.0 / MICROSECOND_NS,
            response: record.response.map(|r| r.0 / MICROSECOND_NS),
        });
        self.out.write_all(raw.as_bytes()).map_err(|e| TraceError::io("output", e))
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        self.out.flush().map_err(|e| TraceError::io("output", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read, written};

    #[test]
    fn fields_are_where_the_format_has_them() {
        let record = Record::new(Nanos(7_000), DeviceId(0), RecordOp::Write, 4096, 8).unwrap();
        let bytes = written(&V1, &[record]);
        assert_eq!(bytes.len(), 32);
        assert_eq!((&bytes[4..8], &bytes[12..16]), (&[0, 16, 0, 0][..], &[0x2a, 0, 0, 1][..]));
        assert_eq!((&bytes[16..18], bytes[24]), (&[0, 16][..], 7));
        let bytes = written(&V2, &[record.answered_after(Some(Nanos(9_000)))]);
        assert_eq!(bytes.len(), 40);
        assert_eq!((&bytes[..4], bytes[32]), (&[0x2a, 0, 0, 2][..], 9));
        let mut other = bytes.clone();
        other[0] = 0x12;
        let both = [other, bytes].concat();
        assert_eq!(read(&V2, &both).unwrap().len(), 1, "an inquiry is no request");
        // Its length is that of what is known of the device.
        let mut inquiry = both.clone();
        inquiry[8] = 36;
        assert_eq!(crate::recognise("test", &inquiry).unwrap().name, "vscsi2");
        inquiry[40 + 9] = 1;
        inquiry[40 + 8] = 1;
        assert!(crate::recognise("test", &inquiry).is_err(), "a write of half a sector is none");
    }
}
