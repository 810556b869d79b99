//! Alibaba block traces: `device_id,opcode,offset,length,timestamp`; R or W, bytes, bytes, microseconds; no header.

use std::io::Write;

use dcd_engine::Nanos;

use crate::format::Format;
use crate::text::{Lines, Print, Refused, TextReader, TextWriter, comma, only_reads_and_writes};
use dcd_stack::{Record, RecordOp};

const MICROSECOND_NS: u64 = 1_000;

pub const FORMAT: Format = Format {
    name: "alibaba",
    about: "Alibaba Cloud CSV",
    recognise: |head| head.requests(Alibaba),
    read: |input| Ok(Box::new(TextReader::new(input, Alibaba))),
    write: Some(|out| Box::new(TextWriter::new("alibaba", Alibaba, out))),
    time_unit: Nanos(MICROSECOND_NS),
    has_responses: false,
    has_discards_and_flushes: false,
    guess: None,
};

struct Alibaba;

impl Lines for Alibaba {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = comma(line);
        let device = fields.device("device_id")?;
        let op = match fields.text("opcode")? {
            "R" => RecordOp::Read,
            "W" => RecordOp::Write,
            code => return Err(format!("the opcode is neither R nor W: {code:?}")),
        };
        let (offset, length) = (fields.number("offset")?, fields.number("length")?);
        let at = fields.number("timestamp")?;
        fields.end()?;
        let at = at.checked_mul(MICROSECOND_NS).ok_or_else(|| format!("the timestamp {at} is too large"))?;
        Ok(Some(Record::of_bytes(Nanos(at), device, op, offset, length)?))
    }
}

impl Print for Alibaba {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let code = if record.op == RecordOp::Read { 'R' } else { 'W' };
        let at = record.at.0 / MICROSECOND_NS;
        let (offset, bytes) = (record.extent.start.bytes(), record.bytes());
        writeln!(out, "{},{code},{offset},{bytes},{at}", record.device.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read_text, written};
    use dcd_engine::{Extent, Lba};

    #[test]
    fn columns_as_documented() {
        let text = "419,W,8792731648,16384,1577808144360767\n";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!((records[0].device.0, records[0].op), (419, RecordOp::Write));
        assert_eq!(records[0].extent, Extent::new(Lba(17_173_304), 32));
        assert_eq!(records[0].at, Nanos(1_577_808_144_360_767_000));
        assert_eq!(written(&FORMAT, &records), text.as_bytes());
    }
}
