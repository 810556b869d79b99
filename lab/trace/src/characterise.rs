//! Characterisation in one pass and bounded memory.
//!
//! Counts and distributions are streamed. Overwrites and working sets need the last access to each block ([`crate::history`]);
//! when there is more of that than may be held, it goes on with a half, chosen by a hash of the address, and each event
//! weighs twice as much from then on. So every figure stays an unbiased estimate.

use std::collections::BTreeMap;

use dcd_engine::{Nanos, SECTOR_BYTES};
use hdrhistogram::Histogram;

use crate::figures::{Blocks, Characteristics, Distribution, Figures, Requests};
use crate::history::{Histories, HistoryBlock};
use dcd_stack::{DeviceId, Record, RecordOp};

/// The figures of so many devices are kept apart; those of the others only in the total.
const DEVICES_MAX: usize = 64;
/// Points of a drawn distribution.
const POINTS_MAX: usize = 200;
/// Periods of the plot of activity; when they are full, each becomes twice as long.
const PERIODS: usize = 256;
/// An alignment of more than 1 MiB says nothing.
const ALIGN_BITS_MAX: u32 = 11;
const PERIOD_FIRST: Nanos = Nanos::from_millis(1);

/// Options of a characterisation.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs of blocks with one history that are followed at most, some 90 bytes each; None: no figures of blocks.
    pub blocks_max: Option<usize>,
    /// Assumed service time of requests without a response time.
    pub service: Nanos,
}

impl Options {
    /// 4 Mi: traces with up to two million requests are followed exactly, in at most 400 MB.
    pub const BLOCKS_MAX: usize = 4 << 20;
}

/// A distribution being measured. Exact up to 2047, and to three digits above.
struct Spread(Histogram<u64>, u128);

impl Default for Spread {
    fn default() -> Spread {
        Spread(Histogram::new(3).expect("three digits are allowed"), 0)
    }
}

impl Spread {
    fn add(&mut self, value: u64, weight: u64) {
        self.0.record_n(value, weight).expect("the histogram grows");
        self.1 = self.1.saturating_add(u128::from(value) * u128::from(weight));
    }

    fn distribution(&self) -> Distribution {
        let count = self.0.len();
        if count == 0 {
            return Distribution::default();
        }
        let steps: Vec<(u64, u64)> =
            self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_since_last_iteration())).collect();
        let every = steps.len().div_ceil(POINTS_MAX);
        let mut below = 0;
        let mut cumulative = Vec::new();
        for (index, &(value, n)) in steps.iter().enumerate() {
            below += n;
            if index % every == 0 || index + 1 == steps.len() {
                cumulative.push((value as f64, below as f64 / count as f64));
            }
        }
        let at = |quantile| self.0.lowest_equivalent(self.0.value_at_quantile(quantile));
        Distribution {
            count,
            mean: self.1 as f64 / count as f64,
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: self.0.max(),
            cumulative,
        }
    }
}

/// Reads, or writes.
#[derive(Default)]
struct Kind {
    bytes: u64,
    sizes: Spread,
    responses: Spread,
}

impl Kind {
    fn add(&mut self, record: &Record) {
        self.bytes += record.bytes();
        self.sizes.add(record.bytes(), 1);
        if let Some(response) = record.response {
            self.responses.add(response.0, 1);
        }
    }

    fn requests(&self) -> Requests {
        let response = self.responses.distribution();
        Requests {
            count: self.sizes.0.len(),
            bytes: self.bytes,
            size_bytes: self.sizes.distribution(),
            response_ns: (response.count > 0).then_some(response),
        }
    }
}

/// Weighed counts of sectors.
#[derive(Default)]
struct Sectors {
    touched: u64,
    read_first: u64,
    written_first: u64,
    rewritten_first: u64,
    written: u64,
    overwriting: u64,
    read: u64,
    read_after_write: u64,
    read_again: u64,
    overwrite_ios: Spread,
    overwrite_ns: Spread,
    read_after_write_ios: Spread,
    read_again_ios: Spread,
}

impl Sectors {
    fn blocks(&self) -> Blocks {
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        Blocks {
            touched_bytes: self.touched.saturating_mul(SECTOR_BYTES),
            read_bytes: self.read_first.saturating_mul(SECTOR_BYTES),
            written_bytes: self.written_first.saturating_mul(SECTOR_BYTES),
            overwrite_share: share(self.overwriting, self.written),
            rewritten_blocks_share: share(self.rewritten_first, self.written_first),
            overwrite_interval_ios: self.overwrite_ios.distribution(),
            overwrite_interval_ns: self.overwrite_ns.distribution(),
            read_after_write_share: share(self.read_after_write, self.read),
            read_after_write_interval_ios: self.read_after_write_ios.distribution(),
            read_again_share: share(self.read_again, self.read),
            read_again_interval_ios: self.read_again_ios.distribution(),
        }
    }
}

