//! blktrace binary: records of 48 bytes (version 7) or 64 (version 8, Linux 6.19), each followed by what belongs to it, in the
//! byte order of the machine that wrote them. blktrace writes one file for each CPU (`sda.blktrace.0`, ...); their events are merged by time, and so is one
//! stream of all CPUs, within a window. Requests are made of the events as [`super::blk`] says.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};

use dcd_engine::Nanos;

use super::blk::{Action, BlkEvent, Completions, Requests, Rwbs};
use crate::error::{TraceError, Unit};
use crate::format::{Format, Input, Likeness, ReadTrace, WriteTrace};
use dcd_stack::{DeviceId, Record, RecordOp};

const EVENT_BYTES: usize = 48;
/// Bytes of an event in version 8: it has 64 bits of action, and room.
const EVENT2_BYTES: usize = 64;
/// The low byte is the version.
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const VERSION2: u32 = 8;
/// Events of one stream are put in order within so many: blktrace hands over a buffer of one CPU after another.
const WINDOW_EVENTS: usize = 1 << 15;

const ACT_QUEUE: u32 = 1;
const ACT_ISSUE: u32 = 7;
const ACT_COMPLETE: u32 = 8;
/// The event came from a control group, whose number is the first of what belongs to the record.
const ACT_CGROUP: u32 = 1 << 8;
const CATEGORY_SHIFT: u32 = 16;
const WRITE: u32 = 2 << CATEGORY_SHIFT;
const READ: u32 = 1 << CATEGORY_SHIFT;
const FLUSH: u32 = 4 << CATEGORY_SHIFT;
const QUEUE: u32 = 16 << CATEGORY_SHIFT;
const COMPLETE: u32 = 128 << CATEGORY_SHIFT;
const PASS_THROUGH: u32 = 512 << CATEGORY_SHIFT;
const NOTIFY: u32 = 1024 << CATEGORY_SHIFT;
const DISCARD: u32 = 8192 << CATEGORY_SHIFT;
const FUA: u32 = 32_768 << CATEGORY_SHIFT;
/// Version 8: resetting, finishing, opening and closing zones.
const ZONES: u64 = 0b1_1111 << 17 << CATEGORY_SHIFT;

pub const FORMAT: Format = Format {
    name: "blktrace",
    about: "blktrace binary; the files of all CPUs of DEVICE when DEVICE.blktrace.0 is there",
    recognise: |head| Likeness::certain_if(head.bytes.len() >= 4 && order(&head.bytes[..4]).is_some()),
    read: |input| Ok(Box::new(Reader::new(vec![input]))),
    write: Some(|out| Box::new(Writer { out, completions: Completions::default(), sequence: 0 })),
    time_unit: Nanos(1),
    has_responses: true,
    has_discards_and_flushes: true,
    has_fua: true,
    guess: None,
};

/// The files of all CPUs.
pub fn read_merged(inputs: Vec<Input>) -> Box<dyn ReadTrace> {
    Box::new(Reader::new(inputs))
}

/// The byte order that makes the magic right: little-endian or not.
fn order(magic: &[u8]) -> Option<bool> {
    let bytes: [u8; 4] = magic.try_into().ok()?;
    let right = |word: u32| word & !0xff == MAGIC;
    if right(u32::from_le_bytes(bytes)) {
        return Some(true);
    }
    right(u32::from_be_bytes(bytes)).then_some(false)
}

struct Source {
    input: Input,
    number: u64,
    ended: bool,
    /// Number of the stream's events that were read ahead.
    held: usize,
}

struct Reader {
    sources: Vec<Source>,
    /// Events by their place in the order: time, then file, then number in the file.
    ahead: BTreeMap<(u64, usize, u64), BlkEvent>,
    requests: Requests,
    other: u64,
}

impl Reader {
    fn new(inputs: Vec<Input>) -> Reader {
        let source = |input| Source { input, number: 0, ended: false, held: 0 };
        let sources = inputs.into_iter().map(source).collect();
        Reader { sources, ahead: BTreeMap::new(), requests: Requests::default(), other: 0 }
    }

