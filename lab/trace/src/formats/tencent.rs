//! Tencent CBS: `Timestamp,Offset,Size,IOType,VolumeID`; whole seconds, sectors, sectors, 0 for a read and 1 for a write
//! (the opposite of DiskSim).

use std::io::Write;

use dcd_engine::Nanos;

use crate::format::Format;
use crate::text::{Lines, Print, Refused, TextReader, TextWriter, comma, only_reads_and_writes};
use dcd_stack::{Record, RecordOp};

const SECOND_NS: u64 = 1_000_000_000;

pub const FORMAT: Format = Format {
    name: "tencent",
    about: "Tencent Cloud CBS CSV; its times are whole seconds",
    recognise: |head| head.requests(Tencent),
    read: |input| Ok(Box::new(TextReader::new(input, Tencent))),
    write: Some(|out| Box::new(TextWriter::new("tencent", Tencent, out))),
    time_unit: Nanos(SECOND_NS),
    has_responses: false,
    has_discards_and_flushes: false,
    guess: None,
};

struct Tencent;

impl Lines for Tencent {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = comma(line);
        let at = fields.number("timestamp")?;
        let (offset, size) = (fields.number("offset")?, fields.number("size")?);
        let op = match fields.text("IOType")? {
            "0" => RecordOp::Read,
            "1" => RecordOp::Write,
            kind => return Err(format!("the IOType is neither 0 nor 1: {kind:?}")),
        };
        let device = fields.device("VolumeID")?;
        fields.end()?;
        let at = at.checked_mul(SECOND_NS).ok_or_else(|| format!("the timestamp {at} is too large"))?;
        Ok(Some(Record::new(Nanos(at), device, op, offset, size)?))
    }
}

impl Print for Tencent {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let kind = u8::from(record.op == RecordOp::Write);
        let Record { at, device, extent, .. } = record;
        writeln!(out, "{},{},{},{kind},{}", at.0 / SECOND_NS, extent.start.0, extent.sectors, device.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read_text, written};
    use dcd_engine::{Extent, Lba};

    #[test]
    fn a_one_is_a_write() {
        let text = "1538323200,12910952,128,0,1063\n1538323200,6338688,8,1,1627\n";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!((records[0].op, records[1].op), (RecordOp::Read, RecordOp::Write));
        assert_eq!(records[0].extent, Extent::new(Lba(12_910_952), 128));
        assert_eq!(records[1].device.0, 1627);
        assert_eq!(written(&FORMAT, &records), text.as_bytes());
    }
}