/// Measurements of a device, or of all.
#[derive(Default)]
struct Measured {
    reads: Kind,
    writes: Kind,
    discards: u64,
    flushes: u64,
    fua: u64,
    ios: u64,
    first: Nanos,
    last: Nanos,
    busy_until: Nanos,
    unanswered: u64,
    out_of_order: u64,
    lba_end: u64,
    /// Every bit that is set in an address or a size.
    address_bits: u64,
    interarrival: Spread,
    idle: Spread,
    sequential: u64,
    next: u64,
    sectors: Sectors,
}

impl Measured {
    fn new(first: Nanos) -> Measured {
        Measured { first, last: first, busy_until: first, next: u64::MAX, ..Measured::default() }
    }

    fn follows(&self, record: &Record) -> bool {
        record.extent.start.0 == self.next
    }

    fn add(&mut self, record: &Record, sequential: bool, service: Nanos) {
        if self.ios > 0 {
            self.interarrival.add(record.at.since(self.last).0, 1);
        }
        self.ios += 1;
        self.out_of_order += u64::from(record.at < self.last);
        if record.at > self.busy_until {
            self.idle.add(record.at.since(self.busy_until).0, 1);
        }
        let takes = record.response.unwrap_or(service);
        self.busy_until = self.busy_until.max(record.at.saturating_add(takes));
        self.last = self.last.max(record.at);
        self.unanswered += u64::from(record.response.is_none());
        self.lba_end = self.lba_end.max(record.extent.end().0);
        self.address_bits |= record.extent.start.0 | record.extent.sectors;
        self.fua += u64::from(record.fua);
        match record.op {
            RecordOp::Read => self.reads.add(record),
            RecordOp::Write => self.writes.add(record),
            RecordOp::Discard => self.discards += 1,
            RecordOp::Flush => self.flushes += 1,
        }
        if matches!(record.op, RecordOp::Read | RecordOp::Write) {
            self.sequential += u64::from(sequential);
            self.next = record.extent.end().0;
        }
    }

    fn figures(&self, device: Option<u32>, blocks: bool) -> Figures {
        let (reads, writes) = (self.reads.requests(), self.writes.requests());
        let data = (reads.count + writes.count).max(1) as f64;
        let span = self.busy_until.max(self.last).since(self.first).0.max(1) as f64;
        Figures {
            device,
            discards: self.discards,
            flushes: self.flushes,
            fua: self.fua,
            seconds: self.last.since(self.first).as_secs_f64(),
            out_of_order: self.out_of_order,
            lba_end: self.lba_end,
            align_sectors: 1 << self.address_bits.trailing_zeros().min(ALIGN_BITS_MAX),
            interarrival_ns: self.interarrival.distribution(),
            idle_ns: self.idle.distribution(),
            busy_share: 1.0 - self.idle.1 as f64 / span,
            response_unknown_share: self.unanswered as f64 / self.ios.max(1) as f64,
            sequential_share: self.sequential as f64 / data,
            blocks: blocks.then(|| self.sectors.blocks()),
            reads,
            writes,
        }
    }
}

/// Reads a second and writes a second over time, in periods that grow with the trace.
struct Activity {
    period: Nanos,
    counts: Vec<(u64, u64)>,
}

impl Activity {
    fn add(&mut self, since: Nanos, op: RecordOp) {
        let mut index = (since.0 / self.period.0) as usize;
        while index >= PERIODS {
            self.counts = self
                .counts
                .chunks(2)
                .map(|two| two.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1)))
                .collect();
            self.period = Nanos(self.period.0 * 2);
            index = (since.0 / self.period.0) as usize;
        }
        if self.counts.len() <= index {
            self.counts.resize(index + 1, (0, 0));
        }
        match op {
            RecordOp::Read => self.counts[index].0 += 1,
            RecordOp::Write => self.counts[index].1 += 1,
            RecordOp::Discard | RecordOp::Flush => {}
        }
    }

    fn points(&self) -> Vec<(f64, f64, f64)> {
        let seconds = self.period.as_secs_f64();
        let point = |(index, &(reads, writes)): (usize, &(u64, u64))| {
            (index as f64 * seconds, reads as f64 / seconds, writes as f64 / seconds)
        };
        self.counts.iter().enumerate().map(point).collect()
    }
}

