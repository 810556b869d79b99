//! CSV of data sets that have no line with the names of columns: one table of their columns.
//!
//! Windows file times of MSR Cambridge are 100 ns since 1601. SPC 1.0.1 allows white space in fields, and fields of one's own at the
//! end. 0 is a read in Tencent's traces and 1 a write: the opposite of DiskSim.

use std::io::Write;

use dcd_engine::{Nanos, SECTOR_BYTES};
use dcd_stack::{DeviceId, Record, RecordOp};

use super::columns::Role;
use crate::format::Format;
use crate::text::{
    Decimal, Fields, Lines, Names, Print, RESPONSE_UNKNOWN, Refused, TextReader, TextWriter, comma, counted,
    known_response, only_reads_and_writes, whole,
};

const SECOND_NS: u64 = 1_000_000_000;

/// A data set: its columns in their order, with the names that messages have.
struct CommaSet {
    columns: &'static [(&'static str, Role)],
    /// Words for a read and a write.
    words: [&'static str; 2],
    lax: Lax,
}

/// Liberties that a data set takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lax {
    No,
    /// The case of words does not matter.
    Case,
    /// Besides, times have fractions, and more fields may follow.
    All,
}

static ALIBABA_SET: CommaSet = CommaSet {
    columns: &[
        ("device_id", Role::Device),
        ("opcode", Role::Op),
        ("offset", Role::Start(1)),
        ("length", Role::Length(1)),
        ("timestamp", Role::At(1_000)),
    ],
    words: ["R", "W"],
    lax: Lax::No,
};

static TENCENT_SET: CommaSet = CommaSet {
    columns: &[
        ("timestamp", Role::At(SECOND_NS)),
        ("offset", Role::Start(SECTOR_BYTES)),
        ("size", Role::Length(SECTOR_BYTES)),
        ("IOType", Role::Op),
        ("VolumeID", Role::Device),
    ],
    words: ["0", "1"],
    lax: Lax::No,
};

static MSR_SET: CommaSet = CommaSet {
    columns: &[
        ("timestamp", Role::At(100)),
        ("host name", Role::Host),
        ("disk number", Role::Device),
        ("type", Role::Op),
        ("offset", Role::Start(1)),
        ("size", Role::Length(1)),
        ("response time", Role::ResponseOrZero(100)),
    ],
    words: ["Read", "Write"],
    lax: Lax::Case,
};

static SPC_SET: CommaSet = CommaSet {
    columns: &[
        ("ASU", Role::Device),
        ("LBA", Role::Start(SECTOR_BYTES)),
        ("size", Role::Length(1)),
        ("opcode", Role::Op),
        ("timestamp", Role::At(SECOND_NS)),
    ],
    words: ["R", "W"],
    lax: Lax::All,
};

macro_rules! row {
    ($name:literal, $about:literal, $set:ident, $unit:expr, $responses:literal) => {
        Format {
            name: $name,
            about: $about,
            recognise: |head| head.requests(Comma::of(&$set)),
            read: |input| Ok(Box::new(TextReader::new(input, Comma::of(&$set)))),
            write: Some(|out| Box::new(TextWriter::new($name, Comma::of(&$set), out))),
            time_unit: Nanos($unit),
            has_responses: $responses,
            has_discards_and_flushes: false,
            has_fua: false,
            guess: None,
        }
    };
}

pub const ALIBABA: Format = row!("alibaba", "Alibaba Cloud CSV", ALIBABA_SET, 1_000, false);
pub const TENCENT: Format =
    row!("tencent", "Tencent Cloud CBS CSV; its times are whole seconds", TENCENT_SET, SECOND_NS, false);
pub const MSR: Format = row!("msr", "MSR Cambridge CSV", MSR_SET, 100, true);
pub const SPC: Format = row!("spc", "SPC 1.0.1 (UMass: Financial, WebSearch)", SPC_SET, 1, false);

struct Comma {
    set: &'static CommaSet,
    names: Names,
    /// Requests whose response time is not known.
    unknown: u64,
}

impl Comma {
    fn of(set: &'static CommaSet) -> Comma {
        Comma { set, names: Names::default(), unknown: 0 }
    }

    fn op(&self, name: &str, word: &str) -> Result<RecordOp, String> {
        let is = |known: &str| match self.set.lax {
            Lax::No => word == known,
            Lax::Case | Lax::All => word.eq_ignore_ascii_case(known),
        };
        let [read, write] = self.set.words;
        match (is(read), is(write)) {
            (true, _) => Ok(RecordOp::Read),
            (_, true) => Ok(RecordOp::Write),
            _ => Err(format!("the {name} is neither {read} nor {write}: {word:?}")),
        }
    }
}

fn times(number: u64, unit: u64, name: &str) -> Result<u64, String> {
    number.checked_mul(unit).ok_or_else(|| format!("the {name} {number} is too large"))
}

fn response<'a>(fields: &mut Fields<impl Iterator<Item = &'a str>>, name: &str) -> Result<u64, String> {
    match fields.optional() {
        None | Some("") => Ok(0),
        Some(text) => whole(text, name),
    }
}

