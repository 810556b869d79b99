//! MSR Cambridge CSV: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, no header. Times are Windows file
//! times (100 ns since 1601); offset and size are bytes.

use std::io::Write;

use dcd_engine::Nanos;

use crate::format::Format;
use crate::text::{
    Lines, Names, Print, RESPONSE_UNKNOWN, Refused, TextReader, TextWriter, comma, counted, known_response,
    only_reads_and_writes, whole,
};
use dcd_stack::{Record, RecordOp};

const TICK_NS: u64 = 100;

pub const FORMAT: Format = Format {
    name: "msr",
    about: "MSR Cambridge CSV",
    recognise: |head| head.requests(Msr::default()),
    read: |input| Ok(Box::new(TextReader::new(input, Msr::default()))),
    write: Some(|out| Box::new(TextWriter::new("msr", Msr::default(), out))),
    time_unit: Nanos(TICK_NS),
    has_responses: true,
    has_discards_and_flushes: false,
    guess: None,
};

#[derive(Default)]
struct Msr {
    names: Names,
    /// Requests whose response time is not known.
    unknown: u64,
}

fn ticks(ticks: u64, name: &str) -> Result<Nanos, String> {
    ticks.checked_mul(TICK_NS).map(Nanos).ok_or_else(|| format!("the {name} {ticks} is too large"))
}

impl Lines for Msr {
    const HAS_HEADER: bool = true;

    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        let mut fields = comma(line);
        let at = ticks(fields.number("timestamp")?, "timestamp")?;
        let host = fields.text("host name")?;
        let disk = fields.text("disk number")?;
        let number: u32 = disk.parse().map_err(|_| format!("the disk number is no number: {disk:?}"))?;
        let op = match fields.text("type")? {
            kind if kind.eq_ignore_ascii_case("read") => RecordOp::Read,
            kind if kind.eq_ignore_ascii_case("write") => RecordOp::Write,
            kind => return Err(format!("the type is neither Read nor Write: {kind:?}")),
        };
        let (offset, size) = (fields.number("offset")?, fields.number("size")?);
        let response = match fields.optional() {
            None | Some("") => Nanos::ZERO,
            Some(response) => ticks(whole(response, "response time")?, "response time")?,
        };
        fields.end()?;
        let device = self.device(host, number)?;
        let record = Record::of_bytes(at, device, op, offset, size)?;
        Ok(Some(record.answered_after(known_response(response, &mut self.unknown))))
    }

    fn note(&self) -> Option<String> {
        counted(self.unknown, RESPONSE_UNKNOWN)
    }
}

impl Msr {
    fn device(&mut self, host: &str, number: u32) -> Result<dcd_stack::DeviceId, String> {
        self.names.id(&format!("{host}.{number}"), Some(number))
    }
}

impl Print for Msr {
    fn refuses(&self, record: &Record) -> Option<Refused> {
        only_reads_and_writes(record)
    }

    /// An unknown response time is written as 0, as the format has no other word for it.
    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let kind = if record.op == RecordOp::Read { "Read" } else { "Write" };
        let (at, response) = (record.at.0 / TICK_NS, record.response.unwrap_or_default().0 / TICK_NS);
        let (offset, bytes) = (record.extent.start.bytes(), record.bytes());
        writeln!(out, "{at},dcd,{},{kind},{offset},{bytes},{response}", record.device.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_text;
    use dcd_engine::{Extent, Lba};

    #[test]
    fn a_line_of_the_published_traces() {
        let records = read_text(&FORMAT, "128166385295514663,hm,0,Write,9056014336,2048,2833\n").unwrap();
        let record = records[0];
        assert_eq!((record.at, record.op), (Nanos(12_816_638_529_551_466_300), RecordOp::Write));
        assert_eq!(record.extent, Extent::new(Lba(17_687_528), 4));
        assert_eq!(record.response, Some(Nanos(283_300)));
    }

    #[test]
    fn a_response_time_of_zero_or_none_is_unknown() {
        let text = "1,hm,0,Write,0,512,0\n2,hm,0,Write,0,512,\n3,hm,0,Write,0,512\n4,hm,0,Write,0,512,7\n";
        let mut reader = (FORMAT.read)(crate::testing::input("test", text.as_bytes().to_vec())).unwrap();
        let records = crate::testing::read_reader(&mut *reader).unwrap();
        let responses: Vec<_> = records.iter().map(|record| record.response).collect();
        assert_eq!(responses, [None, None, None, Some(Nanos(700))]);
        assert!(reader.note().unwrap().starts_with("3 response times are 0"), "{:?}", reader.note());
    }

    #[test]
    fn disks_of_two_hosts_are_two_devices() {
        let text = "1,hm,1,Read,0,512,1\n2,web,1,Read,0,512,1\n3,hm,1,Read,0,512,1\n";
        let devices: Vec<u32> = read_text(&FORMAT, text).unwrap().iter().map(|r| r.device.0).collect();
        assert_eq!(devices, [1, 0, 1]);
    }
}
