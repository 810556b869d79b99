//! blkparse text in its default format: `major,minor cpu sequence seconds.nanoseconds pid action rwbs [sector + blocks] ...`.
//! Requests are made of Q or D, and C events as [`super::blk`] says; other lines (plugs, merges, the summary) are none. The same events
//! are read as `perf script` and ftrace print them: `process [cpu] seconds: block_rq_issue: major,minor rwbs bytes () sector + blocks ...`.

use std::io::Write;

use dcd_engine::{Extent, Lba, Nanos};

use super::blk::{Action, BlkEvent, Completions, Requests, Rwbs};
use crate::format::{Format, Likeness};
use crate::text::{Decimal, Fields, Lines, Print, TextReader, TextWriter, blank, counted, decimal, whole};
use dcd_stack::{DeviceId, Record, RecordOp};

const SECOND_NS: u64 = 1_000_000_000;
/// The kernel's device number has this many bits for the minor.
const MINOR_BITS: u32 = 20;
const MINOR_MASK: u32 = (1 << MINOR_BITS) - 1;

pub const FORMAT: Format = Format {
    name: "blkparse",
    about: "blkparse text (its default format)",
    recognise: |head| Likeness(head.lines().iter().filter(|line| is_event(line)).count() as u32),
    read: |input| Ok(Box::new(TextReader::new(input, Assembled::of(event)))),
    write: Some(|out| Box::new(TextWriter::new("blkparse", Printer::default(), out))),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: true,
    guess: None,
};

pub const PERF: Format = Format {
    name: "perf",
    about: "block events as perf script, trace-cmd and ftrace print them (read only)",
    recognise: |head| {
        let is_event = |line: &&&str| matches!(perf_event(line), Ok(Some(_)));
        Likeness(head.lines().iter().filter(is_event).count() as u32)
    },
    read: |input| Ok(Box::new(TextReader::new(input, Assembled::of(perf_event)))),
    write: None,
    ..FORMAT
};

pub(super) fn device(text: &str) -> Option<DeviceId> {
    let (major, minor) = text.split_once(',')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    (major < 1 << 12 && minor <= MINOR_MASK).then_some(DeviceId(major << MINOR_BITS | minor))
}

/// Returns the meaning of the letters of rwbs. An F before the operation is PREFLUSH, and one after it is FUA.
pub(super) fn rwbs(letters: &str) -> Rwbs {
    let data = letters.trim_start_matches('F');
    let op = match data.chars().next() {
        _ if data.contains('D') => Some(RecordOp::Discard),
        Some('R') => Some(RecordOp::Read),
        Some('W') => Some(RecordOp::Write),
        _ => None,
    };
    Rwbs { op, preflush: letters.starts_with('F'), fua: data.contains('F') }
}

fn event(line: &str) -> Result<Option<BlkEvent>, String> {
    let mut fields = blank(line);
    let Some(device) = device(fields.text("device")?) else {
        // The summary at the end, and messages, do not begin with a device.
        return Ok(None);
    };
    fields.number("CPU")?;
    fields.number("sequence number")?;
    let at = fields.decimal("time", SECOND_NS)?;
    fields.number("process id")?;
    let action = match fields.text("action")? {
        "Q" => Action::Queue,
        "D" => Action::Issue,
        "C" => Action::Complete,
        _ => return Ok(None),
    };
    let rwbs = rwbs(fields.text("rwbs")?);
    BlkEvent::of(action, (at, device), rwbs, range(&mut fields)?)
}

/// `sector + blocks`; a flush has only `[process]`, or on completion a sector.
fn range<'a>(fields: &mut Fields<impl Iterator<Item = &'a str>>) -> Result<(u64, u64), String> {
    match fields.optional() {
        None => Ok((0, 0)),
        Some(text) if text.starts_with('[') => Ok((0, 0)),
        Some(text) => {
            let start = whole(text, "sector")?;
            match fields.optional() {
                Some("+") => Ok((start, fields.number("count of sectors")?)),
                _ => Ok((start, 0)),
            }
        }
    }
}

const PERF_EVENTS: [(&str, Action); 3] = [
    ("block_bio_queue: ", Action::Queue),
    ("block_rq_issue: ", Action::Issue),
    ("block_rq_complete: ", Action::Complete),
];

