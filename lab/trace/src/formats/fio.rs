//! fio iolog, versions 2 and 3: a line that says which, then `file action [offset length]` in bytes. Version 2 has waits
//! between the actions (each since the one before, microseconds); version 3 has the time before each (fio 3.33 writes and
//! replays it in microseconds, though its manual states no unit). Times count from the start of the run, so a written
//! log begins at its first record.

use std::io::Write;

use dcd_engine::Nanos;

use crate::format::{Format, Head, Likeness};
use crate::text::{Fields, Lines, Names, Print, TextReader, TextWriter, blank, counted};
use dcd_stack::{DeviceId, Record, RecordOp};

const MICROSECOND_NS: u64 = 1_000;
/// The names in a log that we write; read again, they give the same device numbers.
const NAME: &str = "dcd-device-";

pub const V2: Format = Format {
    name: "fio",
    about: "fio iolog version 2 (waits)",
    recognise: |head| says(head, "fio version 2 iolog"),
    read: |input| Ok(Box::new(TextReader::new(input, Reader::default()))),
    write: Some(|out| Box::new(TextWriter::new("fio", Printer::new(2), out))),
    time_unit: Nanos(MICROSECOND_NS),
    has_responses: false,
    has_discards_and_flushes: true,
    has_fua: false,
    guess: None,
};

pub const V3: Format = Format {
    name: "fio3",
    about: "fio iolog version 3 (times in microseconds; fio 3.31 and later)",
    recognise: |head| says(head, "fio version 3 iolog"),
    write: Some(|out| Box::new(TextWriter::new("fio3", Printer::new(3), out))),
    ..V2
};

fn says(head: &Head<'_>, what: &str) -> Likeness {
    Likeness::certain_if(head.bytes.trim_ascii_start().starts_with(what.as_bytes()))
}

#[derive(Default)]
struct Reader {
    version: u8,
    names: Names,
    /// Version 2: the sum of the waits.
    at: Nanos,
    ranges: u64,
}

impl Lines for Reader {
    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        if self.version == 0 {
            self.version = match line {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                _ => return Err("the first line is neither \"fio version 2 iolog\" nor 3".to_owned()),
            };
            return Ok(None);
        }
        let mut fields = blank(line);
        let mut at = self.at;
        if self.version == 3 {
            let stamp = fields.number("timestamp")?;
            at = micros(stamp).ok_or_else(|| format!("the timestamp {stamp} is too large"))?;
        }
        let name = fields.text("file name")?;
        let action = fields.text("action")?;
        let device = self.names.id(name, name.strip_prefix(NAME).and_then(|n| n.parse().ok()))?;
        let op = match action {
            "read" => RecordOp::Read,
            "write" => RecordOp::Write,
            "trim" => RecordOp::Discard,
            "sync" | "datasync" | "syncfs" => return Ok(Some(Record::flush(at, device))),
            // It begins to write pages back, and makes nothing durable.
            "sync_file_range" => {
                self.ranges += 1;
                return Ok(None);
            }
            "add" | "open" | "close" => return Ok(None),
            "wait" if self.version == 2 => return self.wait(fields).map(|()| None),
            other => return Err(format!("there is no action {other:?}")),
        };
        let (offset, length) = (fields.number("offset")?, fields.number("length")?);
        fields.end()?;
        Ok(Some(Record::of_bytes(at, device, op, offset, length)?))
    }

    fn note(&self) -> Option<String> {
        counted(self.ranges, "sync_file_range were left out: they make nothing durable")
    }
}

fn micros(number: u64) -> Option<Nanos> {
    number.checked_mul(MICROSECOND_NS).map(Nanos)
}

impl Reader {
    fn wait<'a>(&mut self, mut fields: Fields<impl Iterator<Item = &'a str>>) -> Result<(), String> {
        let wait = fields.number("time to wait")?;
        let at = micros(wait).and_then(|wait| self.at.0.checked_add(wait.0));
        self.at = Nanos(at.ok_or_else(|| format!("the wait {wait} is too large"))?);
        Ok(())
    }
}