    /// Reads ahead in every file, so that the first event there is the first of all.
    fn fill(&mut self) -> Result<(), TraceError> {
        // The files of the CPUs are in order, each by itself.
        let window = if self.sources.len() > 1 { 1 } else { WINDOW_EVENTS };
        for (index, source) in self.sources.iter_mut().enumerate() {
            while !source.ended && source.held < window {
                match source.next()? {
                    None => source.ended = true,
                    Some(None) => self.other += 1,
                    Some(Some(event)) => {
                        source.held += 1;
                        let at = (event.record.at.0, index, source.number);
                        self.ahead.insert(at, event);
                    }
                }
            }
        }
        Ok(())
    }
}

impl ReadTrace for Reader {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if let Some(record) = self.requests.next(false) {
                return Ok(Some(record));
            }
            self.fill()?;
            match self.ahead.pop_first() {
                Some(((_, source, _), event)) => {
                    self.sources[source].held -= 1;
                    self.requests.event(event);
                }
                None => return Ok(self.requests.next(true)),
            }
        }
    }

    fn note(&self) -> Option<String> {
        let other = self.other;
        (other > 0).then(|| format!("{other} events are no arrival, issue or completion of a request"))
    }
}

impl Source {
    fn malformed(&self, what: String) -> TraceError {
        TraceError::Malformed { file: self.input.name.clone(), unit: Unit::Record, number: self.number, what }
    }

    fn unreadable(&mut self, what: &str) -> TraceError {
        self.ended = true;
        let what = format!("record {}: {what}; what follows cannot be read", self.number);
        TraceError::Unreadable { file: self.input.name.clone(), what }
    }

    /// The next record: None at the end, and Some(None) for one that concerns no request.
    fn next(&mut self) -> Result<Option<Option<BlkEvent>>, TraceError> {
        let buffer = self.input.bytes.fill_buf().map_err(|e| TraceError::io(&self.input.name, e))?;
        if buffer.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let mut raw = [0; EVENT2_BYTES];
        self.read(&mut raw[..EVENT_BYTES])?;
        let Some(little) = order(&raw[..4]) else {
            return Err(self.unreadable("the magic number is wrong"));
        };
        // The lowest byte of the magic number.
        let version = u32::from(if little { raw[0] } else { raw[3] });
        if version == VERSION2 {
            self.read(&mut raw[EVENT_BYTES..])?;
        } else if version != VERSION {
            return Err(self.unreadable(&format!("its version is {version}; 7 and 8 are known")));
        }
        let event = RawEvent::decode(&raw, little, version);
        self.skip(u64::from(event.extra))?;
        event.event().map(Some).map_err(|what| self.malformed(what))
    }

    fn read(&mut self, raw: &mut [u8]) -> Result<(), TraceError> {
        self.input.bytes.read_exact(raw).map_err(|e| {
            self.ended = true;
            match e.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    self.malformed("the file was cut off within it".to_owned())
                }
                _ => TraceError::io(&self.input.name, e),
            }
        })
    }

    fn skip(&mut self, bytes: u64) -> Result<(), TraceError> {
        let mut extra = Read::take(&mut self.input.bytes, bytes);
        let skipped = std::io::copy(&mut extra, &mut std::io::sink());
        let skipped = skipped.map_err(|e| TraceError::io(&self.input.name, e))?;
        if skipped < bytes {
            self.ended = true;
            return Err(self.malformed("the file was cut off within it".to_owned()));
        }
        Ok(())
    }
}

/// The fields that matter.
struct RawEvent {
    time: u64,
    sector: u64,
    bytes: u32,
    action: u64,
    device: u32,
    extra: u16,
}