fn perf_event(line: &str) -> Result<Option<BlkEvent>, String> {
    let split = |&(name, action)| line.split_once(name).map(|(before, after)| (before, after, action));
    let Some((before, after, action)) = PERF_EVENTS.iter().find_map(split) else { return Ok(None) };
    let stamp = before.trim_end_matches("block:").split_ascii_whitespace().next_back().unwrap_or_default();
    let at = stamp.strip_suffix(':').and_then(|text| decimal(text, SECOND_NS));
    let at = at.ok_or_else(|| format!("there is no time before the event: {stamp:?}"))?;
    let mut fields = blank(after);
    let number = fields.text("device")?;
    let device = device(number).ok_or_else(|| format!("the device is not major,minor: {number:?}"))?;
    let rwbs = rwbs(fields.text("rwbs")?);
    // Between them an issued request has its bytes and its command, which may have blanks.
    let (start, count) = after.split_once(" + ").ok_or("the range is missing")?;
    let start = whole(start.split_ascii_whitespace().next_back().unwrap_or_default(), "sector")?;
    let sectors = blank(count).number("count of sectors")?;
    BlkEvent::of(action, (at, device), rwbs, (start, sectors))
}

/// True if a line has what every event has, also one that is no request: a message, a plug.
fn is_event(line: &str) -> bool {
    let mut fields = blank(line);
    fields.text("device").is_ok_and(|text| device(text).is_some())
        && fields.number("CPU").is_ok()
        && fields.number("sequence number").is_ok()
        && fields.decimal("time", SECOND_NS).is_ok()
        && fields.number("process id").is_ok()
        && fields.text("action").is_ok_and(|action| action.len() <= 2)
}

/// The requests that the lines make.
struct Assembled {
    event: fn(&str) -> Result<Option<BlkEvent>, String>,
    requests: Requests,
    other: u64,
}

impl Assembled {
    fn of(event: fn(&str) -> Result<Option<BlkEvent>, String>) -> Assembled {
        Assembled { event, requests: Requests::default(), other: 0 }
    }
}

impl Lines for Assembled {
    fn parse(&mut self, line: &str) -> Result<Option<Record>, String> {
        match (self.event)(line)? {
            Some(event) => self.requests.event(event),
            None => self.other += 1,
        }
        Ok(self.requests.next(false))
    }

    fn note(&self) -> Option<String> {
        counted(self.other, "lines are no arrival, issue or completion of a request")
    }

    fn held(&mut self) -> Option<Record> {
        self.requests.next(true)
    }
}

#[derive(Default)]
struct Printer {
    completions: Completions,
    sequence: u64,
}

impl Printer {
    fn event(&mut self, action: char, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        self.sequence += 1;
        let (major, minor) = (record.device.0 >> MINOR_BITS, record.device.0 & MINOR_MASK);
        let at = Decimal { time: record.at, unit_ns: SECOND_NS, digits_min: 9 }.to_string();
        let rwbs = match record.op {
            RecordOp::Read => "R",
            RecordOp::Write if record.fua => "WF",
            RecordOp::Write => "W",
            RecordOp::Discard => "D",
            RecordOp::Flush => "F",
        };
        let sequence = self.sequence;
        write!(out, "{major:>3},{minor:<3} 0 {sequence:>8} {at:>15} {:>5} {action:>2} {rwbs:>3} ", 0)?;
        let Extent { start: Lba(start), sectors } = record.extent;
        match (record.op, action) {
            (RecordOp::Flush, 'C') => writeln!(out, "0 [0]"),
            (RecordOp::Flush, _) => writeln!(out, "[dcd]"),
            (_, 'C') => writeln!(out, "{start} + {sectors} [0]"),
            (..) => writeln!(out, "{start} + {sectors} [dcd]"),
        }
    }
}

impl Print for Printer {
    fn print(&mut self, record: &Record, out: &mut dyn Write) -> std::io::Result<()> {
        while let Some(done) = self.completions.next(Some(record.at.0)) {
            self.event('C', &done, out)?;
        }
        self.completions.add(record);
        self.event('Q', record, out)
    }