/// Takes the records of a trace, in order, and has its figures at the end.
pub struct Characteriser {
    options: Options,
    all: Option<Measured>,
    devices: BTreeMap<DeviceId, Measured>,
    histories: Histories,
    activity: Activity,
}

impl Characteriser {
    pub fn new(options: Options) -> Characteriser {
        Characteriser {
            options,
            all: None,
            devices: BTreeMap::new(),
            histories: Histories::new(options.blocks_max.unwrap_or(0)),
            activity: Activity { period: PERIOD_FIRST, counts: Vec::new() },
        }
    }

    pub fn add(&mut self, record: &Record) {
        let all = self.all.get_or_insert_with(|| Measured::new(record.at));
        self.activity.add(record.at.since(all.first), record.op);
        let room = self.devices.len() < DEVICES_MAX;
        let device = match self.devices.get_mut(&record.device) {
            None if room => {
                Some(self.devices.entry(record.device).or_insert_with(|| Measured::new(record.at)))
            }
            known => known,
        };
        let service = self.options.service;
        match device {
            Some(device) => {
                let sequential = device.follows(record);
                device.add(record, sequential, service);
                all.add(record, sequential, service);
            }
            None => all.add(record, false, service),
        }
        if self.options.blocks_max.is_some() && matches!(record.op, RecordOp::Read | RecordOp::Write) {
            self.add_blocks(record);
        }
    }

    fn add_blocks(&mut self, record: &Record) {
        let all = self.all.as_mut().expect("it was made for the first record");
        let mut device = self.devices.get_mut(&record.device);
        let now = device.as_ref().map_or(all.ios, |device| device.ios);
        let after = |before: &HistoryBlock| {
            let touches = before.touches.saturating_add(1);
            match record.op {
                RecordOp::Read => HistoryBlock { read: now, touches, ..*before },
                _ => {
                    let rewritten = before.written > 0;
                    HistoryBlock { written: now, written_at: record.at, touches, rewritten, ..*before }
                }
            }
        };
        let range = (record.extent.start.0, record.extent.end().0);
        self.histories.touch(record.device, range, after, |before, sectors| {
            for measured in [Some(&mut *all), device.as_deref_mut()].into_iter().flatten() {
                measured.sectors.add(record, before, now, sectors);
            }
        });
    }

    pub fn finish(self) -> Characteristics {
        let with_blocks = self.options.blocks_max.is_some();
        let all = self.all.as_ref().map(|all| all.figures(None, with_blocks)).unwrap_or_default();
        let figures = |(id, measured): (&DeviceId, &Measured)| measured.figures(Some(id.0), with_blocks);
        Characteristics {
            all,
            devices: self.devices.iter().map(figures).collect(),
            sampled_one_in: self.histories.one_in(),
            hottest: self.hottest(),
            activity: self.activity.points(),
            assumed_service_ns: self.options.service.0,
        }
    }

    fn hottest(&self) -> Option<[f64; 3]> {
        let mut touched: Vec<(u32, u64)> =
            self.histories.all().map(|(block, sectors)| (block.touches, sectors)).collect();
        touched.sort_unstable_by(|a, b| b.cmp(a));
        let blocks: u64 = touched.iter().map(|&(_, sectors)| sectors).sum();
        let accesses = |&(touches, sectors): &(u32, u64)| f64::from(touches) * sectors as f64;
        let total: f64 = touched.iter().map(accesses).sum();
        let share = |percent: u64| {
            let mut left = (u128::from(blocks) * u128::from(percent)).div_ceil(100) as u64;
            let mut hot = 0.0;
            for &(touches, sectors) in &touched {
                let taken = sectors.min(left);
                hot += accesses(&(touches, taken));
                left -= taken;
            }
            hot / total
        };
        (total > 0.0).then(|| [share(1), share(10), share(20)])
    }
}

