//! The workload: the requests of one device of a trace, in memory.

use std::collections::BTreeMap;

use dcd_engine::{Buf, Durability, Extent, Io, Lba, Nanos, SECTOR_BYTES};
use dcd_stack::HumanBytes;
use dcd_trace::{DeviceId, OverwriteDistances, ReadTrace, RecordOp, TraceError};

use crate::failure::Failure;

/// 32 bytes each: 0.6 GB. A longer trace says no more about a cache than a part of it.
const REQUESTS_MAX: usize = 20_000_000;
/// The blocks that the one pass over the trace follows, at most.
const BLOCKS_FOLLOWED: u64 = 1 << 22;
/// Devices in a message.
const LISTED_MAX: usize = 12;
const YEAR: Nanos = Nanos::from_secs(365 * 24 * 3600);
/// Longer than any trace; what is simulated after it still has times.
const SPAN_MAX: Nanos = Nanos(100 * YEAR.0);
/// A block where all requests are aligned to it.
const BLOCK_SECTORS: u64 = 8;
/// No client sends more data in a request: NBD and SCSI hosts allow 32 MiB at most. Traces count zeroes as writes.
const DATA_SECTORS_MAX: u32 = (32 << 20) / SECTOR_BYTES as u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Since the first.
    pub at: Nanos,
    pub start: u64,
    /// 0: a flush.
    pub sectors: u32,
    pub writes: bool,
    /// A write that must be durable when it is answered.
    pub fua: bool,
    /// Nanoseconds until the answer in the trace; 0: unknown.
    pub took: u64,
}

impl Request {
    /// A write without data: what it takes must not follow from how long it is.
    const fn zeroes(&self) -> bool {
        self.writes && self.sectors > DATA_SECTORS_MAX
    }

    pub const fn end(&self) -> u64 {
        self.start + self.sectors as u64
    }

    /// Extends the request to whole blocks of so many sectors.
    pub fn in_blocks(self, block: u64) -> Request {
        let start = self.start / block * block;
        // The longest request is as long as 32 bits have room for.
        let sectors = (self.end().next_multiple_of(block) - start).min(u64::from(u32::MAX) / block * block);
        Request { start, sectors: sectors as u32, ..self }
    }

    pub fn io(&self) -> Io {
        let durability = if self.fua { Durability::Durable } else { Durability::Volatile };
        if self.sectors == 0 {
            return Io::Flush;
        }
        if self.zeroes() {
            let extent = Extent::new(Lba(self.start), u64::from(self.sectors));
            return Io::WriteZeroes { extent, unmap: false, durability };
        }
        let (at, buf) = (Lba(self.start), Buf::blank(self.sectors as usize * SECTOR_BYTES as usize));
        match self.writes {
            true => Io::Write { at, buf, durability },
            false => Io::Read { at, buf },
        }
    }
}

/// Requests that are replayed.
#[derive(Debug)]
pub struct Workload {
    /// In the order of time.
    pub requests: Vec<Request>,
    /// Assumptions and omissions, for the report.
    pub notes: Vec<String>,
    /// The end of the highest request, in sectors.
    pub end: u64,
    /// Flushes, and writes with FUA.
    pub flushes: u64,
    pub writes: u64,
    /// The unit of a write cache: 4096 where everything is aligned to it, else 512.
    pub block_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A write cache for it is looked for: a device without writes has none.
    Tune,
    Replay,
}

/// Requests of one device, at the times of the trace.
#[derive(Default)]
struct Loaded {
    requests: Vec<Request>,
    writes: u64,
    discards: u64,
}

/// Every device of a trace. Where one is asked for, the others are only counted.
type Devices = BTreeMap<DeviceId, Loaded>;