struct Printer {
    version: u8,
    added: std::collections::BTreeSet<DeviceId>,
    /// The time of the first record, and that of the one before this one, in whole microseconds.
    first: Option<u64>,
    last: u64,
}

impl Printer {
    const fn new(version: u8) -> Printer {
        Printer { version, added: std::collections::BTreeSet::new(), first: None, last: 0 }
    }
}

impl Print for Printer {
    fn head(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "fio version {} iolog", self.version)
    }

    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        let at = record.at.0 / MICROSECOND_NS;
        let at = at.saturating_sub(*self.first.get_or_insert(at));
        let name = format!("{NAME}{}", record.device.0);
        let stamp = if self.version == 3 { format!("{at} ") } else { String::new() };
        if self.added.insert(record.device) {
            writeln!(out, "{stamp}{name} add\n{stamp}{name} open")?;
        }
        if self.version == 2 && at > self.last {
            writeln!(out, "{name} wait {}", at - self.last)?;
        }
        self.last = self.last.max(at);
        let (offset, length) = (record.extent.start.bytes(), record.bytes());
        match record.op {
            RecordOp::Read => writeln!(out, "{stamp}{name} read {offset} {length}"),
            RecordOp::Write => writeln!(out, "{stamp}{name} write {offset} {length}"),
            RecordOp::Discard => writeln!(out, "{stamp}{name} trim {offset} {length}"),
            RecordOp::Flush => writeln!(out, "{stamp}{name} sync"),
        }
    }

    fn end(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        let stamp = if self.version == 3 { format!("{} ", self.last) } else { String::new() };
        self.added.iter().try_for_each(|device| writeln!(out, "{stamp}{NAME}{} close", device.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{read_text, written};

    #[test]
    fn version_3_as_fio_writes_it() {
        let text = "fio version 3 iolog\n0 /tmp/f1 add\n0 /tmp/f1 open\n391 /tmp/f1 read 249856 4096\n\
                    400 /tmp/f1 datasync\n401 /tmp/f1 close\n";
        let records = read_text(&V3, text).unwrap();
        assert_eq!(records[0], Record::new(Nanos(391_000), DeviceId(0), RecordOp::Read, 488, 8).unwrap());
        assert_eq!(records[1], Record::flush(Nanos(400_000), DeviceId(0)));
        assert_eq!(records.len(), 2);
    }

    #[test]
    fn a_range_that_is_written_back_is_no_flush() {
        let text = "fio version 3 iolog\n22 f add\n203 f write 0 4096\n244 f sync_file_range 12288 0\n340 f sync 28672 0\n";
        let mut reader = (V3.read)(crate::testing::input("test", text.as_bytes().to_vec())).unwrap();
        let ops: Vec<RecordOp> =
            crate::testing::read_reader(&mut *reader).unwrap().iter().map(|r| r.op).collect();
        assert_eq!(ops, [RecordOp::Write, RecordOp::Flush]);
        assert!(reader.note().unwrap().starts_with("1 sync_file_range"), "{:?}", reader.note());
    }

    #[test]
    fn waits_of_version_2_add_up() {
        let text = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda write 0 4096\n\
                    /dev/sda wait 150\n/dev/sda trim 4096 4096\n/dev/sda wait 50\n/dev/sda sync\n";
        let times: Vec<u64> = read_text(&V2, text).unwrap().iter().map(|r| r.at.0).collect();
        assert_eq!(times, [0, 150_000, 200_000]);
        let records = read_text(&V2, text).unwrap();
        let again = String::from_utf8(written(&V2, &records)).unwrap();
        assert!(again.contains("dcd-device-0 wait 150\ndcd-device-0 trim 4096 4096\n"), "{again}");
    }
}