impl Sectors {
    /// Counts so many sectors of a request that is number `now` of its device; `before` is their history.
    fn add(&mut self, record: &Record, before: &HistoryBlock, now: u64, weight: u64) {
        let first = |never: bool| if never { weight } else { 0 };
        // No trace comes near to that many; a damaged one may claim it.
        let count = |total: &mut u64, more: u64| *total = total.saturating_add(more);
        count(&mut self.touched, first(before.touches == 0));
        if record.op == RecordOp::Read {
            count(&mut self.read, weight);
            count(&mut self.read_first, first(before.read == 0));
            if before.written > 0 {
                count(&mut self.read_after_write, weight);
                self.read_after_write_ios.add(now - before.written, weight);
            }
            if before.read > before.written {
                count(&mut self.read_again, weight);
                self.read_again_ios.add(now - before.read, weight);
            }
            return;
        }
        count(&mut self.written, weight);
        count(&mut self.written_first, first(before.written == 0));
        if before.written > 0 {
            count(&mut self.overwriting, weight);
            count(&mut self.rewritten_first, first(!before.rewritten));
            self.overwrite_ios.add(now - before.written, weight);
            self.overwrite_ns.add(record.at.since(before.written_at).0, weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(records: &[(u64, RecordOp, u64, u64)], blocks_max: usize) -> Characteristics {
        let mut characteriser =
            Characteriser::new(Options { blocks_max: Some(blocks_max), service: Nanos::ZERO });
        for &(ms, op, start, sectors) in records {
            let record = Record::new(Nanos::from_millis(ms), DeviceId(0), op, start, sectors).unwrap();
            characteriser.add(&record.answered_after(Some(Nanos::from_millis(5))));
        }
        characteriser.finish()
    }

    #[test]
    fn a_trace_counted_by_hand() {
        use RecordOp::{Read, Write};
        let figures = of(
            &[
                (0, Write, 0, 8),
                (10, Read, 8, 8),
                (20, Write, 0, 4),
                (23, Read, 0, 8),
                (100, Write, 0, 2),
                (110, Read, 8, 4),
            ],
            1000,
        );
        let all = &figures.all;
        let blocks = all.blocks.as_ref().unwrap();
        assert_eq!((all.reads.count, all.reads.bytes, all.writes.bytes), (3, 20 * 512, 14 * 512));
        assert_eq!(blocks.overwrite_share, 6.0 / 14.0);
        assert_eq!(blocks.rewritten_blocks_share, 4.0 / 8.0);
        // Four sectors after two requests, and two of them again after two.
        assert_eq!((blocks.overwrite_interval_ios.count, blocks.overwrite_interval_ios.mean), (6, 2.0));
        assert_eq!(blocks.read_after_write_share, 8.0 / 20.0);
        assert_eq!(blocks.read_again_share, 4.0 / 20.0);
        assert_eq!((blocks.touched_bytes, blocks.written_bytes), (16 * 512, 8 * 512));
        // Only the first read begins where the request before it ended.
        assert_eq!(all.sequential_share, 1.0 / 6.0);
        // Idle 5..10, 15..20, 28..100, 105..110; the last answer is at 115.
        assert_eq!((all.idle_ns.count, all.idle_ns.mean), (4, 87e6 / 4.0));
        assert!((all.busy_share - 28.0 / 115.0).abs() < 1e-12);
        assert_eq!(figures.sampled_one_in, 1);
    }

    #[test]
    fn sampling_keeps_the_shares_and_bounds_the_memory() {
        let mut records = Vec::new();
        for pass in 0..4u64 {
            records.extend((0..20_000u64).map(|i| (pass * 20_000 + i, RecordOp::Write, i * 160, 16)));
        }
        let exact = of(&records, 1 << 20);
        let sampled = of(&records, 5_000);
        assert!(exact.sampled_one_in == 1 && sampled.sampled_one_in >= 4, "{}", sampled.sampled_one_in);
        let (exact, sampled) = (exact.all.blocks.unwrap(), sampled.all.blocks.unwrap());
        assert_eq!(exact.overwrite_share, 0.75);
        assert!((sampled.overwrite_share - 0.75).abs() < 0.03, "{}", sampled.overwrite_share);
        assert_eq!(sampled.overwrite_interval_ios.median, exact.overwrite_interval_ios.median);
        let ratio = sampled.touched_bytes as f64 / exact.touched_bytes as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn requests_of_terabytes_are_counted_exactly() {
        let tib = 1 << 31;
        let figures = of(
            &[(0, RecordOp::Write, 0, tib), (1, RecordOp::Write, tib / 2, tib), (2, RecordOp::Read, 0, tib)],
            1000,
        );
        let blocks = figures.all.blocks.unwrap();
        assert_eq!((figures.sampled_one_in, blocks.overwrite_share), (1, 0.25));
        assert_eq!((blocks.touched_bytes, blocks.read_after_write_share), (3 << 39, 1.0));
        // Of three halves of a TiB, they have two, three and one access: six in all.
        let [_, _, twenty] = figures.hottest.unwrap();
        assert!((twenty - 0.2 * 3.0 * 3.0 / 6.0).abs() < 1e-6, "{twenty}");
    }
}