/// The devices, for a message.
fn listed(devices: &Devices) -> String {
    let device = |(id, loaded): (&DeviceId, &Loaded)| match loaded.writes {
        0 => format!("{} (no writes)", id.0),
        writes => format!("{} ({writes} writes)", id.0),
    };
    let listed: Vec<String> = devices.iter().take(LISTED_MAX).map(device).collect();
    let more = devices.len().saturating_sub(LISTED_MAX);
    listed.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

fn refuse_without_writes(devices: &Devices, chosen: DeviceId) -> Result<(), Failure> {
    if devices.get(&chosen).is_some_and(|loaded| loaded.writes > 0) {
        return Ok(());
    }
    Err(Failure::Failed(match devices.values().any(|loaded| loaded.writes > 0) {
        false => "the trace has no writes: a write cache can do nothing for it".to_owned(),
        true => format!(
            "{chosen} has no writes: a write cache can do nothing for it. Name one that has with --device: {}",
            listed(devices)
        ),
    }))
}

fn load(reader: &mut dyn ReadTrace, device: Option<u32>, block_bytes: u32) -> Result<Devices, Failure> {
    let block = u64::from(block_bytes) / SECTOR_BYTES;
    let mut devices = Devices::new();
    let mut count = 0;
    while let Some(record) = reader.next_record()? {
        let of_it = devices.entry(record.device).or_default();
        of_it.writes += u64::from(record.op == RecordOp::Write);
        if device.is_some_and(|number| number != record.device.0) {
            continue;
        }
        if record.op == RecordOp::Discard {
            of_it.discards += 1;
            continue;
        }
        count += 1;
        if count > REQUESTS_MAX {
            return Err(Failure::Failed(format!(
                "the trace has more than {REQUESTS_MAX} requests: take a part of it (dcd trace cut --count, --start, --end)"
            )));
        }
        let sectors = u32::try_from(record.extent.sectors).expect("no request has more");
        let request = Request {
            at: record.at,
            start: record.extent.start.0,
            sectors,
            writes: record.op == RecordOp::Write,
            fua: record.fua,
            took: record.response.map_or(0, |response| response.0),
        };
        of_it.requests.push(request.in_blocks(block));
    }
    Ok(devices)
}

impl Workload {
    /// Reads a trace. `device`: which of its devices; else the one with the most requests.
    pub fn read(
        reader: &mut dyn ReadTrace,
        device: Option<u32>,
        block_bytes: u32,
        purpose: Purpose,
    ) -> Result<Workload, Failure> {
        let mut devices = load(reader, device, block_bytes)?;
        let mut notes: Vec<String> = reader.note().into_iter().collect();
        let chosen = match device {
            Some(number) => DeviceId(number),
            // The first of equals.
            None => match devices.iter().rev().max_by_key(|(_, loaded)| loaded.requests.len()) {
                Some((id, _)) => *id,
                None => return Err(TraceError::Other("the trace is empty".to_owned()).into()),
            },
        };
        if !devices.contains_key(&chosen) {
            return Err(Failure::Failed(format!("the trace has no {chosen}; it has {}", listed(&devices))));
        }
        if purpose == Purpose::Tune {
            refuse_without_writes(&devices, chosen)?;
        }
        if devices.len() > 1 && device.is_none() {
            notes.push(format!(
                "of {} devices, {chosen} was taken: it has the most requests (--device for another)",
                devices.len()
            ));
        }
        let loaded = devices.remove(&chosen).expect("it is there");
        if loaded.requests.is_empty() {
            return Err(Failure::Failed(format!(
                "{chosen} has nothing but discards: there is nothing to replay"
            )));
        }
        Workload::of(loaded, notes)
    }

    fn of(loaded: Loaded, mut notes: Vec<String>) -> Result<Workload, Failure> {
        let Loaded { mut requests, writes, discards } = loaded;
        if !requests.is_sorted_by_key(|request| request.at) {
            requests.sort_by_key(|request| request.at);
        }
        let first = requests.first().map_or(Nanos::ZERO, |request| request.at);
        requests.iter_mut().for_each(|request| request.at = request.at.since(first));
        let span = requests.last().map_or(Nanos::ZERO, |request| request.at);
        if span > SPAN_MAX {
            return Err(Failure::Failed(format!(
                "the trace spans {} years: a time in it is damaged, or of another unit. Name the format with --from, or leave \
                 what is wrong out (dcd trace cut --start, --end)",
                span.0 / YEAR.0
            )));
        }
        if discards > 0 {
            notes.push(format!("{discards} discards were left out: a modelled disk has none"));
        }
        let end = requests.iter().map(Request::end).max().unwrap_or(0);
        let bits = requests.iter().fold(0, |bits, request| bits | request.start | u64::from(request.sectors));
        let flushes = requests.iter().filter(|request| request.sectors == 0 || request.fua).count() as u64;
        let (zeroes, sectors) = requests
            .iter()
            .filter(|request| request.zeroes())
            .fold((0, 0), |(count, sectors), request| (count + 1, sectors + u64::from(request.sectors)));
        if zeroes > 0 {
            notes.push(format!(
                "{zeroes} writes of more than {}, {} together, are zeroes: no client sends so much data in a request",
                HumanBytes(u64::from(DATA_SECTORS_MAX) * SECTOR_BYTES),
                HumanBytes(sectors * SECTOR_BYTES)
            ));
        }
        let block_bytes = if bits.is_multiple_of(BLOCK_SECTORS) { 4096 } else { 512 };
        Ok(Workload { requests, notes, end, flushes, writes, block_bytes })
    }

    /// From the first request to the last.
    pub fn span(&self) -> Nanos {
        self.requests.last().map_or(Nanos::ZERO, |last| last.at)
    }

    /// Bytes that are written, or read.
    pub fn bytes(&self, writes: bool) -> u64 {
        let data = |request: &&Request| request.writes == writes && !request.zeroes();
        self.requests.iter().filter(data).map(|request| u64::from(request.sectors) * SECTOR_BYTES).sum()
    }

    /// Counts in one pass which written data an LRU cache of each size would absorb, in blocks of `block_bytes`.
    pub fn overwrites(&self) -> OverwriteDistances {
        let written = self.requests.iter().filter(|request| request.writes && !request.zeroes());
        let block = u64::from(self.block_bytes) / SECTOR_BYTES;
        let blocks = |request: &Request| request.start / block..request.end() / block;
        let all: u64 = written.clone().map(|request| blocks(request).end - blocks(request).start).sum();
        let mut distances =
            OverwriteDistances::new((all / BLOCKS_FOLLOWED).checked_ilog2().map_or(0, |b| b + 1));
        written.for_each(|request| blocks(request).for_each(|block| distances.write(block)));
        distances
    }
}

#[cfg(test)]
mod tests {
    use dcd_trace::Record;

    use super::*;

    fn read(records: Vec<Record>, device: Option<u32>, purpose: Purpose) -> Result<Workload, Failure> {
        Workload::read(&mut Given(records.into_iter()), device, 512, purpose)
    }

    fn record(ms: u64, op: RecordOp, start: u64, sectors: u64) -> Record {
        Record::new(Nanos::from_millis(ms), DeviceId(0), op, start, sectors).unwrap()
    }

    #[test]
    fn requests_are_in_order_and_count_from_the_first() {
        let records = vec![
            record(30, RecordOp::Read, 8, 8),
            record(10, RecordOp::Write, 16, 8),
            Record::flush(Nanos::from_millis(20), DeviceId(0)),
            record(25, RecordOp::Discard, 0, 8),
        ];
        let workload = read(records, None, Purpose::Tune).unwrap();
        let times: Vec<u64> = workload.requests.iter().map(|request| request.at.0 / 1_000_000).collect();
        assert_eq!(times, [0, 10, 20]);
        assert_eq!((workload.end, workload.flushes, workload.writes, workload.block_bytes), (24, 1, 1, 4096));
        assert!(workload.notes[0].contains("1 discards"));
        assert!(matches!(workload.requests[1].io(), Io::Flush));
        let durable = vec![record(10, RecordOp::Write, 16, 8).with_fua(true)];
        let workload = read(durable, None, Purpose::Tune).unwrap();
        let io = workload.requests[0].io();
        assert!(matches!(io, Io::Write { durability: Durability::Durable, .. }), "{io:?}");
        assert_eq!(workload.flushes, 1);
    }

    struct Given(std::vec::IntoIter<Record>);

    impl ReadTrace for Given {
        fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
            Ok(self.0.next())
        }
    }

    fn refused(records: Vec<Record>, device: Option<u32>) -> String {
        read(records, device, Purpose::Tune).unwrap_err().to_string()
    }

    #[test]
    fn a_device_without_writes_is_refused_and_those_with_writes_are_named() {
        assert!(refused(vec![record(0, RecordOp::Read, 0, 1)], None).contains("the trace has no writes"));
        let of = |number, record: Record| Record { device: DeviceId(number), ..record };
        let records = vec![
            record(0, RecordOp::Read, 0, 1),
            record(1, RecordOp::Read, 0, 1),
            of(7, record(2, RecordOp::Write, 0, 1)),
        ];
        for device in [None, Some(0)] {
            let said = refused(records.clone(), device);
            assert!(said.contains("device 0 has no writes") && said.contains("7 (1 writes)"), "{said}");
        }
        assert!(refused(records, Some(3)).contains("no device 3; it has 0 (no writes), 7 (1 writes)"));
    }

    #[test]
    fn times_of_centuries_are_refused() {
        let late = Record { at: Nanos(u64::MAX - 1), ..record(0, RecordOp::Write, 0, 8) };
        let said = refused(vec![record(0, RecordOp::Write, 0, 8), late], None);
        assert!(said.contains("spans 584 years"), "{said}");
    }
}