    fn end(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        while let Some(done) = self.completions.next(None) {
            self.event('C', &done, out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::read_text;

    #[test]
    fn events_become_requests_and_the_summary_nothing() {
        let text = "\
  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000002197   697  P   N [kjournald]
  8,0    3        4     0.000003000   697  D   W 223490 + 8 [kjournald]
  8,0    1        5     0.000100000   697  Q FWS [jbd2]
  8,0    3        6     0.000501829     0  C   W 223490 + 8 [0]
  8,0    3        7     0.000600000     0  C  FF 0 [0]
  8,16   3        8     0.000700000   697  Q  DS 4096 + 1024 [fstrim]

CPU0 (sda):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB
";
        let records = read_text(&FORMAT, text).unwrap();
        assert_eq!(records.len(), 3);
        let sda = DeviceId(8 << 20);
        let write = Record::new(Nanos(1_829), sda, RecordOp::Write, 223_490, 8).unwrap();
        assert_eq!(records[0], write.answered_after(Some(Nanos(500_000))));
        assert_eq!(records[1], Record::flush(Nanos(100_000), sda).answered_after(Some(Nanos(500_000))));
        assert_eq!((records[2].op, records[2].device), (RecordOp::Discard, DeviceId(8 << 20 | 16)));
    }

    #[test]
    fn a_commit_is_a_flush_and_a_durable_write() {
        let text = "\
  8,0    1        1     0.000001000   697  Q  WS 1000 + 16 [jbd2/sda2-8]
  8,0    1        2     0.000100000   697  Q FWFS 2000 + 8 [jbd2/sda2-8]
  8,0    1        3     0.000200000     0  C  WS 1000 + 16 [0]
  8,0    1        4     0.000210000   697  D  FN [kworker/1:1H]
  8,0    1        5     0.000900000     0  C  FN 0 [0]
  8,0    1        6     0.000910000   697  D WFS 2000 + 8 [kworker/1:1H]
  8,0    1        7     0.001500000     0  C WFS 2000 + 8 [0]
  8,0    1        8     0.001600000     0  C  WS 2008 [0]
  8,0    1        9     0.002000000   697  Q FWS [fsync]
  8,0    1       10     0.002500000     0  C FWS 0 [0]
";
        let got: Vec<_> = read_text(&FORMAT, text).unwrap();
        let short: Vec<_> = got.iter().map(|r| (r.op, r.fua, r.response.map(|ns| ns.0 / 1000))).collect();
        let (flush, write) = (RecordOp::Flush, RecordOp::Write);
        assert_eq!(
            short,
            [
                (write, false, Some(199)),
                (flush, false, Some(800)),
                (write, true, Some(1400)),
                (flush, false, Some(500))
            ]
        );
    }

    #[test]
    fn the_events_of_perf_and_of_ftrace() {
        let perf = "\
     randread.pl  2522 [000]  6011.824759: block:block_rq_issue: 254,16 R 0 () 7322849 + 16 [randread.pl]
         swapper     0 [005] 11879.392794: block:block_rq_issue: 254,0 FF 0 () 0 + 0 [kworker/5:1H]
 Web Content  1264 [002] 82545.601537: block:block_rq_issue: 259,1 WFS 131072 (2a 00 1) 2209576568 + 256 0x2,0,4 [a + b]
         swapper     0 [000]  6011.828913: block:block_rq_complete: 254,16 R () 7322849 + 16 [0]
         swapper     0 [000]  6011.828999: sched:sched_switch: a
";
        assert_eq!(crate::recognise("test", perf.as_bytes()).unwrap().name, "perf");
        let records = read_text(&PERF, perf).unwrap();
        let read =
            Record::new(Nanos(6_011_824_759_000), DeviceId(254 << 20 | 16), RecordOp::Read, 7_322_849, 16);
        assert_eq!(records[0], read.unwrap().answered_after(Some(Nanos(4_154_000))));
        assert_eq!(records[1].op, RecordOp::Flush);
        assert_eq!(
            (records[2].extent.start.0, records[2].extent.sectors, records[2].fua),
            (2_209_576_568, 256, true)
        );
        let ftrace = "\
# tracer: nop
           <...>-1234    [001] d..1.  12.345678901: block_bio_queue: 8,0 FWFS 2048 + 8 [jbd2/sda2-8]
";
        assert_eq!(crate::recognise("test", ftrace.as_bytes()).unwrap().name, "perf");
        let ops: Vec<RecordOp> = read_text(&PERF, ftrace).unwrap().iter().map(|record| record.op).collect();
        assert_eq!(ops, [RecordOp::Flush, RecordOp::Write]);
    }

    #[test]
    fn messages_may_come_first() {
        let mut text = String::new();
        for number in 1..40 {
            text += &format!(
                "  8,0    0 {number:>8}     0.00000{number:04}     0  m   N cfq697S /a_cgroup alloced\n"
            );
        }
        text += "  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]\n";
        assert_eq!(crate::recognise("test", text.as_bytes()).unwrap().name, "blkparse");
        assert_eq!(read_text(&FORMAT, &text).unwrap().len(), 1);
    }
}