impl Lines for Comma {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = comma(line);
        let (mut at, mut op, mut start, mut length) = (Nanos::ZERO, RecordOp::Read, 0, 0);
        let (mut device, mut host, mut answered) = (DeviceId(0), None, None);
        for &(name, role) in self.set.columns {
            match role {
                Role::At(unit) if self.set.lax == Lax::All => at = fields.decimal(name, unit)?,
                Role::At(unit) => at = Nanos(times(fields.number(name)?, unit, name)?),
                Role::Host => host = Some(fields.text(name)?),
                Role::Device => device = fields.device(name)?,
                Role::Op | Role::IoType => op = self.op(name, fields.text(name)?)?,
                Role::Start(unit) => start = times(fields.number(name)?, unit, name)?,
                Role::Length(unit) => length = times(fields.number(name)?, unit, name)?,
                Role::Response(unit) | Role::ResponseOrZero(unit) => {
                    answered = Some(Nanos(times(response(&mut fields, name)?, unit, name)?));
                }
            }
        }
        if self.set.lax != Lax::All {
            fields.end()?;
        }
        if let Some(host) = host {
            device = self.names.id(&format!("{host}.{}", device.0), Some(device.0))?;
        }
        let record = Record::of_bytes(at, device, op, start, length)?;
        let answered = answered.and_then(|response| known_response(response, &mut self.unknown));
        Ok(Some(record.answered_after(answered)))
    }

    fn note(&self) -> Option<String> {
        counted(self.unknown, RESPONSE_UNKNOWN)
    }
}

impl Print for Comma {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    /// Prints an unknown response time as 0, as the format has no other word for it.
    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        for (index, &(_, role)) in self.set.columns.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let number = match role {
                Role::At(unit_ns) if self.set.lax == Lax::All => {
                    write!(out, "{comma}{}", Decimal { time: record.at, unit_ns, digits_min: 6 })?;
                    continue;
                }
                Role::Host => {
                    write!(out, "{comma}dcd")?;
                    continue;
                }
                Role::Op | Role::IoType => {
                    write!(out, "{comma}{}", self.set.words[usize::from(record.op == RecordOp::Write)])?;
                    continue;
                }
                Role::At(unit) => record.at.0 / unit,
                Role::Device => u64::from(record.device.0),
                Role::Start(unit) => record.extent.start.bytes() / unit,
                Role::Length(unit) => record.bytes() / unit,
                Role::Response(unit) | Role::ResponseOrZero(unit) => {
                    record.response.unwrap_or_default().0 / unit
                }
            };
            write!(out, "{comma}{number}")?;
        }
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, read_reader, read_text, written};
    use dcd_engine::{Extent, Lba};

    #[test]
    fn lines_of_the_published_traces() {
        let msr = read_text(&MSR, "128166385295514663,hm,0,Write,9056014336,2048,2833\n").unwrap()[0];
        assert_eq!((msr.at, msr.op), (Nanos(12_816_638_529_551_466_300), RecordOp::Write));
        assert_eq!((msr.extent, msr.response), (Extent::new(Lba(17_687_528), 4), Some(Nanos(283_300))));

        let text = "419,W,8792731648,16384,1577808144360767\n";
        let alibaba = read_text(&ALIBABA, text).unwrap();
        assert_eq!((alibaba[0].device.0, alibaba[0].op), (419, RecordOp::Write));
        assert_eq!(alibaba[0].extent, Extent::new(Lba(17_173_304), 32));
        assert_eq!(alibaba[0].at, Nanos(1_577_808_144_360_767_000));
        assert_eq!(written(&ALIBABA, &alibaba), text.as_bytes());

        let text = "1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n";
        let tencent = read_text(&TENCENT, text).unwrap();
        assert_eq!((tencent[0].op, tencent[1].op), (RecordOp::Read, RecordOp::Write));
        assert_eq!((tencent[0].extent, tencent[1].device.0), (Extent::new(Lba(12_910_952), 128), 1627));
        assert_eq!(written(&TENCENT, &tencent), text.as_bytes());

        let text = "0,303567,3584,w,0.000000\n 1 , 512 , 4096 , R , 0.5 , x\n";
        let spc = read_text(&SPC, text).unwrap();
        assert_eq!((spc[0].extent, spc[0].op), (Extent::new(Lba(303_567), 7), RecordOp::Write));
        assert_eq!((spc[1].device.0, spc[1].at), (1, Nanos(500_000_000)));
        assert_eq!(written(&SPC, &spc[..1]), b"0,303567,3584,W,0.000000\n");
    }

    #[test]
    fn a_response_time_of_zero_or_none_is_unknown() {
        let text = "1,hm,0,Write,0,512,0\n2,hm,0,Write,0,512,\n3,hm,0,Write,0,512\n4,hm,0,Write,0,512,7\n";
        let mut reader = (MSR.read)(input("test", text.as_bytes().to_vec())).unwrap();
        let records = read_reader(&mut *reader).unwrap();
        let responses: Vec<_> = records.iter().map(|record| record.response).collect();
        assert_eq!(responses, [None, None, None, Some(Nanos(700))]);
        assert!(reader.note().unwrap().starts_with("3 response times are 0"), "{:?}", reader.note());
        assert_eq!(written(&MSR, &records[3..]), b"4,dcd,0,Write,0,512,7\n");
    }

    #[test]
    fn disks_of_two_hosts_are_two_devices() {
        let text = "1,hm,1,Read,0,512,1\n2,web,1,Read,0,512,1\n3,hm,1,Read,0,512,1\n";
        let devices: Vec<u32> = read_text(&MSR, text).unwrap().iter().map(|r| r.device.0).collect();
        assert_eq!(devices, [1, 0, 1]);
    }
}
