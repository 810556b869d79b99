//! SPC trace file format 1.0.1: `ASU,LBA,Size,Opcode,Timestamp[,optional...]`; LBA in 512-byte blocks, size in bytes, time in
//! seconds. White space is allowed in fields.

use std::io::Write;

use dcd_engine::Nanos;

use crate::format::Format;
use crate::text::{Decimal, Lines, Print, Refused, TextReader, TextWriter, comma, only_reads_and_writes};
use dcd_stack::{Record, RecordOp};

const SECOND_NS: u64 = 1_000_000_000;

pub const FORMAT: Format = Format {
    name: "spc",
    about: "SPC 1.0.1 (UMass: Financial, WebSearch)",
    recognise: |head| head.requests(Spc),
    read: |input| Ok(Box::new(TextReader::new(input, Spc))),
    write: Some(|out| Box::new(TextWriter::new("spc", Spc, out))),
    time_unit: Nanos(1),
    has_responses: false,
    has_discards_and_flushes: false,
    guess: None,
};

struct Spc;

impl Lines for Spc {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = comma(line);
        let device = fields.device("ASU")?;
        let (lba, bytes) = (fields.number("LBA")?, fields.number("size")?);
        let op = match fields.text("opcode")? {
            "R" | "r" => RecordOp::Read,
            "W" | "w" => RecordOp::Write,
            code => return Err(format!("the opcode is neither R nor W: {code:?}")),
        };
        let at = fields.decimal("timestamp", SECOND_NS)?;
        Ok(Some(Record::new(at, device, op, lba, bytes.div_ceil(dcd_engine::SECTOR_BYTES))?))
    }
}

impl Print for Spc {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let code = if record.op == RecordOp::Read { 'R' } else { 'W' };
        let at = Decimal { time: record.at, unit_ns: SECOND_NS, digits_min: 6 };
        writeln!(out, "{},{},{},{code},{at}", record.device.0, record.extent.start.0, record.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read_text, written};
    use dcd_engine::{Extent, Lba};

    #[test]
    fn a_line_of_the_published_traces() {
        let text = "0,303567,3584,w,0.000000\n 1 , 512 , 4096 , R , 0.5 , x\n";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!((records[0].extent, records[0].op), (Extent::new(Lba(303_567), 7), RecordOp::Write));
        assert_eq!((records[1].device.0, records[1].at), (1, Nanos(500_000_000)));
        assert_eq!(written(&FORMAT, &records[..1]), b"0,303567,3584,W,0.000000\n");
    }
}