impl RawEvent {
    fn decode(raw: &[u8; EVENT2_BYTES], little: bool, version: u32) -> RawEvent {
        let word = |at: usize| {
            let bytes = raw[at..at + 4].try_into().expect("four bytes");
            if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) }
        };
        let long = |at: usize| {
            let bytes = raw[at..at + 8].try_into().expect("eight bytes");
            if little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
        };
        let short = |at: usize| {
            let bytes = [raw[at], raw[at + 1]];
            if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
        };
        let (action, device, extra) = match version {
            VERSION2 => (long(32), word(40), short(50)),
            _ => (word(28).into(), word(36), short(46)),
        };
        RawEvent { time: long(8), sector: long(16), bytes: word(24), action, device, extra }
    }

    fn event(&self) -> Result<Option<BlkEvent>, String> {
        let has = |category: u32| self.action & u64::from(category) != 0;
        if has(NOTIFY | PASS_THROUGH) || self.action & ZONES != 0 {
            return Ok(None);
        }
        let action = match self.action as u32 & 0xffff & !ACT_CGROUP {
            ACT_QUEUE => Action::Queue,
            ACT_ISSUE => Action::Issue,
            ACT_COMPLETE => Action::Complete,
            _ => return Ok(None),
        };
        let op = match () {
            () if has(DISCARD) => Some(RecordOp::Discard),
            () if has(WRITE) => Some(RecordOp::Write),
            () if has(READ) => Some(RecordOp::Read),
            () => None,
        };
        let rwbs = Rwbs { op, preflush: has(FLUSH), fua: has(FUA) };
        let sectors = u64::from(self.bytes).div_ceil(dcd_engine::SECTOR_BYTES);
        BlkEvent::of(action, (Nanos(self.time), DeviceId(self.device)), rwbs, (self.sector, sectors))
    }
}

struct Writer {
    out: Box<dyn Write>,
    completions: Completions,
    sequence: u32,
}

impl Writer {
    fn event(&mut self, action: u32, record: &Record) -> Result<(), TraceError> {
        self.sequence = self.sequence.wrapping_add(1);
        let category = match record.op {
            RecordOp::Read => READ,
            RecordOp::Write if record.fua => WRITE | FUA,
            RecordOp::Write => WRITE,
            RecordOp::Discard => DISCARD | WRITE,
            RecordOp::Flush => FLUSH | WRITE,
        };
        let bytes = u32::try_from(record.bytes()).map_err(|_| TraceError::Inexpressible {
            format: FORMAT.name,
            number: self.sequence.into(),
            what: format!("a request of {} bytes", record.bytes()),
            advice: "Leave it out with --sectors-max 8388607",
        })?;
        let mut raw = [0; EVENT_BYTES];
        raw[..4].copy_from_slice(&(MAGIC | VERSION).to_le_bytes());
        raw[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        raw[8..16].copy_from_slice(&record.at.0.to_le_bytes());
        raw[16..24].copy_from_slice(&record.extent.start.0.to_le_bytes());
        raw[24..28].copy_from_slice(&bytes.to_le_bytes());
        raw[28..32].copy_from_slice(&(action | category).to_le_bytes());
        raw[36..40].copy_from_slice(&record.device.0.to_le_bytes());
        self.out.write_all(&raw).map_err(|e| TraceError::io("output", e))
    }

    fn complete(&mut self, now: Option<u64>) -> Result<(), TraceError> {
        while let Some(done) = self.completions.next(now) {
            self.event(ACT_COMPLETE | COMPLETE, &done)?;
        }
        Ok(())
    }
}

impl WriteTrace for Writer {
    fn write(&mut self, record: &Record) -> Result<(), TraceError> {
        self.complete(Some(record.at.0))?;
        self.event(ACT_QUEUE | QUEUE, record)?;
        self.completions.add(record);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TraceError> {
        self.complete(None)?;
        self.out.flush().map_err(|e| TraceError::io("output", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, read, read_reader, written};

    fn raw(at: u64, sector: u64, bytes: u32, action: u32) -> Vec<u8> {
        let mut raw = vec![0; EVENT_BYTES];
        raw[..4].copy_from_slice(&0x6561_7407u32.to_le_bytes());
        raw[8..16].copy_from_slice(&at.to_le_bytes());
        raw[16..24].copy_from_slice(&sector.to_le_bytes());
        raw[24..28].copy_from_slice(&bytes.to_le_bytes());
        raw[28..32].copy_from_slice(&action.to_le_bytes());
        raw[36..40].copy_from_slice(&0x80_0010u32.to_le_bytes());
        raw
    }

    #[test]
    fn the_files_of_two_cpus_and_what_belongs_to_a_record() {
        let mut notify = raw(1, 0, 0, 0x0400_0000);
        notify[46] = 3;
        notify.extend(b"abc");
        let first = [notify, raw(10, 64, 4096, 0x0012_0001), raw(40, 128, 4096, 0x0011_0001)].concat();
        let second = raw(30, 64, 4096, 0x0082_0008);
        let mut reader = read_merged(vec![input("a", first), input("b", second)]);
        let records = read_reader(&mut *reader).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].op, records[0].response), (RecordOp::Write, Some(Nanos(20))));
        assert_eq!((records[0].extent.start.0, records[0].extent.sectors), (64, 8));
        assert_eq!(
            (records[1].op, records[1].response, records[1].device.0),
            (RecordOp::Read, None, 0x80_0010)
        );
    }

    #[test]
    fn requests_of_a_control_group_are_requests() {
        let mut write = raw(10, 64, 4096, 0x0012_0101);
        write[46] = 8;
        write.extend(77u64.to_le_bytes());
        let mut done = raw(30, 64, 4096, 0x0082_0108);
        done[46] = 8;
        done.extend(77u64.to_le_bytes());
        let records = read(&FORMAT, &[write, done].concat()).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].op, records[0].response), (RecordOp::Write, Some(Nanos(20))));
    }

    #[test]
    fn a_commit_is_a_flush_and_a_durable_write() {
        // FLUSH, FUA, SYNC, WRITE and QUEUE; its completion has no flush any more.
        let all =
            [raw(10, 64, 4096, 0x801e_0001), raw(20, 0, 0, 0x0084_0008), raw(30, 64, 4096, 0x808a_0008)];
        let records = read(&FORMAT, &all.concat()).unwrap();
        let short: Vec<_> = records.iter().map(|r| (r.op, r.fua, r.response)).collect();
        let flush = (RecordOp::Flush, false, Some(Nanos(10)));
        assert_eq!(short, [flush, (RecordOp::Write, true, Some(Nanos(20)))]);
    }

    /// Version 8, as Linux 6.19 has it: the process before the action, the action of eight bytes, twelve bytes of room.
    fn raw2(at: u64, sector: u64, bytes: u32, action: u64) -> Vec<u8> {
        let mut raw = vec![0; EVENT2_BYTES];
        raw[..4].copy_from_slice(&0x6561_7408u32.to_le_bytes());
        raw[8..16].copy_from_slice(&at.to_le_bytes());
        raw[16..24].copy_from_slice(&sector.to_le_bytes());
        raw[24..28].copy_from_slice(&bytes.to_le_bytes());
        raw[32..40].copy_from_slice(&action.to_le_bytes());
        raw[40..44].copy_from_slice(&0x80_0010u32.to_le_bytes());
        raw
    }

    #[test]
    fn version_8_is_read_and_zones_are_no_requests() {
        let mut first = raw2(10, 64, 4096, 0x0012_0101);
        first[50] = 8;
        first.extend(77u64.to_le_bytes());
        let reset = raw2(20, 1024, 0, 0x0002_0012_0001);
        let reset_zones = raw2(25, 1024, 0, (1 << 17 << 16) | 0x0012_0001);
        let all = [first, reset, reset_zones, raw2(30, 64, 4096, 0x0082_0008)].concat();
        assert_eq!(crate::recognise("test", &all).unwrap().name, "blktrace");
        let records = read(&FORMAT, &all).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!((records[0].op, records[0].response), (RecordOp::Write, Some(Nanos(20))));
        assert_eq!((records[0].extent.start.0, records[0].device.0), (64, 0x80_0010));
        let mut newer = all;
        newer[0] = 9;
        let error = read(&FORMAT, &newer).unwrap_err().to_string();
        assert!(error.contains("its version is 9; 7 and 8 are known"), "{error}");
    }

    #[test]
    fn the_other_byte_order_reads_the_same() {
        let record = Record::new(Nanos(1 << 40), DeviceId(0x80_0010), RecordOp::Write, 123_456, 8).unwrap();
        let mut bytes = written(&FORMAT, &[record]);
        for (at, width) in [(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4), (40, 4)] {
            bytes[at..at + width].reverse();
        }
        assert_eq!(read(&FORMAT, &bytes).unwrap(), [record]);
    }
}
